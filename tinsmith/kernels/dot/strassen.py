"""Seven products instead of eight: one level of Strassen's method (Winograd's form) for matrix
products with a constant right operand.

Blocks are not the quarters of the matrices but of each tile: a panel of rows is an upper and a
lower half, a panel of columns a left and a right one, so that all that belongs together is in
cache together. K is cut in the middle. Rows that hold an infinity, NaN or very large number
are computed one by one, so that they do not reach others. For each panel of rows the seven left
operands (four are sums) are written side by side to the workspace; the seven right ones were packed
beforehand; the seven tiles go through L1, and their sums are finished and stored row by row:

    S1 = A21 + A22   S2 = S1 - A11    S3 = A11 - A21   S4 = A12 - S2
    T1 = B12 - B11   T2 = B22 - T1    T3 = B22 - B12   T4 = B21 - T2
    P1 = A11 B11   P2 = A12 B21   P3 = S4 B22   P4 = A22 T4   P5 = S1 T1   P6 = S2 T2   P7 = S3 T3
    C11 = P1 + P2              C12 = P1 + P6 + P5 + P3
    C21 = P1 + P6 + P7 + P4    C22 = P1 + P6 + P7 + P5
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Packed,
    Site,
    Skip,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.dot.matmul import flat_rows, right_matrix
from tinsmith.kernels.dot.panels import PARTS, each_column_panel, each_row_panel, part
from tinsmith.kernels.dot.skeleton import Operands, finish_row, offsets, product
from tinsmith.kernels.dot.tiles import Columns, Rows, Tiling, choose
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position, shifted, strides_of, unravel

PRODUCTS = 7
LEAST_ROWS = 24
LEAST_DEPTH = 64
LEAST_TILES = 8
STREAM_ROWS = 100  # up to so many rows, right operands come from memory: prefetch them
KEPT = 5  # times L2: the right operands of a group of columns
LARGE = 1e15  # from here on sums, or products of sums, might overflow
LATENCY = 20.0  # cycles around each product of a tile
SUM_CYCLES = 5.0  # for a vector of one of the left operands, which do not fit L1
FINISH_CYCLES = 18.0  # for a vector of each quarter of a tile, through L1


@dataclass(frozen=True)
class Plan:
    """m x k times k x n in tiles of pairs of rows and pairs of columns. `per_group` panels of
    columns are taken together for all rows of a tile of work."""

    m: int
    k: int
    n: int
    tiling: Tiling  # of one of the seven products: m/2 x k/2 times k/2 x n/2
    per_group: int

    @property
    def half(self) -> int:
        return self.k // 2

    @property
    def groups(self) -> int:
        return -(-self.tiling.columns.count // self.per_group)

    @property
    def left(self) -> int:
        """Elements of one left operand of a panel of rows."""
        return self.tiling.rows.size * self.half

    @property
    def tile(self) -> int:
        """Elements of one of the seven tiles."""
        return self.tiling.rows.size * self.tiling.columns.size

    @property
    def cycles(self) -> float:
        rows, columns = self.tiling.rows, self.tiling.columns
        lanes = (columns.widths if columns.full else columns.tail)[0]
        per_vector = 1.0 if lanes > 8 else 0.5  # 512-bit operations take both 256-bit pipes
        tiles = rows.count * columns.count
        sums = rows.total * self.half / lanes * PRODUCTS * SUM_CYCLES * self.groups * per_vector
        finish = rows.total * columns.total / lanes * FINISH_CYCLES * per_vector
        return PRODUCTS * (self.tiling.cycles + LATENCY * tiles) + sums + finish


def pack(w: np.ndarray[Any, Any], columns: Columns) -> np.ndarray[Any, Any]:
    """The seven right operands of every panel: [panel][product][k / 2][columns of the panel]."""
    wide = w.astype(np.float64)
    half, found = len(w) // 2, []
    for c in range(columns.count):
        size = columns.size if c < columns.full else sum(columns.tail)
        at = 2 * c * columns.size
        left, right = wide[:, at : at + size], wide[:, at + size : at + 2 * size]
        b11, b21, b12, b22 = left[:half], left[half:], right[:half], right[half:]
        t1 = b12 - b11
        t2 = b22 - t1
        found += [b11, b21, b22, b21 - t2, t1, t2, b22 - b12]
    return np.concatenate([x.astype(np.float32).reshape(-1) for x in found])


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def matmul_strassen(site: Site) -> Choice:
    """Seven products of half size instead of eight, with a constant right operand."""
    if site.precision == "strict":
        raise Skip("strict precision asks for the products themselves")
    w = right_matrix(site)
    k, n = w.shape
    m = flat_rows(site, n)
    lanes = block_of(site.target)
    if m < LEAST_ROWS or k < LEAST_DEPTH:
        raise Skip(f"{m} rows of {k}: the sums take longer than what they save")
    if k % 2 or n % (2 * lanes):
        raise Skip(f"{k} x {n} cannot be halved in whole vectors")
    if not np.all(np.abs(w) < LARGE):
        raise Skip(f"the right operand has elements of {LARGE:g} and more")
    target = site.target
    tiling = choose(target, -(-m // 2), n // 2, k // 2, exact=True)
    panel = 4 * PRODUCTS * (k // 2) * tiling.columns.size
    fit = max(1, int(target.l2 * KEPT) // panel)
    groups = max(
        -(-tiling.columns.count // fit),
        min(tiling.columns.count, LEAST_TILES // tiling.rows.count),
    )
    plan = Plan(m, k, n, tiling, -(-tiling.columns.count // groups))
    flops_per_cycle = 2.0 * m * n * k / (tiling.ideal * 8)
    nbytes = 4.0 * (m * k + 1.75 * k * n + m * n)
    cost = target.time(plan.cycles * flops_per_cycle, nbytes) + 1e-7
    rows = tiling.rows.count
    cuts = 1 if cost < 10e-6 else min(rows, max(1, -(-PARTS // plan.groups)))

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as t:
            rlo, rhi = part(t % cuts, cuts, rows)
            clo, chi = part(t // cuts, plan.groups, tiling.columns.count)
            _rows(em, plan, rlo, rhi, clo, chi)

    return Choice(
        cost=cost,
        reads=site.reads((PLAIN, None), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(cuts * plan.groups, emit),
        packed=(Packed("w", lambda: pack(w, tiling.columns)),),
        workspace=4 * PRODUCTS * (plan.left + plan.tile) + 256,
        detail=f"{tiling}, {plan.groups} groups of columns",
    )


def _rows(em: Emit, p: Plan, rlo: Position, rhi: Position, clo: Position, chi: Position) -> None:
    b, rows = em.b, p.tiling.rows
    left = em.workspace.cast(F32)
    tiles = (left + PRODUCTS * p.left).fixed()
    last = rows.count - 1

    def panel(row: Position, height: int, lower: int) -> None:
        finite = _left_operands(em, p, row, height, lower, left)
        b.choose(
            finite,
            lambda: _seven(em, p, row, height, lower, clo, chi, left, tiles),
            lambda: _plain(em, p, row, height + lower, clo, chi),
        )

    def both(row: Position, height: int) -> None:
        panel(row * 2, height, height)

    if p.m % 2 == 0:
        each_row_panel(b, rows, rlo, rhi, both)
        return
    height = rows.size - bool(rows.fewer)
    if last:
        many, fewer = (rows.many, rows.fewer - 1) if rows.fewer else (rows.many - 1, 0)
        others = Rows(rows.total - height, rows.size, many, fewer)
        each_row_panel(b, others, rlo, b.minimum(rhi, last), both)
    with b.when(b.index(rhi) > last):
        panel(p.m + 1 - 2 * height, height, height - 1)


def _seven(
    em: Emit,
    p: Plan,
    row: Position,
    height: int,
    lower: int,
    clo: Position,
    chi: Position,
    left: Ptr,
    tiles: Ptr,
) -> None:
    """The products of one panel of rows, and what they add up to."""
    b = em.b

    def columns(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        right = _right(em, p, c)
        size = sum(widths)
        with b.loop(0, PRODUCTS) as one:
            a, w = (left + one * p.left).fixed(), (right + one * (p.half * size)).fixed()
            at = Operands(a, p.half, w, size, p.half, stream=p.m < STREAM_ROWS)
            out = (tiles + one * p.tile).fixed()
            for i, line in enumerate(product(b, at, height, widths)):
                for offset, value in offsets(line):
                    (out + (i * size + offset)).store(value)
        _finish(em, p, row, height, lower, column * 2, widths, tiles)

    each_column_panel(b, p.tiling.columns, clo, chi, columns)


def _right(em: Emit, p: Plan, c: Position) -> Ptr:
    return (em.packed[0] + c * (PRODUCTS * p.half * p.tiling.columns.size)).fixed()


def _left_operands(em: Emit, p: Plan, row: Position, height: int, lower: int, to: Ptr) -> Val:
    """The seven left operands of the rows row .. row + height + lower - 1; where the lower half
    lacks a row, the one before it stands in. Whether no element is large, infinite or NaN."""
    b, half, lanes = em.b, p.half, block_of(em.target)
    a = (em.ins[0].pointer + row * p.k).fixed()  # type: ignore[union-attr]
    full = half // lanes * lanes

    def vector(lines: tuple[Ptr, Ptr, Ptr], j: Position, size: int, total: Val) -> Val:
        """All that comes from `size` elements of four; their squares are added to a total."""
        top, bottom, out = (at + j for at in lines)
        a11, a12 = top.load(size), (top + half).load(size)
        a21, a22 = bottom.load(size), (bottom + half).load(size)
        s1 = a21 + a22
        s2 = s1 - a11
        s4 = a12 - s2
        for q, value in enumerate((a11, a12, s4, a22, s1, s2, a11 - a21)):
            (out + q * p.left).store(value)
        for value in (a11, a12, a21, a22):
            total = value.fma(value, total)
        return total

    with b.loop(0, height, 1, [b.zero(F32.x(lanes)), b.zero(F32)]) as rows:
        many, one = rows.vars
        i = rows.index
        below = b.minimum(i, lower - 1) if lower < height else i
        bottom = a + (b.index(below) + height) * p.k
        lines = (a + i * p.k).fixed(), bottom.fixed(), (to + i * half).fixed()
        if full:
            with b.loop(0, full, lanes, [many]) as loop:
                loop.next([vector(lines, loop.index, lanes, loop.vars[0])])
            many = loop.out[0]
        if full < half:
            with b.loop(full, half, 1, [one]) as loop:
                loop.next([vector(lines, loop.index, 1, loop.vars[0])])
            one = loop.out[0]
        rows.next([many, one])
    return (rows.out[0].reduce("add") + rows.out[1]) < LARGE**2


def _plain(em: Emit, p: Plan, row: Position, height: int, clo: Position, chi: Position) -> None:
    """The rows one by one, without sums of rows: an infinity or NaN stays in its own."""
    b = em.b

    def columns(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        right, size = _right(em, p, c), sum(widths)
        places = [sum(widths[:j]) for j in range(len(widths))]
        with b.loop(0, height) as i:
            line = (em.ins[0].pointer + (i + row) * p.k).fixed()  # type: ignore[union-attr]
            sums = [b.zero(F32.x(w)) for w in (*widths, *widths)]
            for first, left_at, right_at, more in ((0, 0, 0, 4), (p.half, 1, 2, None)):
                with b.loop(0, p.half, 1, sums) as loop:
                    k, x = loop.index, (line + first + loop.index).load()

                    def read(q: int, at: int, w: int, k: Val = k) -> Val:
                        return (right + (q * p.half * size + at) + k * size).load(w)

                    halves: list[Val] = []
                    for which in (left_at, right_at):
                        for at, w in zip(places, widths, strict=True):
                            value = read(which, at, w)
                            if which == right_at and len(halves) >= len(widths) and more:
                                value = value + read(more, at, w)
                            halves.append(x.splat(w).fma(value, loop.vars[len(halves)]))
                    loop.next(halves)
                sums = loop.out
            n = len(widths)
            _store(em, i + row, column * 2, sums[:n], widths[-1])
            _store(em, i + row, column * 2 + size, sums[n:], widths[-1])

    each_column_panel(b, p.tiling.columns, clo, chi, columns)


def _finish(
    em: Emit,
    p: Plan,
    row: Position,
    height: int,
    lower: int,
    column: Position,
    widths: tuple[int, ...],
    tiles: Ptr,
) -> None:
    """Add the tiles up, row by row, and finish the four quarters."""
    size = sum(widths)

    def line(i: Position, of: Callable[[list[Val]], tuple[Val, Val]], out_row: Position) -> None:
        sides: list[tuple[Val, Val]] = []
        offset = 0
        for width in widths:
            at = (tiles + i * size + offset).fixed()
            sides.append(of([(at + q * p.tile).load(width) for q in range(PRODUCTS)]))
            offset += width
        _store(em, out_row, column, [s[0] for s in sides], widths[-1])
        _store(em, out_row, column + size, [s[1] for s in sides], widths[-1])

    def top(v: list[Val]) -> tuple[Val, Val]:
        p1, p2, p3, _, p5, p6, _ = v
        return p1 + p2, (p1 + p6) + (p5 + p3)

    def bottom(v: list[Val]) -> tuple[Val, Val]:
        p1, _, _, p4, p5, p6, p7 = v
        u3 = (p1 + p6) + p7
        return u3 + p4, u3 + p5

    with em.b.loop(0, height) as i:
        line(i, top, i + row)
    if lower:
        with em.b.loop(0, lower) as i:
            line(i, bottom, i + row + height)


def _store(em: Emit, row: Position, column: Position, values: list[Val], valid: int) -> None:
    """Finish vectors of one row, which is counted over all dimensions but the last."""
    dims = em.site.out.dims
    lead = dims[:-1]
    views = strides_of([*em.extras, em.outs[0]], 0, len(lead))
    here = shifted(em, [*unravel(row, lead, views), column])
    finish_row(here, values, [0] * len(dims), valid)
