"""Where a plan's data and results lie in memory.

A two-dimensional convolution is computed on planes; a three-dimensional one is turned into planes
whose channels are the frames that a result reads. Tiles may extend beyond the last row and column.
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


def first_input(em: Emit) -> View:
    """Where a convolution reads, unless told otherwise."""
    return em.input(0)


@dataclass(frozen=True)
class Rooms:
    """Where a plan's memory lies: `source(em)` is the blocked input, and `before` the elements
    of scratch that precede V."""

    source: Callable[[Emit], View] = first_input
    before: int = 0

    def space(self, em: Emit, plan: WinogradPlan) -> Ptr:
        """The address of V; M lies behind it."""
        return em.scratch.cast(F32) + self.before if plan.whole else em.workspace.cast(F32)

    def edge(self, em: Emit, plan: WinogradPlan) -> Ptr:
        """Scratch for the results of one tile and the taps of one channel."""
        return em.workspace.cast(F32) + (0 if plan.whole else plan.size)

    def registers(self, em: Emit, plan: WinogradPlan) -> Ptr:
        """Scratch for the configuration of the matrix registers."""
        return self.edge(em, plan) + plan.edge


def image_at(plan: WinogradPlan, source: View, n: Val | int) -> Val | int:
    """The offset in the input, in elements, of image n of the plan; of the first frame that it
    reads, where images are frames."""
    batch, _, (depth, _, _) = steps(source.spec, len(source.spec.spatial))
    frames = plan.frames
    if frames is None:
        return n * batch
    ahead = n % frames.out * (frames.stride * depth) - frames.halo[0] * depth
    return n // frames.out * batch + ahead


def data_at(plan: WinogradPlan, source: View, n: Val | int, y: Val | int, x: Val | int) -> Ptr:
    """The first element that a tile of image n reads, for channel block 0 (`channels_at` has the
    others). The tile's first result is in row y, column x."""
    _, _, (_, row, pixel) = steps(source.spec, len(source.spec.spatial))
    at = source.pointer + -(plan.geo.begin[1] * row + plan.geo.begin[2] * pixel)
    at = at + image_at(plan, source, n)
    return at + y * (plan.rows.stride * row) + x * (plan.cols.stride * pixel)


def channels_at(plan: WinogradPlan, source: View, c: Val) -> Val:
    """The offset of channel block c of the plan from block 0 of the same image, in elements."""
    _, plane, (depth, _, _) = steps(source.spec, len(source.spec.spatial))
    frames = plan.frames
    if frames is None:
        return c * plane
    return c // frames.blocks * (frames.dilation * depth) + c % frames.blocks * plane


def result_at(plan: WinogradPlan, n: Val | int, k: Val) -> tuple[Val | int, Val, Val | int]:
    """Image, output channel block and depth of the results of the plan's image n, block k."""
    frames = plan.frames
    return (n, k, 0) if frames is None else (n // frames.out, k, n % frames.out)


def extent_inside(
    b: Builder, plan: WinogradPlan, y: Val | int, x: Val | int
) -> tuple[Val | int, Val | int]:
    """How many rows and columns of the tile whose first result is at (y, x) lie in the image."""
    apart, beside = plan.vertical.dilation, plan.horizontal.dilation
    below = b.minimum(plan.rows.m, (plan.geo.out[1] + apart - 1 - b.index(y)) // apart)
    right = b.minimum(plan.cols.m, (plan.geo.out[2] + beside - 1 - b.index(x)) // beside)
    return below, right


def put_inside(
    b: Builder, plan: WinogradPlan, extent: tuple[Val | int, Val | int], out: Sink,
    result: Callable[[Val, Val], Ptr],
) -> None:  # fmt: skip
    """Write the results of a tile that lie in the image (`extent` rows and columns) to `out`;
    `result(row, column)` is where they were stored."""
    below, right = extent
    apart, beside = plan.vertical.dilation, plan.horizontal.dilation
    with b.loop(0, below) as i, b.loop(0, right) as j:
        value = result(i, j).load(plan.width)
        out.at(0, 0, 0, i * apart, j * beside).put(value, 0, 0, 0, 0, 0)
