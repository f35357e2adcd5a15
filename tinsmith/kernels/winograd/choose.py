"""Chooses Winograd algorithms: which fit a convolution, how each is cut into blocks of tiles, and
what it costs.

F(m, r) computes m results of r taps; `rows` is that of the vertical axis, `cols` of the horizontal
one. U are the transformed weights, V the transformed data, M their products. A position is one
element of the transform domain (`tiling.py` has the layouts).

The transforms are bound by loads and stores: copies alone take as long. Tried without gain: other
strides between positions of V and M, a tile's positions side by side, huge pages, and transforming
the next block between the products of the current one.

A slot is the time in which a core issues one multiply-add of vectors. `python -m benchmarks.micro
--only winograd` prints the estimate beside the time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.target import Target, foreign_time, overlap
from tinsmith.conditions import cached
from tinsmith.kernels.amx.tiling import slots as product_slots
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.narrow import TOGETHER, unpacking
from tinsmith.kernels.sharing import uneven
from tinsmith.kernels.window.geometry import Geometry, triple
from tinsmith.kernels.window.weights import channel_blocks
from tinsmith.kernels.winograd.fetch import is_far
from tinsmith.kernels.winograd.matrices import Bilinear, bilinear, supported, with_whole_taps
from tinsmith.kernels.winograd.program import data_program, result_program
from tinsmith.kernels.winograd.taps import MOST_SUMS, channels_together, tap_operations
from tinsmith.kernels.winograd.tiling import Partition, WinogradPlan
from tinsmith.kernels.winograd.weights import packed_bytes
from tinsmith.sizes import Size, typical

GROWTH = {"exact": 0.0, "strict": 8.0, "default": 1000.0, "bfloat16": 1000.0,
          "split": 25.0}  # fmt: skip
"""The largest error growth (`Bilinear.growth` of rows times that of columns) allowed at each
precision. F(2x2,3x3) has 7.1, F(2x4,3x3) 24.4, F(6x6,3x3) 924. "split" is split precision
(bfloat16 hi and lo parts), in which F(2x4,3x3) is about as exact as F(6x6,3x3) is in float32
(measured errors: docs/numerics.md)."""
STEEPEST = {"split": 9.2}
"""The largest error growth allowed of either axis alone. F(4,3) has 9.1; F(5,3) and F(4,5), which
have 21 and 24, leave twice the error of F(2x4,3x3) in split precision."""
LARGEST = 7
"""The most results along one axis of a tile that are considered. Estimated."""
MOST_PRODUCTS = 9
"""The most positions along one axis of a tile that are considered. Estimated."""
LEAST_GAIN = 1.15
"""The least factor by which an algorithm must reduce multiplications (`gain`). Estimated."""
EFFICIENCY = 0.95
"""The share of the multiply-add peak that the products reach. Estimated."""
MAKING = (0.87, 0.63)
"""The same share where weights are transformed from taps in each run, for cores with one and with
two pipes (`Target.pipes`): loads and stores of sums compete with the multiply-adds. Set on Zen 4;
docs/kernels.md has the times."""
FILLED, CROWDING = 0.6, 0.3
"""If the weights and a block's V, M, input and results take more than the share FILLED of L2, by a
factor x, then CROWDING * log(x) of V and M is evicted: pages lie anywhere, so that some cache sets
are full before others. Estimated."""
MOST_REREAD = 0.5
"""A share of L2. In split precision each panel reads one position of V; with weights made of taps,
each block of outputs reads all of V. If V, or its position, is larger than this share, it is read
from L3 each time. Other products take long enough to hide these reads. Estimated."""
MOST_SHARE = 1 / 3
"""The largest share of a block's tiles that may read the same input element: if more did, a large
element would raise the block's typical size, and no tile would stand out (`outliers.py`). An
element S times as large as the others is found if S > RATIO ** (1 / (1 - share)), which is 1,400 at
1/3; a smaller one disturbs other windows by at most 3e-2 of their root mean square
(docs/numerics.md). Blocks of the whole input, and blocks with one tile less, may exceed it."""
EXPOSED = 0.35
"""The share of the time of reading weights from L3 that prefetching does not hide. Set on Zen 4;
the command was not recorded."""
TURNING = 0.03
"""The share of time that is added for blocks of about a row of tiles that begin in one row and end
in the next, where hardware prefetches miss. Set on Zen 4; the command was not recorded."""
SPLITTING = 16.0
"""Instructions that split one vector into bfloat16 hi and lo parts and store them. Estimated."""
ARRIVING, SHORTEST = 3.0, 5.0
"""Slots that one vector of weights takes to arrive from L2, and the fewest slots of one step of a
register tile, on cores that issue one multiply-add a cycle. Measured on Zen 4 with AVX-512; the
command was not recorded."""
APART, STARTING = 11, 3.0
"""On the same cores, register tiles of more than APART accumulators do not overlap with the next
tile: each accumulator beyond takes STARTING slots to load and store. Measured as the above."""
TRANSFORMING = 0.75
"""Slots of one instruction, load or store of a transform. Estimated."""
BEYOND_L2, BEYOND_L3 = 1.15, 1.5
"""The factors on the time of transforms if input and results exceed L2, and L3. Estimated."""


@cached(1024)
def algorithms(geo: Geometry, precision: str) -> Sequence[tuple[Bilinear, Bilinear]]:
    """The pairs of algorithms (vertical, horizontal) that `precision` allows (GROWTH) and that are
    worth comparing: square tiles, and others that need fewer products in all. No tile is larger
    than the output."""
    found: dict[tuple[Bilinear, Bilinear], int] = {}
    apart = [-(-n // gap) for n, gap in zip(geo.out[1:], geo.dilation[1:], strict=True)]
    axes = list(zip(apart, geo.kernel[1:], geo.stride[1:], strict=True))
    sizes = sorted(itertools.product(range(2, LARGEST + 1), repeat=2), key=lambda s: s[0] != s[1])
    for size in sizes:
        if not all(supported(m, r, stride) for m, (_, r, stride) in zip(size, axes, strict=True)):
            continue
        rows, cols = (
            bilinear(min(m, out) if taps > 1 else 1, taps, stride)
            for m, (out, taps, stride) in zip(size, axes, strict=True)
        )
        steepest = max(rows.growth, cols.growth)
        exact = rows.growth * cols.growth <= GROWTH[precision]
        exact &= steepest <= STEEPEST.get(precision, steepest)
        small = max(rows.products, cols.products) <= MOST_PRODUCTS
        tiles = -(-apart[0] // rows.m) * -(-apart[1] // cols.m)
        products = tiles * rows.products * cols.products
        fewer = size[0] == size[1] or products < min(found.values(), default=products)
        if exact and small and fewer and gain(rows, cols) > LEAST_GAIN:
            found.setdefault((rows, cols), products)
    return tuple(found)


def gain(rows: Bilinear, cols: Bilinear) -> float:
    """How many times fewer multiplications a tile takes by the algorithms `rows` and `cols` than by
    the definition."""
    return rows.m * rows.r * cols.m * cols.r / (rows.products * cols.products)


@cached(1024)
def best_plan(
    target: Target, geo: Geometry, rows: Bilinear, cols: Bilinear, threads: int = 1,
    split: bool = False, words: bool = False,
) -> tuple[WinogradPlan, float]:  # fmt: skip
    """The cheapest plan of a convolution for an algorithm (`rows`, `cols`), and its estimated
    seconds (`cost`). `split`: products are in split precision; `words`: weights have 24 bits."""
    width = block_of(target)
    blocks = channel_blocks(geo.channels, width)
    draft = WinogradPlan(
        geo, rows, cols, width, blocks, tiles=1, blocks=1, vectors=1, micro=Partition(1, 1),
        whole=False, split=split, words=words,
    )  # fmt: skip
    candidates = []
    for count in _counts(target, draft):
        tiles = -(-draft.total // count)
        if split:
            vectors, micro, slots = matrix_tiles(tiles, draft)
        else:
            vectors, micro, slots = register_tiles(target, tiles, draft.outputs, draft.depth, words)
        plan = replace(
            draft, tiles=tiles, blocks=count, vectors=vectors, micro=micro, whole=count == 1
        )
        if plan.seen_share <= MOST_SHARE or plan.whole:
            candidates.append((cost(target, plan, slots, threads), plan.tiles, plan))
    seconds, _, best = min(candidates, key=lambda c: c[:2])
    return best, seconds


def typical_geometry(geo: Geometry) -> Geometry:
    """The same convolution with the example's numbers for sizes that only a call tells."""
    if not is_free(geo):
        return geo
    triples = {name: triple(list(map(typical, getattr(geo, name)))) for name in SPATIAL}
    return replace(geo, batch=typical(geo.batch), most_after=None, **triples)


SPATIAL = ("size", "out", "begin")
"""The fields of a Geometry that may hold sizes which only a call tells."""


def is_free(geo: Geometry) -> bool:
    """Whether only a call tells some size, that of the batch included."""
    return geo.is_free or isinstance(geo.batch, Size)


def without_sizes(plan: WinogradPlan) -> WinogradPlan:
    """The same plan with the example's numbers for sizes that only a call tells: packed arrays,
    which depend on no such size, are made from it."""
    if not plan.is_free:
        return plan
    return replace(plan, geo=typical_geometry(plan.geo), blocks=typical(plan.blocks))


def free_plan(
    target: Target, geo: Geometry, rows: Bilinear, cols: Bilinear, threads: int
) -> tuple[WinogradPlan, float]:
    """A plan for sizes that only a call tells, cut as is best for the example's sizes, and its
    seconds for these. If a call has several blocks, each has at least half of the plan's `tiles`:
    enough for `MOST_SHARE`."""
    draft, _ = best_plan(target, typical_geometry(geo), rows, cols, threads)
    seen = replace(draft, geo=geo).seen
    tiles = max(draft.tiles, 2 * math.ceil(seen / MOST_SHARE))
    vectors, micro, slots = register_tiles(target, tiles, draft.outputs, draft.depth)
    plan = replace(draft, tiles=tiles, vectors=vectors, micro=micro, whole=False)
    plan = replace(plan, blocks=-(-plan.total // tiles))
    each = -(-plan.total // plan.blocks)
    plan = replace(plan, micro=Partition(-(-each // micro.size), micro.size))
    seconds = cost(target, plan, slots * each / tiles, threads)
    free = replace(plan, geo=geo)
    return replace(free, blocks=-(-free.total // tiles)), seconds


@cached(1024)
def taps_plan(
    target: Target, geo: Geometry, rows: Bilinear, cols: Bilinear, threads: int
) -> tuple[WinogradPlan, float] | None:
    """The plan of an algorithm whose weights are kept as taps, and its estimated seconds (`cost`);
    None if it needs more accumulators than `taps.MOST_SUMS`."""
    width = block_of(target)
    plan = WinogradPlan(
        geo, with_whole_taps(rows), with_whole_taps(cols), width,
        channel_blocks(geo.channels, width), tiles=1, blocks=1, vectors=1, micro=Partition(1, 1),
        whole=True, channels_together=channels_together(target),
    )  # fmt: skip
    plan = replace(plan, tiles=plan.total)
    if plan.positions * plan.tiles > MOST_SUMS:
        return None
    slots = plan.outputs * (plan.tiles + tap_operations(plan) / plan.positions)
    return plan, cost(target, plan, slots / MAKING[target.pipes - 1], threads)


def _counts(target: Target, draft: WinogradPlan) -> set[int]:
    """The numbers of blocks that are worth considering for `draft`, a plan whose blocks are not
    chosen yet:

    - one block, and one for each image, if V and M of a block then fit the caches;
    - so many that V and M of a block fill one of several shares of L2. Blocks are then whole rows
      of tiles, equal parts of a row, equal parts of all tiles, or, in split precision, whole pairs
      of matrix registers;
    - the most that `MOST_SHARE` allows.
    """
    per_tile = 4 * draft.positions * draft.width * (draft.channels.count + draft.outputs)
    room = max(4 * target.l2, target.l3 // 4)
    found = {n for n in (1, draft.geo.batch) if per_tile * draft.total <= room * n}
    # Shares of L2. The least is four tiles of 32 channels in 1 MiB.
    for share in (0.065, 0.13, 0.25, 0.4, 0.6, 0.8, 1.1, 1.5):
        most = max(min(4, draft.total), int(target.l2 * share) // per_tile)
        if most >= draft.across:
            count = -(-draft.lines // (most // draft.across))
        else:
            count = draft.lines * -(-draft.across // most)
        found |= {count, -(-draft.total // most), min(count + count % 2, draft.total)}
        if draft.split and most >= 2 * SIDE:
            found.add(-(-draft.total // (most // (2 * SIDE) * 2 * SIDE)))
    least = int(replace(draft, tiles=draft.total).seen / MOST_SHARE) + 1
    return found | {max(1, draft.total // least)}


@cached(4096)
def register_tiles(
    target: Target, tiles: int, outputs: int, depth: int, words: bool = False
) -> tuple[int, Partition, float]:
    """The cheapest register tiling of a block of `tiles` tiles: the vectors of output channels of a
    panel, how the tiles are cut into register tiles, and the block's slots for one input channel at
    one position. `outputs`: output blocks; `depth`: input channels; `words`: slots that unpack
    24-bit weights are included."""
    found: list[tuple[int, Partition, float]] = []
    # The most accumulators, and registers beside them for a panel's weights. The factors below are
    # the loads of data, for each vector of a panel, and a narrower last panel. Estimated.
    most, spare = (26, 4) if target.registers >= 32 else (12, 2) if target.has_fma else (6, 2)
    for vectors in range(1, min(outputs, 6) + 1):
        size = min(most, most + spare - vectors) // vectors
        if words:
            size = min(size, (target.registers - 1 - TOGETHER * vectors) // vectors)
        if size < 1:
            break
        count = -(-tiles // size)
        micro = Partition(count, -(-tiles // count))
        slots = 0.0
        for panels, n in ((outputs // vectors, vectors), (1, outputs % vectors)):
            if n and panels:
                larger = micro.larger(tiles)
                slots += panels * larger * _slots(target, micro.size, n, depth)
                slots += panels * (count - larger) * _slots(target, micro.size - 1, n, depth)
                slots += panels * count * n * unpacking(target) * words
        slots *= 1 + 0.03 / vectors + 0.02 * bool(outputs % vectors and outputs > vectors)
        found.append((vectors, micro, slots / EFFICIENCY))
    return min(found, key=lambda tiling: tiling[2])


def matrix_tiles(tiles: int, draft: WinogradPlan) -> tuple[int, Partition, float]:
    """What `register_tiles` returns, (vectors, cut of the tiles, slots), for matrix registers,
    which hold 16 tiles or 16 output channels each."""
    count = -(-tiles // SIDE)
    slots = product_slots(replace(draft, tiles=tiles).product) / draft.depth
    return min(2, draft.outputs), Partition(count, -(-tiles // count)), slots


def _slots(target: Target, tiles: int, vectors: int, depth: int) -> float:
    """The slots of one step (one input channel) of a register tile of `tiles` tiles by `vectors`
    vectors of output channels, with 1 / `depth` of those that start and store its sums."""
    done = tiles * vectors
    if target.pipes == 1:
        start = STARTING * max(0, done - APART)
        return max(done, ARRIVING * vectors, SHORTEST) + start / depth
    # Two pipes: data and weights are loaded; a step takes `least` at least; 20 slots for a tile and
    # 1.5 for each accumulator start and store it. Estimated.
    least = 10.0 if target.has_fma else 8.0
    return max(done, 1.0 * (tiles + vectors), least) + (20 + 1.5 * done) / depth


def cost(target: Target, plan: WinogradPlan, slots: float, threads: int = 1) -> float:
    """The estimated seconds of a plan on one core; with several threads, the busiest thread's times
    `threads`. `slots`: of a block, as `register_tiles` returns them. For its first block each
    thread reads weights from memory."""
    issue = 2.0 * plan.width / target.peak
    products = slots * plan.positions * plan.depth * issue
    weights = float(packed_bytes(plan))
    if weights + 4 * plan.size > target.l3:
        again = weights / target.weights_rate()
    elif weights + 4 * plan.size > target.l2:
        again = EXPOSED * weights / target.l3_bandwidth
    else:
        again = 0.0
    filled = (weights + 4 * plan.size + plan.nbytes / plan.blocks) / target.l2
    missed = min(1.0, max(0.0, CROWDING * math.log(filled / FILLED)))
    total = missed * 8.0 * plan.size * plan.blocks / target.l3_bandwidth
    read = plan.m_start if plan.of_taps else plan.v_step * plan.split
    if 4 * read > MOST_REREAD * target.l2:
        total += 4.0 * plan.m_start * (plan.panels - 1) * plan.blocks / target.l3_bandwidth
    total += transforms(target, plan) * issue
    if plan.whole:  # the transform with fewer units of work stands for both
        total *= uneven(plan.lines * min(plan.groups, plan.outputs), threads)
        products *= uneven(plan.units, threads)
        total += overlap(products, weights / target.weights_rate(threads))
        total += 2 * target.wait + foreign_time(target, 4 * _foreign(plan, threads))
    else:
        most = -(-plan.blocks // threads)  # blocks of the busiest thread
        total *= uneven(plan.blocks, threads)
        total += threads * overlap(products, weights / target.weights_rate())
        total += threads * (most - 1) * overlap(products, again)
    if plan.blocks % plan.lines and plan.lines % plan.blocks and is_far(target, plan.nbytes):
        total *= 1 + TURNING * min(1.0, plan.tiles / plan.across)
    return total


def _foreign(plan: WinogradPlan, threads: int) -> float:
    """How many elements of V and M threads read that others have written, in a `whole` plan. If
    threads share output blocks (`of_taps`), all read all of V."""
    others = threads - 1
    if plan.of_taps:
        return others * (plan.m_start + (plan.size - plan.m_start) / threads)
    return others * plan.size / threads


def transforms(target: Target, plan: WinogradPlan) -> float:
    """The slots that the transforms of data and results of all tiles take; more if input and
    results exceed L2 or L3."""
    rows, cols = plan.rows, plan.cols
    strip = min(plan.strip(target.l1), plan.tiles)
    into = data_program(rows).operations * (cols.reach - plan.column_overlap * (1 - 1 / strip))
    into += data_program(cols).operations * rows.products
    back = result_program(rows).operations * cols.products
    back += result_program(cols).operations * rows.m
    into += (2 + SPLITTING * plan.split) * plan.positions
    back += plan.positions + 2 * rows.m * cols.m
    away = BEYOND_L3 if plan.nbytes > target.l3 else BEYOND_L2 if plan.nbytes > target.l2 else 1.0
    return TRANSFORMING * away * plan.total * (into * plan.channels.count + back * plan.outputs)
