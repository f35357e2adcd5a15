"""Channels picked from several tensors: what joins, shuffles and cuts along axis 1 come to."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Type, Value
from tinsmith.ops._move import Move, placed
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import need_same, unify
from tinsmith.sizes import NUMBER


@op("move")
def ChannelGather(*xs, sources):
    """y = the runs `sources` = ((input, first channel, count), ...) one after another on axis 1"""
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
