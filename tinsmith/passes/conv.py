"""Norms, factors, added constants and pads next to a convolution, or to a product by constant
weights, go into its weights, bias and pads."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._weights import by_outputs, from_outputs
from tinsmith.ops.window import spatial_attr
from tinsmith.passes.facts import ints, need_float, per_channel, rounds, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, like, opt, p, with_
from tinsmith.sizes import has_sizes

rules = RuleSet(
    "fold-into-conv", "Norms, factors, added constants and pads go into weights.", halves=False
)
register("portable")(rules)

CONV: dict[str, Any] = {"x": (1, 4, 6, 5), "w": (4, 2, 3, 3), "b": (4,), "conv": {"group": 2}}
NORM: dict[str, Any] = {
    "scale": (4,),
    "shift": (4,),
    "mean": (4,),
    "var": np.array([0.5, 1, 2, 0.1], np.float32),
}
TOLERANCE = 2e-5  # of rules that compute new weights, in their generated tests


_operands = ("x", const("w"), opt(const("b")))
_convs = (p.Conv(*_operands).named("conv"), p.ConvTranspose(*_operands).named("conv"))


def on_conv(pattern: Any) -> Any:
    """The pattern `pattern(c)`, where c is a convolution, transposed or not, named "conv", of "x"
    with constant weights "w" and a constant bias "b" or none."""
    plain, transposed = map(pattern, _convs)
    return plain | transposed


def _scaled(conv: Node, w: Array, factor: Array) -> Array:
    """The weights w of `conv` with output channel c multiplied by factor[c]: computed in float64,
    rounded once to the dtype of w."""
    rows = by_outputs(conv, w)
    scaled = rows.astype(np.float64) * factor.reshape(-1, *(1,) * (w.ndim - 1))
    return from_outputs(conv, scaled.astype(w.dtype), w.shape)


def finite(*arrays: Array) -> None:
    """Raise Skip unless all elements are finite."""
    if not all(np.all(np.isfinite(a.astype(np.float64))) for a in arrays):
        raise Skip("the folded weights are not finite")


def batch_norm(x: Any, name: str = "bn") -> Any:
    """The pattern of a BatchNorm of `x`, named `name`, with constant parameters and statistics, as
    `affine` needs them."""
    return p.BatchNorm(x, const("scale"), const("shift"), const("mean"), const("var")).named(name)


def affine(norm: Node) -> tuple[Array, Array]:
    """(k, t), vectors of a number for each channel, in float64, such that the BatchNorm `norm`,
    whose parameters and statistics must be constants, is k * x + t."""
    scale, shift, mean, var = (
        np.asarray(v.const, np.float64) for v in norm.inputs[1:] if v is not None
    )
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(var + norm.eps)
    return k, shift - mean * k


def _apply(conv: Node, w: Array, b: Array | None, k: Array, t: Array) -> Value:
    """A copy of `conv`, of weights w and bias b (None: none), with new ones that give k * conv + t;
    k and t have a number for each output channel. Raises Skip if a new one is not finite."""
    old = np.zeros(k.shape) if b is None else b.astype(np.float64)
    with np.errstate(all="ignore"):
        weights, bias = _scaled(conv, w, k), (k * old + t).astype(w.dtype)
    finite(weights, bias)
    return with_(conv, w=weights, b=bias)


@rules.rule(on_conv(batch_norm), tolerance=TOLERANCE, **CONV, **NORM)
def fold_batchnorm_into_conv(conv: Node, bn: Node, w: Array, b: Array | None) -> Value:
    """bn(conv(x, w, b)) -> conv(x, k*w, k*(b - mean) + shift), k = scale / sqrt(var + eps)."""
    return _apply(conv, w, b, *affine(bn))


@rules.rule(
    on_conv(lambda c: p.Mul(c, const("k")) | p.Div(c, const("d"))),
    tolerance=TOLERANCE,
    **CONV,
    k=(4, 1, 1),
    d=np.array([[[2.0]], [[3]], [[0.7]], [[-1]]], np.float32),
)
def fold_factor_into_conv(
    conv: Node, w: Array, b: Array | None, k: Array | None, d: Array | None
) -> Value:
    """conv(x, w, b) * k -> conv(x, k*w, k*b), one k = 1/d for each channel or for all."""
    need_float(conv.output)
    given: Any = d if k is None else k
    factor = per_channel(given, shape_of(conv.output), 1).astype(np.float64)
    with np.errstate(all="ignore"):
        factor = 1 / factor if k is None else factor
        weights = _scaled(conv, w, factor)
    if b is None:
        finite(weights)
        return with_(conv, w=weights)
    return _apply(conv, w, b, factor, np.zeros(factor.shape))


@rules.rule(on_conv(lambda c: p.Add(c, const("t"))), tolerance=TOLERANCE, **CONV, t=(4, 1, 1))
def fold_term_into_conv(conv: Node, b: Array | None, t: Array) -> Value:
    """conv(x, w, b) + t -> conv(x, w, b + t), one t for each channel or for all; not if t is so
    large that adding it rounds (`rounds`)."""
    term = per_channel(t, shape_of(conv.output), 1)
    if np.any(rounds(term)):
        raise Skip("the term may be there to round")
    return with_(conv, b=term.copy() if b is None else like(conv.output, b + term))


def _padded(value: Any) -> Any:
    """The pattern of a Pad of "x" by constant "pads"; `value` is the pattern of what it pads
    with."""
    return p.Pad("x", const("pads"), value, opt(const("axes"))).named("pad")


_zeros = _padded(opt(const("value")))
_PAD: dict[str, Any] = {
    "x": (1, 2, 6, 5),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 0], np.int64),
    "axes": np.arange(4),
}


@rules.rule(p.Conv(_zeros, "w", ...).named("conv"), **_PAD, value=np.float32(0), w=(2, 2, 3, 3))
def fold_pad_into_conv(
    x: Value, pads: Array, value: Array | None, axes: Array | None, pad: Node, conv: Node
) -> Value:
    """conv(pad(x, zeros)) -> conv(x) with larger pads, where only spatial axes are padded, by
    known numbers."""
    if value is not None and np.any(value != 0):
        raise Skip("it does not pad with zeros")
    return with_(conv, x=x, pad=_joined(x, pads, axes, pad, conv), auto_pad="NOTSET")


def _joined(x: Value, pads: Array, axes: Array | None, pad: Node, window: Node) -> tuple[int, ...]:
    """The pads of `window` (a convolution or a pool) plus those of the Pad before it: all begins,
    then all ends, of spatial axes. `axes` are the axes of `pads` (None: all). Raises Skip if the
    Pad crops, pads batch or channels or not by a constant, or if some pads are not known."""
    rank = len(shape_of(x))
    if pad.mode != "constant":
        raise Skip(f"it pads by {pad.mode}")
    if window.auto_pad not in ("NOTSET", "VALID"):
        raise Skip("the pads of the window are not explicit")
    where = [a % rank for a in ints(axes, "axes")] if axes is not None else list(range(rank))
    if has_sizes(pads):
        raise Skip("only the call tells how much it pads")
    numbers = ints(pads, "pads")
    begin, end = [0] * rank, [0] * rank
    for i, a in enumerate(where):
        begin[a], end[a] = numbers[i], numbers[len(where) + i]
    if min(begin + end) < 0 or any(begin[:2] + end[:2]):
        raise Skip("it crops, or pads batch or channels")
    own = None if window.auto_pad == "VALID" else window.pad
    old = spatial_attr("pad", own, 2 * (rank - 2), 0, 0)
    return tuple(o + n for o, n in zip(old, begin[2:] + end[2:], strict=True))


@rules.rule(
    p.AveragePool(_zeros).named("pool"),
    **_PAD,
    value=np.float32(0),
    pool={"kernel": (3, 3), "stride": (2, 1)},
)
def fold_pad_into_average(
    x: Value, pads: Array, value: Array | None, axes: Array | None, pad: Node, pool: Node
) -> Value:
    """average(pad(x, zeros)) -> average(x) with pads that count in the mean."""
    if value is not None and np.any(value != 0):
        raise Skip("it does not pad with zeros")
    if pool.pad is not None and np.any(pool.pad) and not pool.count_include_pad:
        raise Skip("the pads of the pool do not count, those of the Pad would")
    if pool.ceil_mode:
        raise Skip("ceil_mode makes windows that reach beyond the pads")
    joined = _joined(x, pads, axes, pad, pool)
    return with_(pool, x=x, pad=joined, count_include_pad=True, auto_pad="NOTSET")


@rules.rule(
    p.MaxPool(_padded(const("value"))).named("pool"),
    **_PAD,
    value=np.float32(-np.inf),
    pool={"kernel": (3, 3)},
)
def fold_pad_into_maximum(
    x: Value, pads: Array, value: Array, axes: Array | None, pad: Node, pool: Node
) -> Value:
    """maximum(pad(x, -inf)) -> maximum(x) with pads."""
    if not np.all(np.isneginf(value.astype(np.float64))):
        raise Skip("it does not pad with -inf")
    if len(pool.outputs) > 1:
        raise Skip("the indices would count in the unpadded input")
    joined = _joined(x, pads, axes, pad, pool)
    if pool.ceil_mode or any(b >= k for b, k in zip(joined, pool.kernel * 2, strict=True)):
        raise Skip("a window would lie in the padding alone")
    return with_(pool, x=x, pad=joined, auto_pad="NOTSET")


# ---- products by constant weights

DENSE: dict[str, Any] = {"x": (3, 5), "w": (5, 4), "b": (4,)}


_product = p.MatMul("x", const("w")).named("mm")
_dense = _product | p.Add(_product, const("b"))


@rules.rule(p.Mul(_dense, const("k")), tolerance=TOLERANCE, **DENSE, k=(4,))
def fold_factor_into_product(root: Node, mm: Node, w: Array, b: Array | None, k: Array) -> Value:
    """(x @ w + b) * k -> x @ (w * k) + b * k, one k for each column or for all."""
    need_float(root.output)
    if w.ndim != 2 or k.dtype != w.dtype:
        raise Skip(f"the weights have rank {w.ndim}")
    shape = shape_of(root.output)
    if len(shape) < 2:
        raise Skip("the product is a vector")
    column = per_channel(k, shape, len(shape) - 1)
    weights = (w.astype(np.float64) * column).astype(w.dtype)
    finite(weights)
    y = with_(mm, b=weights)
    return y if b is None else OPS["Add"](y, like(mm.output, b * column))


@rules.rule(batch_norm(_dense), tolerance=TOLERANCE, **DENSE, **NORM)
def fold_batchnorm_into_dense(mm: Node, bn: Node, w: Array, b: Array | None) -> Value:
    """bn(x[M,N] @ w + b) -> x @ (w * k) + k * (b - mean) + shift, k = scale / sqrt(var + eps)."""
    if len(shape_of(bn.output)) != 2 or w.ndim != 2:
        raise Skip("the columns are the channels of a matrix only")
    k, t = affine(bn)
    if b is not None:
        t = t + k * per_channel(b, shape_of(bn.output), 1).astype(np.float64)
    weights = (w.astype(np.float64) * k).astype(w.dtype)
    finite(weights)
    return OPS["Add"](with_(mm, b=weights), t.astype(w.dtype))
