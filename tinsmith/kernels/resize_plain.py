"""Resizing rows of plain tensors: sums of input rows, and elements picked along a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, one_phase
from tinsmith.kernels.layout import lanes_of, plain_strides
from tinsmith.kernels.move.strided import copy_row
from tinsmith.kernels.resize_axes import (
    Axis,
    Row,
    cost_of,
    rows_at,
    taps_at,
    weighted_sum,
    with_tables,
    with_vectors,
)
from tinsmith.kernels.sharing import PARTS
from tinsmith.kernels.walk import Position, blocks, run
from tinsmith.sizes import Size, typical


def plain(site: Site, axes: list[Axis], lead: int, detail: str) -> Choice:
    """The choice of a resize of plain tensors. `axes` are the axes from number `lead` on; those
    before do not change. Rows are interpolated along themselves before they are summed if
    `_grows(axes)`, else after. `detail` is that of the choice."""
    return with_tables((_stretched if _grows(axes) else _summed)(site, axes, lead, detail), axes)


def _summed(site: Site, axes: list[Axis], lead: int, detail: str) -> Choice:
    """The choice that sums input rows first. If the innermost axis changes, the summed row goes to
    the workspace, and the result is picked from its elements."""
    images = prod(site.out.dims[:lead])
    lines = prod(a.out for a in axes[:-1])
    steps = [plain_strides([a.size for a in axes]), plain_strides([a.out for a in axes])]
    whole = [prod(a.size for a in axes), prod(a.out for a in axes)]
    last = axes[-1]
    direct = last.table is None and not last.every
    summed = not direct and any(a.weighted for a in axes[:-1])

    def emit(em: Emit) -> None:
        source = em.input(0)
        with em.b.loop(em.begin, em.end) as tile:
            flat, image = tile % lines, tile // lines
            src = source.pointer + image * whole[0]
            dst = em.outs[0].pointer + image * whole[1]
            rows, dst = rows_at(em, axes, flat, src, dst, steps)
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
    wide = typical(last.out)
    singly = 0 if direct else wide - last.in_vectors(lanes)
    each = 0.5 * (wide - singly) / lanes + 0.4 * singly
    counted = axes if direct else [last]
    return Choice(
        cost_of(site, counted, each * typical(rows)), site.reads_first(PLAIN, PLAIN), (PLAIN,),
        one_phase(rows, emit), workspace=4 * last.size if summed else 0, detail=detail,
    )  # fmt: skip


def _grows(axes: Sequence[Axis]) -> bool:
    """Whether `axes` are two, both interpolated, and there will be more rows: then rows are better
    stretched before they are summed."""
    down, along = axes if len(axes) == 2 else (None, None)
    return bool(down and along and down.weighted and along.weighted and down.out > down.size)


def _stretched(site: Site, axes: list[Axis], lead: int, detail: str) -> Choice:
    """The choice that interpolates along rows first: the input rows that a band of results reads
    are stretched into the workspace, and rows of results are sums of these. For plain images that
    get more rows."""
    down, along = axes
    images = prod(site.out.dims[:lead])
    nbytes = typical(4 * down.size * along.out)
    count = max(-(-nbytes // (site.target.l2 // 4)), -(-PARTS // max(1, typical(images))))
    count = max(1, min(count, typical(down.size) // (2 * down.taps)))
    lines = -(-typical(down.out) // count)
    most = -(-lines * down.size // down.out) + down.taps + 1
    bands = -(-down.out // lines)

    def emit(em: Emit) -> None:
        b, source, room = em.b, em.input(0), em.workspace.cast(F32)
        with b.loop(em.begin, em.end) as tile:
            band, image = tile % bands, tile // bands
            src = source.pointer + image * (down.size * along.size)
            dst = (em.outs[0].pointer + image * (down.out * along.out)).fixed()
            begin = b.index(band * lines)
            end = b.index(b.minimum(begin + lines, down.out))
            low, high = _span(em, down, begin, end)
            with b.loop(low, high) as row:
                to = (room + (row - low) * along.out).fixed()
                _along(em, along, (src + row * along.size).fixed(), to)
            with b.loop(begin, end) as line:
                rows = [
                    ((room + (place - low) * along.out).fixed(), weight)
                    for place, weight in taps_at(em, down, line)
                ]
                _vertical(em, rows, along.out, (dst + line * along.out).fixed())

    lanes = lanes_of(site.target, site.out.dtype.itemsize)
    sums = typical(images * down.out * along.out) / lanes
    stretching = 0.4e-9 * along.taps * typical(images * bands * most * along.out)
    return Choice(
        cost_of(site, [down], 0.15 * sums) + stretching, site.reads_first(PLAIN, PLAIN), (PLAIN,),
        one_phase(images * bands, emit), workspace=4 * most * along.out,
        detail=f"{detail}, rows first",
    )  # fmt: skip


def _span(em: Emit, axis: Axis, begin: Val, end: Val) -> tuple[Val, Val]:
    """The range (first, end) of the places that results begin .. end - 1 of an axis read. Places
    rise or fall along an axis, so the first and the last result tell."""
    b = em.b
    first, last = ([at for at, _ in taps_at(em, axis, i)] for i in (begin, end - 1))
    low = b.index(b.minimum(first[0], last[0]))
    return low, b.index(b.maximum(first[-1], last[-1])) + 1


def _vertical(em: Emit, rows: Sequence[Row], count: int, dst: Ptr) -> None:
    """Emit dst[0 : count] = the sum of the rows, each times its weight, if it has one."""
    lanes = lanes_of(em.target, dst.elem.nbytes)
    wide: dict[int, Sequence[Row]] = {lanes: with_vectors(rows, lanes), 1: rows}

    def body(i: Position, width: int, mask: Val | None) -> None:
        terms = [((p + i).load(width, mask), w) for p, w in wide[width]]
        (dst + i).store(weighted_sum(terms), mask)

    em.b.vectors(count, lanes, body)


def _along(em: Emit, axis: Axis, row: Ptr, dst: Ptr) -> None:
    """Emit the result's row at `dst` from the input row at `row`, by the table or the repetition of
    `axis`: in vectors if neighbours are copied or each element is repeated, else singly."""
    b = em.b
    lanes = lanes_of(em.target, dst.elem.nbytes)

    def element(i: Position) -> None:
        taps = [((row + place).load(), weight) for place, weight in taps_at(em, axis, i)]
        (dst + i).store(weighted_sum(taps))

    def repeated() -> None:
        with blocks(b, axis.size, lanes) as at:
            value, to = (row + at).load(lanes), (dst + at * times).fixed()
            for k in range(times):
                picks = [(k * lanes + i) // times for i in range(lanes)]
                (to + k * lanes).store(value.shuffle(None, picks))

    def singly() -> None:
        with b.loop(0, axis.out) as i:
            (dst + i).store((row + i // times).load())

    times = axis.repeats
    if isinstance(axis.size, Size) and times and lanes > 1:
        b.choose(b.index(axis.size) >= lanes, repeated, singly)
        return
    if times and axis.every:
        singly()
        return
    if times and axis.size >= lanes > 1:
        repeated()
        return
    done = 0
    for lo, hi, place in axis.copied(lanes):
        run(b, done, lo, element)
        copy_row(b, hi - lo, row + place, dst + lo)
        done = hi
    run(b, done, axis.out, element)
