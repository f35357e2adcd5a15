"""Activations that exporters write as a handful of primitives get their name back."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import need_float, number
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, p

rules = RuleSet(
    "recognise-activations", "Swish, HardSwish, GELU, Mish, Softplus, ... by name.", tolerance=1e-5
)
register("portable")(rules)


@rules.rule(p.Reciprocal(p.Add(p.Exp(p.Neg("x")), 1.0)) | p.Div(1.0, p.Add(p.Exp(p.Neg("x")), 1.0)))
def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)) -> sigmoid(x)."""
    return OPS["Sigmoid"](x)


@rules.rule(p.Mul("x", p.Sigmoid("x")) | p.Div("x", p.Add(p.Exp(p.Neg("x")), 1.0)))
def swish(x: Value) -> Value:
    """x * sigmoid(x) -> swish(x)."""
    return OPS["Swish"](x)


@rules.rule(p.Mul("x", p.Sigmoid(p.Mul("x", const("a")))), a=np.float32(1.702))
def swish_with_slope(x: Value, a: Array) -> Value:
    """x * sigmoid(a * x) -> swish(x, a)."""
    return OPS["Swish"](x, alpha=number(a))


@rules.rule(p.Log(p.Add(p.Exp("x"), 1.0)))
def softplus(x: Value) -> Value:
    """log(exp(x) + 1) -> softplus(x)."""
    return OPS["Softplus"](x)


@rules.rule(p.Mul("x", p.Tanh(p.Softplus("x"))))
def mish(x: Value) -> Value:
    """x * tanh(softplus(x)) -> mish(x)."""
    return OPS["Mish"](x)


@rules.rule(p.Div("x", p.Add(p.Abs("x"), 1.0)))
def softsign(x: Value) -> Value:
    """x / (1 + |x|) -> softsign(x)."""
    need_float(x)
    return OPS["Softsign"](x)


# ---- hard sigmoid and hard swish


def relu6(x: Any) -> Any:
    return p.Clip(x, min=0.0, max=6.0)


@rules.rule(
    p.Clip(p.Add(p.Mul("x", const("a")), const("b")), min=0.0, max=1.0),
    a=np.float32(0.2),
    b=np.float32(0.5),
)
def hard_sigmoid(x: Value, a: Array, b: Array) -> Value:
    """clip(a * x + b, 0, 1) -> hard_sigmoid(x, a, b)."""
    need_float(x)
    return OPS["HardSigmoid"](x, alpha=number(a), beta=number(b))


@rules.rule(p.Div(relu6(p.Add("x", 3.0)), 6.0) | p.Mul(relu6(p.Add("x", 3.0)), 1 / 6))
def hard_sigmoid_from_relu6(x: Value) -> Value:
    """clip(x + 3, 0, 6) / 6 -> hard_sigmoid(x, 1/6, 1/2)."""
    need_float(x)
    return OPS["HardSigmoid"](x, alpha=1 / 6, beta=0.5)


@rules.rule(p.Mul("x", p.HardSigmoid("x").named("h")), h={"alpha": 0.2, "beta": 0.4})
def hard_swish(x: Value, h: Node) -> Value:
    """x * hard_sigmoid(x, a, b) -> hard_swish(x, a, b)."""
    return OPS["HardSwish"](x, alpha=h.alpha, beta=h.beta)


@rules.rule(
    p.Div(p.Mul("x", relu6(p.Add("x", 3.0))), 6.0)
    | p.product("x", 1 / 6, relu6(p.Add("x", 3.0)))
    | p.Mul(p.Div("x", 6.0), relu6(p.Add("x", 3.0)))
)
def hard_swish_from_relu6(x: Value) -> Value:
    """x * clip(x + 3, 0, 6) / 6 -> hard_swish(x)."""
    need_float(x)
    return OPS["HardSwish"](x, alpha=1 / 6, beta=0.5)


# ---- gelu

_erf = p.Erf(p.Div("x", sqrt(2)) | p.Mul("x", sqrt(0.5)))
_one_plus_erf = p.Add(_erf, 1.0)


@rules.rule(
    p.product(0.5, _one_plus_erf, "x")
    | p.Mul("x", p.Add(p.Mul(_erf, 0.5), 0.5))
    | p.Div(p.Mul(_one_plus_erf, "x"), 2.0)
)
def gelu(x: Value) -> Value:
    """x * (1 + erf(x / sqrt(2))) / 2 -> gelu(x)."""
    return OPS["Gelu"](x)


_cube = p.Pow("x", 3.0) | p.product("x", "x", "x")
_factored = p.product(
    sqrt(2 / pi), p.Add(p.product(0.044715, "x", "x") | p.Mul(p.Pow("x", 2.0), 0.044715), 1.0), "x"
)
_one_plus_tanh = p.Add(
    p.Tanh(
        p.Mul(p.Add(p.Mul(_cube, 0.044715), "x"), sqrt(2 / pi))
        | _factored
        | p.Add(p.Mul("x", sqrt(2 / pi)), p.product(sqrt(2 / pi) * 0.044715, "x", "x", "x"))
    ),
    1.0,
)


@rules.rule(
    p.product(0.5, _one_plus_tanh, "x")
    | p.Mul("x", p.Div(_one_plus_tanh, 2.0))
    | p.Div(p.Mul(_one_plus_tanh, "x"), 2.0)
)
def gelu_tanh(x: Value) -> Value:
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))) / 2 -> gelu(x, tanh)."""
    return OPS["Gelu"](x, approximate="tanh")


@rules.rule(p.Mul("x", p.Sigmoid(p.product(p.Add(p.Mul(_cube, 0.044715), "x"), sqrt(8 / pi)))))
def gelu_tanh_from_sigmoid(x: Value) -> Value:
    """x * sigmoid(sqrt(8/pi) * (x + 0.044715 * x^3)) -> gelu(x, tanh)."""
    return OPS["Gelu"](x, approximate="tanh")


# ---- softmax

_exp = p.Exp("x")
_top = p.Reduce("x", "axes", kind="max", keepdims=True)
_shifted = p.Exp(p.Sub("x", _top))


@rules.rule(
    p.Div(_shifted, p.Reduce(_shifted, "axes", kind="sum", keepdims=True))
    | p.Div(_exp, p.Reduce(_exp, "axes", kind="sum", keepdims=True)),
    axes=np.array([1]),
)
def softmax(x: Value, axes: Value) -> Value:
    """exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x), over one axis."""
    if axes.const is None or axes.const.size != 1:
        raise Skip("it is not over one constant axis")
    return OPS["Softmax"](x, axis=int(axes.const.reshape(-1)[0]))


@rules.rule(p.Log(p.Softmax("x").named("s")), s={"axis": 1})
def log_softmax(x: Value, s: Node) -> Value:
    """log(softmax(x)) -> log_softmax(x)."""
    return OPS["LogSoftmax"](x, axis=s.axis)
