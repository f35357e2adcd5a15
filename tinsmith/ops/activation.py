"""Activations: elementwise functions of one tensor that keep its shape and dtype."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Type, Value
from tinsmith.ops._dims import broadcast
from tinsmith.ops._op import OPS, need, need_one_of, op
from tinsmith.ops._rules import (
    FLOATS,
    NUMBERS,
    elementwise,
    give_rule,
    in_float32,
    need_dtype,
    need_same,
    pointwise,
)
from tinsmith.ops._special import gelu, one_plus_exp_of_minus
from tinsmith.ops.gradient import times_rest
from tinsmith.sizes import NUMBER

elementwise(
    "activation",
    "homogeneous",
    rule=pointwise(NUMBERS),
    wide=True,
    Relu=(lambda x: np.maximum(x, 0), "y = max(x, 0)"),
)
elementwise(
    "activation",
    "homogeneous",
    rule=pointwise(FLOATS),
    wide=True,
    LeakyRelu=(
        lambda x, *, alpha=0.01: np.where(x < 0, alpha * x, x),
        "y = x where x >= 0, else alpha * x",
    ),
)
elementwise(
    "activation",
    rule=pointwise(FLOATS),
    wide=True,
    Tanh=(lambda x: np.tanh(x), "y = (e^x - e^-x) / (e^x + e^-x)"),
    Sigmoid=(lambda x: 1 / one_plus_exp_of_minus(x), "y = 1 / (1 + e^-x)"),
    Elu=(
        lambda x, *, alpha=1.0: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        "y = x where x >= 0, else alpha * (e^x - 1)",
    ),
    ThresholdedRelu=(
        lambda x, *, alpha=1.0: np.where(x > alpha, x, 0.0),
        "y = x where x > alpha, else 0",
    ),
    HardSigmoid=(
        lambda x, *, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
        "y = clip(alpha * x + beta, 0, 1)",
    ),
    HardSwish=(
        lambda x, *, alpha=1 / 6, beta=0.5: x * np.clip(alpha * x + beta, 0, 1),
        "y = x * clip(alpha * x + beta, 0, 1)",
    ),
    Swish=(
        lambda x, *, alpha=1.0: x / one_plus_exp_of_minus(alpha * x),
        "y = x / (1 + e^(-alpha * x))",
    ),
    Softplus=(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), "y = ln(1 + e^x)"),
    Softsign=(lambda x: x / (1 + np.abs(x)), "y = x / (1 + |x|)"),
)


@OPS["Tanh"].gradient
def _(emit, node, g):
    return (times_rest(emit, g, emit("Mul", node.output, node.output)),)


@OPS["Sigmoid"].gradient
def _(emit, node, g):
    return (times_rest(emit, emit("Mul", g, node.output), node.output),)


@OPS["Relu"].gradient
def _(emit, node, g):
    zero = np.zeros((), g.dtype)
    return (emit("Where", emit("Greater", node.inputs[0], zero), g, zero),)


@op("elementwise", "activation")
@in_float32
def Selu(x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    """y = gamma * (x where x > 0, else alpha * (e^x - 1))"""
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@op("elementwise", "activation")
@in_float32
def Celu(x, *, alpha=1.0):
    """y = max(x, 0) + min(alpha * (e^(x / alpha) - 1), 0)"""
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


@op("elementwise", "activation")
@in_float32
def Gelu(x, *, approximate="none"):
    """y = x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2)))

    With approximate="tanh": x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
    """
    if approximate == "tanh":
        # (1 + tanh(u)) / 2 is 1 / (1 + e^(-2u)), which does not cancel
        return x / one_plus_exp_of_minus(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return gelu(x)


@op("elementwise", "activation")
@in_float32
def Mish(x):
    """y = x * tanh(ln(1 + e^x)) = x * w / (w + 2), w = e^x * (e^x + 2)"""
    e = np.exp(np.minimum(x, 20))  # beyond 20, w / (w + 2) is 1 even in double precision
    w = e * (e + 2)
    return x * (w / (w + 2))


@op("elementwise", "activation")
@in_float32
def Shrink(x, *, bias=0.0, lambd=0.5):
    """y = x + bias where x < -lambd, x - bias where x > lambd, else 0; converted as by Cast"""
    low, high = (OPS["Cast"].reference(v, to=x.dtype.name) for v in (x + bias, x - bias))
    return np.where(x < -lambd, low, np.where(x > lambd, high, 0))


@op("elementwise")
@in_float32
def PRelu(x, slope):
    """y = x where x >= 0, else slope * x; slope is broadcast to the shape of x"""
    return np.where(x < 0, slope * x, x)


give_rule(pointwise(NUMBERS), Shrink)
give_rule(pointwise(FLOATS), Celu, Selu, Mish)


@Gelu.type
def _(x: Value, *, approximate: str) -> Type:
    need_one_of(("none", "tanh"), approximate=approximate)
    return pointwise(FLOATS)(x)


@PRelu.type
def _(x: Value, slope: Value) -> Type:
    need_dtype(x, NUMBERS, "x")
    need_same(x, slope)
    both = broadcast(x.shape, slope.shape)
    if both is not None and x.shape is not None:
        grows = len(both) > len(x.shape) or any(
            isinstance(d, NUMBER) and isinstance(b, NUMBER) and d != b
            for d, b in zip(x.shape, both, strict=True)
        )
        need(not grows, f"slope {slope.type} does not broadcast to the shape of {x.type}")
    return x.type
