"""Rare operators as common ones that have native kernels."""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import Array, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p

rules = RuleSet("lower-rare", "Rare operators become common ones that have native kernels.")
register("machine")(rules)


def _static(value: Value) -> tuple[int, ...]:
    dims = shape_of(value)
    if not all(isinstance(d, int) for d in dims):
        raise Skip(f"the shape {list(dims)} of {value.name!r} is not known")
    return value.dims


@rules.rule(p.Trilu("x", opt(const("k"))).named("tri"), x=(2, 3, 4), k=np.array(1))
def trilu(x: Value, k: Array | None, tri: Node) -> Value:
    """trilu(x) -> where(mask, x, 0), with a constant mask."""
    rows, columns = _static(x)[-2:]
    mask = np.ones((rows, columns), bool)
    shift = 0 if k is None else int(k.reshape(-1)[0])
    mask = np.triu(mask, shift) if tri.upper else np.tril(mask, shift)
    return OPS["Where"](mask, x, np.zeros((), x.dtype))


@rules.rule(
    p.OneHot("indices", const("depth"), const("values")).named("hot"),
    indices=np.array([[0, 2], [-1, 7]]),
    depth=np.array(4),
    values=np.array([2, 5], np.float32),
)
def one_hot(indices: Value, depth: Array, values: Array, hot: Node) -> Value:
    """one_hot(i, n, [off, on]) -> where(i == range or i + n == range, on, off)."""
    if indices.dtype not in (np.int32, np.int64):
        raise Skip(f"the indices are {indices.dtype}")
    rank = len(shape_of(indices)) + 1
    axis, size = hot.axis % rank, int(depth.reshape(-1)[0])
    if size < 1:
        raise Skip(f"the depth is {size}")
    places = np.arange(size).reshape((size,) + (1,) * (rank - 1 - axis))
    wide = OPS["Cast"](indices, to="int64") if indices.dtype != np.int64 else indices
    wide = OPS["Unsqueeze"](wide, np.array([axis]))
    hit = OPS["Or"](OPS["Equal"](wide, places), OPS["Equal"](wide, places - size))
    off, on = values[0].reshape(()), values[1].reshape(())
    return OPS["Where"](hit, np.asarray(on), np.asarray(off))


@rules.rule(
    p.MeanVarianceNorm("x").named("norm"), tolerance=1e-5, x=(2, 3, 4, 5), norm={"axes": (0, 2, 3)}
)
def mean_variance_norm(x: Value, norm: Node) -> Value:
    """mvn(x) -> d / (sqrt(mean(d * d)) + eps), with d = x - mean(x)."""
    if x.dtype not in (np.float32, np.float64):
        raise Skip(f"x is {x.dtype}")
    axes = np.array(norm.axes, np.int64)
    centred = OPS["Sub"](x, OPS["Reduce"](x, axes, kind="mean"))
    spread = OPS["Reduce"](OPS["Mul"](centred, centred), axes, kind="mean")
    deviation = OPS["Add"](OPS["Sqrt"](spread), np.asarray(norm.eps, x.dtype))
    return OPS["Div"](centred, deviation)


@rules.rule(
    p.GatherND("x", const("places")).named("g"),
    x=(3, 4, 5),
    places=np.array([[[0, -1], [2, 1]], [[1, 1], [-3, 0]]]),
)
def gather_nd(x: Value, places: Array, g: Node) -> Value:
    """gather_nd(x, places) -> gather(reshape(x, [rows, ...]), rows of the places)."""
    dims = _static(x)
    if g.batch_dims or not places.size:
        raise Skip("it gathers in batches, or nothing")
    count = places.shape[-1]
    outer, inner = dims[:count], dims[count:]
    wrapped = np.where(places < 0, places + np.array(outer), places)
    flat = np.ravel_multi_index(tuple(np.moveaxis(wrapped, -1, 0)), outer)
    rows = OPS["Reshape"](x, np.array([prod(outer), *inner], np.int64))
    return OPS["Gather"](rows, np.asarray(flat, np.int64), axis=0)


@rules.rule(
    p.GatherElements("x", const("places")).named("g"),
    x=(3, 4),
    places=np.array([[0, -1, 2], [1, 1, 0]]),
    g={"axis": 1},
)
def gather_elements(x: Value, places: Array, g: Node) -> Value:
    """gather_elements(x, places) -> gather(reshape(x, [-1]), flat places)."""
    dims = _static(x)
    if not places.size:
        raise Skip("it gathers nothing")
    axis = g.axis % len(dims)
    index = list(np.indices(places.shape))
    index[axis] = np.where(places < 0, places + dims[axis], places)
    flat = np.ravel_multi_index(tuple(index), dims)
    line = OPS["Reshape"](x, np.array([prod(dims)], np.int64))
    return OPS["Gather"](line, np.asarray(flat, np.int64), axis=0)
