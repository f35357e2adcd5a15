"""Importers of arithmetic, reductions and Fourier transforms that are not one to one (`rows`)."""

from __future__ import annotations

from functools import reduce

import numpy as np

from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.rows import renamed
from tinsmith.graph import Value


@importer(
    *("Add", "Sub", "Mul", "Div", "And", "Or", "Xor"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
)
def binary(call: Call) -> Result:
    return call.emit(call.type, *_aligned(call))


def _aligned(call: Call) -> tuple[Value, Value]:
    """Both operands of an arithmetic operator, in shapes that broadcast as by numpy. Before opset 7
    an attribute `axis` says at which axis of the first operand the second begins: axes of size 1
    are then added at the end of the second. Raises Unsupported for an unknown rank."""
    x, y = call[0], call[1]
    if call.opset >= 7 or not call.attr("broadcast", 0) or "axis" not in call.attrs:
        return x, y
    axis = call.attr("axis")
    if x.rank is None or y.rank is None:
        raise Unsupported("its attribute 'axis' needs operands of a known rank")
    trailing = x.rank - axis % x.rank - y.rank
    if trailing > 0:
        y = call.emit("Unsqueeze", y, call.ints(*range(y.rank, y.rank + trailing)))
    return x, y


@importer("PRelu")
def prelu(call: Call) -> Result:
    """Import PRelu. Before opset 7 a slope of rank 1 has a number for each channel (axis 1): axes
    of size 1 are then added at its end."""
    x, slope = call[0], call[1]
    if call.opset < 7 and slope.rank == 1 and x.rank is not None and x.rank > 2:
        slope = call.emit("Unsqueeze", slope, call.ints(*range(1, x.rank - 1)))
    return call.emit("PRelu", x, slope)


@importer("Pow")
def power(call: Call) -> Result:
    """Import Pow, whose result has the element type of the base. An integer base and a real
    exponent are converted to float64, the result back. A constant exponent is converted to the
    type of the base where that is exact: most bases are float32, most exponents 2."""
    x, y = _aligned(call)
    if x.dtype.kind in "iu" and y.dtype.kind not in "iu":
        wide = call.emit("Pow", cast(call, x, "float64"), cast(call, y, "float64"))
        return call.emit("Cast", wide, to=x.dtype.name)
    if y.const is not None and x.dtype != y.dtype:
        with np.errstate(all="ignore"):
            exact = (y.const.astype(x.dtype).astype(y.dtype) == y.const).all()
        y = cast(call, y, x.dtype.name) if exact else y
    return call.emit("Pow", x, y)


def cast(call: Call, x: Value, dtype: str) -> Value:
    """x converted to the element type `dtype` by a Cast; x itself if it has that type; a constant
    of one element as a new constant."""
    if x.dtype.name == dtype:
        return x
    if x.const is not None and x.const.size == 1:
        return call.const(x.const, dtype)
    return call.emit("Cast", x, to=dtype)


_CHAINS = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}


@importer("Sum", "Mean", "Max", "Min")
def variadic(call: Call) -> Result:
    values = [v for v in call.inputs if v is not None]
    if not values:
        raise Unsupported("it has no inputs")
    op = _CHAINS[call.type]
    total = reduce(lambda a, b: call.emit(op, a, b), values)
    if call.type == "Mean" and len(values) > 1:
        return call.emit("Mul", total, call.number(1 / len(values), total))
    return total if len(values) > 1 else call.emit("Identity", total)


@importer("Clip")
def clip(call: Call) -> Result:
    """Import Clip. Constant bounds (before opset 11: attributes) become attributes of our Clip;
    with others it is Min(Max(x, low), high). A bound that is NaN is none."""
    x = call[0]
    if call.opset < 11:
        return call.emit("Clip", x, min=call.attr("min"), max=call.attr("max"))
    low, high = call.arg(1), call.arg(2)
    if all(v is None or (v.const is not None and v.const.size == 1) for v in (low, high)):
        bounds = {
            name: v.const.reshape(()).item()
            for name, v in (("min", low), ("max", high))
            if v is not None and v.const is not None
        }
        return call.emit("Clip", x, **bounds)
    for op, bound, none in (("Max", low, -np.inf), ("Min", high, np.inf)):
        if bound is not None and bound.dtype.kind not in "iu":
            none = call.number(none, bound)
            bound = call.emit("Where", call.emit("IsNaN", bound), none, bound)
        x = x if bound is None else call.emit(op, x, bound)
    return x


@importer("Cast")
def convert(call: Call) -> Result:
    to = call.required("to")
    if isinstance(to, str):  # before opset 6
        to = {"float": "float32", "double": "float64", "string": "object"}.get(
            to.lower(), to.lower()
        )
    else:
        to = call.dtype_name(to)
    return _cast(call, to)


@importer("CastLike")
def convert_like(call: Call) -> Result:
    return _cast(call, call[1].dtype.name)


def _cast(call: Call, to: str) -> Value:
    saturate = bool(call.attr("saturate", 1))
    mode = call.attr("round_mode", "up")
    extra = {} if mode == "up" else {"round_mode": mode}
    return call.emit("Cast", call[0], to=to, saturate=saturate, **extra)


@importer("BitCast")
def bit_cast(call: Call) -> Result:
    return call.emit("BitCast", call[0], to=call.dtype_name(call.required("to")))


@importer("Gemm")
def gemm(call: Call) -> Result:
    return gemm_of(call, call[0], call[1], call.arg(2))


def gemm_of(call: Call, a: Value, b: Value, c: Value | None) -> Value:
    """alpha * A B + beta * C (without `c`: the first term alone), by the attributes of `call`,
    alpha, beta, transA and transB, as in ONNX's Gemm."""
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if call.attr("transA", 0):
        a = call.emit("Transpose", a, perm=(1, 0))
    if call.attr("transB", 0):
        b = call.emit("Transpose", b, perm=(1, 0))
    call.ignore("broadcast")
    y = call.scaled(call.emit("MatMul", a, b), alpha)
    if c is None or beta == 0:
        return y
    return call.emit("Add", y, call.scaled(c, beta))


REDUCTIONS = {
    name.lower(): f"Reduce{name}"
    for name in (
        "Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp",
    )
}  # fmt: skip
"""Kind of our Reduce -> ONNX's operator."""


@importer(*REDUCTIONS.values())
def reduction(call: Call) -> Result:
    axes = call.arg(1)
    if (given := call.attr("axes")) is not None:
        axes = call.ints(*given)
    attrs = renamed(call, "Reduce", "keepdims noop_with_empty_axes")
    kind = call.type.removeprefix("Reduce").lower()
    return call.emit("Reduce", call[0], axes, kind=kind, **attrs)


@importer("ArgMax", "ArgMin")
def arg_reduction(call: Call) -> Result:
    attrs = renamed(call, "ArgReduce", "axis keepdims select_last_index=select_last")
    return call.emit("ArgReduce", call[0], kind=call.type[3:].lower(), **attrs)


@importer("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call) -> Result:
    """Import Softmax, LogSoftmax or Hardmax. Before opset 13 it is over all axes from `axis`
    (default 1) on together: the input is flattened to a matrix, and the result reshaped back."""
    x = call[0]
    if call.opset >= 13:
        return call.emit(call.type, x, axis=call.attr("axis", -1))
    axis = call.attr("axis", 1)
    if x.rank is not None and axis % max(x.rank, 1) == x.rank - 1:
        return call.emit(call.type, x, axis=-1)
    y = call.emit(call.type, call.emit("Flatten", x, axis=axis), axis=-1)
    return call.emit("Reshape", y, call.emit("Shape", x), allowzero=True)


@importer("TopK")
def top_k(call: Call) -> Result:
    k = call.ints(call.required("k")) if call.opset < 10 else call[1]
    return call.emit("TopK", call[0], k, **renamed(call, "TopK", "axis largest sorted"))


@importer("DFT")
def dft(call: Call) -> Result:
    """Import DFT, whose axis is an attribute (default 1) before opset 20, and an input since."""
    axis = call.arg(2)
    if call.opset < 20:
        axis = call.const(np.array(call.attr("axis", 1), np.int64))
    attrs = renamed(call, "DFT", "inverse onesided")
    return call.emit("DFT", call[0], call.arg(1), axis, **attrs)


@importer("STFT")
def stft(call: Call) -> Result:
    """Import STFT. A real signal may be [B,L], as PyTorch exports it: it becomes [B,L,1]."""
    signal = call[0]
    if signal.rank == 2:
        signal = call.emit("Unsqueeze", signal, call.ints(-1))
    rest = [call.arg(i) for i in (1, 2, 3)]
    return call.emit("STFT", signal, *rest, onesided=bool(call.attr("onesided", 1)))
