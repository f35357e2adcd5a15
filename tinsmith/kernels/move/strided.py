"""The strided copy: dst[i . dst_strides] = src[i . src_strides] for all index tuples i of a box.

Transposes, slices, broadcasts, tiles, concatenations and space/depth exchanges are strided copies
after their dimensions have been split or permuted. Dimensions are merged where source and target
step evenly. Along the innermost one, elements are copied in vectors, one element is repeated, or
squares of elements are transposed in registers.
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
    """One axis of a copy: its extent, and the strides of source and target in elements."""

    extent: int
    src: int
    dst: int


@dataclass(frozen=True)
class Copy:
    """A copy of elements. Its axes are merged, and sorted by the target's strides, the innermost
    last. `columns`: if source and target are contiguous along different axes, so that the copy
    transposes, the index of the source's in `axes`; otherwise None."""

    axes: tuple[Axis, ...]
    columns: int | None

    @property
    def tiles(self) -> int:
        """Units of parallel work: indices of all axes but the innermost and `columns`."""
        return prod(a.extent for i, a in enumerate(self.axes[:-1]) if i != self.columns)

    @property
    def elements(self) -> int:
        """How many elements are copied."""
        return prod(a.extent for a in self.axes)


def plan_copy(dims: Sequence[int], src: Sequence[int], dst: Sequence[int]) -> Copy:
    """The copy of a box of `dims` from strides `src` to strides `dst`, in elements."""
    axes = [Axis(d, s, t) for d, s, t in zip(dims, src, dst, strict=True) if not same(d, 1)]
    axes.sort(key=lambda a: -abs(a.dst))
    both = [a.src for a in axes], [a.dst for a in axes]
    few = merged([a.extent for a in axes], both)
    axes = [Axis(extent, *(side[i] for side in both)) for extent, i in few] or [Axis(1, 1, 1)]
    inner, columns = axes[-1], None
    if inner.src not in (0, 1) and inner.dst == 1:
        columns = next((i for i, a in enumerate(axes[:-1]) if a.src == 1), None)
    return Copy(tuple(axes), columns)


def words(at: Ptr) -> Ptr:
    """A pointer to the same elements as unsigned integers of their size: copies move only bits."""
    return at.cast(Ty(f"u{at.elem.bits}"))


def emit_copy(b: Builder, copy: Copy, src: Ptr, dst: Ptr, begin: Val | int, end: Val | int) -> None:
    """Emit the copy of the tiles [begin, end). `src` and `dst` point to the elements of index 0."""
    src, dst = words(src), words(dst)
    outer = [(a.extent, i) for i, a in enumerate(copy.axes[:-1]) if i != copy.columns]
    with b.loop(begin, end) as tile:
        x, y = src, dst
        for i, at in digits(tile, outer):
            x, y = x + at * copy.axes[i].src, y + at * copy.axes[i].dst
        inner = copy.axes[-1]
        if copy.columns is not None:
            _transpose(b, copy.axes[copy.columns], inner, x, y)
        else:
            _row(b, inner, x, y)


def copy_row(b: Builder, count: int, src: Ptr, dst: Ptr) -> None:
    """Emit the copy of `count` consecutive elements from `src` to `dst`."""
    emit_copy(b, plan_copy((count,), (1,), (1,)), src, dst, 0, 1)


def _row(b: Builder, axis: Axis, x: Ptr, y: Ptr) -> None:
    """Emit the copy along one axis, from x to y: in vectors if y is contiguous and x too, or a
    single element (stride 0); else element by element."""
    x, y = x.fixed(), y.fixed()
    if axis.dst == 1 and axis.src in (0, 1):

        def body(i: Val | int, lanes: int, mask: Val | None) -> None:
            value = x.splat(lanes) if axis.src == 0 else (x + i).load(lanes, mask)
            (y + i).store(value, mask)

        b.vectors(axis.extent, lanes_of(b.target, x.elem.nbytes), body)
        return
    with b.loop(0, axis.extent) as i:
        (y + i * axis.dst).store((x + i * axis.src).load())


def _transpose(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr) -> None:
    """Emit y[c][r] = x[r][c] for all indices c of `columns`, along which x is contiguous, and r of
    `rows`, along which y is: in squares that fit in registers (`_squares`); but where x or y
    has fewer than 8 rows, packed groups of few elements by shuffles (`_interleave`). Element by
    element (`_singles`) on targets without vectors, and where a free size turns out too small for
    squares."""
    widest = min(lanes_of(b.target, x.elem.nbytes), 8 if b.target.registers < 32 else 16)
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
    least, most = sorted((rows.extent, columns.extent))
    if least < 8 and most >= widest > 1 and _is_packed(columns, rows):
        _interleave(b, columns, rows, x, y, widest)
    elif side > 1:
        _squares(b, columns, rows, x, y, side)
    else:
        _singles(b, columns, rows, x, y)


def _squares(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr, side: int) -> None:
    """Emit the transpose in squares of `side` by `side` elements; the last ones along an axis
    overlap those before. Neither extent may be less than `side`."""
    with blocks(b, columns.extent, side) as c, blocks(b, rows.extent, side) as r:
        source = (x + r * rows.src + c).fixed()
        block = [(source + k * rows.src).load(side) for k in range(side)]
        place = (y + c * columns.dst + r).fixed()
        for k, value in enumerate(transpose(block)):
            (place + k * columns.dst).store(value)


def _singles(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr) -> None:
    """Emit the transpose y[c, r] = x[r, c], element by element."""
    with b.loop(0, columns.extent) as c, b.loop(0, rows.extent) as r:
        (y + c * columns.dst + r).store((x + r * rows.src + c).load())


def _is_packed(columns: Axis, rows: Axis) -> bool:
    """Whether `_interleave` can transpose: the groups of few elements (rows of x, or of the result
    y if x has fewer rows than columns) follow each other without gaps."""
    if rows.extent < columns.extent:
        return columns.dst == rows.extent
    return rows.src == columns.extent


def _interleave(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr, lanes: int) -> None:
    """Emit the transpose of a matrix with few (2 to 7) rows or columns, in vectors of `lanes` along
    the long side. Few rows become groups of few elements, a0 b0 a1 b1 ..., or such groups become
    few columns."""
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
    """Emit dst[begin : end] = value, in vectors of `lanes`."""
    if isinstance(begin, int) and isinstance(end, int):
        count: Val | int = end - begin
    else:
        count = b.index(end) - b.index(begin)
    place = (dst + begin).fixed()

    def body(i: Val | int, width: int, mask: Val | None) -> None:
        (place + i).store(value.splat(width), mask)

    b.vectors(count, lanes, body)
