"""Prefetches of input and output, spread evenly over the products of a block of tiles.

While one block is multiplied, the input of the next block is prefetched, and the output lines to
which this block's results go. Addresses may lie outside the tensors: prefetches never fault.
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.records import dataclass
from tinsmith.sizes import typical

Prefetch = Callable[[Val], None]
"""prefetch(i) emits the prefetches of register tile i of a block, counted through all units."""
INTO_L1, INTO_L2 = 3, 2  # localities of LLVM's prefetch: into L1 (highest), into L2


def is_far(target: Target, nbytes: int) -> bool:
    """Whether input and output, `nbytes` together, take half of L2 or more."""
    return typical(nbytes) >= target.l2 // 2


def tensors(
    em: Emit, plan: WinogradPlan, source: View, start: Val, count: Val | int
) -> Prefetch | None:
    """The `Prefetch` of a block, the `count` tiles from tile `start` on: of the next block's input
    in `source`, and of this one's output lines. None if they are not far (`is_far`), or
    neighbouring tiles do not lie side by side (dilation, frames)."""
    out = em.outs[0]
    apart = max(plan.geo.dilation) > 1 or plan.frames is not None
    if apart or not is_far(em.target, source.spec.nbytes + out.spec.nbytes):
        return None
    first = _corner(plan, source, start + count, plan.rows.stride, plan.cols.stride, True)
    here = _corner(plan, out, start, 1, 1, False)
    rows, cols = plan.rows, plan.cols
    inputs = _fetcher(em, plan, Lines(source, first, rows.reach, cols.m * cols.stride, False))
    outputs = _fetcher(em, plan, Lines(out, here, rows.m, cols.m, True))

    def prefetch(i: Val) -> None:
        inputs(i)
        outputs(i)

    return prefetch


def _corner(plan: WinogradPlan, view: View, tile: Val, down: int, right: int, padded: bool) -> Ptr:
    """Emit the address in `view` of the first element that belongs to a tile. Where (y, x) is the
    place of the tile's first result, it is in row `down` * y, column `right` * x; if `padded`, the
    padding before the image is subtracted from both."""
    n, i, j = plan.coordinates(tile)
    batch, _, (_, row, pixel) = steps(view.spec)
    at = view.pointer + n * batch + i * (plan.rows.m * down * row)
    at = at + j * (plan.cols.m * right * pixel)
    if padded:
        at = at + -(plan.geo.begin[1] * row + plan.geo.begin[2] * pixel)
    return at.fixed()


@dataclass(frozen=True)
class Lines:
    """The part of a tensor that the tiles of a block read, or write if `written`: in every channel
    block `rows` lines from address `at` on, with `wide` pixels for each tile."""

    view: View
    at: Ptr
    rows: int
    wide: int
    written: bool


def _fetcher(em: Emit, plan: WinogradPlan, of: Lines) -> Prefetch:
    """The `Prefetch` of `of`, whose cache lines are divided evenly among all register tiles of a
    block."""
    b, line, rows = em.b, LINE, of.rows
    _, plane, (_, row, pixel) = steps(of.view.spec)
    length = -(-plan.tiles * of.wide * pixel // line)
    planes = plan.outputs if of.written else plan.channels.count
    segments = planes * rows
    takers = plan.positions * plan.panels * plan.micro.count
    pieces = -(-length // -(-segments * length // takers))
    share = -(-length // pieces)

    def prefetch(i: Val) -> None:
        segment, piece = i // pieces, i % pieces
        with b.when(segment < segments):
            near = of.at + (segment // rows) * plane + (segment % rows) * row
            near = (near + piece * (share * line)).fixed()
            for k in range(share):
                (near + k * line).prefetch(of.written, INTO_L1 if of.written else INTO_L2)

    return prefetch
