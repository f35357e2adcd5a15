"""Which algorithms fit a convolution, how each is cut into blocks, and what it costs.

The transforms take the time of their loads and stores, which caches bound, not that of their
arithmetic: with copies in its place they take as long. Other strides between the positions of V
and M, a tile's positions side by side, huge pages, or pieces of the next block's transform between
the products of one do not help.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.target import Target, foreign_time, overlap
from tinsmith.kernels.amx.plan import slots as product_slots
from tinsmith.kernels.narrow import TOGETHER, unpacking
from tinsmith.kernels.sharing import uneven
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.weights import channel_blocks
from tinsmith.kernels.winograd.fetch import is_far
from tinsmith.kernels.winograd.matrices import Bilinear, bilinear, supported, with_whole_taps
from tinsmith.kernels.winograd.plan import Partition, Plan
from tinsmith.kernels.winograd.program import data_program, result_program
from tinsmith.kernels.winograd.taps import channels_together, fits, tap_operations
from tinsmith.kernels.winograd.weights import packed_bytes

GROWTH = {"exact": 0.0, "strict": 8.0, "default": 1000.0, "halves": 25.0}
"""The growth allowed, of both axes: F(2x2,3x3) has 7.1, F(2x4,3x3) 24.4, F(6x6,3x3) 924. With
products of halves F(2x4,3x3) is about as exact as F(6x6,3x3) is without."""
STEEPEST = {"halves": 9.2}
"""The growth allowed of one axis: F(4,3) has 9.1; F(5,3) and F(4,5), of 21 and 24, leave twice the
error of halves that F(2x4,3x3) does."""
LARGEST = 7  # results of one axis
MOST_PRODUCTS = 9  # of one axis
LEAST_GAIN = 1.15
EFFICIENCY = 0.95  # of the products
MAKING = (0.87, 0.63)
"""Of products whose weights are made of taps, by the multiply-adds that begin in a cycle: loads and
stores of sums take turns with them."""
FILLED, CROWDING = 0.6, 0.3
"""The share of the second-level cache that the weights and a block's tensors, V and M may fill
before V and M leave it, and the share of these that does for each e-fold beyond: pages lie
anywhere, and some sets are full before others."""
MOST_REREAD = 0.5
"""Of the second-level cache: where a position of V is larger, each panel of products of halves
reads it from the last-level cache anew, and where V is, each block of outputs whose weights are
made of taps. Other products take long enough to hide that."""
MOST_SHARE = 1 / 3
"""Of a block's tiles: a datum that is part of more of them makes their typical size large, and no
tile stands out (`outliers`). One that is S times as large as others is then found where S exceeds
RATIO ** (1 / (1 - share)), 1,400 for a third: below, other windows lose 3e-2 of it at most. It may
be more of a block that holds the whole input, and a little more of those that have a tile less."""
EXPOSED = 0.35  # of the time that weights take from the last-level cache; prefetches hide the rest
TURNING = 0.03
"""How much longer blocks as long as a row take that go on in another: prefetches miss there."""
HALVING = 16.0  # operations of a vector that is stored as halves
ARRIVING, SHORTEST = 3.0, 5.0
"""Slots that a vector of weights takes from L2, and the least of a step, where a core issues one
multiply-add at a time (as measured on Zen 4)."""
APART, STARTING = 11, 3.0
"""There, register tiles of more sums than APART no longer overlap: each sum more takes so many
slots to start and to store."""
TRANSFORMING = 0.75  # issue slots of one operation, load or store of a transform
BEYOND_L2, BEYOND_L3 = 1.15, 1.5
"""How much longer transforms take of tensors that are larger than the second-level, and than the
last-level cache."""


@functools.lru_cache(maxsize=1024)
def algorithms(geo: Geometry, precision: str) -> Sequence[tuple[Bilinear, Bilinear]]:
    """The pairs (rows, columns) worth considering, tiles no larger than the output: squares, and
    others that need fewer products."""
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
    """Multiplications of the definition over those of the algorithm."""
    return rows.m * rows.r * cols.m * cols.r / (rows.products * cols.products)


@functools.lru_cache(maxsize=1024)
def best_plan(
    target: Target,
    geo: Geometry,
    width: int,
    rows: Bilinear,
    cols: Bilinear,
    threads: int = 1,
    halves: bool = False,
    words: bool = False,
) -> tuple[Plan, float]:
    """The best cut for an algorithm, and its cost as `cost` tells it."""
    blocks = channel_blocks(geo.channels, width)
    draft = Plan(
        geo, rows, cols, width, blocks, tiles=1, blocks=1, vectors=1, micro=Partition(1, 1),
        whole=False, halves=halves, words=words,
    )  # fmt: skip
    candidates = []
    for count in _counts(target, draft):
        tiles = -(-draft.total // count)
        if halves:
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


@functools.lru_cache(maxsize=1024)
def taps_plan(
    target: Target, geo: Geometry, width: int, rows: Bilinear, cols: Bilinear, threads: int = 1
) -> tuple[Plan, float] | None:
    """The cut and the cost of an algorithm whose weights are kept as taps, or None where its sums
    are too many."""
    plan = Plan(
        geo, with_whole_taps(rows), with_whole_taps(cols), width,
        channel_blocks(geo.channels, width), tiles=1, blocks=1, vectors=1, micro=Partition(1, 1),
        whole=True, channels_together=channels_together(target),
    )  # fmt: skip
    plan = replace(plan, tiles=plan.total)
    if not fits(plan):
        return None
    slots = plan.outputs * (plan.tiles + tap_operations(plan) / plan.positions)
    return plan, cost(target, plan, slots / MAKING[target.pipes - 1], threads)


def _counts(target: Target, draft: Plan) -> set[int]:
    """Numbers of blocks worth considering: whose V and M fit caches, in even shares, of whole
    images, of whole rows of tiles (or whole parts of one), or of pairs of matrix registers; and of
    as few tiles as tell large ones, in whichever rows they lie."""
    per_tile = 4 * draft.positions * draft.width * (draft.channels.count + draft.outputs)
    room = max(4 * target.l2, target.l3 // 4)
    found = {n for n in (1, draft.geo.batch) if per_tile * draft.total <= room * n}
    # Samples of a continuum, of which the least is four tiles of 32 channels in 1 MiB.
    for share in (0.065, 0.13, 0.25, 0.4, 0.6, 0.8, 1.1, 1.5):
        most = max(min(4, draft.total), int(target.l2 * share) // per_tile)
        if most >= draft.across:
            count = -(-draft.lines // (most // draft.across))
        else:
            count = draft.lines * -(-draft.across // most)
        found |= {count, -(-draft.total // most), min(count + count % 2, draft.total)}
        if draft.halves and most >= 2 * SIDE:
            found.add(-(-draft.total // (most // (2 * SIDE) * 2 * SIDE)))
    least = int(replace(draft, tiles=draft.total).seen / MOST_SHARE) + 1
    return found | {max(1, draft.total // least)}


@functools.lru_cache(maxsize=4096)
def register_tiles(
    target: Target, tiles: int, outputs: int, depth: int, words: bool = False
) -> tuple[int, Partition, float]:
    """Vectors of a panel, the cut of `tiles`, and the issue slots of one channel for a block; with
    `words` those are counted with which they become weights."""
    best: tuple[float, int, Partition] | None = None
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
        slots /= EFFICIENCY
        if best is None or slots < best[0]:
            best = (slots, vectors, micro)
    assert best is not None
    return best[1], best[2], best[0]


def matrix_tiles(tiles: int, draft: Plan) -> tuple[int, Partition, float]:
    """As `register_tiles`, of matrix registers."""
    count, product = -(-tiles // SIDE), replace(draft, tiles=tiles).product
    return (
        min(2, draft.outputs),
        Partition(count, -(-tiles // count)),
        product_slots(product) / draft.depth,
    )


def _slots(target: Target, tiles: int, vectors: int, depth: int) -> float:
    """Multiply-adds that could have been issued in one step of a register tile."""
    done = tiles * vectors
    if target.pipes == 1:
        start = STARTING * max(0, done - APART)
        return max(done, ARRIVING * vectors, SHORTEST) + start / depth
    least = 10.0 if target.has_fma else 8.0
    return max(done, 1.0 * (tiles + vectors), least) + (20 + 1.5 * done) / depth


def cost(target: Target, plan: Plan, slots: float, threads: int = 1) -> float:
    """Seconds on one core, or as often those of the busiest of several threads, with weights that
    come from memory for the first block of each."""
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
    read = plan.m_start if plan.of_taps else plan.v_step * plan.halves
    if 4 * read > MOST_REREAD * target.l2:
        total += 4.0 * plan.m_start * (plan.panels - 1) * plan.blocks / target.l3_bandwidth
    total += transforms(target, plan) * issue
    if plan.whole:  # the transform that has fewer units tells for both
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


def _foreign(plan: Plan, threads: int) -> float:
    """Elements that threads read of what others have written. Those that share blocks of outputs
    all read V."""
    others = threads - 1
    if plan.of_taps:
        return others * (plan.m_start + (plan.size - plan.m_start) / threads)
    return others * plan.size / threads


def transforms(target: Target, plan: Plan) -> float:
    """Issue slots of both transforms; more where the tensors come from memory."""
    rows, cols = plan.rows, plan.cols
    strip = min(plan.strip(target.l1), plan.tiles)
    into = data_program(rows).operations * (cols.reach - plan.column_overlap * (1 - 1 / strip))
    into += data_program(cols).operations * rows.products
    back = result_program(rows).operations * cols.products
    back += result_program(cols).operations * rows.m
    into += (2 + HALVING * plan.halves) * plan.positions
    back += plan.positions + 2 * rows.m * cols.m
    away = BEYOND_L3 if plan.nbytes > target.l3 else BEYOND_L2 if plan.nbytes > target.l2 else 1.0
    return TRANSFORMING * away * plan.total * (into * plan.channels.count + back * plan.outputs)
