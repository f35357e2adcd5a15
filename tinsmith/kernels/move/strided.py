"""The strided copy: dst[i . dst_strides] = src[i . src_strides] for all i in a box.

Transposes, slices, broadcasts, tiles, concatenations and space/depth exchanges are strided copies
after their dimensions have been split or permuted. Dimensions are merged where both sides step
evenly; the innermost is copied in vectors, splat, or transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import Ty


@dataclass(frozen=True)
class Axis:
    """One loop of a copy: extent, and the steps of both sides in elements."""

    extent: int
    src: int
    dst: int


@dataclass(frozen=True)
class Copy:
    """A normalised copy: axes from outer to inner. `columns` is the axis along which the source
    is contiguous when the innermost is not (register transposes), else None."""

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
    """Order the loops by the destination, merge what steps evenly, find the source's columns."""
    axes = [Axis(d, s, t) for d, s, t in zip(dims, src, dst, strict=True) if d != 1]
    axes.sort(key=lambda a: -abs(a.dst))
    merged: list[Axis] = []
    for a in axes:
        if merged:
            outer = merged[-1]
            if outer.dst == a.dst * a.extent and outer.src == a.src * a.extent:
                merged[-1] = Axis(outer.extent * a.extent, a.src, a.dst)
                continue
        merged.append(a)
    merged = merged or [Axis(1, 1, 1)]
    inner = merged[-1]
    columns = None
    if inner.src not in (0, 1) and inner.dst == 1:
        columns = next((i for i, a in enumerate(merged[:-1]) if a.src == 1), None)
    return Copy(tuple(merged), columns, bits)


def lanes_of(b: Builder, bits: int) -> int:
    """Elements of a machine vector, at least one."""
    return max(1, b.target.lanes * 32 // bits)


def emit_copy(b: Builder, copy: Copy, src: Ptr, dst: Ptr, begin: Val | int, end: Val | int) -> None:
    """Copy the tiles [begin, end); `src` and `dst` point at the elements of index 0."""
    word = Ty(f"u{copy.bits}")
    src, dst = src.cast(word), dst.cast(word)
    outer = [(i, a) for i, a in enumerate(copy.axes[:-1]) if i != copy.columns]
    with b.loop(begin, end) as tile:
        left: Val | int = tile
        x, y = src, dst
        for k in range(len(outer) - 1, -1, -1):
            axis = outer[k][1]
            at = left if k == 0 else left % axis.extent
            left = left if k == 0 else left // axis.extent
            x, y = x + at * axis.src, y + at * axis.dst
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

        b.vectors(axis.extent, lanes_of(b, bits), body)
        return
    with b.loop(0, axis.extent) as i:
        (y + i * axis.dst).store((x + i * axis.src).load())


def _transpose(b: Builder, columns: Axis, rows: Axis, x: Ptr, y: Ptr, bits: int) -> None:
    """dst[c][r] = src[r][c]: blocks of V x V through registers, edges element by element."""
    v = lanes_of(b, bits)
    full_r, full_c = rows.extent // v * v, columns.extent // v * v
    if v > 1 and full_r and full_c:
        with b.loop(0, full_c, v) as c, b.loop(0, full_r, v) as r:
            source = (x + r * rows.src + c).fixed()
            block = [(source + k * rows.src).load(v) for k in range(v)]
            place = (y + c * columns.dst + r).fixed()
            for k, value in enumerate(transpose(block)):
                (place + k * columns.dst).store(value)
    else:
        full_r = full_c = 0

    def single(c_lo: int, c_hi: int, r_lo: int, r_hi: int) -> None:
        if c_lo >= c_hi or r_lo >= r_hi:
            return
        with b.loop(c_lo, c_hi) as c, b.loop(r_lo, r_hi) as r:
            (y + c * columns.dst + r).store((x + r * rows.src + c).load())

    single(0, full_c, full_r, rows.extent)
    single(full_c, columns.extent, 0, rows.extent)


def transpose(rows: Sequence[Val]) -> list[Val]:
    """V vectors of V lanes as a matrix, transposed by log2(V) stages of two-source shuffles."""
    v, rows = len(rows), list(rows)
    half = v // 2
    while half:
        out: list[Val] = list(rows)
        for i in range(v):
            if i & half:
                continue
            a, c = rows[i], rows[i + half]
            low = [j if not j & half else v + (j ^ half) for j in range(v)]
            high = [j + half if not j & half else v + j for j in range(v)]
            out[i], out[i + half] = a.shuffle(c, low), a.shuffle(c, high)
        rows, half = out, half // 2
    return rows


def emit_fill(
    b: Builder, value: Val, dst: Ptr, begin: Val | int, end: Val | int, lanes: int
) -> None:
    """dst[begin : end] = value."""
    count = b.index(end) - b.index(begin)
    place = (dst + begin).fixed()

    def body(i: Val | int, width: int, mask: Val | None) -> None:
        (place + i).store(value.splat(width), mask)

    b.vectors(count, lanes, body)
