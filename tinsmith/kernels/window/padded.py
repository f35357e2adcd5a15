"""Rows of a plain image with what lies around it, copied into a workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import blocks, run
from tinsmith.kernels.window.geometry import Geometry, Triple
from tinsmith.records import dataclass

UNROLLED = 4  # vectors of a row that are copied without a loop, at most; estimated


@dataclass(frozen=True)
class Reach:
    """The rows of an image that some windows reach, of so many `channels`, to be copied to `space`
    as [channels][kernel planes][rows][columns], dense.

    corner   the first (plane, row, column) of the input, which may lie outside the image
    extent   the rows and columns to copy
    channel  elements of the image from a channel to the next, as `step` for its axes
    """

    image: Ptr
    space: Ptr
    geo: Geometry
    corner: Sequence[Val | int]
    extent: tuple[int, int]
    channels: Val | int
    channel: int
    step: Triple


def copy_rows(b: Builder, reach: Reach, fill: float = 0.0) -> None:
    """Copy the rows of a `Reach` to its space, with `fill` where they lie outside the image. Whole
    vectors are written, in ascending order, so that the last one reaches beyond the copy (see
    `room`)."""
    geo, step, (front, top, first) = reach.geo, reach.step, reach.corner
    lines, pitch = reach.extent
    flat = lines * pitch
    left, skipped, inside, right = parts_of(b, first, pitch, geo.size[2])

    def filled(to: Ptr, count: Val | int) -> None:
        fill_row(b, to, count, fill)

    with b.loop(0, reach.channels) as c, b.loop(0, geo.kernel[0]) as k, b.loop(0, lines) as i:
        to = (reach.space + c * (geo.kernel[0] * flat) + k * flat + i * pitch).fixed()
        z, y = b.index(front) + k * geo.dilation[0], b.index(top) + i
        within = (z >= 0) & (z < geo.size[0]) & (y >= 0) & (y < geo.size[1])
        source = reach.image + c * reach.channel + z * step[0] + y * step[1] + skipped

        def copy() -> None:
            filled(to, left)
            x, place = source.fixed(), (to + left).fixed()
            each_vector(
                b, inside, lambda i, n, mask: (place + i).store((x + i).load(n, mask), mask)
            )
            filled(to + left + inside, right)

        def clear() -> None:
            filled(to, pitch)

        b.choose(within, copy, clear)


def copy_inside(b: Builder, reach: Reach) -> None:
    """The same as `copy_rows` where the space already holds what lies outside the image. Kernel
    planes must be neighbours (no dilation in depth)."""
    geo, step, corner = reach.geo, reach.step, reach.corner
    depth, (lines, pitch) = geo.kernel[0], reach.extent
    before, front, planes, _ = parts_of(b, corner[0], depth, geo.size[0])
    above, top, rows, _ = parts_of(b, corner[1], lines, geo.size[1])
    left, skipped, inside, _ = parts_of(b, corner[2], pitch, geo.size[2])
    source = reach.image + front * step[0] + top * step[1] + skipped
    target = reach.space + ((before * lines + above) * pitch + left)

    def row(c: Val | int, z: Val | int, y: Val | int) -> None:
        x = (source + c * reach.channel + z * step[0] + y * step[1]).fixed()
        to = (target + ((c * depth + z) * lines + y) * pitch).fixed()

        def piece(i: Any, n: int, mask: Val | None) -> None:
            (to + i).store((x + i).load(n, mask), mask)

        each_vector(b, inside, piece, UNROLLED)

    with b.loop(0, reach.channels) as c:
        run(b, 0, planes, lambda z: run(b, 0, rows, lambda y: row(c, z, y)))


def parts_of(b: Builder, first: Val | int, pitch: int, size: int) -> tuple[Val | int, ...]:
    """How a row's elements from column `first` on, `pitch` of them, lie about an image of `size`
    columns: (how many come before the image, how many columns of the image precede them, how many
    lie inside, how many come after it)."""
    left = b.minimum(b.maximum(0 - first, 0), pitch)
    skipped = b.maximum(first, 0)
    inside = b.maximum(b.minimum(_less(b, size, skipped), _less(b, pitch, left)), 0)
    return left, skipped, inside, _less(b, pitch, left) - inside


def fill_row(b: Builder, to: Ptr, count: Val | int, fill: float = 0.0) -> None:
    """Write `fill` to `count` elements, by whole vectors that may reach beyond them."""
    lanes = b.target.lanes
    around = b.splat(fill, F32, lanes)
    run(b, 0, (count + (lanes - 1)) // lanes, lambda i: (to + i * lanes).store(around))


def room(elements: int) -> int:
    """Elements of workspace for a copy of `elements`: a cache line more, for writes beyond it."""
    return -(-elements // LINE) * LINE + LINE


def each_vector(
    b: Builder,
    count: Val | int,
    body: Callable[[Any, int, Val | None], None],
    unrolled: int = 1,
) -> None:
    """Emit `body(index, lanes, mask)` for a row of `count` elements. If they fill a vector: whole
    vectors without a mask, of which the last overlaps the one before, and no loop for a known count
    of at most `unrolled` vectors. Else as `Builder.vectors` does."""
    lanes = b.target.lanes

    def whole() -> None:
        if isinstance(count, int) and count <= unrolled * lanes:
            for i in range(0, count, lanes):
                body(min(i, count - lanes), lanes, None)
            return
        with blocks(b, count, lanes) as i:
            body(i, lanes, None)

    def short() -> None:
        b.vectors(count, lanes, body)

    if not isinstance(count, int):
        b.choose(b.index(count) >= lanes, whole, short)
    elif count:
        (whole if count >= lanes else short)()


def _less(b: Builder, a: int, c: Val | int) -> Val | int:
    return a - c if isinstance(c, int) else b.index(a) - c
