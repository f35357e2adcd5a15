"""What a convolution of bytes computes, and how it is cut.

Windows are read where the input lies (`direct`) if that can be: its padding is zeros, which the
halo of blocked data has, and its bytes need no other form. Then k runs through the channels of a
block, the taps of a row, and only then the blocks. Else the input is packed into scratch with its
padding, the channels of a pixel side by side, so that a row of a window is one stretch of k.

Groups whose channels do not fill whole blocks on both sides are merged, with weights that
contribute nothing in between.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.products import MATRICES, PRODUCTS, Product, packed_lanes
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.tiles import Tiling
from tinsmith.kernels.dot.zeros import Side, known
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.geometry import Geometry, Triple
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cut:
    """The groups after merging, and the channels of each.

    groups   how many there are
    inputs   input channels of a group; `outputs` its output channels
    lanes    lanes of 32 bits that the packed inputs of one pixel take
    columns  the outputs, with the padding of their last block
    """

    groups: int
    inputs: int
    outputs: int
    lanes: int
    columns: int


def cut_groups(geo: Geometry, groups: int, row: Product, block: int, constant: bool = False) -> Cut:
    """The fewest groups merged into one whose channels are whole blocks; at last all of them. With
    `constant` weights the last one may be fewer groups than the others, if these are one block."""
    inputs, outputs = geo.channels // groups, geo.out_channels // groups
    together = next(
        q
        for q in range(1, groups + 1)
        if groups % q == 0 and (q == groups or not (q * inputs % block or q * outputs % block))
    )
    one = block // inputs
    if constant and inputs == outputs and one * inputs == block and one < together:
        together = one
    inputs, outputs = inputs * together, outputs * together
    columns = -(-outputs // block) * block
    return Cut(-(-groups // together), inputs, outputs, row.depth(inputs), columns)


@dataclass(frozen=True)
class Plan:
    """A convolution of packed elements, and where things lie in scratch: the packed input, then
    sums of windows, then weights and their tables where these are computed."""

    geo: Geometry
    cut: Cut
    row: Product
    tiling: Tiling  # of the pixels of a run by the columns of a group
    left: Side
    right: Side
    parts: int  # of the runs of an image's group, for threads
    near: bool  # threads share these parts, rather than panels of columns
    block: int  # channels of a block
    constant: bool  # weights and their zero points, which are packed beforehand
    off_rows: bool  # zero points of weights may be other than 0
    off_columns: bool  # the input's zero point, unless sums begin with what it takes off
    direct: bool = False  # the input is not packed
    zero: int = 0  # the input's zero point where sums do (`pack_start`)

    @property
    def flat(self) -> bool:
        """Whether all pixels of an image are one run."""
        return not self.direct and self.geo.is_pointwise and not any(self.geo.after)

    @property
    def starts(self) -> bool:
        """Whether sums begin with packed numbers: with what the input's zero point takes off, or,
        of floats, with the bias."""
        return bool(self.zero) or not self.row.is_whole

    @property
    def size(self) -> Triple:
        """The extents of the input with its padding."""
        both = zip(self.geo.begin, self.geo.size, self.geo.after, strict=True)
        depth, height, width = (b + n + a for b, n, a in both)
        return depth, height, width

    @property
    def images(self) -> int:
        """How many groups there are in all images together."""
        return self.geo.batch * self.cut.groups

    @property
    def runs(self) -> int:
        """How many runs of neighbouring output pixels an image has: one where it is `flat`, else
        one for each row."""
        return 1 if self.flat else self.geo.out[0] * self.geo.out[1]

    @property
    def pixels(self) -> int:
        """How many output pixels a run has."""
        return prod(self.geo.out) if self.flat else self.geo.out[2]

    @property
    def joined(self) -> bool:
        """Whether the taps of a window's row are neighbours in the packed input."""
        return self.geo.dilation[2] == 1 or self.geo.kernel[2] == 1

    @property
    def taps(self) -> Triple:
        """How many stretches of k a window has along each axis; the taps of a row are one where
        they are `joined`."""
        depth, height, width = self.geo.kernel
        return depth, height, 1 if self.joined else width

    @property
    def pixel(self) -> int:
        """How many lanes of one pixel lie side by side: those of all channels of a group, or of a
        block."""
        return self.block // self.row.group if self.direct else self.cut.lanes

    @property
    def blocks(self) -> int:
        """How many times a tile goes through its windows, each time for other channels of the
        group."""
        return self.cut.lanes // self.pixel

    @property
    def depth(self) -> int:
        """How many lanes of k one stretch has."""
        return self.pixel * (self.geo.kernel[2] if self.joined else 1)

    @property
    def image(self) -> int:
        """How many lanes the packed input of one group of one image takes."""
        return prod(self.size) * self.cut.lanes

    @property
    def panels(self) -> int:
        """How many lanes the packed weights of a group take."""
        return self.geo.taps * self.cut.lanes * self.cut.columns

    @property
    def sums_at(self) -> int:
        if self.direct:
            return 0
        beyond = 0
        if self.row.unit == MATRICES:  # whose last register has rows that nobody needs
            beyond = (SIDE - 1) * self.geo.stride[2] * self.cut.lanes
        return -(-(self.images * self.image + beyond) // LINE) * LINE

    @property
    def weights_at(self) -> int:
        sums = self.images * self.runs * self.pixels if self.off_rows else 0
        return -(-(self.sums_at + sums) // LINE) * LINE

    @property
    def tables_at(self) -> int:
        return self.weights_at + self.cut.groups * self.panels

    @property
    def has_table(self) -> bool:
        return self.off_rows or self.off_columns

    @property
    def scratch(self) -> int:
        """Bytes of scratch that the plan needs."""
        if self.constant:
            return 4 * self.weights_at
        return 4 * (self.tables_at + 2 * self.cut.groups * self.cut.columns * self.has_table)


# ---- constant weights


def _matrices(w: Array, zero: Array | None, cut: Cut) -> tuple[list[Array], list[Array]]:
    """For each group after merging: its weights as a matrix (taps * inputs, outputs), and its zero
    points. A weight between two channels that belonged to different groups is its zero point, so
    that it contributes nothing."""
    outputs, own, *kernel = w.shape
    zeros = np.zeros(cut.groups * cut.outputs, w.dtype)
    zeros[:outputs] = 0 if zero is None else zero.reshape(-1)
    full = np.empty((len(zeros), cut.inputs, prod(kernel)), w.dtype)
    full[:] = zeros[:, None, None]
    merged = cut.inputs // own
    each = cut.outputs // merged
    for k in range(merged):  # group k of those that are merged
        of = np.flatnonzero(np.arange(outputs) % cut.outputs // each == k)
        full[of, k * own : (k + 1) * own] = w[of].reshape(len(of), own, -1)
    groups = full.reshape(cut.groups, cut.outputs, cut.inputs, -1).transpose(0, 3, 2, 1)
    matrices = [g.reshape(-1, cut.outputs) for g in groups]
    return matrices, list(zeros.reshape(cut.groups, cut.outputs))


def pack_weights(
    w: Array, zero: Array | None, name: str, cut: Cut, tiling: Tiling, pixel: int
) -> Array:
    """[group][panel][block of channels][tap][lane][columns of the panel] of the row `name`; blocks
    have `pixel` lanes."""
    row, found = PRODUCTS[name], []
    for matrix, zeros in zip(*_matrices(w, zero, cut), strict=True):
        elements = known(matrix, zeros, row).elements.reshape(-1, cut.inputs, cut.outputs)
        wide = np.zeros((len(elements), cut.lanes * row.group, cut.columns), elements.dtype)
        wide[:, : cut.inputs, : cut.outputs] = elements
        wide = wide.reshape(len(wide), -1, pixel * row.group, cut.columns).swapaxes(0, 1)
        lanes = packed_lanes(wide.reshape(-1, cut.columns), row)
        found.append(pack_columns(lanes, tiling.columns))
    return np.concatenate(found)


def pack_tables(w: Array, zero: Array | None, name: str, cut: Cut) -> Array:
    """For each group: the zero points of its columns, then the sums of its columns, as int32;
    padding columns are 0."""
    table = np.zeros((cut.groups, 2, cut.columns), np.int64)
    for at, (matrix, zeros) in enumerate(zip(*_matrices(w, zero, cut), strict=True)):
        found = known(matrix, zeros, PRODUCTS[name])
        table[at, 0, : cut.outputs], table[at, 1, : cut.outputs] = found.zeros, found.columns
    return table.astype(np.int32)


def pack_start(w: Array, zero: Array | None, name: str, cut: Cut, left: int) -> Array:
    """For each group: what the sums of its columns begin with, so that the input's zero point
    `left` is taken off."""
    start = np.zeros((cut.groups, cut.columns), np.int64)
    for at, (matrix, zeros) in enumerate(zip(*_matrices(w, zero, cut), strict=True)):
        start[at, : cut.outputs] = -left * known(matrix, zeros, PRODUCTS[name]).columns
    return (start & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
