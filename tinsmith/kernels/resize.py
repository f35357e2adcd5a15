"""Resize: copies by index (nearest) and weighted sums (linear, cubic) from tables for each axis.

The tables are those of the reference. Rows of the output are independent: the tables of the outer
axes choose which rows of the input are summed with which weights; the table of the innermost axis
is then applied along the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Layout,
    Packed,
    Site,
    Skip,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.layout import block_of, lanes_of, plain_strides
from tinsmith.kernels.move.strided import emit_copy, plan_copy
from tinsmith.kernels.rows import Position, blocks, run
from tinsmith.ops.resize import Table, axis_tables
from tinsmith.records import dataclass

MOST_TAPS = 64  # input elements of an output element
MOST_RUNS = 4  # of neighbours that code of their own copies

Row = tuple[Ptr, Val | None]  # an input row and its weight


@dataclass(frozen=True)
class Axis:
    """One axis: extents, and the table, which is absent where the axis does not change. `index`
    is the number of its first packed array (places, then weights)."""

    size: int
    out: int
    table: Table | None
    index: int

    @property
    def taps(self) -> int:
        return 1 if self.table is None else self.table.places.shape[1]

    @property
    def weighted(self) -> bool:
        return self.table is not None and self.table.weights is not None

    def in_vectors(self, lanes: int) -> int:
        """Results along a row that are copied in vectors."""
        if self.repeats and self.size >= lanes > 1:
            return self.out
        return sum(hi - lo for lo, hi, _ in self.copied(lanes))

    @property
    def repeats(self) -> int:
        """How often in turn each element is copied; 0 where it is otherwise."""
        times, rest = divmod(self.out, self.size)
        if self.table is None or self.weighted or rest or times < 2:
            return 0
        even = np.arange(self.out) // times
        return times if np.array_equal(self.table.places[:, 0], even) else 0

    def copied(self, least: int) -> list[tuple[int, int, int]]:
        """Runs of at least so many results that copy neighbours: from, to, and the first's place.
        No runs where there are many."""
        if self.table is None or self.weighted:
            return []
        places = self.table.places[:, 0]
        edges = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        runs = [(lo, hi, int(places[lo])) for lo, hi in pairwise(edges) if hi - lo >= least]
        return runs if len(runs) <= MOST_RUNS else []


@kernel("Resize", Tier.VECTOR)
def resize_separable(site: Site) -> list[Choice]:
    """Nearest, linear and cubic resizing of any axes, from constant sizes."""
    x = site.input(0)
    if site.extras or site.epilogue is not None:
        raise Skip("the result is not finished in place")
    tables = _tables(site)
    if any(t.weights is not None for t in tables) and x.dtype != np.float32:
        raise Skip(f"interpolates float32, not {x.dtype}")
    crop = site.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crop and any(t.outside.any() for t in tables):
        raise Skip("places outside of the input are wanted")
    return choices_for(site, tables, site.attr("mode"))


def choices_for(site: Site, tables: Sequence[Table], detail: str) -> list[Choice]:
    """The product of tables on plain data, and on blocked data where only spatial axes change."""
    x, y = site.input(0), site.out
    if not tables:
        raise Skip("nothing changes")
    lead = min(t.axis for t in tables)
    if prod(t.places.shape[1] for t in tables) > MOST_TAPS:
        raise Skip(f"more than {MOST_TAPS} elements are summed")
    choices = [_plain(site, _axes(site, tables, lead), lead, detail)]
    if x.dtype == np.float32 and 3 <= len(x.dims) <= 5 and lead >= 2 and y.dims[:2] == x.dims[:2]:
        choices.append(_blocked(site, _axes(site, tables, 2), detail))
    return choices


def _tables(site: Site) -> list[Table]:
    given: dict[int, Any] = {
        i: site.const(i) if site.has(i) else None for i in range(1, len(site.inputs))
    }
    names = ["mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "antialias", "axes"]
    return axis_tables(
        site.input(0).dims, *(given.get(i) for i in (1, 2, 3)),
        transform=site.attr("coordinate_transformation_mode"),
        policy=site.attr("keep_aspect_ratio_policy"), **{n: site.attr(n) for n in names},
    )  # fmt: skip


def _axes(site: Site, tables: Sequence[Table], lead: int) -> list[Axis]:
    """The axes from `lead` on."""
    named = {t.axis: t for t in tables}
    axes, index = [], 0
    for d in range(lead, len(site.out.dims)):
        table = named.get(d)
        axes.append(Axis(site.input(0).dims[d], site.out.dims[d], table, index))
        index += 0 if table is None else 1 if table.weights is None else 2
    return axes


def _packed(axes: Sequence[Axis]) -> tuple[Packed, ...]:
    packed = []
    for k, axis in enumerate(axes):
        table = axis.table
        if table is not None:
            packed.append(Packed(f"places{k}", lambda t=table: t.places.reshape(-1)))
            if table.weights is not None:
                weights = table.weights.astype(np.float32)
                packed.append(Packed(f"weights{k}", lambda w=weights: w.reshape(-1)))
    return tuple(packed)


def _cost(site: Site, axes: Sequence[Axis], each: float) -> float:
    """Seconds, where one tap of all results takes `each` nanoseconds."""
    moved = site.input(0).type.nbytes + site.out.type.nbytes
    return 0.3e-6 + site.target.time(0, moved) + each * 1e-9 * prod(a.taps for a in axes)


# ---- rows


def _rows(
    em: Emit,
    axes: Sequence[Axis],
    flat: Position,
    src: Ptr,
    dst: Ptr,
    steps: Sequence[Sequence[int]],
) -> tuple[list[Row], Ptr]:
    """The input rows with their weights, and the output row, at flat position `flat` of the outer
    axes; `steps` are the strides of input and output."""
    b = em.b
    rows: list[Row] = [(src, None)]
    for k in range(len(axes) - 2, -1, -1):
        axis = axes[k]
        at, flat = (flat, 0) if k == 0 else (flat % axis.out, flat // axis.out)
        dst = dst + at * steps[1][k]
        if axis.table is None:
            rows = [(p + at * steps[0][k], w) for p, w in rows]
            continue
        more: list[Row] = []
        first = b.index(at) * axis.taps
        for t in range(axis.taps):
            place = (em.packed[axis.index] + first + t).load() * steps[0][k]
            weight = (em.packed[axis.index + 1] + first + t).load() if axis.weighted else None
            for p, w in rows:
                both = weight if w is None else w if weight is None else w * weight
                more.append((p + place, both))
        rows = more
    return [(p.fixed(), w) for p, w in rows], dst.fixed()


def _sum(terms: Sequence[tuple[Val, Val | None]]) -> Val:
    """Values times their weights (all or none have one), added."""
    total: Val | None = None
    for value, weight in terms:
        if weight is None:
            return value
        total = value * weight if total is None else value.fma(weight, total)
    assert total is not None
    return total


def _wide(rows: Sequence[Row], lanes: int) -> list[Row]:
    return [(p, None if w is None else w.splat(lanes)) for p, w in rows]


# ---- blocked


def _blocked(site: Site, axes: list[Axis], detail: str) -> Choice:
    block = block_of(site.target)
    layout = Layout(block)
    n, channels = site.out.dims[:2]
    blocks = -(-channels // block)
    lines = prod(a.out for a in axes[:-1])

    def emit(em: Emit) -> None:
        source, out = em.ins[0], em.outs[0]
        assert source is not None
        steps = [source.spec.strides[2:], out.spec.strides[2:]]
        with em.b.loop(em.begin, em.end) as tile:
            flat, plane = tile % lines, tile // lines
            image, c = plane // blocks, plane % blocks
            src, dst = (
                (v.pointer + image * v.spec.strides[0] + c * v.spec.strides[1])
                for v in (source, out)
            )
            rows, dst = _rows(em, axes, flat, src, dst, steps)
            _pixels(em, axes[-1], _wide(rows, block), dst, steps[0][-1], steps[1][-1], block)

    vectors = n * blocks * lines * axes[-1].out
    return Choice(
        _cost(site, axes, 0.4 * vectors), site.reads([layout, *_no(site)], layout), (layout,),
        one_phase(n * blocks * lines, emit), _packed(axes), detail=detail,
    )  # fmt: skip


def _no(site: Site) -> list[None]:
    return [None] * (len(site.inputs) - 1)


def _pixels(
    em: Emit, axis: Axis, rows: Sequence[Row], dst: Ptr, src_step: int, dst_step: int, block: int
) -> None:
    """One row of pixel vectors."""
    b = em.b

    def vertical(at: Position) -> Val:
        return _sum([((p + at).load(block), w) for p, w in rows])

    if axis.repeats:
        times = axis.repeats

        def several(i: Position) -> None:
            value = vertical(i * src_step)
            for k in range(times):
                (dst + i * (times * dst_step) + k * dst_step).store(value)

        run(b, 0, axis.size, several)
        return

    def pixel(i: Position) -> None:
        if axis.table is None:
            value = vertical(i * src_step)
        else:
            value = _sum(
                [
                    (vertical(place * src_step), None if w is None else w.splat(block))
                    for place, w in _taps(em, axis, i)
                ]
            )
        (dst + i * dst_step).store(value)

    run(b, 0, axis.out, pixel)


def _taps(em: Emit, axis: Axis, i: Position) -> list[tuple[Val, Val | None]]:
    """The places and weights of element i of the innermost axis."""
    first = em.b.index(i) * axis.taps
    places = (em.packed[axis.index] + first).fixed()
    weights = (em.packed[axis.index + 1] + first).fixed() if axis.weighted else None
    return [
        ((places + t).load(), None if weights is None else (weights + t).load())
        for t in range(axis.taps)
    ]


# ---- plain


def _plain(site: Site, axes: list[Axis], lead: int, detail: str) -> Choice:
    """Rows of plain tensors. Where the innermost axis changes, the sum of the input rows goes to
    the workspace first, and its elements are picked from there."""
    images = prod(site.out.dims[:lead])
    lines = prod(a.out for a in axes[:-1])
    steps = [plain_strides([a.size for a in axes]), plain_strides([a.out for a in axes])]
    whole = [prod(a.size for a in axes), prod(a.out for a in axes)]
    last = axes[-1]
    direct = last.table is None
    summed = not direct and any(a.weighted for a in axes[:-1])

    def emit(em: Emit) -> None:
        source = em.ins[0]
        assert source is not None
        with em.b.loop(em.begin, em.end) as tile:
            flat, image = tile % lines, tile // lines
            src = source.pointer + image * whole[0]
            dst = em.outs[0].pointer + image * whole[1]
            rows, dst = _rows(em, axes, flat, src, dst, steps)
            if direct:
                _vertical(em, rows, last.size, dst)
                return
            if summed:
                row = em.workspace.cast(F32)
                _vertical(em, rows, last.size, row)
            else:
                row = rows[0][0]
            _along(em, last, row, dst)

    rows = images * lines
    lanes = lanes_of(site.target, site.out.dtype.itemsize)
    singly = 0 if direct else last.out - last.in_vectors(lanes)
    each = 0.5 * (last.out - singly) / lanes + 0.4 * singly
    counted = axes if direct else [last]
    return Choice(
        _cost(site, counted, each * rows), (PLAIN, *_no(site)), (PLAIN,), one_phase(rows, emit),
        _packed(axes), workspace=4 * last.size if summed else 0, detail=detail,
    )  # fmt: skip


def _vertical(em: Emit, rows: Sequence[Row], count: int, dst: Ptr) -> None:
    """dst[0 : count] = the sum of the rows."""
    lanes = lanes_of(em.target, dst.elem.nbytes)
    wide: dict[int, Sequence[Row]] = {lanes: _wide(rows, lanes), 1: rows}

    def body(i: Position, width: int, mask: Val | None) -> None:
        terms = [((p + i).load(width, mask), w) for p, w in wide[width]]
        (dst + i).store(_sum(terms), mask)

    em.b.vectors(count, lanes, body)


def _along(em: Emit, axis: Axis, row: Ptr, dst: Ptr) -> None:
    """The elements of a row: vectors where neighbours are copied, or each several times in turn."""
    b = em.b
    lanes = lanes_of(em.target, dst.elem.nbytes)

    def element(i: Position) -> None:
        (dst + i).store(_sum([((row + place).load(), w) for place, w in _taps(em, axis, i)]))

    if (times := axis.repeats) and axis.size >= lanes > 1:
        with blocks(b, axis.size, lanes) as at:
            value, to = (row + at).load(lanes), (dst + at * times).fixed()
            for k in range(times):
                picks = [(k * lanes + i) // times for i in range(lanes)]
                (to + k * lanes).store(value.shuffle(None, picks))
        return
    done = 0
    for lo, hi, place in axis.copied(lanes):
        run(b, done, lo, element)
        copy = plan_copy((hi - lo,), (1,), (1,), dst.elem.bits)
        emit_copy(b, copy, row + place, dst + lo, 0, 1)
        done = hi
    run(b, done, axis.out, element)
