"""What one Winograd convolution computes and how it is cut: the numbers that its code is made of.

Output tiles of m_h x m_w places are counted through rows, columns and images. Where taps are
dilated, a tile holds places that far apart, and the tiles of one remainder follow each other. A
block of tiles is transformed into V[position][channel block][tile][lane], multiplied by the
transformed weights U[position][panel][channel][panel lanes] into
M[position][output block][tile][lane], and transformed back. Positions are one cache line more
apart than they need, because streams at equal offsets within a page evict each other. Where weights
are kept as taps, V and M are [block][position][tile][lane].

On matrix registers (see `kernels/amx`) V holds bfloat16 halves, and U pairs of them.
"""

from __future__ import annotations

import functools

from tinsmith.codegen.builder import Val
from tinsmith.kernels import narrow
from tinsmith.kernels.amx.plan import Axis
from tinsmith.kernels.amx.plan import Plan as Product
from tinsmith.kernels.layout import Halo
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.weights import ChannelBlocks
from tinsmith.kernels.winograd.matrices import Bilinear
from tinsmith.records import dataclass

HELD = 0.7  # of the first-level cache: the data of a strip of tiles


@dataclass(frozen=True)
class Partition:
    """`length` items in `count` pieces of `size` or `size` - 1."""

    count: int
    size: int

    def larger(self, length: int) -> int:
        """How many of the pieces have `size` items."""
        return self.count - (self.count * self.size - length)


@dataclass(frozen=True)
class Walk:
    """The tiles along one axis of `out` results: tiles of m results that are `dilation` apart."""

    out: int
    m: int
    dilation: int

    @property
    def remainders(self) -> int:
        return min(self.dilation, self.out)

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
        """Places between two tiles of one remainder."""
        return self.m * self.dilation

    @property
    def last_start(self) -> int:
        """The greatest first place of a tile."""
        return self.remainders - 1 + (self.each - 1) * self.step

    @property
    def even(self) -> bool:
        """No tile overhangs the results."""
        return self.each * self.step == self.out

    def start(self, tile: Val | int) -> Val | int:
        """The first place of a tile."""
        if self.remainders == 1:
            return tile * self.step
        return tile // self.each + tile % self.each * self.step


@dataclass(frozen=True)
class Frames:
    """A convolution over (depth, height, width) as one of planes: its images are frames of results,
    its channels those of every frame that a result sees.

    `out` frames of results an image, `taps` frames of `blocks` channel blocks each.
    """

    out: int
    taps: int
    blocks: int
    stride: int
    dilation: int
    halo: tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """One way to compute a two-dimensional convolution.

    tiles    the most tiles in a block; blocks hold this many or one less
    vectors  output blocks of a panel; the last panel may be smaller
    micro    how a block's tiles are cut into register tiles
    whole    all tiles are one block, its three stages phases of their own
    frames   how planes stand for a deeper image, if they do
    halves   products are of bfloat16 halves, on matrix registers
    words    weights are kept as 24 bits each (`kernels/narrow.py`)
    channels_together  if not 0, weights are kept as taps, and made for so many channels at a time
             (`taps.py`), output block by output block: vectors is 1, and micro means nothing
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
    halves: bool = False
    words: bool = False
    channels_together: int = 0

    @functools.cached_property
    def product(self) -> Product:
        """The product of one position, on matrix registers."""
        return Product(1, self.channels.padded, self.outputs, Axis(self.tiles), Axis(1))

    @property
    def padded_tiles(self) -> int:
        """Tiles that V and M have room for."""
        return self.product.plane if self.halves else self.tiles

    @property
    def vertical(self) -> Walk:
        return Walk(self.geo.out[1], self.rows.m, self.geo.dilation[1])

    @property
    def horizontal(self) -> Walk:
        return Walk(self.geo.out[2], self.cols.m, self.geo.dilation[2])

    @property
    def down(self) -> int:
        return self.vertical.count

    @property
    def across(self) -> int:
        return self.horizontal.count

    @property
    def lines(self) -> int:
        """Rows of tiles, over the batch."""
        return self.geo.batch * self.down

    @property
    def total(self) -> int:
        return self.lines * self.across

    def coordinates(self, tile: Val | int) -> tuple[Val | int, Val | int, Val | int]:
        """Image, row and column of a tile."""
        line = tile // self.across
        image = line // self.down if self.geo.batch > 1 else 0
        return image, line % self.down, tile % self.across

    @property
    def seen(self) -> int:
        """The most tiles of a block that one datum may be part of."""
        down, right = (-(-axis.reach // (axis.m * axis.stride)) for axis in (self.rows, self.cols))
        lines = -(-self.tiles // self.across)  # any part of a line, and the rest from the next
        return min(down, self.down, lines) * min(right, self.across)

    @property
    def seen_share(self) -> float:
        """The largest share of a block's tiles that one datum is part of."""
        return min(1.0, self.seen / self.tiles)

    @property
    def column_overlap(self) -> int:
        """Columns of data in which a tile overlaps the next one."""
        return max(0, self.cols.reach - self.cols.m * self.cols.stride)

    def strip(self, l1: int) -> int:
        """Tiles side by side that are transformed together: their data stay in such a cache."""
        data = 4 * self.width * self.rows.reach * self.cols.m * self.cols.stride
        each = self.horizontal.each
        most = max(1, int(HELD * l1) // data)
        return -(-each // -(-each // most))

    @property
    def positions(self) -> int:
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
        """Vectors of the last panel."""
        return self.outputs - (self.panels - 1) * self.vectors

    @property
    def depth(self) -> int:
        """Channels of the packed weights."""
        return self.channels.count * self.channels.stored

    @property
    def of_taps(self) -> bool:
        """Whether weights are kept as taps, not as U."""
        return self.channels_together > 0

    @property
    def panel_rows(self) -> int:
        """Rows of a panel of packed weights at one position: channels, or words and powers."""
        return narrow.rows(self.depth) if self.words else self.depth

    @property
    def units(self) -> int:
        """What the products of a block are made of: output blocks, or positions of panels."""
        return self.outputs if self.of_taps else self.positions * self.panels

    @property
    def groups(self) -> int:
        """Groups of channel blocks that are transformed together."""
        return self.product.blocks if self.halves else self.channels.count

    @property
    def tile_row(self) -> int:
        """Elements of all tiles of one block of channels at a position."""
        return self.padded_tiles * self.width

    @property
    def v_step(self) -> int:
        """Elements between positions of V."""
        if self.of_taps:
            return self.tile_row
        return self.groups * (1 + self.halves) * self.tile_row + 16

    @property
    def m_step(self) -> int:
        return self.tile_row if self.of_taps else self.outputs * self.tile_row + 16

    @property
    def block_step(self) -> int:
        """Elements between blocks of channels of V, or of M."""
        return self.positions * self.tile_row + 16 if self.of_taps else self.tile_row

    @property
    def m_start(self) -> int:
        """Where M lies behind V, in elements."""
        return self.groups * self.block_step if self.of_taps else self.positions * self.v_step

    @property
    def sizes_start(self) -> int:
        """Where the sizes of tiles lie behind V and M, in elements."""
        if self.of_taps:
            return self.m_start + self.outputs * self.block_step
        return self.m_start + self.positions * self.m_step

    @property
    def size(self) -> int:
        """Elements of V and M, and of the sizes of tiles."""
        sizes = self.tiles * (self.channels.count * self.width + 1) + 1
        return self.sizes_start + -(-sizes // 16) * 16

    @property
    def nbytes(self) -> int:
        """Bytes of the input and of the results, in whole blocks of channels."""
        geo = self.geo
        inputs = self.channels.count * geo.size[1] * geo.size[2]
        return 4 * self.width * geo.batch * (inputs + self.outputs * geo.out[1] * geo.out[2])

    @property
    def edge(self) -> int:
        """Elements of a tile of results, and of the taps of one channel."""
        return (self.rows.m * self.cols.m + self.geo.taps) * self.width

    @property
    def halo(self) -> Halo:
        """The zeros that the tiles read, those that overhang the last row and column included."""
        both = []
        for axis, walk, i in ((self.rows, self.vertical, 1), (self.cols, self.horizontal, 2)):
            begin = self.geo.begin[i]
            end = walk.last_start * axis.stride + (axis.reach - 1) * walk.dilation + 1
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
