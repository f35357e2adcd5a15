"""Copies of rows of a plain image into the workspace, with padding where they leave the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
    """The part of an image that some windows read, which is copied to the address `space`, without
    gaps, as [channels][planes that a window reads][rows][columns].

    image    the address of the first channel's element (0, 0, 0)
    corner   the (plane, row, column) at which the part begins; it may lie outside the image
    extent   how many (rows, columns) to copy
    channel  elements from a channel to the next in the image
    step     elements from a (plane, row, pixel) to the next in the image
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
    """Emit the copy of a `Reach`, with `fill` where it lies outside the image. Whole vectors are
    written, in ascending order; the last one may reach beyond the copy (`room`)."""
    geo, step, (front, top, first) = reach.geo, reach.step, reach.corner
    lines, pitch = reach.extent
    flat = lines * pitch
    left, skipped, inside, right = parts_of(b, first, pitch, geo.size[2])

    with b.loop(0, reach.channels) as c, b.loop(0, geo.kernel[0]) as k, b.loop(0, lines) as i:
        to = (reach.space + c * (geo.kernel[0] * flat) + k * flat + i * pitch).fixed()
        z, y = b.index(front) + k * geo.dilation[0], b.index(top) + i
        within = (z >= 0) & (z < geo.size[0]) & (y >= 0) & (y < geo.size[1])
        source = reach.image + c * reach.channel + z * step[0] + y * step[1] + skipped

        def copy() -> None:
            fill_row(b, to, left, fill)
            x, place = source.fixed(), (to + left).fixed()
            each_vector(
                b, inside, lambda i, n, mask: (place + i).store((x + i).load(n, mask), mask)
            )
            fill_row(b, to + left + inside, right, fill)

        b.choose(within, copy, lambda: fill_row(b, to, pitch, fill))


def copy_inside(b: Builder, reach: Reach) -> None:
    """Emit the copy of those elements of a `Reach` that lie inside the image. Others are left as
    they are, for a space that has its padding already. Kernel planes must be neighbours (no
    dilation in depth)."""
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
    """How `pitch` columns from column `first` on overlap an image of `size` columns: (how many lie
    before the image, how many columns of the image lie before them, how many lie inside, how many
    after it). For first = -2, pitch 5, size 9: (2, 0, 3, 0)."""
    left = b.minimum(b.maximum(0 - first, 0), pitch)
    skipped = b.maximum(first, 0)
    inside = b.maximum(b.minimum(size - skipped, pitch - left), 0)
    return left, skipped, inside, pitch - left - inside


def fill_row(b: Builder, to: Ptr, count: Val | int, fill: float = 0.0) -> None:
    """Emit stores of `fill` to `count` elements, by whole vectors that may reach beyond them."""
    lanes = b.target.lanes
    around = b.splat(fill, F32, lanes)
    run(b, 0, (count + (lanes - 1)) // lanes, lambda i: (to + i * lanes).store(around))


def room(elements: int) -> int:
    """Elements of workspace for a copy of `elements` elements: these, rounded up to whole cache
    lines, and one line into which the last vector may reach."""
    return -(-elements // LINE) * LINE + LINE


def each_vector(
    b: Builder, count: Val | int, body: Callable[[Any, int, Val | None], None], unrolled: int = 1
) -> None:
    """Emit `body(index, lanes, mask)` for the vectors of a row of `count` elements. A row of at
    least one vector has whole vectors (mask None), of which the last overlaps the one before, and
    no loop if `count` is an int and at most `unrolled` vectors. A shorter row is one masked vector,
    or, where masks are not cheap, single elements."""
    lanes = b.target.lanes

    def whole() -> None:
        if isinstance(count, int) and count <= unrolled * lanes:
            for i in range(0, count, lanes):
                body(min(i, count - lanes), lanes, None)
            return
        with blocks(b, count, lanes) as i:
            body(i, lanes, None)

    short = partial(b.vectors, count, lanes, body)
    if not isinstance(count, int):
        b.choose(b.index(count) >= lanes, whole, short)
    elif count:
        (whole if count >= lanes else short)()
