"""Col2Im, the inverse of im2col: overlapping blocks are added up to an image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value, agree
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import (
    INTS,
    const_ints,
    length_of,
    need_data,
    need_dtype,
    need_rank,
    need_room,
    unknown,
)
from tinsmith.ops.window import spatial_attr
from tinsmith.sizes import NUMBER


@op()
def Col2Im(x, image_shape, block_shape, *, stride=None, pad=None, dilation=None):
    """y[n, c, p] = sum of x[n, (c, k), l] over k, l with p = l * stride + k * dilation - pad

    x is [N, C * prod(block_shape), L]: column l is the block at place l of the padded image, in
    row-major order. y is [N, C, *image_shape]; pad holds all begins, then all ends.
    """
    image = np.asarray(image_shape).reshape(-1).tolist()
    block = np.asarray(block_shape).reshape(-1).tolist()
    rank = len(image)
    stride, pad, dilation = steps_of(rank, stride, pad, dilation)
    padded = [n + pad[i] + pad[rank + i] for i, n in enumerate(image)]
    counts = _counts(image, block, stride, pad, dilation)
    need_data(min(counts, default=1) >= 0, f"blocks {block} do not fit into {image}")
    many, depth = prod(counts), prod(block)
    need_data(x.shape[2] == many, f"x has {x.shape[2]} blocks, an image {image} has {many}")
    fits = depth > 0 and x.shape[1] % depth == 0
    need_data(fits, f"{x.shape[1]} channels do not divide into blocks {block}")
    channels = x.shape[1] // depth
    blocks = np.reshape(x, (x.shape[0], channels, *block, *counts))
    need_room((x.shape[0], channels, *padded), np.float64)
    y = np.zeros((x.shape[0], channels, *padded), np.float32 if x.dtype.itemsize < 4 else x.dtype)
    for place in np.ndindex(*block):
        taps = tuple(
            slice(k * d, k * d + s * n, s)
            for k, d, s, n in zip(place, dilation, stride, counts, strict=True)
        )
        y[(slice(None), slice(None), *taps)] += blocks[(slice(None), slice(None), *place)]
    inner = tuple(slice(pad[i], pad[i] + n) for i, n in enumerate(image))
    return y[(slice(None), slice(None), *inner)].astype(x.dtype)


def steps_of(rank: int, stride: Any, pad: Any, dilation: Any) -> list[tuple[int, ...]]:
    """The attributes [stride, pad, dilation] of a Col2Im, with defaults in place of None. Raises
    TypeRuleError where one does not fit `rank` spatial axes."""
    rows = ("stride", stride, rank, 1), ("pad", pad, 2 * rank, 0), ("dilation", dilation, rank, 1)
    return [spatial_attr(name, given, count, least, least) for name, given, count, least in rows]


def _counts(
    image: Sequence[int], block: Sequence[int], stride: Sequence[int], pad: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """At how many places a block of size `block` lies along each axis of a padded image."""
    rank = len(image)
    return [
        (n + pad[i] + pad[rank + i] - dilation[i] * (k - 1) - 1) // stride[i] + 1
        for i, (n, k) in enumerate(zip(image, block, strict=True))
    ]


@Col2Im.type
def _(
    x: Value, image_shape: Value, block_shape: Value, *, stride: tuple[int, ...] | None,
    pad: tuple[int, ...] | None, dilation: tuple[int, ...] | None,
) -> Type:  # fmt: skip
    need_rank(x, 3, "x")
    need_dtype(image_shape, INTS, "image_shape")
    need_dtype(block_shape, INTS, "block_shape")
    rank = length_of(image_shape)
    if rank is None:
        rank = length_of(block_shape)
    need(length_of(block_shape) in (None, rank), "image_shape and block_shape differ in length")
    if rank is None:
        return Type(x.dtype, None)
    numbers = steps_of(rank, stride, pad, dilation)
    image, block = const_ints(image_shape), const_ints(block_shape)
    batch: Dim = fresh() if x.shape is None else x.shape[0]
    channels: Dim = fresh()
    if x.shape is not None and block is not None and isinstance(x.shape[1], NUMBER):
        taps = int(np.prod(block))
        need(taps > 0 and x.shape[1] % taps == 0, f"{x.type} does not divide into blocks {block}")
        channels = x.shape[1] // taps
    if x.shape is not None and block is not None and image is not None:
        counts = _counts(image, block, *numbers)
        need(min(counts, default=1) >= 0, f"blocks {block} do not fit into {image}")
        blocks = prod(counts)
        need(agree(x.shape[2], blocks), f"x has {x.shape[2]} blocks, {image} has {blocks}")
    spatial = unknown(rank) if image is None else image
    assert spatial is not None
    return Type(x.dtype, (batch, channels, *spatial))
