"""Operators that exchange blocks of pixels and channels, or pick channels of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value
from tinsmith.ops._dims import fresh
from tinsmith.ops._move import Move, Part, placed, split_moved
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import need_rank, need_same, product, unify
from tinsmith.sizes import NUMBER


@op("move")
def DepthToSpace(x, *, blocksize, mode="DCR"):
    """y[n, c, h * b + i, w * b + j] = x[n, (i * b + j) * C' + c, h, w], b = blocksize, C' = C / b^2

    With mode "CRD" the channel read is c * b^2 + i * b + j.
    """
    n, c, h, w = x.shape
    y = _exchanged(x, _to_space(x.shape, blocksize, mode))
    return np.reshape(y, (n, c // blocksize**2, h * blocksize, w * blocksize))


@op("move")
def SpaceToDepth(x, *, blocksize, mode="DCR"):
    """y[n, (i * b + j) * C + c, h, w] = x[n, c, h * b + i, w * b + j], b = blocksize

    With mode "CRD" the channel written is c * b^2 + i * b + j.
    """
    n, c, h, w = x.shape
    y = _exchanged(x, _to_depth(x.shape, blocksize, mode))
    return np.reshape(y, (n, c * blocksize**2, h // blocksize, w // blocksize))


Order = tuple[tuple[Any, ...], tuple[int, ...]]
"""(dims, perm): a reshape of x to dims in which blocks and the pixels of a block are axes of their
own, and the transpose after it."""


def _exchanged(x: Any, order: Order) -> Any:
    return np.transpose(np.reshape(x, order[0]), order[1])


def _to_space(shape: Any, b: int, mode: str) -> Order:
    n, c, h, w = shape
    if mode == "DCR":
        return (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    return (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)


def _to_depth(shape: Any, b: int, mode: str) -> Order:
    n, c, h, w = shape
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return (n, c, h // b, b, w // b, b), order


@DepthToSpace.type
def _(x: Value, *, blocksize: int, mode: str) -> Type:
    n, c, h, w = _image(x, blocksize, mode)
    depth = _divided(c, blocksize**2, x)
    return Type(x.dtype, (n, depth, product((h, blocksize)), product((w, blocksize))))


@SpaceToDepth.type
def _(x: Value, *, blocksize: int, mode: str) -> Type:
    n, c, h, w = _image(x, blocksize, mode)
    depth = product((c, blocksize**2))
    return Type(x.dtype, (n, depth, _divided(h, blocksize, x), _divided(w, blocksize, x)))


def _moves(order: Callable[[Any, int, str], Order]) -> Callable[..., Part | None]:
    def rule(y: Value, x: Value, *, blocksize: int, mode: str) -> Part | None:
        if blocksize == 1:
            return placed(x, {})
        return split_moved(*order(x.dims, blocksize, mode)) if x.type.is_static else None

    return rule


DepthToSpace.moves(_moves(_to_space))
SpaceToDepth.moves(_moves(_to_depth))


def _image(x: Value, blocksize: int, mode: str) -> tuple[Dim, ...]:
    """The dims (N, C, H, W) of x, new symbols where its rank is unknown. Raises TypeRuleError for
    another rank, or a wrong `mode` or `blocksize`."""
    need_one_of(("DCR", "CRD"), mode=mode)
    need(blocksize >= 1, f"blocksize is {blocksize}")
    need_rank(x, 4, "x")
    return x.shape or tuple(fresh() for _ in range(4))


def _divided(d: Dim, by: int, x: Value) -> Dim:
    if isinstance(d, str):
        return d if by == 1 else fresh()
    need(d % by == 0, f"the dim {d} of {x.type} does not divide by {by}")
    return d // by


# ---- channels of several tensors


@op("move")
def ChannelGather(*xs, sources):
    """y = runs of channels, joined on axis 1: `sources` = ((input, first channel, count), ...)"""
    return np.concatenate([xs[i][:, lo : lo + n] for i, lo, n in sources], axis=1)


@ChannelGather.type
def _(*xs: Value, sources: tuple[tuple[int, int, int], ...]) -> Type:
    need(xs and sources, "ChannelGather needs inputs and sources")
    need_same(*xs)
    need(all(x.shape is not None and len(x.shape) >= 2 for x in xs), "an input has no channels")
    dims = list(xs[0].shape)  # type: ignore[arg-type]
    for x in xs[1:]:
        assert x.shape is not None
        need(len(x.shape) == len(dims), f"the ranks of {xs[0].type} and {x.type} differ")
        for d in (0, *range(2, len(dims))):
            dims[d] = unify(dims[d], x.shape[d], f"axis {d} of {xs[0].type} and {x.type} differs")
    for i, lo, n in sources:
        need(0 <= i < len(xs) and lo >= 0 and n > 0, f"the source {(i, lo, n)} does not exist")
        size = xs[i].shape[1]  # type: ignore[index]
        need(
            not isinstance(size, NUMBER) or lo + n <= size, f"the source {(i, lo, n)} ends too late"
        )
    dims[1] = sum(n for _, _, n in sources)
    return Type(xs[0].dtype, tuple(dims))


@ChannelGather.moves
def _(y: Value, *xs: Value, sources: tuple[tuple[int, int, int], ...]) -> Move:
    parts = tuple(placed(xs[i], {1: range(lo, lo + n)}, i) for i, lo, n in sources)
    return Move(y.shape or (), parts, 1)
