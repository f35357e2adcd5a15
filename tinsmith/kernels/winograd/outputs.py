"""The transform of products to results, one tile and one block of output channels at a time.

Rows are transformed in small groups for all columns, and each row of a group then along itself,
so that no tile is ever spilled: reading a product twice is cheaper than storing sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.expr import Expr
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.stages import stage
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.winograd.frames import result_at
from tinsmith.kernels.winograd.outliers import Sizes
from tinsmith.kernels.winograd.plan import Plan
from tinsmith.kernels.winograd.program import result_program, run
from tinsmith.kernels.winograd.repair import repair
from tinsmith.records import dataclass

HEAVY = 6  # functions of an epilogue that is emitted once, in a loop, not for each place of a tile


def output_stage(
    em: Emit,
    plan: Plan,
    source: Callable[[Emit], View],
    space: Ptr,
    room: Callable[[Emit], Ptr],
    k0: Val,
    k1: Val,
    t0: Val,
    t1: Val,
    base: Val,
) -> None:
    """Finish tiles [t0, t1) of output blocks [k0, k1); tile `base` is the first of V and M."""
    b, width = em.b, plan.width
    edge, products, sizes = room(em), space + plan.m_start, Sizes(plan, space)
    again = stage(em, "repair", "tile_k tile_n tile_y tile_x", _repair_of(plan, source, room))
    sink = Sink(em, plan.geo)
    limit = sizes.limit()
    with b.loop(k0, k1) as k:
        m = products + k * (plan.places * width)
        bias = (em.packed[1] + k * width).load(width)
        with b.loop(t0, t1) as t:
            n, i, j = plan.place(t)
            y, x = plan.vertical.start(i), plan.horizontal.start(j)
            at = (m + (t - base) * width).fixed()
            out = _fixed_sink(sink.at(*result_at(plan, n, k), y, x))
            tile = Tile(em, plan, at, bias, out, edge, y, x)
            b.choose(sizes.are_fit(t - base, limit), tile.finish, partial(again, k, n, y, x))


@dataclass(frozen=True)
class Tile:
    """The products of one tile and block of output channels, and where its results belong."""

    em: Emit
    plan: Plan
    products: Ptr
    bias: Val
    out: Sink
    edge: Ptr
    y: Val | int
    x: Val | int

    def finish(self) -> None:
        """Those that overhang the image go through `edge`, where results can be indexed."""
        b, plan, out = self.em.b, self.plan, self.plan.geo.out
        # First places of tiles that lie in the image as a whole are below these.
        high = out[1] - (plan.rows.m - 1) * plan.vertical.dilation
        wide = out[2] - (plan.cols.m - 1) * plan.horizontal.dilation
        if min(high, wide) <= 0 or functions(self.em) > HEAVY:
            self._indexed()
        elif plan.vertical.even and plan.horizontal.even:
            self._straight()
        else:
            inside = (b.index(self.y) < high) & (b.index(self.x) < wide)
            b.choose(inside, self._straight, self._indexed)

    def _straight(self) -> None:
        apart, beside = self.plan.vertical.dilation, self.plan.horizontal.dilation
        for i, j, v in self._results():
            self.out.put(v, 0, 0, 0, i * apart, j * beside)

    def _indexed(self) -> None:
        b, plan, out, width = self.em.b, self.plan, self.plan.geo.out, self.plan.width
        apart, beside = plan.vertical.dilation, plan.horizontal.dilation
        for i, j, v in self._results():
            (self.edge + (i * plan.cols.m + j) * width).store(v)
        below = b.minimum(plan.rows.m, (out[1] + apart - 1 - b.index(self.y)) // apart)
        right = b.minimum(plan.cols.m, (out[2] + beside - 1 - b.index(self.x)) // beside)
        with b.loop(0, below) as i, b.loop(0, right) as j:
            value = (self.edge + i * (plan.cols.m * width) + j * width).load(width)
            self.out.at(0, 0, 0, i * apart, j * beside).put(value, 0, 0, 0, 0, 0)

    def _results(self) -> Iterator[tuple[int, int, Val]]:
        """(i, j, (R X C^T)[i, j] + bias) for every place of a tile, where X are its products."""
        rows, cols = result_program(self.plan.rows), result_program(self.plan.cols)
        for group in rows.groups:
            columns = [run(rows, partial(self._product, q=q), group) for q in range(cols.inputs)]
            for i, row in zip(group, zip(*columns, strict=True), strict=True):
                for j, value in enumerate(run(cols, row.__getitem__)):
                    yield i, j, value + self.bias

    def _product(self, p: int, q: int) -> Val:
        position = p * self.plan.cols.products + q
        return (self.products + position * self.plan.m_step).load(self.plan.width)


def _repair_of(
    plan: Plan, source: Callable[[Emit], View], room: Callable[[Emit], Ptr]
) -> Callable[..., None]:
    def body(em: Emit, *tile: Val) -> None:
        repair(em, plan, source(em), room(em), *tile)

    return body


def _fixed_sink(sink: Sink) -> Sink:
    def view(v: View) -> View:
        return View(v.pointer.fixed(), v.spec)

    em = replace(
        sink.em,
        outs=(view(sink.em.outs[0]), *sink.em.outs[1:]),
        extras=tuple(map(view, sink.em.extras)),
    )
    return Sink(em, sink.geometry, sink.block)


def functions(em: Emit) -> int:
    """How many functions the epilogue applies to each result."""
    seen: set[int] = set()

    def visit(e: Expr) -> None:
        if id(e) not in seen and e.args:
            seen.add(id(e))
            for arg in e.args:
                visit(arg)

    if em.site.epilogue is not None:
        visit(em.site.epilogue)
    return len(seen)
