"""The seven products of one panel of outputs: one function, called seven times.

A product starts from sums that an earlier one left in workspace, adds its own, and leaves them
there for a later one, or adds what else its quarter of the result needs and finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, Protocol

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.strassen.plan import STEPS, Plan
from tinsmith.kernels.window.tiles import plus
from tinsmith.kernels.winograd.stages import Stage, opaque, stage

LINE = 16  # elements of a cache line
Index = Val | int


class Sink(Protocol):
    """Finishes results at output block `block` of image n: `tile` of several pixels at once,
    `values[pixel][vector]`, or `one` pixel."""

    heavy: bool  # the epilogue is long: a loop over pixels emits it once

    def tile(self, values: list[list[Val]], n: Val, block: Val, pixel: Val) -> None: ...
    def one(self, values: list[Val], n: Val, block: Val, pixel: Val) -> None: ...


@dataclass(frozen=True)
class Page:
    """Channels x pixels of one block: `at` is the first vector of channels of the first pixel;
    vectors of channels are `plane` elements apart."""

    at: Ptr
    plane: int

    def lower(self, plan: Plan, half: int = 1) -> Ptr:
        """The first channel of the second half; of half 2: of what is beyond both."""
        return (self.at + half * plan.depth * self.plane).fixed()


@dataclass(frozen=True)
class Block:
    """Where the factors of one block's products lie: X of both pixel halves, and the pages
    [T1 T2] and [T3 T4]; and the first pixel of each half."""

    x: tuple[Page, Page]
    t: tuple[Page, Page]
    first: tuple[Index, Index]
    n: Index


@dataclass(frozen=True)
class Room:
    """Places in workspace, in elements: two matrices of sums, and zeros for one tile."""

    plan: Plan
    tile: int
    start: int

    @property
    def size(self) -> int:
        return self.plan.half * self.plan.widest

    @property
    def sums(self) -> tuple[int, int]:
        return self.start, self.start + self.size

    @property
    def zeros(self) -> int:
        return self.start + 2 * self.size

    @property
    def apart(self) -> int:
        """Where a tile waits whose pixels are finished one by one."""
        return self.zeros + self.tile * self.plan.widest

    @property
    def end(self) -> int:
        return self.apart + self.tile * self.plan.widest

    def clear(self, em: Emit) -> None:
        """Zero the zeros."""
        at = (em.workspace.cast(F32) + self.zeros).fixed()
        with em.b.loop(0, self.tile * self.plan.widest, self.plan.width) as i:
            (at + i).store(em.b.zero(F32.x(self.plan.width)))


PARAMS = "x* w* beyond* wbeyond* plane xplane init keep add done n block pixel least"


@dataclass(frozen=True)
class Arguments:
    """What one product is called with.

    `x`, `w` are its factors, `plane` the distance of the first's vectors of channels; `beyond`,
    `wbeyond`, `xplane` the same of the channels beyond the halves. `init`, `keep`, `add` are places
    in workspace: of what it starts from, where it leaves the sums (0: nowhere), what is added
    before the end. If `done` is not 0, it finishes the outputs from vector `block` of image `n`, of
    the pixels from `pixel` that are not below `least`.
    """

    x: Ptr
    w: Ptr
    beyond: Ptr
    wbeyond: Ptr
    plane: Val
    xplane: Val
    init: Val
    keep: Val
    add: Val
    done: Val
    n: Val
    block: Val
    pixel: Val
    least: Val


def product_function(
    em: Emit,
    plan: Plan,
    lanes: tuple[int, ...],
    pixel: int,
    space: Room,
    sink: Callable[[Emit], Sink],
) -> Stage:
    """A function of `PARAMS` that computes one product for a panel of `lanes`, where pixels are
    `pixel` elements apart."""
    row = sum(lanes)
    found = plan.pieces(em.target, lanes)
    count = sum(many for many, _ in found)
    far = 4 * plan.weights(row) * plan.cut.total > em.target.l2 // 4
    lines = -(-4 * row // LINE)  # of the next weights, that one loop body passes by
    share = -(-lines // count)

    def body(em: Emit, *args: Any) -> None:
        b, at, out = em.b, Arguments(*args), sink(em)
        steps = [
            place.ne(space.zeros).select(b.index(row), b.index(0)) for place in (at.init, at.add)
        ]
        following = (at.w + plan.steps * row).fixed()
        start = number = 0
        for many, size in found:
            tile = Tile(em, plan, lanes, pixel, size)
            with b.loop(0, many) as i:
                t = b.index(plus(i * size, start))
                acc = tile.sums(at.init + t * steps[0])
                ahead = (following + plus(i, number) * share % lines * LINE).fixed()
                fetch = (ahead, share) if far else None
                acc = tile.blocks((at.x + t * pixel).fixed(), at.w, at.plane, acc, fetch)
                with b.when(at.keep.ne(0)):
                    tile.keep(acc, at.keep + t * row)
                with b.when(at.done.ne(0)):
                    acc = tile.end(acc, at, t, at.add + t * steps[1])
                    rows = [acc[k : k + len(lanes)] for k in range(0, len(acc), len(lanes))]
                    _finish(em, out, space, rows, (at.n, at.block, at.pixel + t), at.least)
            start, number = start + many * size, number + many

    return stage(em, f"product{len(lanes)}", PARAMS, body)


def _finish(
    em: Emit, sink: Sink, space: Room, rows: list[list[Val]], at: tuple[Val, Val, Val], least: Val
) -> None:
    """Finish a tile's pixels from number `least` on: all at once, or one by one."""
    b, (n, block, pixel) = em.b, at

    def singly() -> None:
        home = opaque(em.workspace.cast(F32) + space.apart)
        lanes = tuple(v.ty.lanes for v in rows[0])
        row = sum(lanes)
        for q, line in enumerate(rows):
            for o, value in enumerate(line):
                (home + (q * row + _lane(lanes, o))).store(value)
        with b.loop(b.maximum(least - pixel, 0), len(rows)) as q:
            line = (home + q * row).fixed()
            values = [(line + _lane(lanes, o)).load(wide) for o, wide in enumerate(lanes)]
            sink.one(values, n, block, pixel + q)

    if sink.heavy:
        singly()
    elif not space.plan.overlaps:
        sink.tile(rows, n, block, pixel)
    else:
        b.choose(pixel < least, singly, lambda: sink.tile(rows, n, block, pixel))


def _lane(lanes: tuple[int, ...], o: int) -> int:
    return sum(lanes[:o])


@dataclass(frozen=True)
class Tile:
    """A register tile: `size` pixels, `pixel` elements apart, x `lanes`."""

    em: Emit
    plan: Plan
    lanes: tuple[int, ...]
    pixel: int
    size: int

    @property
    def b(self) -> Builder:
        return self.em.b

    def _places(self, at: Val) -> list[tuple[Ptr, int]]:
        """Where accumulators lie in workspace, and their lanes."""
        near, row = opaque(self.em.workspace.cast(F32) + at), sum(self.lanes)
        return [
            (near + (p * row + _lane(self.lanes, o)), n)
            for p in range(self.size)
            for o, n in enumerate(self.lanes)
        ]

    def sums(self, at: Val) -> list[Val]:
        return [place.load(n) for place, n in self._places(at)]

    def keep(self, acc: list[Val], at: Val) -> None:
        for (place, _), value in zip(self._places(at), acc, strict=True):
            place.store(value)

    def end(self, acc: list[Val], at: Arguments, t: Val, add: Val) -> list[Val]:
        """The results: the sums, others, the bias, and the channels beyond the halves."""
        vectors = len(self.lanes)
        bias = (self.em.packed[1] + at.block * self.plan.width).fixed()
        each = [(bias + _lane(self.lanes, o)).load(n) for o, n in enumerate(self.lanes)]
        more = self.sums(add)
        acc = [v + m + each[k % vectors] for k, (v, m) in enumerate(zip(acc, more, strict=True))]
        if not self.plan.rest:
            return acc
        beyond = (at.beyond + t * self.pixel).fixed()
        return self.single(beyond, at.wbeyond, at.xplane, acc)

    def blocks(
        self, x: Ptr, w: Ptr, plane: Val, acc: list[Val], fetch: tuple[Ptr, int] | None
    ) -> list[Val]:
        """Add the products of a half's channels; `fetch` tells from where, and how many lines of
        the next weights to ask for."""
        b, row, plan = self.b, sum(self.lanes), self.plan
        with b.loop(0, plan.depth, carry=acc) as outer:
            xc = x + outer.index * plane
            wc = w + outer.index * (plan.width * row)
            fc = None if fetch is None else fetch[0] + outer.index * (plan.width * row)
            with b.loop(0, plan.width, 4, carry=outer.vars) as inner:
                i = inner.index
                ahead = None if fc is None else (fc + i * row, fetch[1])  # type: ignore[index]
                inner.next(self._steps(xc + i, wc + i * row, inner.vars, 4, ahead))
            outer.next(inner.out)
        return outer.out

    def single(self, x: Ptr, w: Ptr, plane: Val, acc: list[Val]) -> list[Val]:
        """Add the products of the channels beyond the halves."""
        b, row, plan = self.b, sum(self.lanes), self.plan
        step = gcd(plan.rest, 4)
        with b.loop(0, plan.rest, step, carry=acc) as loop:
            c = loop.index
            at = x + (c // plan.width) * plane + c % plan.width
            loop.next(self._steps(at, w + c * row, loop.vars, step, None))
        return loop.out

    def _steps(
        self, x: Ptr, w: Ptr, start: list[Val], count: int, ahead: tuple[Ptr, int] | None
    ) -> list[Val]:
        x, w, acc, row = opaque(x), opaque(w), list(start), sum(self.lanes)
        if ahead is not None:
            near, lines = opaque(ahead[0]), ahead[1]
            for line in range(lines):
                (near + line * LINE).prefetch(locality=2)
        vectors = len(self.lanes)
        for u in range(count):
            ws = [(w + (u * row + _lane(self.lanes, o))).load(n) for o, n in enumerate(self.lanes)]
            for p in range(self.size):
                one = (x + (p * self.pixel + u)).load()
                for o, n in enumerate(self.lanes):
                    acc[p * vectors + o] = one.splat(n).fma(ws[o], acc[p * vectors + o])
        return acc


def seven(
    plan: Plan, call: Stage, lanes: tuple[int, ...], space: Room, block: Block,
    weights: Ptr, output: Index,
) -> None:  # fmt: skip
    """The products of the panel whose packed weights are at `weights` and whose first outputs are
    the blocks `output` of each half."""
    one, two = space.sums
    zeros = space.zeros
    (x0, x1), (t0, t1) = block.x, block.t
    sources = (
        (x0, 0, zeros, one, zeros, None),
        (x0, 1, one, 0, zeros, (0, 0)),
        (t0, 1, one, one, zeros, None),
        (t1, 0, zeros, two, zeros, None),
        (t1, 1, one, 0, two, (1, 0)),
        (t0, 0, one, one, two, (1, 1)),
        (x1, 1, one, 0, zeros, (0, 1)),
    )
    assert len(sources) == len(STEPS)
    size = plan.steps * sum(lanes)
    for i, (page, half, init, keep, add, quarter) in enumerate(sources):
        outputs, pixels = quarter or (0, 0)
        own = block.x[pixels]
        call(
            page.lower(plan, half), (weights + i * size).fixed(), own.lower(plan, 2),
            (weights + (7 * size + outputs * plan.rest * sum(lanes))).fixed(), page.plane,
            own.plane, init, keep, add, int(quarter is not None), block.n,
            plus(output, outputs * plan.height), block.first[pixels],
            block.first[0] + plan.half if pixels else 0,
        )  # fmt: skip
