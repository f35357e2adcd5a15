"""One spelling for each thing: arithmetic, activations and reductions. Shapes: `reshapes`.

All rules but drop_*, `square`, `subtract` and a Clip without bounds are for floats only.
"""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import (
    axes_of,
    bounds,
    i64,
    need_float,
    number,
    reshaped,
    rounds,
    shape_of,
)
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, p
from tinsmith.sizes import same

rules = RuleSet("canonicalise", "One spelling for arithmetic, activations, reductions.")
register("portable")(rules)


@rules.rule(p.Identity("x"), any_shape=True)
def drop_identity(x: Value) -> Value:
    """Identity(x) -> x."""
    return x


@rules.rule(p.Cast("x").named("cast"), any_shape=True, cast={"to": "float32"})
def drop_cast_to_same(x: Value, cast: Node) -> Value:
    """Cast(x) -> x, where the element type is the same."""
    if x.dtype != cast.output.dtype:
        raise Skip(f"from {x.dtype} to {cast.output.dtype}")
    return x


@rules.rule(
    p.Cast(p.Cast("x").named("wide").shared()).named("back"),
    any_shape=True,
    wide={"to": "float64"},
    back={"to": "float32"},
)
def drop_cast_there_and_back(x: Value, wide: Node, back: Node) -> Value:
    """Cast(Cast(x)) -> x, for any element type of x: to one that holds every number of it, and back
    to x's own."""
    if x.dtype != back.output.dtype:
        raise Skip(f"from {x.dtype} to {back.output.dtype}")
    far = wide.output.dtype  # numpy calls int64 to float64 safe
    inexact = x.dtype.itemsize == 8 and far.kind != x.dtype.kind
    if inexact or x.dtype.kind not in "iufb" or not np.can_cast(x.dtype, far, "safe"):
        raise Skip(f"{far} does not hold every {x.dtype}")
    return x


@rules.rule(p.Add("x", -0.0) | p.Sub("x", 0.0) | p.Mul("x", 1.0) | p.Div("x", 1.0))
def drop_neutral(x: Value) -> Value:
    """x + 0, x - 0, x * 1, x / 1 -> x. Of floats x + 0.0 stays: it makes 0.0 of -0.0."""
    return x


@rules.rule(p.Pow("x", 1.0))
def drop_power_of_one(x: Value) -> Value:
    """x ** 1 -> x."""
    return x


@rules.rule(p.Pow("x", 2.0))
def square(root: Node, x: Value) -> Value:
    """x ** 2 -> x * x, of floats, or where the exponent is an integer (both wrap around alike)."""
    if root.operand(1).dtype.kind not in "iu":
        need_float(x)
    return OPS["Mul"](x, x)


@rules.rule(p.Pow("x", 0.5), x=np.abs(np.linspace(0.1, 3, 24, dtype=np.float32)).reshape(2, 3, 4))
def root(x: Value) -> Value:
    """x ** 0.5 -> sqrt(x)."""
    need_float(x)
    return OPS["Sqrt"](x)


@rules.rule(p.Pow("x", -1.0) | p.Div(1.0, "x"), x=np.linspace(0.1, 3, 24, dtype=np.float32))
def reciprocal(x: Value) -> Value:
    """x ** -1, 1 / x -> reciprocal(x)."""
    need_float(x)
    return OPS["Reciprocal"](x)


@rules.rule(p.Reciprocal(p.Sqrt("x")), tolerance=1e-6, x=np.linspace(0.1, 3, 24, dtype=np.float32))
def reciprocal_root(x: Value) -> Value:
    """1 / sqrt(x) -> rsqrt(x)."""
    return OPS["Rsqrt"](x)


@rules.rule(p.Neg(p.Neg("x").shared()))
def drop_double_negation(x: Value) -> Value:
    """-(-x) -> x."""
    return x


@rules.rule(p.Div("x", const("c")), c=np.array([2, 0.5, 4, 1], np.float32))
def multiply_by_exact_reciprocal(x: Value, c: Array) -> Value:
    """x / c -> x * (1 / c), where every c is a power of two, so that nothing is rounded."""
    need_float(x)
    wide = c.astype(np.float64)
    with np.errstate(all="ignore"):
        inverse = (1 / wide).astype(c.dtype)
        fraction = np.frexp(np.abs(wide))[0]
    if not (np.all(fraction == 0.5) and np.all(np.isfinite(inverse.astype(np.float64)))):
        raise Skip("the divisor is not a power of two")
    if np.any(np.abs(inverse.astype(np.float64)) < np.finfo(np.float32).tiny):
        raise Skip("the reciprocal is not a normal number")
    return OPS["Mul"](x, inverse)


@rules.rule(p.Sub("x", const("c")), c=(4,))
def add_negative(x: Value, c: Array) -> Value:
    """x - c -> x + (-c)."""
    need_float(x)
    return OPS["Add"](x, np.negative(c))


@rules.rule(p.Add("x", p.Neg("y")), y=(4,))
def subtract(x: Value, y: Value) -> Value:
    """x + (-y) -> x - y."""
    return OPS["Sub"](x, y)


@rules.rule(p.Add(p.Add("x", const("a")), const("b")), tolerance=1e-5, a=(4,), b=(4,))
def merge_added_constants(x: Value, a: Array, b: Array) -> Value:
    """(x + a) + b -> x + (a + b), where a + b has the size of a or b, and neither is so large that
    adding it rounds x (`rounds`)."""
    need_float(x)
    if np.any(rounds(a)) or np.any(rounds(b)):
        raise Skip("one of the constants may be there to round")
    return OPS["Add"](x, _no_larger(x, a, b, a + b))


@rules.rule(p.Mul(p.Mul("x", const("a")), const("b")), tolerance=1e-5, a=(4,), b=(1,))
def merge_factors(x: Value, a: Array, b: Array) -> Value:
    """(x * a) * b -> x * (a * b), where a * b has the size of a or b, and does not overflow or
    vanish."""
    need_float(x)
    with np.errstate(all="ignore"):
        c = a * b
        if not np.allclose(c.astype(np.float64), a.astype(np.float64) * b, 0.01, 0):
            raise Skip("the constants overflow or vanish together")
        return OPS["Mul"](x, _no_larger(x, a, b, c))


def _no_larger(x: Value, a: Array, b: Array, c: Array) -> Array:
    if x.const is not None:
        raise Skip("all is constant")
    if c.size > max(a.size, b.size):
        raise Skip(f"constants of {list(a.shape)} and {list(b.shape)} make a larger one")
    if not np.all(np.isfinite(c)):
        raise Skip("the constants overflow together")
    return c.astype(a.dtype)


# ---- clips and activations


@rules.rule(p.Min(p.Max("x", const("lo")), const("hi")), lo=np.float32(-1), hi=np.float32(1))
def clip_from_max_then_min(x: Value, lo: Array, hi: Array) -> Value:
    """min(max(x, lo), hi) -> clip(x, lo, hi)."""
    return _clip(x, number(lo), number(hi))


@rules.rule(p.Max(p.Min("x", const("hi")), const("lo")), lo=np.float32(-1), hi=np.float32(1))
def clip_from_min_then_max(x: Value, lo: Array, hi: Array) -> Value:
    """max(min(x, hi), lo) -> clip(x, lo, hi), where lo <= hi."""
    if number(lo) > number(hi):
        raise Skip("the lower bound is above the upper one")
    return _clip(x, number(lo), number(hi))


def _clip(x: Value, lo: float | None, hi: float | None) -> Value:
    need_float(x)
    if any(bound is not None and bound != bound for bound in (lo, hi)):
        raise Skip("a bound is NaN")
    return OPS["Clip"](x, min=lo, max=hi)


@rules.rule(p.Max("x", 0.0))
def relu_from_max(x: Value) -> Value:
    """max(x, 0) -> relu(x)."""
    need_float(x)
    return OPS["Relu"](x)


@rules.rule(p.Min(p.Relu("x"), const("hi")), hi=np.float32(0.5))
def clip_from_min_of_relu(x: Value, hi: Array) -> Value:
    """min(relu(x), hi) -> clip(x, 0, hi)."""
    if number(hi) < 0:
        raise Skip("the upper bound is negative")
    return _clip(x, 0.0, number(hi))


@rules.rule(p.Clip("x").named("clip"), clip={"min": 0.0})
def clip_one_sided(x: Value, clip: Node) -> Value:
    """clip(x, 0, inf) -> relu(x); clip(x, -inf, inf) -> x."""
    lo, hi = clip.min, clip.max
    if hi is not None and hi != np.inf:
        raise Skip(f"the upper bound is {hi}")
    if lo is None or lo == -np.inf:
        return x
    if lo != 0:
        raise Skip(f"the lower bound is {lo}")
    need_float(x)
    return OPS["Relu"](x)


@rules.rule(
    p.Clip(p.Relu("x").named("inner") | p.Clip("x").named("inner")).named("outer"),
    inner={"min": -0.5},
    outer={"max": 0.75},
)
def merge_clips(x: Value, inner: Node, outer: Node) -> Value:
    """clip(clip(x, a, b), c, d) -> clip(x, max(a, c), min(b, d)), where the ranges meet."""
    need_float(x)
    a, b = bounds(inner)
    lo = max((v for v in (a, outer.min) if v is not None), default=None)
    hi = min((v for v in (b, outer.max) if v is not None), default=None)
    if lo is not None and hi is not None and lo > hi:
        raise Skip("the two ranges do not meet")
    return _clip(x, lo, hi)


@rules.rule(p.Relu(p.Relu("x").named("inner").shared()))
def drop_second_relu(inner: Node) -> Value:
    """relu(relu(x)) -> relu(x)."""
    return inner.output


@rules.rule(
    p.Where(p.Less("x", 0.0) | p.LessOrEqual("x", 0.0), p.Mul("x", const("a")), "x")
    | p.Where(p.Greater("x", 0.0) | p.GreaterOrEqual("x", 0.0), "x", p.Mul("x", const("a"))),
    a=np.float32(0.1),
)
def leaky_relu_from_where(x: Value, a: Array) -> Value:
    """x < 0 ? a * x : x -> leaky_relu(x, a)."""
    need_float(x)
    return OPS["LeakyRelu"](x, alpha=number(a))


@rules.rule(p.Max("x", p.Mul("x", const("a"))), a=np.float32(0.1))
def leaky_relu_from_max(x: Value, a: Array) -> Value:
    """max(x, a * x) -> leaky_relu(x, a), where 0 <= a <= 1."""
    need_float(x)
    if not 0 <= number(a) <= 1:
        raise Skip(f"the slope is {number(a)}")
    return OPS["LeakyRelu"](x, alpha=number(a))


@rules.rule(
    p.PRelu("x", const("slope")), x=(1, 3, 4, 4), slope=np.full((3, 1, 1), 0.25, np.float32)
)
def leaky_relu_from_one_slope(x: Value, slope: Array) -> Value:
    """prelu(x, slope) -> leaky_relu(x, slope), where all slopes are one number."""
    need_float(x)
    first = slope.reshape(-1)[:1]
    if slope.size == 0 or not np.all(slope == first):
        raise Skip("the slopes differ")
    if slope.ndim > len(shape_of(x)):
        raise Skip("the slopes have a higher rank than x")
    return OPS["LeakyRelu"](x, alpha=number(first))


# ---- reductions


@rules.rule(
    p.Reduce("x", ...).named("mean"), x=(1, 3, 4, 4), mean={"kind": "mean", "#1": np.array([2, 3])}
)
def global_pool_from_reduce(x: Value, mean: Node) -> Value:
    """reduce(mean or max, all spatial axes of [N, C, H, W, ...]) -> global_pool(x), of floats with
    at least two spatial axes; without keepdims reshaped to [N, C]."""
    need_float(x)
    shape = shape_of(x)
    if mean.kind not in ("mean", "max"):
        raise Skip(f"it reduces by {mean.kind}")
    if len(shape) < 4 or axes_of(mean) != tuple(range(2, len(shape))):
        raise Skip("the axes are not all the spatial ones of an image")
    y = OPS["GlobalPool"](x, kind=mean.kind)
    return y if mean.keepdims else reshaped(y, shape[:2])


@rules.rule(
    p.Reduce(p.Reduce("x", ...).named("inner"), ...).named("outer"),
    tolerance=1e-6,
    x=(1, 3, 4, 4),
    inner={"kind": "mean", "#1": np.array([3]), "keepdims": False},
    outer={"kind": "mean", "#1": np.array([2]), "keepdims": False},
)
def join_reductions(x: Value, inner: Node, outer: Node) -> Value:
    """reduce(reduce(x)) -> reduce(x) over the axes of both, where both are of one kind: sum, mean,
    max, min or prod."""
    need_float(x)
    shape, kind = shape_of(x), inner.kind
    if kind != outer.kind or kind not in ("sum", "mean", "max", "min", "prod"):
        raise Skip(f"it reduces by {inner.kind}, then by {outer.kind}")
    first = axes_of(inner)
    left = [a for a in range(len(shape)) if inner.keepdims or a not in first]
    axes = sorted({*first, *(left[a] for a in axes_of(outer))})
    y = OPS["Reduce"](x, i64(*axes), kind=kind, keepdims=True)
    return y if outer.output.shape == y.shape else reshaped(y, shape_of(outer.output))


@rules.rule(p.Reduce("x", ...).named("r"), x=(2, 1, 4), r={"kind": "sum", "#1": np.array([1])})
def drop_reduction_of_one(x: Value, r: Node) -> Value:
    """reduce(x, axes of size 1) -> x under the reduced shape, for sum, mean, max, min, prod."""
    shape = shape_of(x)
    if r.kind not in ("sum", "mean", "max", "min", "prod"):
        raise Skip(f"it reduces by {r.kind}")
    if any(shape[a] != 1 for a in axes_of(r)):
        raise Skip("an axis is not of size 1")
    return reshaped(x, shape_of(r.output))


@rules.rule(
    p.MaxPool("x").named("pool") | p.AveragePool("x").named("pool"),
    x=(1, 2, 4, 4),
    pool={"kernel": (1, 1)},
)
def drop_pool_of_one(x: Value, pool: Node) -> Value:
    """pool(x) -> x, where the window is one element and nothing is strided or padded."""
    if any(k != 1 for k in pool.kernel) or any(s != 1 for s in pool.stride or ()):
        raise Skip("the window or the stride is not 1")
    if any(pool.pad or ()):
        raise Skip("it pads")
    return x


@rules.rule(p.Div("x", p.Sqrt("y")), tolerance=1e-6, y=np.linspace(0.5, 2, 4, dtype=np.float32))
def multiply_by_rsqrt(root: Node, x: Value, y: Value) -> Value:
    """x / sqrt(y) -> x * rsqrt(y), where y has fewer elements than x."""
    need_float(x)
    wide, few = ([d for d in shape_of(v) if not same(d, 1)] for v in (x, y))
    if x.const is not None or root.output.shape != x.shape or wide == few:
        raise Skip("y is not smaller than x")
    return OPS["Mul"](x, OPS["Rsqrt"](y))
