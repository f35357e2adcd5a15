"""Normalisations get their name back, and what scales and shifts them becomes their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.conv import NORM, affine, batch_norm, finite
from tinsmith.passes.facts import axes_of, number, per_channel, per_element, reshaped, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, like, opt, p, with_
from tinsmith.sizes import NUMBER

rules = RuleSet(
    "recognise-norms", "LayerNorm, RMSNorm, InstanceNorm, GroupNorm by name.", tolerance=2e-5
)
register("portable")(rules)
fold = RuleSet(
    "fold-into-norm",
    "Factors and terms after a norm become its scale and shift.",
    halves=False,
    tolerance=2e-5,
)
register("portable")(fold)

X = (2, 3, 4, 6)


def _square(x: Any) -> Any:
    return p.Mul(x, x) | p.Pow(x, 2.0)


def _mean(x: Any, name: str) -> Any:
    return p.Reduce(x, ..., kind="mean", keepdims=True).named(name)


def _over_root(x: Any, v: Any) -> Any:
    """The pattern of x / sqrt(v), in the spellings that exporters use."""
    inverse = p.Rsqrt(v) | p.Reciprocal(p.Sqrt(v)) | p.Pow(v, -0.5)
    return p.Div(x, p.Sqrt(v) | p.Pow(v, 0.5)) | p.Mul(x, inverse)


_centred = p.Sub("x", _mean("x", "mean"))
_variance = _mean(_square(_centred), "spread")


@rules.rule(
    _over_root(_centred, p.Add(_variance, const("eps"))),
    x=X,
    eps=np.float32(1e-3),
    mean={"#1": np.array([-1])},
    spread={"#1": np.array([-1])},
)
def normalisation(x: Value, mean: Node, spread: Node, eps: Array) -> Value:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps), means over the last axes -> layer_norm(x); over
    all axes from the third on, of rank 4 or more, -> instance_norm(x)."""
    axes, rank = axes_of(mean), len(shape_of(x))
    if axes_of(spread) != axes:
        raise Skip("mean and variance are over different axes")
    if axes and axes == tuple(range(axes[0], rank)):
        if rank > 3 and axes[0] == 2 and isinstance(shape_of(x)[1], int):
            ones = np.ones(shape_of(x)[1], x.dtype)  # type: ignore[call-overload]
            return OPS["InstanceNorm"](x, ones, np.zeros_like(ones), eps=number(eps))
        return OPS["LayerNorm"](x, axis=axes[0] - rank, eps=number(eps))
    raise Skip(f"the axes {axes} are not the last ones")


@rules.rule(
    p.Mul(_over_root("x", p.Add(_mean(_square("x"), "mean"), const("eps"))), const("scale")),
    x=X,
    eps=np.float32(1e-3),
    scale=(6,),
    mean={"#1": np.array([-1])},
)
def rms_norm(x: Value, mean: Node, eps: Array, scale: Array) -> Value:
    """x / sqrt(mean(x^2) + eps) * scale -> rms_norm(x, scale), the mean over the last axes."""
    shape, axes = shape_of(x), axes_of(mean)
    if not axes or axes != tuple(range(axes[0], len(shape))):
        raise Skip(f"the axes {axes} are not the last ones")
    inner = per_element(scale, shape, axes[0])
    return OPS["RMSNorm"](x, inner.copy(), axis=axes[0] - len(shape), eps=number(eps))


@rules.rule(
    p.Reshape(
        p.InstanceNorm(p.Reshape("x", ...).named("split"), const("scale"), const("shift")).named(
            "norm"
        ),
        ...,
    ).named("y"),
    x=(2, 4, 3, 5),
    split={"#1": np.array([2, 2, -1])},
    scale=(2,),
    shift=(2,),
    y={"#1": np.array([2, 4, 3, 5])},
)
def group_norm(x: Value, split: Node, norm: Node, y: Node, scale: Array, shift: Array) -> Value:
    """reshape(instance_norm(reshape(x, [N, G, -1]))) -> group_norm(x, G)."""
    shape, inner = shape_of(x), shape_of(split.output)
    if len(inner) < 3 or len(shape) < 3:
        raise Skip("x is not an image")
    groups, channels = inner[1], shape[1]
    if not isinstance(groups, NUMBER) or not isinstance(channels, NUMBER) or channels % groups:
        raise Skip("the groups are not known")
    if inner[0] != shape[0]:
        raise Skip("the batch is divided")
    each = channels // groups
    wide = (np.repeat(scale, each), np.repeat(shift, each))
    z = OPS["GroupNorm"](x, *wide, groups=groups, eps=norm.eps)
    return reshaped(z, shape_of(y.output))


# ---- scale and shift


@fold.rule(p.Mul(p.LayerNorm("x").named("norm"), const("k")), x=X, k=(6,))
def scale_layer_norm(x: Value, norm: Node, k: Array) -> Value:
    """layer_norm(x) * k -> layer_norm(x, k)."""
    shape = shape_of(x)
    inner = per_element(k, shape, norm.axis % len(shape))
    return with_(norm, scale=like(x, inner))


@fold.rule(
    p.Add(p.LayerNorm("x", opt("s"), opt(const("b"))).named("norm"), const("t")),
    x=X,
    s=(6,),
    b=(6,),
    t=(6,),
)
def shift_layer_norm(x: Value, norm: Node, b: Array | None, t: Array) -> Value:
    """layer_norm(x, s, b) + t -> layer_norm(x, s, b + t)."""
    shape = shape_of(x)
    inner = per_element(t, shape, norm.axis % len(shape))
    return with_(norm, shift=like(x, inner if b is None else b + inner))


_affine = ("x", const("scale"), const("shift"))
_batch_norm = batch_norm("x", "norm")
_channel_norm = (
    p.InstanceNorm(*_affine).named("norm") | p.GroupNorm(*_affine).named("norm") | _batch_norm
)
BATCH: dict[str, Any] = {"x": (2, 4, 3, 5), **NORM}
CHANNELS: dict[str, Any] = {**BATCH, "norm": {"groups": 2}}


@fold.rule(p.Mul(_channel_norm, const("k")), **CHANNELS, k=(4, 1, 1))
def scale_channel_norm(norm: Node, scale: Array, shift: Array, k: Array) -> Value:
    """norm(x, s, b) * k -> norm(x, s * k, b * k), one k for each channel or for all; norm is an
    InstanceNorm, GroupNorm or BatchNorm with constant parameters."""
    factor = per_channel(k, shape_of(norm.output), 1)
    return _scaled(norm, scale * factor, shift * factor)


def _scaled(norm: Node, scale: Array, shift: Array) -> Value:
    finite(scale, shift)
    return with_(norm, scale=like(norm.output, scale), shift=like(norm.output, shift))


@fold.rule(p.Add(_channel_norm, const("t")), **CHANNELS, t=(4, 1, 1))
def shift_channel_norm(norm: Node, shift: Array, t: Array) -> Value:
    """norm(x, s, b) + t -> norm(x, s, b + t), one t for each channel or for all, for the norms of
    `scale_channel_norm`."""
    return with_(norm, shift=like(norm.output, shift + per_channel(t, shape_of(norm.output), 1)))


@fold.rule(
    p.BatchNorm(_batch_norm, const("scale2"), const("shift2"), const("mean2"), const("var2")).named(
        "outer"
    ),
    **BATCH,
    **{f"{k}2": v for k, v in NORM.items()},
)
def merge_batch_norms(norm: Node, outer: Node, scale: Array, shift: Array) -> Value:
    """outer(norm(x, s, b)) -> norm(x, k * s, k * b + t), for batch norms, outer(y) = k * y + t."""
    k, t = affine(outer)
    return _scaled(norm, k * scale, k * shift + t)
