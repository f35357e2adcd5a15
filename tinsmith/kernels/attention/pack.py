"""Copies of the rows of one item into the orders that the products read."""

from __future__ import annotations

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position


def pack_keys(b: Builder, k: Start, width: int, columns: Columns, to: Ptr) -> None:
    """The transposed rows as [panel][element][keys of the panel]; padding repeats the last key."""
    lanes = block_of(b.target)
    if columns.full:
        vectors = len(columns.widths)
        with b.loop(0, columns.full * vectors) as group:
            panel, slot = group // vectors, group % vectors
            sink = to + panel * (width * columns.size) + slot * lanes
            _key_group(b, k, width, group * lanes, lanes, columns, sink.fixed(), columns.size)
    at, line = columns.full * columns.size, sum(columns.tail)
    for j, size in enumerate(columns.tail):
        sink = to + (columns.full * width * columns.size + j * lanes)
        _key_group(b, k, width, at + j * lanes, size, columns, sink.fixed(), line)


def _key_group(
    b: Builder,
    k: Start,
    width: int,
    first: Position,
    size: int,
    columns: Columns,
    sink: Ptr,
    line: int,
) -> None:
    """The keys first .. first + size - 1, a column each, into lines `line` elements apart."""
    lanes = block_of(b.target)

    def source(r: int) -> Ptr:
        row = first + min(r, size - 1)
        if isinstance(row, int):
            row = min(row, columns.total - 1)
        return k.at(row).fixed()

    sources = [source(r) for r in range(lanes)]
    whole = width // lanes * lanes
    if whole:
        with b.loop(0, whole, lanes) as d:
            square = transpose([(s + d).load(lanes) for s in sources])
            out = (sink + d * line).fixed()
            for j, column in enumerate(square):
                part = column if size == lanes else column.shuffle(None, range(size))
                (out + j * line).store(part)
    if whole < width:
        with b.loop(whole, width) as d:
            out = (sink + d * line).fixed()
            for r in range(size):
                (out + r).store((sources[r] + d).load())


def pack_values(b: Builder, v: Start, depth: int, columns: Columns, to: Ptr) -> None:
    """The rows as [panel][row][columns of the panel], padded with zeros."""
    panels = [(c, columns.widths, columns.widths[-1]) for c in range(columns.full)]
    if columns.tail:
        panels.append((columns.full, columns.tail, columns.valid))
    with b.loop(0, depth) as row:
        source = v.at(row).fixed()
        for c, widths, valid in panels:
            sink = (to + c * depth * columns.size + row * sum(widths)).fixed()
            at = 0
            for j, width in enumerate(widths):
                partial = j == len(widths) - 1 and valid < width
                mask = b.first_lanes(valid, width) if partial else None
                (sink + at).store((source + (c * columns.size + at)).load(width, mask))
                at += width


def copy_queries(
    b: Builder, q: Start, row: Position, height: int, width: int, scale: float, to: Ptr
) -> None:
    """`height` rows from `row` on, side by side, times a factor."""
    with b.loop(0, height) as i:
        source, sink = q.at(b.index(row) + i).fixed(), (to + i * width).fixed()

        def move(d: Position, size: int, mask: Val | None) -> None:
            value = (source + d).load(size, mask)
            factor = b.const(scale, F32.x(size))
            (sink + d).store(value * factor, mask)

        b.vectors(width, block_of(b.target), move)
