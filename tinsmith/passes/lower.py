"""Rare operators as common ones that have native kernels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.errors import TypeRuleError
from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._move import moves_of
from tinsmith.ops.deform import places_of
from tinsmith.passes.conv import NORM
from tinsmith.passes.facts import filled_dims, shape_of, static_dims
from tinsmith.passes.lower_quant import known
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, copy_with, opt, p
from tinsmith.sizes import Size

rules = RuleSet("lower-rare", "Rare operators become common ones that have native kernels.")
register("machine")(rules)

LARGEST = 1 << 24
"""Elements of a constant that takes the place of an operator, at most. Estimated."""

MOST = 1 << 27
"""Elements of a table of indices, at most: 1 GiB. Estimated."""


def _need_table(count: int) -> None:
    if count > MOST:
        raise Skip(f"it would need a table of {count} places")


@rules.rule(p.Trilu("x", opt("k")).named("tri"), x=(2, 3, 4), k=np.array(1))
def trilu(x: Value, k: Value | None, tri: Node) -> Value:
    """trilu(x) -> where(column - row >= k, x, 0); <= k for the lower triangle."""
    rows, columns = static_dims(x)[-2:]
    if not rows * columns:
        raise Skip("it is empty")
    _need_table(rows * columns)
    shift = np.arange(columns, dtype=np.int64) - np.arange(rows, dtype=np.int64)[:, None]
    zero = np.zeros((), x.dtype)
    known = np.zeros(1, np.int64) if k is None else k.const
    if known is not None:
        bound = int(known.reshape(-1)[0])
        return OPS["Where"](shift >= bound if tri.upper else shift <= bound, x, zero)
    compare = OPS["GreaterOrEqual" if tri.upper else "LessOrEqual"]
    return OPS["Where"](compare(shift, OPS["Reshape"](k, np.zeros(0, np.int64))), x, zero)


@rules.rule(p.EyeLike("x").named("eye"), x=(3, 4), eye={"k": 1})
def eye_like(x: Value, eye: Node) -> Value:
    """eye_like(x) -> a constant, for a known shape."""
    if (size := prod(static_dims(x))) > LARGEST:
        raise Skip(f"it has {size} elements")
    ones = OPS["EyeLike"](np.broadcast_to(np.zeros((), x.dtype), static_dims(x)), **eye.attrs)
    return OPS["Identity"](x.graph.const(ones))


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
    axis, (size,) = hot.axis % rank, depth.reshape(-1).tolist()
    size = size if isinstance(size, Size) else int(size)
    if size < 1:
        raise Skip(f"the depth is {size}")
    ones = (1,) * (rank - 1 - axis)
    places: Any
    if isinstance(size, Size):
        const = indices.graph.const
        last, shape = const(np.array(size, object)), np.array((-1, *ones), np.int64)
        places = OPS["Range"](const(np.int64(0)), last, const(np.int64(1)))
        places, behind = OPS["Reshape"](places, shape), OPS["Sub"](places, last)
        behind = OPS["Reshape"](behind, shape)
    else:
        _need_table(size)
        places = np.arange(size, dtype=np.int64).reshape((size, *ones))
        behind = places - size
    wide = OPS["Cast"](indices, to="int64") if indices.dtype != np.int64 else indices
    wide = OPS["Unsqueeze"](wide, np.array([axis]))
    hit = OPS["Or"](OPS["Equal"](wide, places), OPS["Equal"](wide, behind))
    off, on = values[0].reshape(()), values[1].reshape(())
    return OPS["Where"](hit, np.asarray(on), np.asarray(off))


_SCORES = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
_ROWS = np.linspace(-3, 3, 48, dtype=np.float32).reshape(1, 2, 4, 6)
_LABELS = np.array([[0, 2, 1, 1], [2, 2, 0, 1]])


@rules.rule(
    p.trait("composed")(...).named("node"),
    tolerance=1e-5,
    node={
        "PriorDetection": {
            "#0": np.zeros((1, 8), np.float32), "#1": np.array([[0.1, 0.7, 0.2, 0.6]], np.float32),
            "#2": np.array([[[0, 0, 1, 1, 2, 2, 4, 4], [0.1] * 8]], np.float32), "classes": 2,
        },
        "Attention": {
            "#0": _ROWS, "#1": _ROWS, "#2": _ROWS, "is_causal": True, "with_qk": True,
            "with_present": True,
        },
        "GridDetection": {
            "#0": np.arange(28, dtype=np.float32).reshape(1, 7, 2, 2) % 5, "classes": 2, "boxes": 1,
            "anchors": (1.0, 2.0), "mask": (),
        },
        "MeanVarianceNorm": {"#0": np.linspace(-3, 3, 120, dtype=np.float32).reshape(2, 3, 4, 5)},
        "NegativeLogLikelihoodLoss": {"#0": _SCORES, "#1": _LABELS, "ignore_index": 1},
        "RotaryEmbedding": {
            "#0": np.linspace(-3, 3, 96, dtype=np.float32).reshape(2, 2, 4, 6),
            "#1": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 4, 3),
            "#2": np.linspace(1, -1, 24, dtype=np.float32).reshape(2, 4, 3),
        },
        "SoftmaxCrossEntropyLoss": {"#0": _SCORES, "#1": _LABELS, "with_log_prob": True},
    },
)  # fmt: skip
def composed(node: Node) -> tuple[Value, ...]:
    """A node with the trait `composed` -> the operators that its reference calls."""
    data = node.operand(0)
    try:
        made = node.op.reference(data, *map(known, node.inputs[1:]), **node.attrs)  # type: ignore[attr-defined]
    except TypeRuleError as why:
        raise Skip(str(why)) from None
    whole = made if isinstance(made, tuple) else (made,)
    return tuple(v if isinstance(v, Value) else OPS["Identity"](data.graph.const(v)) for v in whole)


@rules.rule(p.LpNorm("x").named("norm"), tolerance=1e-5, x=(2, 3, 4), norm={"axis": 1})
def lp_norm(x: Value, norm: Node) -> Value:
    """lp_norm(x) -> x / (l where l != 0, else 1), l the l1 or l2 norm along the axis; not along the
    last axis of float32, for which there is a kernel."""
    if x.dtype not in (np.float32, np.float64):
        raise Skip(f"x is {x.dtype}")
    axis = norm.axis % len(shape_of(x))
    if axis == len(shape_of(x)) - 1 and x.dtype == np.float32:
        raise Skip("a kernel normalises along the last axis")
    length = OPS["Reduce"](x, np.array([axis]), kind=f"l{norm.p}", keepdims=True)
    one = np.ones((), x.dtype)
    return OPS["Div"](x, OPS["Where"](OPS["Equal"](length, np.zeros((), x.dtype)), one, length))


@rules.rule(
    p.GatherND("x", const("places")).named("g") | p.GatherElements("x", const("places")).named("g"),
    x=(3, 4),
    places=np.array([[0, -1], [2, 1], [-3, 0]]),
    g=({}, {"axis": 1}),
)
def gather_places(x: Value, g: Node) -> Value:
    """gather_nd(x, i), gather_elements(x, i) -> gather(reshape(x), j) on axis 0, for a constant i;
    j has the indices on that axis of the elements or rows of x that i names."""
    move = moves_of(g)[0]
    if move is None or not g.inputs[1].const.size:  # type: ignore[union-attr]
        raise Skip("the size is not known, or it gathers nothing")
    (part,) = move.parts
    outer = g.output.dims[: len(move.dims) + 1 - len(part.dims)]
    rows = OPS["Reshape"](x, np.array(part.dims, np.int64))
    return OPS["Gather"](rows, np.asarray(part.axes[0].places).reshape(outer), axis=0)


@rules.rule(p.Hardmax("x").named("h"), x=(2, 5, 3), h={"axis": 1})
def hardmax(x: Value, h: Node) -> Value:
    """hardmax(x) -> (index along the axis == argmax(x)), cast to the element type of x."""
    dims = filled_dims(x)
    axis = h.axis % len(dims)
    _need_table(dims[axis])
    places = np.arange(dims[axis], dtype=np.int64).reshape((-1,) + (1,) * (len(dims) - 1 - axis))
    first = OPS["ArgReduce"](x, kind="max", axis=axis, keepdims=True)
    return OPS["Cast"](OPS["Equal"](first, places), to=x.dtype.name)


@rules.rule(
    p.BatchNorm("x", "scale", "shift", "mean", "var").named("bn"),
    tolerance=1e-5,
    x=(2, 4, 3, 5),
    **NORM,
)
def batch_norm(x: Value, scale: Value, shift: Value, mean: Value, var: Value, bn: Node) -> Value:
    """bn(x) -> (x - mean) * (scale / sqrt(var + eps)) + shift, where at least one of scale, shift,
    mean and var is computed, and all are float32 or all float64."""
    vectors = (scale, shift, mean, var)
    if all(v.const is not None for v in vectors):
        raise Skip("its statistics are constants")
    if x.dtype not in (np.float32, np.float64) or any(v.dtype != x.dtype for v in vectors):
        raise Skip("its operands differ in type, or are halves")
    column = np.array([-1] + [1] * max(len(shape_of(x)) - 2, 0), np.int64)
    scale, shift, mean, var = (OPS["Reshape"](v, column) for v in vectors)
    deviation = OPS["Sqrt"](OPS["Add"](var, np.asarray(bn.eps, x.dtype)))
    scaled = OPS["Mul"](OPS["Sub"](x, mean), OPS["Div"](scale, deviation))
    return OPS["Add"](scaled, shift)


@rules.rule(
    p.AffineGrid("theta", const("size")).named("grid"),
    tolerance=1e-5,
    theta=(2, 2, 3),
    size=np.array([2, 3, 4, 5]),
)
def affine_grid(theta: Value, size: Array, grid: Node) -> Value:
    """affine_grid(theta) -> base @ theta^T, where base has the output's constant coordinates."""
    if theta.dtype != np.float32:
        raise Skip(f"theta is {theta.dtype}")
    spatial = tuple(int(n) for n in size[2:])
    if not all(spatial):
        raise Skip("it is empty")
    _need_table(prod(spatial) * (len(spatial) + 1))
    base = places_of(spatial, bool(grid.align_corners), np.dtype(np.float64))
    y = OPS["MatMul"](base.astype(np.float32), OPS["Transpose"](theta, perm=(0, 2, 1)))
    return OPS["Reshape"](y, np.array([int(size[0]), *spatial, len(spatial)], np.int64))


@rules.rule(
    p.MaxUnpool("x", "indices", opt(const("shape"))).named("pool"),
    x=(1, 2, 2, 2),
    indices=np.array([[[[0, 5], [8, 15]], [[17, 18], [24, 31]]]]),
    shape=np.array([1, 2, 5, 4]),
    pool={"kernel": (2, 2), "stride": (2, 2)},
)
def max_unpool(x: Value, indices: Value, shape: Array | None, pool: Node) -> Value:
    """max_unpool(x, indices) -> pad(reshape(scatter(zeros, indices, x))): the scatter fills the
    shape that the kernel and stride give, the pad extends it to `shape`, if given."""
    own = pool.op.infer((x, indices, None), pool.attrs)[0]
    if not own.is_static or not x.type.size or not own.size:
        raise Skip(f"the result is {own}")
    flat = np.array([-1], np.int64)
    zeros = OPS["Expand"](np.zeros(1, x.dtype), np.array([own.size], np.int64))
    updates, places = OPS["Reshape"](x, flat), OPS["Reshape"](indices, flat)
    y = OPS["ScatterElements"](zeros, places, updates, axis=0)
    y = OPS["Reshape"](y, np.array(own.dims, np.int64))
    if shape is None or tuple(shape) == own.dims:
        return y
    after = [int(n) - m for n, m in zip(shape, own.dims, strict=True)]
    if min(after) < 0:
        raise Skip(f"the result {own.dims} does not fit into {tuple(shape)}")
    return OPS["Pad"](y, np.array([0] * len(after) + after, np.int64))


@rules.rule(
    p.ReverseSequence("x", "lens").named("r"),
    x=(4, 2, 3),
    lens=np.array([3, 1]),
    r={"time_axis": 0, "batch_axis": 1},
)
def reverse_sequence(x: Value, lens: Value, r: Node) -> Value:
    """reverse_sequence(x, n)[t, b] -> x[n[b] - 1 - t where t < n[b], else t; b], by gather_nd."""
    dims = filled_dims(x)
    steps, rows = dims[r.time_axis], dims[r.batch_axis]
    across = np.array([1, -1] if r.time_axis == 0 else [-1, 1], np.int64)
    times = np.arange(steps, dtype=np.int64).reshape((-1, 1) if r.time_axis == 0 else (1, -1))
    lens = OPS["Reshape"](OPS["Cast"](_lengths(lens, steps), to="int64"), across)
    back = OPS["Sub"](OPS["Sub"](lens, np.ones((), np.int64)), times)
    places = OPS["Unsqueeze"](OPS["Where"](OPS["Less"](times, lens), back, times), np.array([2]))
    batch = np.broadcast_to(np.arange(rows, dtype=np.int64).reshape(across), dims[:2])[..., None]
    both = (places, batch) if r.time_axis == 0 else (batch, places)
    return OPS["GatherND"](x, OPS["Concat"](*both, axis=2))


def _check_lengths(name: str, gates: int) -> None:
    """Register the rule by which the recurrent operator `name` checks in the run that its sequence
    lengths, if computed, are from 0 to the number of steps. `gates`: how many a cell
    has, for the sample's shapes."""

    def check(x: Value, lens: Value, cell: Node) -> tuple[Value, ...]:
        if lens.const is not None:
            raise Skip("the lengths are known")
        if lens.producer is not None and lens.producer.op.name == "Bounded":
            raise Skip("the lengths are checked already")
        checked = _lengths(lens, static_dims(x)[1 if cell.layout else 0])
        return copy_with(cell, sequence_lens=checked).outputs

    check.__name__ = f"check_{name.lower()}_lengths"
    check.__doc__ = f"{name.lower()}(x, n) -> {name.lower()}(x, bounded(n)), where n is computed."
    rules.rule(
        getattr(p, name)("x", "w", "r", opt("b"), "lens", ...).named("cell"),
        x=(3, 2, 4),
        w=(1, 5 * gates, 4),
        r=(1, 5 * gates, 5),
        b=(1, 10 * gates),
        lens=lambda graph, _: OPS["Identity"](graph.const(np.array([3, 1], np.int32))),
    )(check)


for _name, _gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    _check_lengths(_name, _gates)


def _lengths(lens: Value, most: int) -> Value:
    """`lens`, the lengths of sequences, behind a node that checks in the run that each is from 0 to
    `most`."""
    return OPS["Bounded"](lens, least=0, most=most, what="sequence_lens")
