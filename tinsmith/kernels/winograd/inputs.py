"""The transform of data into V, by strips (neighbouring tiles in a row) of one channel block each.

A transformed tile would nearly fill 32 registers (of 16, some values are spilled). So a small group
of its rows is computed at a time: all columns of the data are transformed to these rows, then each
row is transformed along itself. One group is computed for all tiles of a strip, whose data stay in
L1, before the next. Columns that neighbouring tiles share are transformed once, and carried from
tile to tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.winograd.frames import Rooms, channels_at, data_at
from tinsmith.kernels.winograd.outliers import Sizes, witnesses
from tinsmith.kernels.winograd.program import data_program, run
from tinsmith.kernels.winograd.split_precision import Splitter
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.records import dataclass

Put = Callable[[int, Val], None]
"""put(position, v) stores a vector of V."""


def input_stage(em: Emit, plan: WinogradPlan, rooms: Rooms, g0: Val, g1: Val, *tiles: Val) -> None:
    """Emit the transform of the tiles [t0, t1) of the groups [g0, g1) of channel blocks
    (`WinogradPlan.groups`) into V. `tiles` is (t0, t1, base): `base` is the number of the first
    tile that V holds."""
    b, (t0, t1, base) = em.b, tiles
    source, space = rooms.source(em), rooms.space(em, plan)
    with b.loop(g0, g1) as g, _strips(em, plan, t0, t1) as (first, stop):
        strip = Strip(em, plan, source, Sizes(plan, space), base, first, stop)
        if plan.split:
            _pair(strip, space, g)
        else:

            def put_at(t: Val) -> Put:
                out = (space + g * plan.block_step + (t - base) * plan.width).fixed()
                return lambda position, v: (out + position * plan.v_step).store(v)

            strip.transform(g, put_at)


@contextmanager
def _strips(em: Emit, plan: WinogradPlan, t0: Val, t1: Val) -> Iterator[tuple[Val, Val]]:
    """A context whose code is emitted in a loop over strips. It yields the tiles [first, stop) of a
    strip. Together the strips are the tiles [t0, t1), at least one."""
    b, each, size = em.b, plan.horizontal.each, plan.strip(em.target.l1)
    pieces = -(-each // size)

    def number(t: Val) -> Val:
        return t // each * pieces + t % each // size

    with b.loop(number(t0), number(t1 - 1) + 1) as s:
        line, start = s // pieces * each, s % pieces * size
        stop = line + b.minimum(start + size, each)
        yield b.index(b.maximum(line + start, t0)), b.index(b.minimum(stop, t1))


def _pair(strip: Strip, space: Ptr, pair: Val) -> None:
    """Emit the transform of a strip in split precision, for the two channel blocks of pair number
    `pair`. If the second block does not exist, it is zeros."""
    b, plan = strip.em.b, strip.plan

    def splitter(t: Val) -> Splitter:
        return Splitter(b, plan, space, pair, t - strip.base)

    def second() -> None:
        strip.transform(pair * 2 + 1, lambda t: splitter(t).second)

    def alone() -> None:
        with b.loop(strip.first, strip.stop) as t:
            splitter(t).alone()

    strip.transform(pair * 2, lambda t: splitter(t).first)
    if plan.channels.count % 2:
        b.choose(pair * 2 + 1 < plan.channels.count, second, alone)
    else:
        second()


@dataclass(frozen=True)
class Strip:
    """Emits the transform of the data of a strip, the tiles [first, stop). `source` is the input,
    `sizes` stores the squares of witnesses (`outliers.py`), `base` is the first tile of V."""

    em: Emit
    plan: WinogradPlan
    source: View
    sizes: Sizes
    base: Val
    first: Val
    stop: Val

    def transform(self, c: Val, put_at: Callable[[Val], Put]) -> None:
        """Emit the transform of channel block c of the strip's tiles, and store their sums of
        squares of witnesses. `put_at(t)` returns what stores the transformed data of tile t."""
        plan, b, width = self.plan, self.em.b, self.plan.width
        _, _, (_, row, pixel) = steps(self.source.spec)
        below, right = plan.geo.dilation[1] * row, plan.geo.dilation[2] * pixel
        n, i, j = plan.coordinates(self.first)
        y, x = plan.vertical.start(i), plan.horizontal.start(j)
        corner = (data_at(plan, self.source, n, y, x) + channels_at(plan, self.source, c)).fixed()
        rows = data_program(plan.rows)
        fresh = plan.cols.m * plan.cols.stride  # columns from a tile to the next
        started = False
        for group in rows.groups:

            def column(at: Ptr, q: int, group: Sequence[int] = group) -> list[Val]:
                return run(rows, lambda p: (at + (p * below + q * right)).load(width), group)

            kept = [v for q in range(plan.column_overlap) for v in column(corner, q)]
            with b.loop(self.first, self.stop, carry=kept) as loop:
                at = (corner + (loop.index - self.first) * (fresh * right)).fixed()
                done = [loop.vars[k : k + len(group)] for k in range(0, len(kept), len(group))]
                done += [column(at, q) for q in range(plan.column_overlap, plan.cols.reach)]
                squares = self._along(group, done, put_at(loop.index))
                if squares:
                    self._add_squares(self.sizes.at(c, loop.index - self.base), squares, started)
                loop.next([v for values in done[fresh:] for v in values])
            started |= bool(squares)

    def _along(self, group: Sequence[int], done: Sequence[Sequence[Val]], put: Put) -> list[Val]:
        """Emit the transform of the rows of a group along themselves, and its stores by `put`:
        done[q][k] is column q of the k-th row. Return the results that are witnesses
        (`outliers.py`)."""
        cols, seen = self.plan.cols, witnesses(self.plan.rows, self.plan.cols)
        found = []
        for k, p in enumerate(group):
            for q, v in enumerate(run(data_program(cols), lambda j, k=k: done[j][k])):
                put(p * cols.products + q, v)
                if (p, q) in seen:
                    found.append(v)
        return found

    def _add_squares(self, at: Ptr, values: Sequence[Val], started: bool) -> None:
        """Emit the addition of the squares of a tile's witnesses `values` to the vector at `at`,
        taken as 0 unless `started`."""
        width = self.plan.width
        total = at.load(width) if started else self.em.b.zero(F32.x(width))
        for v in values:
            total = v.fma(v, total)
        at.store(total)
