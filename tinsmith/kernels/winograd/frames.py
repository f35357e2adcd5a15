"""Where a plan's data and results lie in memory.

A plan computes images of two dimensions. For a convolution over (depth, height, width), image n of
the plan is one frame of results, and its channels are those of all frames that this frame reads
(`Frames`). Tiles may extend beyond the last row and column of an image. `source` is the input
(`Rooms.source`).
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Rooms:
    """Where the memory of a plan lies. `source(em)` is the channel-blocked input; `before`: how
    many elements of scratch precede V if the plan is `whole`."""

    source: Callable[[Emit], View] = lambda em: em.input(0)
    before: int = 0

    def space(self, em: Emit, plan: WinogradPlan) -> Ptr:
        """The address of V, behind which M lies: in scratch, which threads share, if the plan is
        `whole`, otherwise in the thread's workspace."""
        return em.scratch.cast(F32) + self.before if plan.whole else em.workspace.cast(F32)

    def edge(self, em: Emit, plan: WinogradPlan) -> Ptr:
        """The address of workspace for one tile's results and one input channel's taps."""
        return em.workspace.cast(F32) + (0 if plan.whole else plan.size)

    def registers(self, em: Emit, plan: WinogradPlan) -> Ptr:
        """The address of workspace for the configuration of matrix registers."""
        return self.edge(em, plan) + plan.edge


def image_at(plan: WinogradPlan, source: View, n: Val | int) -> Val | int:
    """The offset in the input, in elements, of image n of the plan, or of the first frame that it
    reads if images are frames."""
    batch, _, (depth, _, _) = steps(source.spec)
    frames = plan.frames
    if frames is None:
        return n * batch
    ahead = n % frames.out * (frames.stride * depth) - frames.halo[0] * depth
    return n // frames.out * batch + ahead


def data_at(plan: WinogradPlan, source: View, n: Val | int, y: Val | int, x: Val | int) -> Ptr:
    """The address of the first element that a tile reads of channel block 0 (`channels_at` has the
    others). The tile's first result is at row y, column x of image n."""
    _, _, (_, row, pixel) = steps(source.spec)
    at = source.pointer + -(plan.geo.begin[1] * row + plan.geo.begin[2] * pixel)
    at = at + image_at(plan, source, n)
    return at + y * (plan.rows.stride * row) + x * (plan.cols.stride * pixel)


def channels_at(plan: WinogradPlan, source: View, c: Val) -> Val:
    """The offset, in elements, of channel block c of an image of the plan from block 0."""
    _, plane, (depth, _, _) = steps(source.spec)
    frames = plan.frames
    if frames is None:
        return c * plane
    return c // frames.blocks * (frames.dilation * depth) + c % frames.blocks * plane


def result_at(plan: WinogradPlan, n: Val | int, k: Val) -> tuple[Val | int, Val, Val | int]:
    """(image, channel block, depth) in the output of image n and output block k of the plan."""
    frames = plan.frames
    return (n, k, 0) if frames is None else (n // frames.out, k, n % frames.out)


def extent_inside(
    b: Builder, plan: WinogradPlan, y: Val | int, x: Val | int
) -> tuple[Val | int, Val | int]:
    """How many (rows, columns) of results lie in the image, of the tile whose first result is at
    (y, x)."""
    apart, beside = plan.vertical.dilation, plan.horizontal.dilation
    below = b.minimum(plan.rows.m, (plan.geo.out[1] + apart - 1 - b.index(y)) // apart)
    right = b.minimum(plan.cols.m, (plan.geo.out[2] + beside - 1 - b.index(x)) // beside)
    return below, right


def put_inside(
    b: Builder, plan: WinogradPlan, extent: tuple[Val | int, Val | int], out: Sink,
    result: Callable[[Val, Val], Ptr],
) -> None:  # fmt: skip
    """Emit code that applies the epilogue to the results of a tile that lie in the image (the first
    `extent` rows and columns), and stores them. `out` stands at the tile's first result;
    `result(row, column)` is the address from which one is loaded."""
    below, right = extent
    apart, beside = plan.vertical.dilation, plan.horizontal.dilation
    with b.loop(0, below) as i, b.loop(0, right) as j:
        value = result(i, j).load(plan.width)
        out.at(0, 0, 0, i * apart, j * beside).put(value, 0, 0, 0, 0, 0)
