"""What a convolution of bytes computes, and how it is cut.

The input is packed into scratch with its padding, the channels of a pixel side by side, so that a
row of a window is one stretch of k. Groups whose channels do not fill whole blocks on both sides
are merged, with weights that contribute nothing in between.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import Product, packed_lanes
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.dot.zeros import Side, known
from tinsmith.kernels.layout import LINE, Layout, Spec, spec_of
from tinsmith.kernels.window.geometry import Geometry, Triple, triple
from tinsmith.kernels.window.panels import Panel, PanelPlace
from tinsmith.kernels.window.tiles import UNROLL, Place, plus
from tinsmith.kernels.window.ways import Blocked, Sums
from tinsmith.kernels.window.weights import ChannelBlocks
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cut:
    """Channels of one group, after merging: `groups` of `inputs` to `outputs`; a pixel's inputs are
    so many lanes of a row of the table of products."""

    groups: int
    inputs: int
    outputs: int
    lanes: int


def cut_groups(geo: Geometry, groups: int, row: Product, block: int) -> Cut:
    """The fewest groups merged into one whose channels are whole blocks; at last all of them."""
    inputs, outputs = geo.channels // groups, geo.out_channels // groups
    together = next(
        q
        for q in range(1, groups + 1)
        if groups % q == 0 and (q == groups or not (q * inputs % block or q * outputs % block))
    )
    inputs, outputs = inputs * together, outputs * together
    return Cut(groups // together, inputs, outputs, row.depth(inputs))


def packed_geometry(geo: Geometry, cut: Cut) -> tuple[Geometry, ChannelBlocks]:
    """The convolution of the packed input, and the lanes of one of its taps. Taps that are
    neighbours along a row are one tap of as many more lanes."""
    size = triple([b + n + a for b, n, a in zip(geo.begin, geo.size, geo.after, strict=True)])
    *kernel, wide = geo.kernel
    joined = wide if geo.dilation[2] == 1 else 1
    depth = cut.lanes * joined
    step = max(s for s in range(1, UNROLL + 2) if depth % s == 0)
    packed = replace(geo, size=size, kernel=triple([*kernel, wide // joined]), begin=(0, 0, 0))
    return packed, ChannelBlocks(1, depth, depth, step)


@dataclass(frozen=True)
class IntegerPlan(Blocked):
    """A convolution of bytes: direct convolution of the packed input, `geo`, with zero points.

    Scratch holds the packed input, then sums of windows, then weights and their tables where these
    are computed.
    """

    source: Geometry  # of the input as it is
    geo: Geometry
    cut: Cut
    left: Side
    right: Side
    block: int  # channels of a block
    constant: bool  # weights and their zero points, which are packed beforehand
    off_rows: bool  # zero points of weights may be other than 0
    off_columns: bool  # the input's zero point

    @property
    def spec(self) -> Spec:
        """How the packed input lies: lanes are channels, those of a group a block."""
        geo, lanes = self.geo, self.cut.lanes
        dims = (geo.batch, self.groups * lanes, *geo.size[3 - geo.rank :])
        return spec_of(np.int32, dims, Layout(lanes))

    @property
    def images(self) -> int:
        """Groups of all images."""
        return self.geo.batch * self.groups

    @property
    def columns(self) -> int:
        """Output lanes of a group."""
        return self.rows // self.groups

    @property
    def panel_lanes(self) -> int:
        """Lanes of the weights of an output."""
        return self.geo.taps * self.stored

    @property
    def sums_at(self) -> int:
        return -(-self.spec.size // LINE) * LINE

    @property
    def weights_at(self) -> int:
        sums = self.images * prod(self.geo.out) if self.off_rows else 0
        return -(-(self.sums_at + sums) // LINE) * LINE

    @property
    def tables_at(self) -> int:
        return self.weights_at + self.rows * self.panel_lanes

    @property
    def has_table(self) -> bool:
        return self.off_rows or self.off_columns

    @property
    def scratch(self) -> int:
        """Bytes."""
        if self.constant:
            return 4 * self.weights_at
        return 4 * (self.tables_at + 2 * self.rows * self.has_table)

    # ---- what the skeleton of direct convolution asks

    def operands(self, em: Emit) -> Emit:
        """The packed input, the weights, and their table."""
        scratch = em.scratch.cast(I32)
        weights, table = scratch + self.weights_at, scratch + self.tables_at
        if self.constant:
            weights, table = em.packed[0].cast(I32), em.packed[-1].cast(I32)
        return replace(em, ins=(View(scratch, self.spec), *em.ins[1:]), packed=(weights, table))

    def sums(self, em: Emit, geo: Geometry, panel: Panel) -> Sums:
        """Sums start with what the input's zero point takes off them."""
        b, firsts = em.b, [sum(panel.lanes[:o]) for o in range(len(panel.lanes))]
        places = list(zip(firsts, panel.lanes, strict=True))
        left = self.left.zeros(em, 0, 1) if self.off_columns else None
        table = em.packed[1] + (panel.channel + self.rows)

        def start() -> list[Val]:
            if left is None:
                return [b.zero(I32.x(n)) for _, n in places]
            return [(table + f).load(n) * (-left).splat(n) for f, n in places]

        return replace(super().sums(em, geo, panel), start=start)

    def place(self, em: Emit, geo: Geometry, at: PanelPlace) -> Place:
        sink = super().place(em, geo, at)
        if not self.off_rows:
            return sink
        totals = em.scratch.cast(I32) + self.sums_at
        totals = totals + (at.n * self.groups + at.group) * prod(geo.out)
        return Centred(sink, em.packed[1] + at.panel.channel, totals, geo.out, self.block)


@dataclass(frozen=True)
class Centred:
    """Takes off results what zero points of weights contribute: those are at `zeros`, and sums of
    windows at `totals`, for planes of the extents `out`."""

    sink: Place
    zeros: Ptr
    totals: Ptr
    out: Triple
    width: int

    def at(self, *index: Val | int) -> Centred:
        full = (*index, *(0,) * (5 - len(index)))
        return replace(self, sink=self.sink.at(*index), totals=self._total(*full[2:]))

    def put(self, value: Val, *index: Val | int) -> None:
        lanes, zeros = value.ty.lanes, self.zeros + index[1] * self.width
        total = self._total(*index[2:]).load().splat(lanes)
        self.sink.put(value - zeros.load(lanes) * total, *index)

    def _total(self, d: Val | int, r: Val | int, c: Val | int) -> Ptr:
        return self.totals + plus(plus(d * self.out[1], r) * self.out[2], c)


# ---- constant weights


def _matrices(w: Array, zero: Array | None, cut: Cut) -> tuple[list[Array], list[Array]]:
    """For each group (taps * inputs, outputs) and its zero points: weights between groups that were
    merged are their zero points."""
    outputs, own, *kernel = w.shape
    zeros = np.zeros(1, w.dtype) if zero is None else zero.reshape(-1)
    zeros = np.broadcast_to(zeros, outputs)
    full = np.empty((outputs, cut.inputs, prod(kernel)), w.dtype)
    full[:] = zeros[:, None, None]
    each = outputs // (cut.groups * cut.inputs // own)
    for o in range(outputs):
        first = o % cut.outputs // each * own
        full[o, first : first + own] = w[o].reshape(own, -1)
    groups = full.reshape(cut.groups, cut.outputs, cut.inputs, -1).transpose(0, 3, 2, 1)
    matrices = [g.reshape(-1, cut.outputs) for g in groups]
    return matrices, list(zeros.reshape(cut.groups, cut.outputs))


def pack_weights(w: Array, zero: Array | None, cut: Cut, way: Blocked) -> Array:
    """[group][panel][tap][lane of channels][columns of the panel]."""
    row, found = way.row, []
    for matrix, zeros in zip(*_matrices(w, zero, cut), strict=True):
        elements = known(matrix, zeros, row).elements.reshape(-1, cut.inputs, cut.outputs)
        wide = np.zeros((len(elements), cut.lanes * row.group, cut.outputs), np.int64)
        wide[:, : cut.inputs] = elements
        lanes = packed_lanes(wide.reshape(-1, cut.outputs), row)
        found.append(lanes.reshape(-1, way.depth, cut.outputs).T)
    return way.pack(np.concatenate(found))


def pack_tables(w: Array, zero: Array | None, cut: Cut, way: Blocked) -> Array:
    """The zero points, then the sums, of the columns of all groups; padding is 0."""
    table = np.zeros((2, cut.groups, way.rows // cut.groups), np.int64)
    for at, (matrix, zeros) in enumerate(zip(*_matrices(w, zero, cut), strict=True)):
        found = known(matrix, zeros, way.row)
        table[0, at, : cut.outputs], table[1, at, : cut.outputs] = found.zeros, found.columns
    return table.astype(np.int32)
