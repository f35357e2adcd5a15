"""The strided copy: dst[i . dst_strides] = src[i . src_strides] for all i in a box.

Transposes, slices, broadcasts, tiles, concatenations and space/depth exchanges are strided copies
after their dimensions have been split or permuted. Dimensions are merged where both sides step
evenly; the innermost is copied in vectors, splat, or transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import Ty
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.transpose import blend, joined, transpose
from tinsmith.kernels.walk import blocks, digits, merged
from tinsmith.records import dataclass
from tinsmith.sizes import Size, same


@dataclass(frozen=True)
class Axis:
    """One loop of a copy: its extent, and the steps of source and target in elements."""

    extent: int
    src: int
    dst: int


@dataclass(frozen=True)
class Copy:
    """A copy of elements of so many `bits`, its axes merged and sorted from outer to inner by the
    target's steps. `columns` is the index of the axis along which the source is contiguous, if the
    target is so along the innermost and the source is not: the copy transposes. Else None."""

    axes: tuple[Axis, ...]
    columns: int | None
    bits: int

    @property
    def tiles(self) -> int:
        """Units of parallel work: the positions of all loops but the inner one or two."""
        return prod(a.extent for i, a in enumerate(self.axes[:-1]) if i != self.columns)

    @property
    def elements(self) -> int:
        return prod(a.extent for a in self.axes)


def plan_copy(dims: Sequence[int], src: Sequence[int], dst: Sequence[int], bits: int) -> Copy:
    """The copy of a box of `dims` with strides `src` and `dst` in elements, of elements of so many
    `bits`: with its axes in the order of the target's strides, and merged where both sides step
    evenly."""
    axes = [Axis(d, s, t) for d, s, t in zip(dims, src, dst, strict=True) if not same(d, 1)]
    axes.sort(key=lambda a: -abs(a.dst))
    both = [a.src for a in axes], [a.dst for a in axes]
    few = merged([a.extent for a in axes], both)
    axes = [Axis(extent, *(side[i] for side in both)) for extent, i in few] or [Axis(1, 1, 1)]
    inner, columns = axes[-1], None
    if inner.src not in (0, 1) and inner.dst == 1:
        columns = next((i for i, a in enumerate(axes[:-1]) if a.src == 1), None)
    return Copy(tuple(axes), columns, bits)


def emit_copy(b: Builder, copy: Copy, src: Ptr, dst: Ptr, begin: Val | int, end: Val | int) -> None:
    """Copy the tiles [begin, end); `src` and `dst` point at the elements of index 0."""
    word = Ty(f"u{copy.bits}")
    src, dst = src.cast(word), dst.cast(word)
    outer = [(a.extent, i) for i, a in enumerate(copy.axes[:-1]) if i != copy.columns]
    with b.loop(begin, end) as tile:
        x, y = src, dst
        for i, at in digits(tile, outer):
            x, y = x + at * copy.axes[i].src, y + at * copy.axes[i].dst
        inner = copy.axes[-1]
        if copy.columns is not None:
            _transpose(b, copy.axes[copy.columns], inner, x, y, copy.bits)
        else:
            _row(b, inner, x, y, copy.bits)


def _row(b: Builder, axis: Axis, x: Ptr, y: Ptr, bits: int) -> None:
    x, y = x.fixed(), y.fixed()
    if axis.dst == 1 and axis.src in (0, 1):

        def body(i: Val | int, lanes: int, mask: Val | None) -> None:
            value = x.splat(lanes) if axis.src == 0 else (x + i).load(lanes, mask)
            (y + i).store(value, mask)

        b.vectors(axis.extent, lanes_of(b.target, bits // 8), body)
        return
    with b.loop(0, axis.extent) as i:
        (y + i * axis.dst).store((x + i * axis.src).load())


def _transpose(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr, bits: int) -> None:
    """dst[c][r] = src[r][c] in registers; the last squares overlap those before."""
    widest = min(lanes_of(b.target, bits // 8), 8 if b.target.registers < 32 else 16)
    free = [e for e in (rows.extent, columns.extent) if isinstance(e, Size)]
    if free:
        least = min([widest, *(e for e in (rows.extent, columns.extent) if isinstance(e, int))])
        side = 1 << (least.bit_length() - 1)
        enough = reduce(Val.__and__, [b.index(e) >= side for e in free])
        b.choose(
            enough,
            lambda: _squares(b, columns, rows, x, y, side),
            lambda: _singles(b, columns, rows, x, y),
        )
        return
    side = 1 << (min(widest, rows.extent, columns.extent).bit_length() - 1)
    most = max(rows.extent, columns.extent)
    if side < 8 and most >= widest > 1 and _is_packed(columns, rows):
        _interleave(b, columns, rows, x, y, widest)
    elif side > 1:
        _squares(b, columns, rows, x, y, side)
    else:
        _singles(b, columns, rows, x, y)


def _squares(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr, side: int) -> None:
    """A transpose of at least `side` rows and columns, square by square."""
    with blocks(b, columns.extent, side) as c, blocks(b, rows.extent, side) as r:
        source = (x + r * rows.src + c).fixed()
        block = [(source + k * rows.src).load(side) for k in range(side)]
        place = (y + c * columns.dst + r).fixed()
        for k, value in enumerate(transpose(block)):
            (place + k * columns.dst).store(value)


def _singles(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr) -> None:
    """A transpose, element by element."""
    with b.loop(0, columns.extent) as c, b.loop(0, rows.extent) as r:
        (y + c * columns.dst + r).store((x + r * rows.src + c).load())


def _is_packed(columns: Axis, rows: Axis) -> bool:
    """Whether the fewer of rows and columns leave no gaps on the side where they are innermost."""
    if rows.extent < columns.extent:
        return columns.dst == rows.extent
    return rows.src == columns.extent


def _interleave(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr, lanes: int) -> None:
    """Transpose a matrix of which one side is `few` (2 to 7), in vectors along the other side: few
    long rows become groups of few elements, or such groups few long columns."""
    joins = rows.extent < columns.extent
    few, count = sorted((rows.extent, columns.extent))
    with blocks(b, count, lanes) as at:
        apart = [k * (rows.src if joins else columns.dst) for k in range(few)]
        if joins:
            source, place = (x + at).fixed(), (y + at * few).fixed()
            vectors = [(source + k).load(lanes) for k in apart]
        else:
            source, place = (x + at * few).fixed(), (y + at).fixed()
            vectors = [(source + k * lanes).load(lanes) for k in range(few)]
        if joins and few & (few - 1) == 0:
            for k, value in enumerate(joined(vectors)):
                (place + k * lanes).store(value)
            return
        for k in range(few):
            flat = [k * lanes + i if joins else i * few + k for i in range(lanes)]
            split = [(f % few, f // few) if joins else divmod(f, lanes) for f in flat]
            picks = [[lane if v == j else -1 for v, lane in split] for j in range(few)]
            (place + (k * lanes if joins else apart[k])).store(blend(vectors, picks))


def emit_fill(
    b: Builder, value: Val, dst: Ptr, begin: Val | int, end: Val | int, lanes: int
) -> None:
    """dst[begin : end] = value."""
    if isinstance(begin, int) and isinstance(end, int):
        count: Val | int = end - begin
    else:
        count = b.index(end) - b.index(begin)
    place = (dst + begin).fixed()

    def body(i: Val | int, width: int, mask: Val | None) -> None:
        (place + i).store(value.splat(width), mask)

    b.vectors(count, lanes, body)
