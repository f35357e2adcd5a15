"""Scales in model files: what is no scale at all is refused before it makes nonsense of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.errors import ScaleError
from tinsmith.graph import Value
from tinsmith.ops.precision import is_float

SCALES = {
    "QuantizeLinear": {"scale": 1},
    "DequantizeLinear": {"scale": 1},
    "QLinearConv": {"x_scale": 1, "w_scale": 4, "y_scale": 6},
    "QLinearMatMul": {"a_scale": 1, "b_scale": 4, "y_scale": 6},
}
"""Operator -> its inputs that are scales, with their numbers."""


def need_scales(op: str, values: tuple[Value | None, ...], blocks: bool) -> None:
    """`need_scale` of the scales among `values`, the inputs of a new node of our operator `op`."""
    for name, at in SCALES[op].items():
        if at < len(values):
            divides = op == "QuantizeLinear" or name == "y_scale"
            need_scale(values[at], name, divides=divides, blocks=blocks)


def need_scale(scale: Any, name: str, *, divides: bool, blocks: bool = False) -> None:
    """Raise ScaleError, which calls `scale` (an array or a Value) `name`, if it is constant and a
    number of it is infinite or NaN, or all are 0. If results are divided by it (`divides`), each
    must be positive: else it may be negative, or 0 for some channels without weights, or for all
    `blocks` of weights, as ONNX Runtime's tools write them."""
    s = scale.const if isinstance(scale, Value) else scale
    if s is None or not is_float(np.asanyarray(s).dtype) or (s.size == 1 and 0 < s.item() < np.inf):
        return
    wrong = ~((s > 0) & (s < np.inf) if divides else np.isfinite(s))
    if not (divides or blocks or s.any()):
        wrong |= True
    if wrong.any():
        label = f"{name} ({scale.name!r})" if isinstance(scale, Value) else name
        many = f" ({wrong.sum()} of {wrong.size} numbers)" * (wrong.size > 1)
        wanted = "positive and finite, to divide by it" if divides else "finite, and not all 0"
        raise ScaleError(
            f"its {label} is {float(s[wrong][0]):g}{many}; a scale there has to be {wanted}"
        )
