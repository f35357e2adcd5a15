"""How one Winograd convolution is cut into tiles and blocks, and where its data lie.

Output tiles of m_h x m_w results are numbered through images, rows and columns. With dilation the
results of a tile are `dilation` apart, and tiles of the same remainder (place modulo dilation)
follow each other.

A block of tiles is transformed into V[position][channel block][tile][lane], multiplied by the
transformed weights U[position][panel][channel][lane of the panel] into
M[position][output block][tile][lane], and transformed back. Positions lie one cache line further
apart than they need, because data at equal offsets within a page evict each other. If weights are
kept as taps, V and M are [block][position][tile][lane].

On matrix registers (`kernels/amx`) V and U hold bfloat16 high and low parts.
"""

from __future__ import annotations

import functools

from tinsmith.codegen.builder import Val
from tinsmith.kernels import narrow
from tinsmith.kernels.amx.tiling import AmxPlan, Axis
from tinsmith.kernels.layout import LINE, Halo
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.weights import ChannelBlocks
from tinsmith.kernels.winograd.matrices import Bilinear
from tinsmith.records import dataclass
from tinsmith.sizes import Size, same

HELD = 0.7
"""The share of L1 that the input data of a strip of tiles (`inputs.py`) may fill. Estimated."""


@dataclass(frozen=True)
class Partition:
    """Items cut into `count` pieces of `size` or `size` - 1 items, the larger ones first. How many
    items there are is not kept: `larger` is given that."""

    count: int
    size: int

    def larger(self, length: int) -> int:
        """How many pieces have `size` items, of `length` items in all."""
        return self.count - (self.count * self.size - length)


@dataclass(frozen=True)
class Walk:
    """The tiles along one axis of `out` results; each has m results, `dilation` places apart."""

    out: int
    m: int
    dilation: int

    @property
    def remainders(self) -> int:
        """How many remainders modulo dilation the places of results have."""
        return 1 if self.dilation == 1 else min(self.dilation, self.out)

    @property
    def each(self) -> int:
        """Tiles of one remainder."""
        places = -(-self.out // self.dilation)
        return -(-places // self.m)

    @property
    def count(self) -> int:
        return self.remainders * self.each

    @property
    def step(self) -> int:
        """Places from one tile to the next of the same remainder."""
        return self.m * self.dilation

    @property
    def even(self) -> bool:
        """Whether no tile extends beyond the last result, in any call."""
        return same(self.each * self.step, self.out)

    def start(self, tile: Val | int) -> Val | int:
        """The place of the first result of a tile."""
        if self.remainders == 1:
            return tile * self.step
        return tile // self.each + tile % self.each * self.step


@dataclass(frozen=True)
class Frames:
    """A convolution over (depth, height, width) as one of planes: an image of the plan is one frame
    (index of depth) of results, and its channels are those of all frames of the input that these
    results read.

    out       frames of results of one image of the convolution
    taps      frames that one result reads
    blocks    channel blocks of a frame
    stride, dilation, halo  of the depth axis
    """

    out: int
    taps: int
    blocks: int
    stride: int
    dilation: int
    halo: tuple[int, int]


@dataclass(frozen=True)
class WinogradPlan:
    """One way to compute a two-dimensional convolution.

    rows     the algorithm of the vertical axis; `cols` that of the horizontal one
    width    channels of a block; `channels` says how blocks of input channels are walked
    blocks   how many blocks of tiles there are
    tiles    the most tiles in a block; a block holds this many or one less, or, where sizes are
             free, any number up to this
    vectors  output channel blocks in a panel; the last panel may have fewer
    micro    how the tiles of a block are cut into register tiles; where sizes are free, the largest
             of these, and how many there are for the example's sizes
    whole    one block holds all tiles, and its three stages are phases of their own
    frames   how planes represent a three-dimensional image; None for two dimensions
    split    products are in split precision (bfloat16 parts), on matrix registers
    words    weights are packed to 24 bits each (`kernels/narrow.py`)
    channels_together  if not 0, weights are kept as taps and transformed for this many channels at
             a time, output block by output block (`taps.py`); `vectors` is then 1, `micro` unused
    """

    geo: Geometry
    rows: Bilinear
    cols: Bilinear
    width: int
    channels: ChannelBlocks
    tiles: int
    blocks: int
    vectors: int
    micro: Partition
    whole: bool
    frames: Frames | None = None
    split: bool = False
    words: bool = False
    channels_together: int = 0

    @property
    def is_free(self) -> bool:
        """Whether only a call tells some size. Then there is no dilation, and blocks are not
        `whole`: V and M lie in the workspace, whose size is fixed."""
        return self.geo.is_free or isinstance(self.geo.batch, Size)

    @functools.cached_property
    def product(self) -> AmxPlan:
        """The matrix product of one position, on matrix registers."""
        return AmxPlan(1, self.channels.padded, self.outputs, Axis(self.tiles), Axis(1))

    @property
    def padded_tiles(self) -> int:
        """How many tiles of a block V and M have space for."""
        return self.product.plane if self.split else self.tiles

    @property
    def vertical(self) -> Walk:
        return Walk(self.geo.out[1], self.rows.m, self.geo.dilation[1])

    @property
    def horizontal(self) -> Walk:
        return Walk(self.geo.out[2], self.cols.m, self.geo.dilation[2])

    @property
    def down(self) -> int:
        """Rows of tiles of an image."""
        return self.vertical.count

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return self.horizontal.count

    @property
    def lines(self) -> int:
        """Rows of tiles of all images."""
        return self.geo.batch * self.down

    @property
    def total(self) -> int:
        """Tiles of all images."""
        return self.lines * self.across

    def coordinates(self, tile: Val | int) -> tuple[Val | int, Val | int, Val | int]:
        """The image of a tile, and its row and column among the tiles of the image."""
        line = tile // self.across
        image = line // self.down if self.geo.batch > 1 else 0
        return image, line % self.down, tile % self.across

    @property
    def seen(self) -> int:
        """The most tiles of a block that read one input element."""
        down, right = (-(-axis.reach // (axis.m * axis.stride)) for axis in (self.rows, self.cols))
        if self.is_free:
            return down * right
        lines = -(-self.tiles // self.across)  # the block may begin anywhere in a row of tiles
        return min(down, self.down, lines) * min(right, self.across)

    @property
    def seen_share(self) -> float:
        """The largest share of a block's tiles that read one input element."""
        return min(1.0, self.seen / self.tiles)

    @property
    def column_overlap(self) -> int:
        """Input columns that two neighbouring tiles both read."""
        return max(0, self.cols.reach - self.cols.m * self.cols.stride)

    def strip(self, l1: int) -> int:
        """How many neighbouring tiles are transformed together: so many that their input fills at
        most HELD of an L1 of `l1` bytes."""
        data = 4 * self.width * self.rows.reach * self.cols.m * self.cols.stride
        each = self.horizontal.each
        most = max(1, int(HELD * l1) // data)
        if isinstance(each, Size):
            return most
        return -(-each // -(-each // most))

    @property
    def positions(self) -> int:
        """Elements of a transformed tile."""
        return self.rows.products * self.cols.products

    @property
    def outputs(self) -> int:
        """Blocks of output channels."""
        return -(-self.geo.out_channels // self.width)

    @property
    def panels(self) -> int:
        return -(-self.outputs // self.vectors)

    @property
    def last_vectors(self) -> int:
        """Vectors of output channels of the last panel."""
        return self.outputs - (self.panels - 1) * self.vectors

    @property
    def depth(self) -> int:
        """Input channels in the packed weights, padding included."""
        return self.channels.count * self.channels.stored

    @property
    def of_taps(self) -> bool:
        """Whether weights are kept as taps rather than transformed."""
        return self.channels_together > 0

    @property
    def panel_rows(self) -> int:
        """Rows of a packed panel at one position: one a channel, fewer of 24-bit weights."""
        return narrow.rows(self.depth) if self.words else self.depth

    @property
    def units(self) -> int:
        """How many units of work the products of a block are: one for each position and panel, or,
        if weights are kept as taps, one for each output block."""
        return self.outputs if self.of_taps else self.positions * self.panels

    @property
    def groups(self) -> int:
        """Groups of channel blocks that are transformed: pairs in split precision, else single."""
        return self.product.blocks if self.split else self.channels.count

    @property
    def tile_row(self) -> int:
        """Elements of one channel block at one position, over all tiles."""
        return self.padded_tiles * self.width

    @property
    def v_step(self) -> int:
        """Elements from one position of V to the next."""
        if self.of_taps:
            return self.tile_row
        return self.groups * (1 + self.split) * self.tile_row + LINE

    @property
    def m_step(self) -> int:
        """Elements from one position of M to the next."""
        return self.tile_row if self.of_taps else self.outputs * self.tile_row + LINE

    @property
    def block_step(self) -> int:
        """Elements from one channel block of V (or of M) to the next, at one position."""
        return self.positions * self.tile_row + LINE if self.of_taps else self.tile_row

    @property
    def m_start(self) -> int:
        """The offset of M from V, in elements."""
        return self.groups * self.block_step if self.of_taps else self.positions * self.v_step

    @property
    def sizes_start(self) -> int:
        """The offset of the tiles' sizes (`outliers.Sizes`) from V, in elements."""
        if self.of_taps:
            return self.m_start + self.outputs * self.block_step
        return self.m_start + self.positions * self.m_step

    @property
    def size(self) -> int:
        """Elements of V, M and the sizes of tiles together."""
        sizes = self.tiles * (self.channels.count * self.width + 1) + 1
        return self.sizes_start + -(-sizes // LINE) * LINE

    @property
    def nbytes(self) -> int:
        """Bytes of input and results, in whole channel blocks."""
        geo = self.geo
        inputs = self.channels.count * geo.size[1] * geo.size[2]
        return 4 * self.width * geo.batch * (inputs + self.outputs * geo.out[1] * geo.out[2])

    @property
    def edge(self) -> int:
        """Elements of the workspace `Rooms.edge`: the results of one tile and the taps of one input
        channel, for one block of output channels."""
        return (self.rows.m * self.cols.m + self.geo.taps) * self.width

    @property
    def halo(self) -> Halo:
        """The halo, (before, after) for each spatial axis, in which all input elements that tiles
        read lie, also where tiles reach beyond the last row and column of outputs."""
        both = []
        for axis, walk, i in ((self.rows, self.vertical, 1), (self.cols, self.horizontal, 2)):
            begin = self.geo.begin[i]
            if isinstance(walk.out, Size):  # the last tile begins at the last result at most
                after = self.geo.after[i] + (axis.reach - axis.r) * walk.dilation
                both.append((self.geo.before[i], after))
                continue
            last = walk.remainders - 1 + (walk.each - 1) * walk.step  # where the last tile begins
            end = last * axis.stride + (axis.reach - 1) * walk.dilation + 1
            both.append((begin, max(0, end - self.geo.size[i] - begin)))
        if self.frames is not None:
            both.insert(0, self.frames.halo)
        return tuple(both)[-self.geo.rank :]

    def __str__(self) -> str:
        tile = f"F({self.rows.m}x{self.cols.m},{self.rows.r}x{self.cols.r})"
        strides = (self.rows.stride, self.cols.stride)
        step = "" if strides == (1, 1) else f"/{strides[0]}x{strides[1]}"
        gaps = self.geo.dilation[1:]
        step += "" if gaps == (1, 1) else f" dilated {gaps[0]}x{gaps[1]}"
        cut = "whole" if self.whole else f"T={self.tiles}"
        if self.of_taps:
            return f"{tile}{step} {cut} of taps"
        bits = " 24 bits" if self.words else ""
        return f"{tile}{step} {cut} {self.micro.size}x{self.vectors}{bits}"
