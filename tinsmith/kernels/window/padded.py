"""Rows of a plain image with what lies around it, copied into a workspace."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import blocks, run
from tinsmith.kernels.window.geometry import Geometry, Triple


def copy_rows(
    b: Builder,
    image: Ptr,
    space: Ptr,
    geo: Geometry,
    corner: Sequence[Val | int],
    extent: tuple[int, int],
    channels: Val | int,
    channel: int,
    step: Triple,
    fill: float = 0.0,
) -> None:
    """Copy the rows that some windows reach, with `fill` where they leave the image.

    `corner` is the first (plane, row, column) of the input, which may lie outside; `extent` the
    rows and columns to copy. The copy is [channels][kernel planes][rows][columns], dense; in the
    image, channels are `channel` and axes `step` elements apart. Rows are filled by whole vectors,
    each before the next one, so that the last reaches beyond the copy (see `room`).
    """
    front, top, first = corner
    lines, pitch = extent
    flat = lines * pitch
    lanes = b.target.lanes
    left = b.minimum(b.maximum(0 - first, 0), pitch)
    skipped = b.maximum(first, 0)
    inside = b.maximum(b.minimum(_less(b, geo.size[2], skipped), _less(b, pitch, left)), 0)
    right = _less(b, pitch, left) - inside

    def filled(to: Ptr, count: Val | int) -> None:
        run(b, 0, (count + (lanes - 1)) // lanes, lambda i: (to + i * lanes).store(around))

    around = b.splat(fill, F32, lanes)
    with b.loop(0, channels) as c, b.loop(0, geo.kernel[0]) as k, b.loop(0, lines) as i:
        to = (space + c * (geo.kernel[0] * flat) + k * flat + i * pitch).fixed()
        z, y = b.index(front) + k * geo.dilation[0], b.index(top) + i
        within = (z >= 0) & (z < geo.size[0]) & (y >= 0) & (y < geo.size[1])
        source = image + c * channel + z * step[0] + y * step[1] + skipped

        def copy() -> None:
            filled(to, left)
            _copy(b, source.fixed(), (to + left).fixed(), inside)
            filled(to + left + inside, right)

        def clear() -> None:
            filled(to, pitch)

        b.choose(within, copy, clear)


def room(elements: int) -> int:
    """Elements of a workspace for the copy of so many, with what may be written behind it."""
    return -(-elements // LINE) * LINE + LINE


def _copy(b: Builder, source: Ptr, to: Ptr, count: Val | int) -> None:
    """Copy a row: whole vectors, of which the last overlaps another, where there are any."""
    lanes = b.target.lanes

    def whole() -> None:
        with blocks(b, count, lanes) as i:
            (to + i).store((source + i).load(lanes))

    def short() -> None:
        b.vectors(count, lanes, lambda i, n, mask: (to + i).store((source + i).load(n, mask), mask))

    if isinstance(count, Val):
        b.choose(count >= lanes, whole, short)
    elif count:
        (whole if count >= lanes else short)()


def _less(b: Builder, a: int, c: Val | int) -> Val | int:
    return a - c if isinstance(c, int) else b.index(a) - c
