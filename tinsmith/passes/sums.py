"""Convolutions and products of one input that are added become one, with the sum of their weights.

Networks trained in parallel branches and run as one (RepVGG, arXiv:2101.03697; MobileOne,
arXiv:2206.04040), and adapters of low rank (LoRA, arXiv:2106.09685), are often exported as trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.window import Window, window
from tinsmith.passes.conv import NORM, TOLERANCE, affine, batch_norm, finite
from tinsmith.passes.facts import need_float, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_

rules = RuleSet(
    "sum-weights",
    "Branches of one input that are added become one.",
    halves=False,
    tolerance=TOLERANCE,
)
register("portable")(rules)

X: dict[str, Any] = {"x": (1, 4, 6, 5), "y": (1, 4, 6, 5)}


def beside(first: Any, second: Any) -> Any:
    """The pattern of `first` + `second`, or, with a further term "y", (`first` + y) + `second`."""
    return p.Add(first, second) | p.Add(p.Add(first, "y"), second)


@rules.rule(
    beside(
        p.Conv("x", const("w"), opt(const("b"))).named("first"),
        p.Conv("x", const("v"), opt(const("c"))).named("second"),
    ),
    **X,
    w=(4, 2, 3, 3),
    b=(4,),
    first={"group": 2, "pad": (1, 1, 1, 1)},
    v=(4, 2, 1, 1),
    c=(4,),
    second={"group": 2},
)
def join_added_convs(
    first: Node, w: Array, b: Array | None, second: Node, v: Array, c: Array | None,
    y: Value | None,
) -> Value:  # fmt: skip
    """conv(x, w, b) + conv(x, v, c) -> conv(x, w + v, b + c), of equal groups and strides, if one
    has all taps of the other: v is embedded in zeros."""
    _same_results(first.output, second.output)
    one, other = _window(first, w), _window(second, v)
    if first.group != second.group or one.stride != other.stride:
        raise Skip("their groups or strides differ")
    if prod(one.kernel) < prod(other.kernel):
        one, other, first, w, v = other, one, second, v, w
    joined = with_(first, w=_sum(w, _placed(one, other, v)), b=_bias(first, b, c))
    return _plus(joined, y)


@rules.rule(
    beside(p.Conv("x", const("w"), opt(const("b"))).named("conv"), batch_norm("x")),
    **X,
    w=(4, 2, 3, 3),
    b=(4,),
    conv={"group": 2, "pad": (1, 1, 1, 1)},
    **NORM,
)
def join_norm_with_conv(conv: Node, bn: Node, w: Array, b: Array | None, y: Value | None) -> Value:
    """conv(x, w, b) + bn(x) -> conv(x, w + k, b + t), of stride 1, where bn(x) = k * x + t; k is
    added to the tap that reads the output's own position."""
    _same_results(conv.output, bn.output)
    win = _window(conv, w)
    if set(win.stride) != {1}:
        raise Skip(f"the stride is {win.stride}")
    k, t = affine(bn)
    own = np.zeros((*w.shape[:2], *(1 for _ in win.kernel)))
    channels = np.arange(len(w))
    own[channels, channels % w.shape[1]] = k.reshape(-1, *(1 for _ in win.kernel))
    weights = _sum(w, _embedded(win, win.begin, own))
    return _plus(with_(conv, w=weights, b=_bias(conv, b, t)), y)


def _window(conv: Node, w: Array) -> Window:
    """The windows of a convolution by weights w. Raises Skip if pads are not numbers."""
    if conv.auto_pad not in ("NOTSET", "VALID"):
        raise Skip("the pads are not explicit")
    sizes = shape_of(conv.operand(0))[2:]
    return window(sizes, w.shape[2:], conv.stride, conv.pad, conv.dilation, conv.auto_pad)


def _placed(win: Window, other: Window, weights: Array) -> Array:
    """The `weights` of a convolution with the windows `other`, as weights for all taps of `win`:
    zeros at taps that `other` lacks. Raises Skip if `other` has taps that `win` lacks."""
    sizes = zip(win.dilation, other.dilation, other.kernel, strict=True)
    if any(mine != theirs and k > 1 for mine, theirs, k in sizes):
        raise Skip("their dilations differ")
    both = zip(win.begin, other.begin, strict=True)
    return _embedded(win, [mine - theirs for mine, theirs in both], weights)


def _embedded(win: Window, places: Sequence[int], weights: Array) -> Array:
    """Embed `weights` [outputs, inputs, *taps] in zeros, as weights for all taps of `win`. On axis
    k their first tap reads places[k] pixels behind the first tap of `win`. Raises Skip if they do
    not fall on its taps."""
    wide = np.zeros((*weights.shape[:2], *win.kernel))
    index: list[slice] = [slice(None), slice(None)]
    sizes = zip(places, win.dilation, win.kernel, weights.shape[2:], strict=True)
    for behind, gap, mine, theirs in sizes:
        start, between = divmod(behind, gap)
        if between or start < 0 or start + theirs > mine:
            raise Skip("the taps of one are none of the other's")
        index.append(slice(start, start + theirs))
    wide[tuple(index)] = weights
    return wide


def _same_results(first: Value, second: Value) -> None:
    need_float(first)
    if shape_of(first) != shape_of(second):
        raise Skip("one of them is broadcast")


def _sum(w: Array, v: Array) -> Array:
    """w + v, rounded once, to w's dtype. Raises Skip if shapes differ or a sum is not finite."""
    if w.shape != v.shape:
        raise Skip(f"weights of {list(w.shape)} and {list(v.shape)} have no sum")
    with np.errstate(all="ignore"):
        weights = (w.astype(np.float64) + v).astype(w.dtype)
    finite(weights)
    return weights


def _bias(conv: Node, *terms: Array | None) -> Array | None:
    """The sum of several convolutions' biases (None: none), rounded once, to the dtype of the
    result of `conv`; None if all are None. Raises Skip if it is not finite."""
    given = [t.astype(np.float64) for t in terms if t is not None]
    if not given:
        return None
    with np.errstate(all="ignore"):
        bias = np.sum(given, axis=0).astype(conv.output.dtype)
    finite(bias)
    return bias


def _plus(value: Value, y: Value | None) -> Value:
    return value if y is None else OPS["Add"](value, y)


# ---- products by constant weights


@rules.rule(
    beside(p.MatMul("x", const("w")).named("mm"), p.MatMul("x", const("v")).named("other")),
    x=(3, 5),
    w=(5, 4),
    v=(5, 4),
    y=(3, 4),
)
def join_added_products(mm: Node, other: Node, w: Array, v: Array, y: Value | None) -> Value:
    """x @ w + x @ v -> x @ (w + v)."""
    _same_results(mm.output, other.output)
    precise = mm.attrs["precise"] or other.attrs["precise"]
    return _plus(with_(mm, b=_sum(w, v), precise=precise), y)


@rules.rule(
    beside(
        p.MatMul("x", const("w")).named("mm"),
        p.MatMul(p.MatMul("x", const("down")), const("up")).named("other"),
    ),
    x=(3, 5),
    w=(5, 4),
    down=(5, 2),
    up=(2, 4),
    y=(3, 4),
)
def join_low_rank_product(
    mm: Node, other: Node, w: Array, down: Array, up: Array, y: Value | None
) -> Value:
    """x @ w + (x @ down) @ up -> x @ (w + down @ up)."""
    if w.ndim != 2 or down.ndim != 2 or up.ndim != 2:
        raise Skip("the weights are no matrices")
    return join_added_products.build(mm, other, w, down.astype(np.float64) @ up, y)
