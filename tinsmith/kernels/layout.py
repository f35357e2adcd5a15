"""How a tensor lies in memory.

Plain is numpy's row-major order. Blocked (`nChw{V}c`) cuts axis 1 into blocks of V channels, and
the V channels (lanes) of a block are innermost: element (n, c, h, w) is at [n][c // V][h][w][c %
V]. Channels are padded to a multiple of V with lanes that are always zero. Each spatial axis may be
surrounded by a halo of zeros that a reader asked for, so that windows need no code for edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.target import Target
from tinsmith.records import NamedTuple, cached_property, dataclass
from tinsmith.sizes import same

Halo = tuple[tuple[int, int], ...]
LINE = 16  # float32 in a cache line


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: plain (`block` 0), or in blocks of V = `block` channels. `halo`
    has (before, after) for each spatial axis; (): no halo."""

    block: int = 0
    halo: Halo = ()

    @property
    def is_plain(self) -> bool:
        return self.block == 0

    def covers(self, wanted: Layout) -> bool:
        """Whether a reader that asks for `wanted` can read a tensor in this layout: the block is
        the same, and each side of the halo at least as wide."""
        if self.block != wanted.block:
            return False
        mine = self.halo or ((0, 0),) * len(wanted.halo)
        return all(m[0] >= w[0] and m[1] >= w[1] for m, w in zip(mine, wanted.halo, strict=False))

    def widened(self, other: Layout) -> Layout:
        """The layout with this block and the narrowest halo that covers both halos."""
        if not self.halo or not other.halo:
            return self if self.halo else Layout(self.block, other.halo)
        both = zip(self.halo, other.halo, strict=True)
        return Layout(self.block, tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in both))

    def __str__(self) -> str:
        name = "plain" if self.is_plain else f"c{self.block}"
        return name + (f"+{self.halo}" if any(map(any, self.halo)) else "")


PLAIN = Layout()


def block_of(target: Target) -> int:
    """Channels of a block on a machine: its vector lanes, at least 4."""
    return max(4, target.lanes)


def lanes_of(target: Target, nbytes: int) -> int:
    """How many elements of `nbytes` bytes fill a vector as long as `block_of(target)` float32."""
    return block_of(target) * 4 // nbytes


@dataclass(frozen=True)
class Spec:
    """Where the elements of one tensor lie. Strides and offsets are in elements, from element
    (0, ..., 0).

    plain:   `strides` has one entry for each dimension
    blocked: `strides` is (n, channel block, *spatial); lanes are 1 apart
    Stride 0 broadcasts an axis; `lane` is the distance between vector lanes (0 or 1). `before`
    elements of halo lie before (0, ..., 0). `size`: elements of the buffer, with all padding.
    """

    dtype: np.dtype[Any]
    dims: tuple[int, ...]
    layout: Layout
    strides: tuple[int, ...]
    lane: int = 1
    before: int = 0
    size: int = 0

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def blocks(self) -> int:
        """Channel blocks of a blocked tensor."""
        return -(-self.dims[1] // self.layout.block)

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.dims[2:]

    @property
    def padded(self) -> tuple[int, ...]:
        """The extents of the axes of `strides`; for blocked tensors, V behind them."""
        if self.layout.is_plain:
            return self.dims
        return (self.dims[0], self.blocks, *self.spatial, self.layout.block)

    @cached_property
    def seen(self) -> Spec:
        """The spec by which code is generated. If there is one image, the stride to the next does
        not matter: it becomes that of a tensor without gaps, so that parts of larger tensors
        share code with others."""
        if self.layout.is_plain or not isinstance(self.dims[0], int) or self.dims[0] != 1:
            return self
        return replace(self, strides=(self.blocks * self.strides[1], *self.strides[1:]))

    def broadcast_to(self, dims: tuple[int, ...]) -> Spec:
        """The same buffer read as a tensor of `dims` (equal rank): stride 0 along axes where this
        tensor has extent 1 and `dims` another. `lane` becomes 0 if the axis of the lanes is one of
        them."""
        assert len(dims) == len(self.dims), (dims, self.dims)
        both = zip(self.dims, dims, strict=True)
        stretched = [not same(d, o) and d == 1 for d, o in both]
        strides = tuple(0 if s else n for s, n in zip(stretched, self.strides, strict=True))
        lane = self.lane
        if stretched and (stretched[-1] if self.layout.is_plain else stretched[1]):
            lane = 0
        return Spec(self.dtype, dims, self.layout, strides, lane, self.before, self.size)


def plain_strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next on each axis, in numpy's order."""
    strides, step = [], 1
    for d in reversed(dims):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def spec_of(dtype: Any, dims: tuple[int, ...], layout: Layout = PLAIN) -> Spec:
    """The spec of a tensor with its own memory, in a layout: no gaps but halo and padding lanes."""
    dtype = np.dtype(dtype)
    if layout.is_plain:
        return Spec(dtype, dims, layout, plain_strides(dims), size=prod(dims))
    assert len(dims) >= 2, f"a tensor of shape {dims} has no channels to block"
    spatial = dims[2:]
    halo = layout.halo or ((0, 0),) * len(spatial)
    assert len(halo) == len(spatial), f"halo {halo} does not fit the shape {dims}"
    steps, step, before = [], layout.block, 0
    for d, (lo, hi) in zip(reversed(spatial), reversed(halo), strict=True):
        steps.append(step)
        before += lo * step
        step *= d + lo + hi
    blocks = -(-dims[1] // layout.block)
    strides = (blocks * step, step, *reversed(steps))
    return Spec(dtype, dims, layout, strides, 1, before, dims[0] * blocks * step)


def to_layout(array: np.ndarray[Any, Any], layout: Layout) -> np.ndarray[Any, Any]:
    """An array in a layout: the flat buffer, zeros in halo and padding lanes. May share memory."""
    if layout.is_plain:
        return np.ascontiguousarray(array).reshape(-1)
    spec = spec_of(array.dtype, array.shape, layout)
    n, c, *spatial = array.shape
    halo = layout.halo or ((0, 0),) * len(spatial)
    padded = (d + sum(h) for d, h in zip(spatial, halo, strict=True))
    wide = np.zeros((n, spec.blocks * layout.block, *padded), array.dtype)
    inner = (slice(lo, lo + d) for d, (lo, _) in zip(spatial, halo, strict=True))
    wide[:, :c, *inner] = array
    wide = wide.reshape(n, spec.blocks, layout.block, *wide.shape[2:])
    return np.ascontiguousarray(np.moveaxis(wide, 2, -1)).reshape(-1)


class Around(NamedTuple):
    """A dense tensor seen as [outer][n][inner]: n is the extent of one axis, `outer` and `inner`
    are the products of the extents before and after it."""

    outer: int
    n: int
    inner: int

    def __str__(self) -> str:
        return f"{self.outer} x {self.n} x {self.inner}"


def around(dims: Sequence[int], axis: int) -> Around:
    """The `Around` for one axis of a tensor of these dims; a negative axis counts from the end."""
    axis %= len(dims)
    return Around(prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :]))
