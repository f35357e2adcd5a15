"""Sample calls of operators: the table that the generated tests walk."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOAT_DTYPES = (np.dtype("float32"), np.dtype("float64"), np.dtype("float16"), BF16)
PAIRS = (((2, 3), (3,)), ((), (2,)), ((2, 1), (1, 3)), ((0, 3), (1,)), ((), ()), ((2, 2), (2, 2)))


@dataclass(frozen=True)
class Sample:
    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ",".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.inputs)
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}({shapes}){attrs}"[:120]


SAMPLES: list[Sample] = []


def load_samples() -> list[Sample]:
    """The table, with the rows of every module of samples in this folder."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("samples"):
            importlib.import_module(f"tests.ops.{module.name}")
    return SAMPLES


def add(op: str, *inputs: Any, **attrs: Any) -> None:
    SAMPLES.append(Sample(op, tuple(None if a is None else np.asarray(a) for a in inputs), attrs))


def data(shape: tuple[int, ...], dtype: Any = "float32", low: float = -3, high: float = 3) -> Any:
    """Repeatable numbers in [low, high), the same for each shape and dtype."""
    rng = np.random.default_rng(sum(shape) * 7 + len(shape))
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind == "u":
        low = 0
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype)


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def text(*items: str) -> Any:
    return np.array(items, object)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 100.0, -100.0, 1e-30, 0.5, 2.5]

UNARY_FLOAT = """Sqrt Rsqrt Reciprocal Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh
    Atanh Erf Floor Ceil Round IsNaN IsInf Neg Abs Sign Identity Tanh Sigmoid Relu LeakyRelu Elu
    Selu Celu ThresholdedRelu HardSigmoid HardSwish Swish Gelu Mish Softplus Softsign Shrink
"""
for name, dtype in itertools.product(UNARY_FLOAT.split(), FLOAT_DTYPES):
    add(name, data((2, 3), dtype))
    add(name, np.array(SPECIAL).astype(dtype))
    add(name, np.array(-0.7).astype(dtype))
for name in UNARY_FLOAT.split():
    add(name, data((0, 2)))

for name, dtype in itertools.product(("Neg", "Abs", "Sign", "Relu", "Shrink"), ("int8", "int32")):
    add(name, data((4,), dtype, -9, 9))
add("Shrink", data((4,), "int32", -9, 9), bias=1.5, lambd=2.0)
add("Gelu", data((2, 3)), approximate="tanh")
add("IsInf", np.float32(SPECIAL), detect_negative=False)
add("IsInf", np.float32(SPECIAL), detect_positive=False)
add("IsInf", np.float32(SPECIAL), detect_positive=False, detect_negative=False)
add("IsNaN", np.float32(SPECIAL).astype(ml_dtypes.float8_e4m3fn))
add("Not", data((2, 2), bool))
for dtype in ("int8", "uint8", "int64", "uint32"):
    add("BitwiseNot", data((3,), dtype, -9, 9))
for dtype in (*FLOAT_DTYPES, "int8", "uint8", "int64"):
    x = data((3, 2), dtype, -9, 9)
    add("Clip", x, min=1, max=4)
    add("Clip", x, max=2)
    add("Clip", x)
    add("Clip", x, min=5, max=2)
add("Clip", np.float32(SPECIAL), min=-float("inf"), max=0.5)

for dtype, to in itertools.product(
    ("float32", "float16", "int32", "uint8", "bool", BF16),
    ("float64", "float16", "bfloat16", "int8", "int64", "bool", "float8_e4m3fn", "float8_e5m2"),
):
    add("Cast", data((2, 3), dtype, 0, 100), to=to)
for to in ("int4", "uint4", "float4_e2m1fn", "float8_e8m0fnu", "string", "float8_e4m3fnuz"):
    add("Cast", data((2, 3), "float32", 0.1, 6), to=to)
add("Cast", data((2, 3)), to="float8_e5m2", saturate=False)
add("Cast", data((2, 2), "int8").astype(ml_dtypes.int4), to="float32")
add("Cast", text("1", "-2.5", "1e3", "inf", "NaN"), to="float32")
add("Cast", text("1", "-2"), to="int64")
add("Cast", text("a"), to="string")
add("BitCast", data((2, 3)), to="int32")

TERMS = (None, data((3,), low=-1, high=1), np.float32(0.3))  # one for each column, or one number
for factor, bias, zero in itertools.product(TERMS, TERMS, (None, data((2, 1), low=0, high=99))):
    for dtype in ("int8", "uint8", "int16", "int32", "float32"):
        if factor is not None:
            add("Rescale", data((2, 3), dtype, -99, 99), factor, bias, zero)
    for dtype, to in itertools.product(("int32", "float32"), ("int8", "uint8", "int16", "uint16")):
        add("Requantize", data((2, 3), dtype, -200, 200), factor, bias, zero, to=to)
for to in ("int8", "uint8", "int16", "uint16", "int32"):
    add("Requantize", np.float32(SPECIAL), np.float32(3), to=to)
    add("Requantize", data((0, 2)), to=to)
for kind in ("float16", "bfloat16"):
    add("RoundTo", data((2, 3), low=-99, high=99), kind=kind)
    add("RoundTo", np.float32(SPECIAL), kind=kind)

add("BitCast", np.array(1.5, np.float32), to="uint32")
add("BitCast", data((0, 3), BF16), to="float16")

FLOAT_BINARY = "Add Sub Mul Div Pow Min Max Mod Less LessOrEqual Greater GreaterOrEqual Equal Atan2"
for name, (a, b) in itertools.product([*FLOAT_BINARY.split(), "PRelu"], PAIRS):
    if name != "PRelu" or np.broadcast_shapes(a, b) == a:
        add(name, data(a), data(b, low=0.5))
for name, dtype in itertools.product([*FLOAT_BINARY.split(), "PRelu"], FLOAT_DTYPES[1:]):
    add(name, data((2, 3), dtype), data((3,), dtype, low=0.5))
    add(name, np.array(SPECIAL).astype(dtype), np.array(SPECIAL[::-1]).astype(dtype))
INT_BINARY = "Add Sub Mul Div Min Max Mod Less LessOrEqual Greater GreaterOrEqual Equal Pow"
for name, dtype in itertools.product(INT_BINARY.split(), ("int8", "uint8", "int32", "int64")):
    add(name, data((5,), dtype, -9, 9), np.array([2, 0, 3, 1, 5], dtype))
add("Mod", data((5,), "int32", -9, 9), np.array([2, -3, 3, 1, -5], "int32"), fmod=True)
add("Mod", data((5,)), data((5,)), fmod=True)
add("Pow", data((3,), "int32"), data((3,), "float32"))
add("Pow", data((3,), "float32"), data((3,), "int64"))
add("Pow", data((3,), "int8"), data((3,), "int64"))
for name, (a, b) in itertools.product(("And", "Or", "Xor", "Equal"), PAIRS):
    add(name, data(a, bool), data(b, bool))
for name, dtype in itertools.product(
    ("BitwiseAnd", "BitwiseOr", "BitwiseXor"), ("int8", "uint64", "int64")
):
    add(name, data((2, 3), dtype, -9, 9), data((3,), dtype, -9, 9))
for direction, dtype in itertools.product(("LEFT", "RIGHT"), ("uint8", "uint64", "int8", "int32")):
    shifts = np.array([0, 1, 7, 64], dtype)
    add("BitShift", np.array([1, 200, 3, 5]).astype(dtype), shifts, direction=direction)
add("Equal", text("a", "b"), text("a", "c"))
add("Bounded", i64(0, 3, -2), least=-2, most=3)
for c, (a, b) in itertools.product(((), (1, 3)), PAIRS[:2]):
    if c == () or a == (2, 3):
        add("Where", data(c, bool), data(a), data(b))
add("Where", data((3,), bool), data((3,), BF16), data((), BF16))
add("Where", data((2,), bool), text("a", "b"), text("c"))

# ---- reductions

KINDS = ("sum", "mean", "max", "min", "prod", "l1", "l2", "sumsquare", "logsum", "logsumexp")
AXES = (None, i64(), i64(0), i64(-1), i64(0, -1), i64(1))
for kind, axes, keep in itertools.product(KINDS, AXES, (True, False)):
    add("Reduce", data((2, 3, 4), low=0.1), axes, kind=kind, keepdims=keep)
for kind in KINDS:
    add("Reduce", data((2, 3), "int32", 1, 9), i64(1), kind=kind)
    add("Reduce", data((2, 3), "float16", 1, 9), i64(1), kind=kind)
    add("Reduce", data((2, 3), BF16, 1, 9), i64(1), kind=kind)
    add("Reduce", data((2, 0)), i64(1), kind=kind, keepdims=False)
    add("Reduce", np.float32(3), None, kind=kind)
    add("Reduce", data((2, 3), low=1), None, kind=kind, noop_with_empty_axes=True)
add("Reduce", data((2, 3), bool), i64(0), kind="max")
add("Reduce", data((2, 3), bool), i64(0), kind="min")
add("Reduce", np.float32(SPECIAL), i64(0), kind="max")
for kind, axis, keep, last in itertools.product(
    ("max", "min"), (0, -1), (True, False), (True, False)
):
    add("ArgReduce", data((3, 4)), kind=kind, axis=axis, keepdims=keep, select_last=last)
add("ArgReduce", data((3, 4), BF16), kind="max", axis=1)
add("ArgReduce", data((3, 4), "uint8", 0, 9), kind="min", axis=1)
for name, exclusive, reverse in itertools.product(("CumSum", "CumProd"), (0, 1), (0, 1)):
    add(name, data((2, 3)), np.int64(-1), exclusive=exclusive, reverse=reverse)
    add(name, data((4,), "int32", 1, 4), np.int32(0), exclusive=exclusive, reverse=reverse)
add("CumSum", data((2, 0)), np.int64(1), exclusive=True)
add("CumSum", data((4,), "float16"), np.int64(0))

for _name, _gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    _x, _w, _r = data((3, 2, 5)), data((1, 4 * _gates, 5)), data((1, 4 * _gates, 4))
    _b, _lens, _state = data((1, 8 * _gates)), np.array([3, 2], np.int32), data((1, 2, 4))
    _last = (_state, data((1, 12))) if _name == "LSTM" else ()
    add(_name, _x, _w, _r, _b, _lens, _state, *_last)
