"""Code for the sums of a tile: loops over taps and channels around products without branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.products import FLOAT32, Product
from tinsmith.codegen.types import F32
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import load_row
from tinsmith.kernels.window.weights import ChannelBlocks
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Fetch:
    """What every loop body prefetches: `lines` cache lines of weights, which begin `distance`
    elements after the weights that it reads."""

    distance: Val | int
    lines: int


@dataclass(frozen=True)
class Level:
    """One loop of a sum: it runs `count` times, and each time moves on by `input` elements of the
    input and `weights` elements of the weights."""

    count: Val | int
    input: Val | int
    weights: int


@dataclass(frozen=True)
class Tap:
    """How far, in elements, a tap's input and weights lie from those of the first tap."""

    input: int
    weights: int


HERE = (Tap(0, 0),)  # the first tap alone


@dataclass(frozen=True)
class Contraction:
    """What is added to the accumulators of a tile: pixels times vectors of weights.

    lanes     lanes of each weight vector
    channels  the innermost loop, over input channels
    levels    the loops around it, outermost first: over channel blocks, if `channels` has several
    stride    elements from one channel of a pixel to the next
    sides     how many groups are interleaved: a channel of a pixel is one element of each group,
              and neighbouring lanes belong to different groups
    taps      the taps that each loop body multiplies
    words     whether weights are packed as `kernels/narrow.py` does; then `channels.step` must be a
              multiple of 4
    early     if not 0: the element so far beyond each pixel is prefetched before the innermost loop
    row       how a product is added (`codegen/products.py`). If its group is more than 1, a channel
              is a lane of so many elements, packed as the row says
    """

    lanes: Sequence[int]
    channels: ChannelBlocks
    levels: Sequence[Level] = ()
    stride: Val | int = 1
    sides: int = 1
    taps: Sequence[Tap] = HERE
    words: bool = False
    early: int = 0
    row: Product = FLOAT32


def contract(
    b: Builder, it: Contraction, x: Ptr, w: Ptr, start: Sequence[Val], pixels: Sequence[Val | int],
    fetch: Fetch | None = None,
) -> list[Val]:  # fmt: skip
    """Emit all products of the contraction `it`; returns the accumulators after them.

    x is the address of the first pixel's first input, w that of the panel's first weights; `pixels`
    are offsets from x. Accumulator `start[p * len(lanes) + o]` belongs to pixel p and vector o.
    `fetch`: what every loop body prefetches, or None. Loops over taps are not unrolled: LLVM would
    keep broadcasts alive until registers spill.
    """
    step, row = it.channels.step, sum(it.lanes)  # row: weights of one channel
    assert not it.words or (it.taps == HERE and step % narrow.TOGETHER == 0)
    rows = narrow.rows_of(step, it.words)

    def body(xq: Ptr, wq: Ptr, acc: list[Val]) -> list[Val]:
        if fetch is not None:
            ahead = (wq + fetch.distance).fixed()
            for line in range(fetch.lines):
                (ahead + line * LINE).prefetch(locality=2)
        weights = narrow.lines(wq, step, row, it.lanes) if it.words else None
        return products(it, xq, wq, acc, pixels, weights=weights)

    def inner(xq: Ptr, wq: Ptr, acc: list[Val], outermost: Val | int) -> list[Val]:
        count = it.channels.of(b, outermost)
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
    """Emit the products of `it.channels.step` channels without loops: pixels are broadcast, weights
    are vectors. An element that several taps read is broadcast once. Returns the new accumulators.
    x, w, `start` and `pixels` are as in `contract`.

    masks    integers, one vector for each of `it.lanes`: where a lane's bits are 0, a pixel's
             value, which may be infinite, counts as 0; other lanes have all bits set
    weights  yields the weight vectors of each channel; None: they are loaded at w
    """
    acc, lanes, row, vectors = list(start), it.lanes, sum(it.lanes), len(it.lanes)
    for u in range(it.channels.step):
        if weights is not None or it.row.group > 1:
            w.b.barrier()  # else LLVM loads the words, or groups, of several channels first
        if weights is not None:
            ws = [next(weights)]
        else:
            ws = [load_row(w + (tap.weights + u * row), lanes) for tap in it.taps]
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
    """The offsets of all elements that are read by `taps` of `pixels` (which are offsets, too),
    each with the numbers (pixel, tap) that read it. With other taps than HERE, pixels must be
    ints."""
    if taps == HERE:
        return [(offset, [(p, 0)]) for p, offset in enumerate(pixels)]
    found: dict[int, list[tuple[int, int]]] = {}
    for p, offset in enumerate(pixels):
        assert isinstance(offset, int)
        for t, tap in enumerate(taps):
            found.setdefault(offset + tap.input, []).append((p, t))
    return sorted(found.items())


def _repeated(values: Val, lanes: int) -> Val:
    """A vector of `lanes` lanes that repeats the elements of `values`."""
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
    """Emit the loops of a sum around `body`: one for each of the `levels`, outermost first. `start`
    are the accumulators before the loops; returns those after them.

    `body(x, w, accumulators, outer)` emits one step and returns the next accumulators. x and w are
    the addresses of input and weights at that step, `outer` the index of the outermost loop (0 if
    that runs once).

    Loops carry addresses rather than multiply indices: the multiplication would wait for the port
    that multiply-adds of 256 bits keep busy, and loads for it (8 to 10 % of a product's time).
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
    """The address of element `which` * `width` of the last packed array, the bias. None if the site
    has no bias (input 2)."""
    return em.packed[-1] + which * width if em.site.has(2) else None


def initial(b: Builder, bias: Ptr | None, lanes: Sequence[int]) -> list[Val]:
    """Emit the accumulators with which one pixel begins, a vector of n lanes for each n of `lanes`:
    zeros if `bias` is None, else loaded one after the other from that address."""
    return [b.zero(F32.x(n)) for n in lanes] if bias is None else load_row(bias, lanes)
