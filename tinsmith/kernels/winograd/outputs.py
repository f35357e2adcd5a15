"""The transform of products to results, one tile and one block of output channels at a time.

Rows are transformed in small groups for all columns, and each row of a group then along itself,
so that no tile is ever spilled: reading a product twice is cheaper than storing sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.expr import Expr
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.stages import stage
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.winograd.frames import result_at
from tinsmith.kernels.winograd.outliers import Sizes
from tinsmith.kernels.winograd.plan import Plan
from tinsmith.kernels.winograd.program import Program, result_program, run
from tinsmith.kernels.winograd.repair import repair

HEAVY = 6  # functions of an epilogue that is emitted once, in a loop, not for each place of a tile


def transform(
    rows: Program,
    cols: Program,
    read: Callable[[int, int], Val],
    write: Callable[[int, int, Val], None],
) -> None:
    """write(i, j, (R X C^T)[i, j]) for every i, j, where read(k, l) is X[k, l]."""
    for group in rows.groups:
        done = [
            run(rows, lambda k, column=column: read(k, column), group)
            for column in range(cols.inputs)
        ]
        for at, i in enumerate(group):
            for j, value in enumerate(run(cols, lambda k, done=done, at=at: done[k][at])):
                write(i, j, value)


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
    """Finish tiles [t0, t1) of output blocks [k0, k1); tile `base` is the first of V and M.

    Tiles that overhang the image go through `room`, where their results can be indexed.
    """
    edge, products, sizes = room(em), space + plan.m_start, Sizes(plan, space)
    again = stage(em, "repair", "tile_k tile_n tile_y tile_x", _repair_of(plan, source, room))
    b, width, geo = em.b, plan.width, plan.geo
    high, wide = plan.rows.m, plan.cols.m
    rows, cols = result_program(plan.rows), result_program(plan.cols)
    sink = Sink(em, geo)
    vertical, horizontal = plan.vertical, plan.horizontal
    apart, beside = vertical.dilation, horizontal.dilation
    # First places of tiles that lie in the image as a whole are below these.
    full_rows, full_cols = geo.out[1] - (high - 1) * apart, geo.out[2] - (wide - 1) * beside
    direct = min(full_rows, full_cols) > 0 and functions(em) <= HEAVY
    overhang = not (vertical.even and horizontal.even)

    limit = sizes.limit()
    with b.loop(k0, k1) as k:
        m = products + k * (plan.places * width)
        bias = (em.packed[1] + k * width).load(width)
        with b.loop(t0, t1) as t:
            n, i, j = plan.place(t)
            y, x = vertical.start(i), horizontal.start(j)
            at = (m + (t - base) * width).fixed()
            out = _fixed_sink(sink.at(*result_at(plan, n, k), y, x))

            def results(write: Callable[[int, int, Val], None], at: Ptr = at) -> None:
                transform(
                    rows,
                    cols,
                    lambda p, q: (at + (p * plan.cols.products + q) * plan.m_step).load(width),
                    lambda p, q, v: write(p, q, v + bias),
                )

            def straight(out: Sink = out) -> None:
                results(lambda p, q, v: out.put(v, 0, 0, 0, p * apart, q * beside))

            def indexed(out: Sink = out, y: Val | int = y, x: Val | int = x) -> None:
                results(lambda p, q, v: (edge + (p * wide + q) * width).store(v))
                below = b.minimum(high, (geo.out[1] + apart - 1 - b.index(y)) // apart)
                right = b.minimum(wide, (geo.out[2] + beside - 1 - b.index(x)) // beside)
                with b.loop(0, below) as p, b.loop(0, right) as q:
                    value = (edge + p * (wide * width) + q * width).load(width)
                    out.at(0, 0, 0, p * apart, q * beside).put(value, 0, 0, 0, 0, 0)

            def finish(
                y: Val | int = y,
                x: Val | int = x,
                straight: Callable[[], None] = straight,
                indexed: Callable[[], None] = indexed,
            ) -> None:
                if direct and overhang:
                    inside = (b.index(y) < full_rows) & (b.index(x) < full_cols)
                    b.choose(inside, straight, indexed)
                elif direct:
                    straight()
                else:
                    indexed()

            b.choose(
                sizes.are_fit(t - base, limit),
                finish,
                lambda k=k, n=n, y=y, x=x: again(k, n, y, x),
            )


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
