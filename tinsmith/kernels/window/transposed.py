"""Transposed convolution on channel-blocked data, as direct convolutions.

Along an axis of stride s, all outputs o of one phase, o mod s, use the same taps, and the inputs
that they read move on by one from output to output: each phase is a direct convolution of stride 1
that writes every s-th output. Phases with equally many taps and outputs share code and a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import (
    Choice,
    Emit,
    Packed,
    Site,
    Tier,
    kernel,
    one_phase,
    packed_table,
)
from tinsmith.kernels.float_products import are_finite
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.convolve import convolve
from tinsmith.kernels.window.direct import EFFICIENCY
from tinsmith.kernels.window.geometry import Geometry, Triple, Widths, geometry_of, image_of, triple
from tinsmith.kernels.window.mixed import Mixed, group_ids, plan_mixed
from tinsmith.kernels.window.panels import PanelPlace, Tiles, each_panel
from tinsmith.kernels.window.site import constants_of
from tinsmith.kernels.window.tiles import Sink, bands, panels, tiling
from tinsmith.kernels.window.ways import Blocked, Way, blocked
from tinsmith.kernels.window.weights import channel_blocks, pack_bias
from tinsmith.ops.conv import transposed_window
from tinsmith.records import dataclass
from tinsmith.sizes import typical


@dataclass(frozen=True)
class AxisPhase:
    """One phase of an axis, or a run of its outputs: the `count` outputs number at, at + stride,
    ..., which use the same taps. The t-th of these adds up, for each j, input first + t + j * gap
    times kernel element taps[j]; gap: see `Axes.gaps`."""

    at: int
    count: int
    taps: tuple[int, ...]  # kernel indices, in the order of rising inputs
    first: int


Member = tuple[AxisPhase, ...]
"""A phase of each axis, (depth, height, width): one direct convolution."""


@dataclass(frozen=True)
class Group:
    """Direct convolutions that share code, as they have equally many outputs (`out`) and taps
    (`kernel`) on each axis."""

    out: Triple
    kernel: Triple
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Phases:
    """A transposed convolution as direct convolutions of stride 1.

    geometry  the transposed convolution's, but `begin` is how far direct ones read before the input
    dilation  of the direct convolutions
    after     how far they read beyond the input's end, on each axis
    """

    geometry: Geometry
    groups: tuple[Group, ...]
    dilation: Triple
    after: Triple

    @property
    def products(self) -> int:
        """The multiplications of all direct convolutions, for one image and one pair of input
        and output channel: the sum of outputs times taps."""
        return sum(len(g.members) * prod(g.out) * prod(g.kernel) for g in self.groups)


def axis_phases(out: int, kernel: int, stride: int, dilation: int, begin: int) -> list[AxisPhase]:
    """The phases of an axis of `out` outputs: output o adds up input i times tap k for all i and k
    with i*stride + k*dilation == o + begin."""
    seen: dict[int, list[int]] = {}
    for k in reversed(range(kernel)):
        seen.setdefault((k * dilation - begin) % stride, []).append(k)
    found = []
    for at in range(min(stride, out)):
        taps = tuple(seen.get(at, ()))
        first = (at + begin - taps[0] * dilation) // stride if taps else 0
        found.append(AxisPhase(at, -(-(out - at) // stride), taps, first))
    return found


def inside(phase: AxisPhase, size: int, stride: int, gap: int) -> list[AxisPhase]:
    """Cut a phase into runs of outputs that read the same taps, without the taps that lie outside
    an input of `size`. Neighbouring taps are `gap` inputs apart."""
    found: list[AxisPhase] = []
    for t in range(phase.count):
        places = range(phase.first + t, phase.first + t + gap * len(phase.taps), gap)
        read = [j for j, place in enumerate(places) if 0 <= place < size]
        taps = tuple(phase.taps[j] for j in read)
        if found and found[-1].taps == taps:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            first = places[read[0]] if read else 0
            found.append(AxisPhase(phase.at + t * stride, 1, taps, first))
    return found


@dataclass(frozen=True)
class Axes:
    """The three axes of a transposed convolution.

    geometry  its sizes; `begin` is the padding, which is cut off the result at its beginning
    phases    the phases of each axis
    gaps      on each axis, how many inputs apart neighbouring taps of a phase are
    """

    geometry: Geometry
    phases: tuple[tuple[AxisPhase, ...], ...]
    gaps: Triple

    @property
    def least(self) -> Triple:
        """On each axis, the lowest input index that the first output of any phase reads; negative
        in padding."""
        return triple([min([p.first for p in axis if p.taps], default=0) for axis in self.phases])


def axes_of(site: Site) -> Axes:
    """The axes of a ConvTranspose site. Raises Skip for other than 1 to 3 spatial axes, and where
    there is nothing to compute."""
    x, w = site.input(0).dims, site.input(1).dims
    names = ("stride", "pad", "dilation", "output_padding", "output_shape", "auto_pad")
    win = transposed_window(x[2:], w[2:], *(site.attr(name) for name in names))
    geo = replace(geometry_of(x, w[1] * site.attr("group"), win), most_after=None)
    each = zip(geo.out, geo.kernel, geo.stride, geo.dilation, geo.begin, strict=True)
    gaps = [d // gcd(d, s) for d, s in zip(geo.dilation, geo.stride, strict=True)]
    return Axes(geo, tuple(tuple(axis_phases(*of)) for of in each), triple(gaps))


def phases(found: Axes, exact: bool) -> Phases:
    """The direct convolutions of which the transposed one with the axes `found` consists, in groups
    that share code. With `exact`, taps in the padding around the input are left out: infinite
    weights would give NaN there."""
    geo, gaps, axes = found.geometry, found.gaps, found.phases
    if exact:
        each = zip(axes, geo.size, geo.stride, gaps, strict=True)
        axes = tuple(tuple(run for p in axis for run in inside(p, *rest)) for axis, *rest in each)
    together: dict[tuple[Triple, Triple], list[Member]] = {}
    for member in itertools.product(*axes):
        out, kernel = triple([p.count for p in member]), triple([len(p.taps) for p in member])
        together.setdefault((out, kernel), []).append(member)
    before, after = [], []
    for axis, extent, gap in zip(axes, geo.size, gaps, strict=True):
        used = [p for p in axis if p.taps]
        before.append(max([0, *(-p.first for p in used)]))
        last = [p.first + p.count - 1 + (len(p.taps) - 1) * gap for p in used]
        after.append(max([0, *(n - extent + 1 for n in last)]))
    groups = tuple(Group(o, k, tuple(m)) for (o, k), m in together.items())
    return Phases(replace(geo, begin=triple(before)), groups, gaps, triple(after))


@kernel("ConvTranspose", Tier.SHAPED, dtypes="float32")
def conv_transposed(site: Site) -> Choice:
    """Transposed convolution as one direct convolution for each phase of the stride."""
    axes = axes_of(site)
    conv = constants_of(site, axes.geometry)
    w, widths, target = conv.weights, conv.widths, site.target
    # Zeros around x times infinity are NaN. Numbers stand for weights that only a run knows.
    plan = phases(axes, exact=w.dtype != np.float32 or not are_finite(w))
    geo = plan.geometry
    largest = max(plan.groups, key=lambda g: typical(prod(g.out) * prod(g.kernel)))
    way = _way(target, widths, largest)
    cut = way.panels
    depth = way.depth * max(1, prod(largest.kernel))
    each = cut.cost * (widths.groups * way.depth if isinstance(way, Blocked) else 1)
    flops = 2.0 * conv.width * each / typical(prod(largest.out[1:]))
    flops *= typical(geo.batch)
    flops *= typical(plan.products)
    tile = tiling(target, *largest.out[1:], way.lanes, depth)
    ids = group_ids(way) if isinstance(way, Mixed) else np.zeros(0, np.int32)
    sets = geo.batch * way.groups * cut.total
    count = bands(sets, tile.most_bands, flops=flops)
    return conv.choice(
        conv.time(flops, EFFICIENCY),
        one_phase(sets * count, lambda em: emit_transposed(em, plan, way, count)),
        [
            Packed("weights", _pack, (w, widths, plan, way), fits=are_finite),
            Packed("phases", _table, (plan,)),
            packed_table("groups", ids),
            *conv.packed_bias(pack_bias, cut, way.groups),
        ],
        halo=tuple(zip(geo.begin, plan.after, strict=True))[3 - geo.rank :],
        detail=f"tile {tile}x{cut}, {sum(len(g.members) for g in plan.groups)} phases",
    )


def _way(target: Target, widths: Widths, largest: Group) -> Way:
    """How the direct convolutions cut and sum channels: as is best for the group `largest`."""
    width, taps, (_, rows, cols) = block_of(target), prod(largest.kernel), largest.out
    if widths.groups > 1 and (widths.inputs % width or widths.outputs % width):
        return plan_mixed(target, widths, rows, cols, max(1, taps))
    blocks = channel_blocks(widths.inputs, width)
    cut = panels(target, widths.outputs, rows, cols, blocks.padded * max(1, taps))
    return blocked(cut, blocks, widths.groups)


def _pack(w: np.ndarray, widths: Widths, plan: Phases, way: Way) -> np.ndarray:
    """The weights `w`, [C, K/groups, *taps]: those of the taps of each member of each of
    `plan.groups`, packed by `way`, one after the other, flat."""
    taps = triple(w.shape[2:])
    turned = w.reshape(widths.groups, widths.inputs, widths.outputs, *taps).swapaxes(1, 2)
    whole = turned.reshape(-1, *turned.shape[2:])  # [K, C/group, *3 taps]
    parts = [
        way.pack(whole[:, :, a.taps][:, :, :, c.taps][..., d.taps])
        for group in plan.groups
        if prod(group.kernel)
        for a, c, d in group.members
    ]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _table(plan: Phases) -> np.ndarray:
    """The `_row` of each member of each group, flat, int64."""
    rows = [_row(member) for group in plan.groups for member in group.members]
    return np.array(rows, np.int64).reshape(-1)


def _row(member: Member) -> list[int]:
    """Where a direct convolution begins, six numbers: its first output (depth, height, width), then
    its first input."""
    return [*(p.at for p in member), *(p.first for p in member)]


def emit_transposed(em: Emit, plan: Phases, way: Way, count: int) -> None:
    """Emit the kernel; its tiles are (channel group, panel, batch, one of `count` bands), the band
    innermost. A tile computes its band of every direct convolution."""
    geo = plan.geometry
    image = image_of(em.input(0), geo)
    beside = way.blocks.count * image.plane if isinstance(way, Blocked) else 0

    def body(at: PanelPlace) -> None:
        x = image.pointer + at.n * image.batch + at.group * beside
        sink = Sink(em, geo).at(at.n, at.panel.block)
        weights, table = em.packed[0], em.packed[1]
        for group in plan.groups:
            here = replace(em, packed=(weights, table, *em.packed[2:]))
            _emit_group(here, plan, way, group, at, x, sink)
            weights += len(group.members) * prod(group.kernel) * way.rows * way.stored
            table += len(group.members) * 6

    each_panel(em, way.panels, way.groups, Tiles(geo.batch, count), body)


def _emit_group(
    em: Emit, plan: Phases, way: Way, group: Group, at: PanelPlace, x: Ptr, sink: Sink
) -> None:
    """Emit the band `at` of each direct convolution of `group`. `em.packed` begins with the group's
    weights and its rows of the table. `x`: where the input of the image and channel group begins;
    `sink`: at the panel's first output."""
    geo, tap = plan.geometry, way.rows * way.stored
    step = image_of(em.input(0), geo).step
    sub = replace(geo, out=group.out, kernel=group.kernel, stride=(1, 1, 1), dilation=plan.dilation)

    def phase(member: Val | int, row: Sequence[Val | int]) -> None:
        corner = x
        for first, distance in zip(row[3:], step, strict=True):
            corner = corner + first * distance
        weights = em.packed[0] + member * (prod(group.kernel) * tap)
        sums = way.sums(replace(em, packed=(weights, *em.packed[2:])), sub, at.panel)
        to = sink.at(0, 0, *row[:3])
        convolve(em, sub, at.band, sums, corner, Sink(to.em, geo, to.block, geo.stride))

    if len(group.members) == 1:
        phase(0, _row(group.members[0]))
    else:
        with em.b.loop(0, len(group.members)) as m:
            line = em.packed[1] + m * 6
            phase(m, [(line + i).load() for i in range(6)])
