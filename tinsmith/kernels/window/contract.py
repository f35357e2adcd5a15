"""The sums of a tile: loops over taps and channels around straight-line products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.products import FLOAT32, Product
from tinsmith.codegen.types import F32
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.weights import ChannelBlocks
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Fetch:
    """Weights that are asked for early: every loop body prefetches `lines` cache lines, `distance`
    elements behind its own."""

    distance: Val | int
    lines: int


@dataclass(frozen=True)
class Level:
    """One loop of a reduction: it runs `count` times, and each time moves on by so many elements of
    the input and of the weights."""

    count: Val | int
    input: Val | int
    weights: int


@dataclass(frozen=True)
class Tap:
    """How far, in elements, a tap's input and weights lie from those of the first tap."""

    input: int
    weights: int


HERE = (Tap(0, 0),)


@dataclass(frozen=True)
class Contraction:
    """What is added to the accumulators of a tile: for each of the `levels`, outermost first, and
    each of the `channels` within, pixels times vectors of `lanes` weights.

    How products are added is a `row` of `codegen/products.py`. Where its group is more than 1, each
    channel stands for a lane of so many: pixels and weights are packed as the row says.

    stride  elements from a pixel's channel to the next
    sides   groups side by side: a channel of a pixel is an element of each, and neighbouring lanes
            are those of different groups
    taps    those that each loop body takes at once
    words   the weights are those of `kernels/narrow.py`; a loop body takes a multiple of 4 channels
    early   if not 0: of each pixel, what lies so many elements on from the first channel of a loop
            is prefetched
    """

    lanes: Sequence[int]
    channels: ChannelBlocks
    levels: Sequence[Level] = ()
    stride: int = 1
    sides: int = 1
    taps: Sequence[Tap] = HERE
    words: bool = False
    early: int = 0
    row: Product = FLOAT32


def contract(
    b: Builder, it: Contraction, x: Ptr, w: Ptr, start: Sequence[Val], pixels: Sequence[Val | int],
    fetch: Fetch | None = None,
) -> list[Val]:  # fmt: skip
    """All products of a contraction, added to pixels x vectors accumulators.

    x is at the first pixel's first input, w at the panel's first weights; `pixels` are offsets
    from x. Accumulator (p, o) is `start[p * len(lanes) + o]`. The loops are real, with the
    accumulators in phis: unrolled taps let LLVM keep broadcasts alive until it spills.
    """
    step, row = it.channels.step, sum(it.lanes)
    assert not it.words or (it.taps == HERE and step % narrow.TOGETHER == 0)
    rows = narrow.rows_of(step, it.words)
    channels = it.channels.of(b)

    def body(xq: Ptr, wq: Ptr, acc: list[Val]) -> list[Val]:
        if fetch is not None:
            ahead = (wq + fetch.distance).fixed()
            for line in range(fetch.lines):
                (ahead + line * LINE).prefetch(locality=2)
        weights = narrow.lines(wq, step, row, it.lanes) if it.words else None
        return products(it, xq, wq, acc, pixels, weights=weights)

    def inner(xq: Ptr, wq: Ptr, acc: list[Val], outermost: Val | int) -> list[Val]:
        count = channels(outermost)
        for offset in pixels if it.early else ():
            (xq + offset + it.early).prefetch()
        if isinstance(count, int) and count == step:
            return body(xq, wq, acc)
        with b.loop(0, count, step, carry=[xq.value, wq.value, *acc]) as loop:
            xi, wi = xq.of(loop.vars[0]), wq.of(loop.vars[1])
            sums = body(xi, wi, loop.vars[2:])
            loop.next([(xi + step * it.stride).value, (wi + rows * row).value, *sums])
        return loop.out[2:]

    return nest(b, it.levels, x, w, start, inner)


def products(
    it: Contraction, x: Ptr, w: Ptr, start: Sequence[Val], pixels: Sequence[Val | int],
    masks: Sequence[Val] | None = None, weights: Iterator[list[Val]] | None = None,
) -> list[Val]:  # fmt: skip
    """Add the products of one loop body, straight-line: pixels broadcast, weights in vectors. What
    several taps see of different pixels is broadcast once. `weights` yields the vectors of each
    channel, unless they are read at w.

    `masks` (all bits of a lane, or none; one for each vector) keep a pixel's value, which may be
    infinite, from lanes that it does not belong to.
    """
    acc, lanes, row, vectors = list(start), it.lanes, sum(it.lanes), len(it.lanes)
    firsts = [sum(lanes[:o]) for o in range(vectors)]
    places = list(zip(firsts, lanes, strict=True))
    for u in range(it.channels.step):
        if weights is not None or it.row.group > 1:
            w.b.barrier()  # else LLVM loads the words, or groups, of several channels first
        if weights is not None:
            ws = [next(weights)]
        else:
            taps = [w + (tap.weights + u * row) for tap in it.taps]
            ws = [[(tap + f).load(n) for f, n in places] for tap in taps]
        for offset, seen in _seen(pixels, it.taps):
            one = (x + offset + u * it.stride).load(it.sides)
            for o, n in enumerate(lanes):
                wide = _repeated(one, n)
                if masks is not None:
                    wide = (wide.bitcast(masks[o].ty) & masks[o]).bitcast(wide.ty)
                for p, t in seen:
                    acc[p * vectors + o] = it.row.step(acc[p * vectors + o], wide, ws[t][o])
    return acc


def _seen(
    pixels: Sequence[Val | int], taps: Sequence[Tap]
) -> Sequence[tuple[Val | int, list[tuple[int, int]]]]:
    """Each place that is read, in order, with the numbers of the pixels and taps that see it."""
    if taps == HERE:
        return [(offset, [(p, 0)]) for p, offset in enumerate(pixels)]
    found: dict[int, list[tuple[int, int]]] = {}
    for p, offset in enumerate(pixels):
        assert isinstance(offset, int)
        for t, tap in enumerate(taps):
            found.setdefault(offset + tap.input, []).append((p, t))
    return sorted(found.items())


def _repeated(values: Val, lanes: int) -> Val:
    count = values.ty.lanes
    if count == lanes:
        return values
    if count == 1:
        return values.splat(lanes)
    return values.shuffle(None, [k % count for k in range(lanes)])


def nest(
    b: Builder, levels: Sequence[Level], x: Ptr, w: Ptr, start: Sequence[Val],
    body: Callable[[Ptr, Ptr, list[Val], Val | int], list[Val]],
) -> list[Val]:  # fmt: skip
    """Write the loops of a sum around `body`: one for each of the `levels`, outermost first.
    `start` are the accumulators before the loops, the result those after them.

    `body(x, w, accumulators, outer)` gives the next accumulators: x and w are moved along by the
    loops, `outer` is the index of the outermost level (0 where that runs once).

    Addresses are carried too: an index times a step waits for the port that multiply-adds of 256
    bits keep busy, and the loads wait for it (8 to 10 % of a product).
    """

    def inside(depth: int, xq: Ptr, wq: Ptr, acc: list[Val], outermost: Val | int) -> list[Val]:
        if depth == len(levels):
            return body(xq, wq, acc, outermost)
        at = levels[depth]
        if isinstance(at.count, int) and at.count == 1:
            return inside(depth + 1, xq, wq, acc, outermost)
        with b.loop(0, at.count, carry=[xq.value, wq.value, *acc]) as loop:
            xi, wi = xq.of(loop.vars[0]), wq.of(loop.vars[1])
            first = loop.index if depth == 0 else outermost
            sums = inside(depth + 1, xi, wi, loop.vars[2:], first)
            loop.next([(xi + at.input).value, (wi + at.weights).value, *sums])
        return loop.out[2:]

    return inside(0, x, w, list(start), 0)


def bias_at(em: Emit, which: Val | int, width: int = 1) -> Ptr | None:
    """Where the bias of channel number `which` * `width` lies, in the last packed array; None if
    the site has no bias."""
    return em.packed[-1] + which * width if em.site.has(2) else None


def initial(b: Builder, bias: Ptr | None, lanes: Sequence[int]) -> list[Val]:
    """The accumulators with which a pixel starts, vectors of `lanes`: the bias, or zeros."""
    firsts = [sum(lanes[:o]) for o in range(len(lanes))]
    return [
        b.zero(F32.x(n)) if bias is None else (bias + f).load(n)
        for f, n in zip(firsts, lanes, strict=True)
    ]
