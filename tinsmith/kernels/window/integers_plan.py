"""The plan of a convolution of bytes: how its groups, pixels and channels are cut and packed.

It is a product of matrices: rows are output pixels, columns are output channels, and k goes through
the taps and input channels of a window.

Windows are read in place (`direct`) if padding is 0, as the halo of blocked data is, and bytes are
multiplied as they are. Then k goes through the channels of a block, the taps of a window, and last
the blocks. Otherwise the input is packed into scratch with its padding, the channels of a pixel
side by side: a row of a window is one stretch of k.

Groups whose inputs or outputs do not fill whole blocks are merged (`cut_groups`). Functions that
pack get the weights w [outputs, inputs of a group, *taps] as they were before, their zero points
(None: there are none) and the name of a row of the table of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod

import numpy as np

from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.products import MATRICES, PRODUCTS, Product, packed_lanes
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Site
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.saturating import Rest
from tinsmith.kernels.dot.skeleton import buffer_bytes
from tinsmith.kernels.dot.tiles import Tiling
from tinsmith.kernels.dot.zeros import Side, corrections, elements
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.geometry import Geometry, Triple, triple
from tinsmith.records import dataclass
from tinsmith.sizes import Number


@dataclass(frozen=True)
class Cut:
    """The groups of a convolution after merging.

    groups   how many there are
    inputs   input channels of a group; `outputs` its output channels
    lanes    32-bit lanes that the packed inputs of one pixel take
    columns  outputs of a group, rounded up to whole blocks
    """

    groups: int
    inputs: int
    outputs: int
    lanes: int
    columns: int


def cut_groups(geo: Geometry, groups: int, row: Product, block: int, constant: bool = False) -> Cut:
    """The groups after merging as few as possible into one, so that its inputs and outputs fill
    whole blocks of `block` channels; if no number does, all. `row` tells how many elements a lane
    has. With `constant` weights, groups of as many outputs as inputs are merged until they fill
    just one block, if these are fewer; the last merged group may then lack some."""
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
class Shares:
    """How the work of a convolution is cut for threads, for each group of each image.

    columns  into how many parts the panels of columns are cut
    runs     into how many parts the runs of pixels are cut
    panels   into how many parts the panels of rows of each run are cut
    near     whether threads share the parts of pixels, rather than those of columns
    """

    columns: int = 1
    runs: int = 1
    panels: int = 1
    near: bool = False

    @property
    def parts(self) -> int:
        """Into how many parts the pixels are cut."""
        return self.runs * self.panels


@dataclass(frozen=True)
class Plan:
    """How a convolution of packed elements is computed. In scratch lie, in order: the packed input,
    sums of windows, packed weights that the run computes, and their tables."""

    geo: Geometry
    cut: Cut
    row: Product
    tiling: Tiling  # of the pixels of a run by the columns of a group
    left: Side
    right: Side
    shares: Shares
    block: int  # channels of a block
    constant: bool  # whether weights and their zero points are constant, and packed beforehand
    off_rows: bool  # whether weights may have zero points, for which sums are corrected
    off_columns: bool  # whether finished sums are corrected for the input's zero point
    direct: bool = False  # whether the input is read in place
    flat: bool = False  # whether all pixels of an image are one run
    zero: int = 0  # if not 0: the input's zero point, for which `pack_start` corrects sums
    split: bool = False  # whether weights are split (`dot/saturating.py`)
    every: Triple = (1, 1, 1)  # how far apart in the input lie the pixels of `geo`

    @property
    def starts(self) -> bool:
        """Whether sums begin with packed numbers: zero point corrections, or, of floats, the
        bias."""
        return bool(self.zero) or not self.row.is_whole

    @property
    def size(self) -> Triple:
        """The extents of the input with its padding."""
        both = zip(self.geo.begin, self.geo.size, self.geo.after, strict=True)
        return triple([b + n + a for b, n, a in both])

    @property
    def images(self) -> int:
        """Groups of all images together: each is multiplied like an image of its own."""
        return self.geo.batch * self.cut.groups

    @property
    def runs(self) -> int:
        """How many runs of neighbouring output pixels an image has: one if it is `flat`, else one
        for each row."""
        return 1 if self.flat else self.geo.out[0] * self.geo.out[1]

    @property
    def pixels(self) -> int:
        """How many output pixels a run has."""
        return prod(self.geo.out) if self.flat else self.geo.out[2]

    @property
    def joined(self) -> bool:
        """Whether a row of a window is one stretch of memory: its taps read adjacent pixels, or
        there is only one."""
        return self.geo.dilation[2] == 1 or self.geo.kernel[2] == 1

    @property
    def taps(self) -> Triple:
        """How many stretches of k a window has along each axis. The taps of a row are one stretch
        if they are `joined`."""
        depth, height, width = self.geo.kernel
        return depth, height, 1 if self.joined else width

    @property
    def pixel(self) -> int:
        """32-bit lanes of one pixel that lie side by side: those of all channels of a group, or, of
        an input in place, of a block."""
        return self.block // self.row.group if self.direct else self.cut.lanes

    @property
    def blocks(self) -> int:
        """Into how many parts a tile's sum over input channels is cut, each of which goes through
        all taps of the windows. An input that is read in place has a part for each block of
        channels, as these lie far apart; a packed input has one part, of all channels."""
        return self.cut.lanes // self.pixel

    @property
    def depth(self) -> int:
        """32-bit lanes of one stretch of k."""
        return self.pixel * (self.geo.kernel[2] if self.joined else 1)

    @property
    def image(self) -> int:
        """32-bit lanes of the packed input of one group of one image."""
        return prod(self.size) * self.cut.lanes

    @property
    def panels(self) -> int:
        """32-bit lanes of the packed weights of a group."""
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
    def rest(self) -> Rest:
        """Of `split` weights: the products by their rest, of each image."""
        depth = self.geo.taps * self.cut.inputs
        return Rest(self.runs * self.pixels, self.cut.columns, depth, self.block)

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

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers by which the input is packed and windows are read, for `sized`; 0 or 1 first:
        whether the plan is `flat`."""
        geo, cut = self.geo, self.cut
        triples = (
            geo.size, geo.out, geo.kernel, geo.stride, geo.dilation, geo.begin, geo.after,
        )  # fmt: skip
        return (
            int(self.flat), geo.batch, geo.channels, geo.out_channels,
            cut.groups, cut.inputs, cut.outputs, cut.lanes, cut.columns, *chain(*triples),
        )  # fmt: skip

    def sized(self, numbers: Sequence[Number]) -> Plan:
        """This plan with other `numbers`, such as the sizes of generic code. Its tiling stays."""
        flat, batch, channels, out_channels, *cut = numbers[:9]
        size, out, kernel, stride, dilation, begin, after = (
            triple(numbers[i : i + 3]) for i in range(9, len(numbers), 3)
        )
        geo = replace(
            self.geo, batch=batch, channels=channels, out_channels=out_channels, size=size, out=out,
            kernel=kernel, stride=stride, dilation=dilation, begin=begin, most_after=after,
        )  # fmt: skip
        return replace(self, geo=geo, cut=Cut(*cut), flat=bool(flat))


def tile_room(site: Site, plan: Plan) -> int:
    """Bytes of workspace that finishing a tile needs (`buffer_bytes`)."""
    columns = plan.tiling.columns
    return buffer_bytes(site, plan.tiling.rows.size, columns.size or sum(columns.tail))


# ---- constant weights


def _merged(w: Array, zero: Array | None, cut: Cut) -> tuple[Array, Array]:
    """Return weights [group][output][input][tap] of the merged groups of `cut`, and their zero
    points [group][output]. Weights between channels of different old groups are the zero point,
    which contributes nothing. Outputs that the last group lacks get weights and zero points of 0,
    or 128 for uint8: `elements` turns these into 0."""
    outputs, own, *kernel = w.shape
    merged = cut.inputs // own
    zeros = np.full((cut.groups * cut.outputs, 1, 1), 128 * (w.dtype.kind == "u"), w.dtype)
    zeros[:outputs] = 0 if zero is None else zero.reshape(-1, 1, 1)
    full = w.reshape(outputs, own, -1)
    if merged > 1:
        full = np.repeat(zeros, cut.inputs, 1).repeat(prod(kernel), 2)
        group = np.arange(outputs) % cut.outputs // (cut.outputs // merged)
        for k in range(merged):  # group k of those that are merged
            of = np.flatnonzero(group == k)
            full[of, k * own : (k + 1) * own] = w[of].reshape(len(of), own, -1)
    groups = full.reshape(cut.groups, cut.outputs, cut.inputs, -1)
    return groups, zeros.reshape(cut.groups, cut.outputs)


def pack_weights(
    w: Array, zero: Array | None, name: str, cut: Cut, tiling: Tiling, pixel: int
) -> Array:
    """Pack weights [outputs, inputs of a group, *taps] for the row `name` of the table of products,
    as [group][panel][channel block][tap][lane][column of the panel], flat. A channel block has
    `pixel` lanes (`Plan.pixel`)."""
    row = PRODUCTS[name]
    groups, zeros = _merged(w, zero, cut)
    found = elements(groups, zeros[..., None, None], row).swapaxes(2, 3)
    block, taps = pixel * row.group, found.shape[2]
    wide = np.zeros((cut.groups, cut.columns, cut.lanes // pixel, taps, block), found.dtype)
    for k in range(wide.shape[2]):
        some = found[..., k * block : (k + 1) * block]
        wide[:, : cut.outputs, k, :, : some.shape[-1]] = some
    matrices = wide.reshape(cut.groups, cut.columns, -1).swapaxes(1, 2)
    return np.concatenate([pack_columns(packed_lanes(m, row), tiling.columns) for m in matrices])


def pack_tables(w: Array, zero: Array | None, name: str, cut: Cut) -> Array:
    """For each group: the zero points of its columns, then the sums of its columns' elements less
    these, as int32 [group][2][column]. 0 in padding."""
    found = corrections(w.reshape(len(w), -1), zero, PRODUCTS[name])
    return np.stack([by_group(numbers.astype(np.int32), cut) for numbers in found], axis=1)


def by_group(numbers: Array, cut: Cut) -> Array:
    """`numbers`, one for each output, as [group][column], 0 in padding."""
    every = np.pad(numbers, (0, cut.groups * cut.outputs - len(numbers)))
    return np.pad(every.reshape(cut.groups, -1), [(0, 0), (0, cut.columns - cut.outputs)])


def pack_start(w: Array, zero: Array | None, name: str, cut: Cut, left: int) -> Array:
    """What the sums of each group's columns begin with, as a correction for the input's zero point
    `left`: [group][column], int32, modulo 2^32."""
    sums = corrections(w.reshape(len(w), -1), zero, PRODUCTS[name])[1]
    return by_group((-left * sums).astype(np.int32), cut)
