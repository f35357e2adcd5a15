"""Checks of the constant scales of quantised operators: those that leave no numbers are refused
when a model is imported. Scales that a run computes follow the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.errors import ScaleError
from tinsmith.graph import Value
from tinsmith.ops.precision import is_float

HELP = (
    "What helps: quantise the model anew, with data for which values are finite and not constant, "
    "or leave these layers in floats"
)
"""What to try where scales are refused."""

SCALES = {
    "QuantizeLinear": {"scale": 1},
    "DequantizeLinear": {"scale": 1},
    "QLinearConv": {"x_scale": 1, "w_scale": 4, "y_scale": 6},
    "QLinearMatMul": {"a_scale": 1, "b_scale": 4, "y_scale": 6},
}
"""Our quantised operators -> their inputs that are scales, with their numbers."""


def check_scales(op: str, values: Sequence[Value | None], blocks: bool) -> None:
    """Raise ScaleError if a constant scale among `values`, inputs of a new node of our operator
    `op`, leaves no numbers. `blocks`: the scale has a number for each block of weights."""
    for name, at in SCALES[op].items():
        divides = op == "QuantizeLinear" or name == "y_scale"
        given = values[at] if at < len(values) else None
        check_scale(given, name, divides=divides, blocks=blocks)


def check_scale(scale: Any, name: str, *, divides: bool, blocks: bool = False) -> None:
    """Raise ScaleError, which calls the scale `name`, if one of its numbers (an array, or a Value
    that is constant) is infinite or NaN, or all are 0. If results are divided by it (`divides`),
    each must be positive: else it may be negative, or 0 for some channels without weights, or for
    all `blocks` of weights, as ONNX Runtime's tools write them."""
    label = f"its {name}"
    if isinstance(scale, Value):
        label, scale = f"{label} ({scale.name!r})", scale.const
    if scale is None or not is_float(np.asanyarray(scale).dtype):
        return
    wrong = ~((scale > 0) & (scale < np.inf) if divides else np.isfinite(scale))
    if not (divides or blocks or scale.any()):
        wrong |= True
    if wrong.any():
        many = f" ({wrong.sum()} of {wrong.size} numbers)" * (wrong.size > 1)
        wanted = "positive and finite, to divide by it" if divides else "finite, and not all 0"
        raise ScaleError(
            f"{label} is {float(scale[wrong][0]):g}{many}; a scale there has to be {wanted}"
        )
