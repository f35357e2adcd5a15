"""Importers of the quantised operators of com.microsoft: dequantise, compute, quantise.

They are defined so, up to rounding: results may differ by one quantisation step.
"""

from __future__ import annotations

import numpy as np

from tinsmith.formats.onnx_names import RENAMED
from tinsmith.frontends.onnx.arithmetic import gemm_of
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.contrib_attention import packed_attention
from tinsmith.frontends.onnx.neural import recurrent_of
from tinsmith.frontends.onnx.rows import renamed
from tinsmith.frontends.scales import need_scale
from tinsmith.graph import Value

_MS = "com.microsoft."


def _real(call: Call, at: int, axis: int = 1) -> Value:
    """Input number `at`, dequantised by its scale and zero point, the two inputs after it; where
    these are vectors, along `axis`."""
    return call.emit("DequantizeLinear", call[at], call[at + 1], call.arg(at + 2), axis=axis)


def _low(call: Call, y: Value, at: int, like: Value, scale: Value | None = None) -> Value:
    """y, quantised by input number `at` (or `scale`) as scale, and the input after number `at` as
    zero point; without that by 0, to the element type of `like`."""
    zero = call.arg(at + 1)
    dtype = {} if zero is not None else {"dtype": like.dtype.name}
    return call.emit("QuantizeLinear", y, scale or call[at], zero, **dtype)


@importer(_MS + "QLinearAdd", _MS + "QLinearMul")
def binary(call: Call) -> Result:
    op = call.type.removeprefix("QLinear")
    return _low(call, call.emit(op, _real(call, 0), _real(call, 3)), 6, call[0])


@importer(_MS + "QLinearSigmoid", _MS + "QLinearLeakyRelu")
def unary(call: Call) -> Result:
    attrs = {"alpha": call.attr("alpha", 0.01)} if "Leaky" in call.type else {}
    y = call.emit(call.type.removeprefix("QLinear"), _real(call, 0), **attrs)
    return _low(call, y, 3, call[0])


@importer(_MS + "QLinearAveragePool", _MS + "QLinearGlobalAveragePool")
def average_pool(call: Call) -> Result:
    if call.attr("channels_last", 0):
        raise Unsupported("channels_last is not supported")
    if "Global" in call.type:
        y = call.emit("GlobalPool", _real(call, 0))
    else:
        y = call.emit("AveragePool", _real(call, 0), **renamed(call, *RENAMED["AveragePool"]))
    return _low(call, y, 3, call[0])


@importer(_MS + "QLinearWhere")
def where(call: Call) -> Result:
    """Import QLinearWhere. Inputs: condition; x and y, each with scale and zero point; scale and
    zero point of the result."""
    y = call.emit("Where", call[0], _real(call, 1), _real(call, 4))
    return _low(call, y, 7, call[1])


@importer(_MS + "QAttention")
def attention(call: Call) -> Result:
    """Import QAttention. Inputs: x, weights, bias, the scales of x and of weights, a mask, the zero
    points of x and of weights, the past."""
    scales = _product_scale(call, 3, 4)
    total = _scaled_product(call, call[0], call[1], scales, call.arg(6), call.arg(7), call.arg(2))
    return packed_attention(call, total, call.arg(5), call.arg(8), None)


@importer(_MS + "QLinearSoftmax")
def softmax(call: Call) -> Result:
    """Import QLinearSoftmax as in ONNX Runtime, which multiplies by floor(1 / output scale), so
    that a scale above 1 gives nothing but the zero point."""
    rank, axis = call[0].rank, call.attr("axis", -1)
    need_scale(call[3], "y_scale", divides=True)
    if call.attr("opset", 13) < 13 and (rank is None or axis % rank != rank - 1):
        raise Unsupported("softmax over several axes, as before opset 13, is not supported")
    y, one = call.emit("Softmax", _real(call, 0), axis=axis), call.number(1, call[3])
    whole = call.emit("Floor", call.emit("Div", one, call[3]))
    least = call.number(float(np.finfo(np.float32).tiny), call[3])
    return _low(call, y, 3, call[0], call.emit("Div", one, call.emit("Max", whole, least)))


@importer(_MS + "QLinearConcat")
def concat(call: Call) -> Result:
    """Import QLinearConcat. Inputs: scale and zero point of the result; each part, with its own."""
    parts = [_real(call, i) for i in range(2, len(call.inputs), 3)]
    y = call.emit("Concat", *parts, axis=call.required("axis"))
    return _low(call, y, 0, call[2])


@importer(_MS + "QGemm")
def gemm(call: Call) -> Result:
    """Import QGemm. Inputs: a and b, each with scale and zero point; an int32 bias, whose scale is
    the product of theirs; scale and zero point of the result, which is float without them."""
    columns = 0 if call.attr("transB", 0) else 1
    a, b, c = _real(call, 0), _real(call, 3, columns), call.arg(6)
    if c is not None:
        scale = call.emit("Mul", call[1], call[4])
        c = call.emit("Mul", call.emit("Cast", c, to=scale.dtype.name), scale)
        c = call.scaled(c, call.attr("alpha", 1.0))
    y = gemm_of(call, a, b, c)
    return y if call.arg(7) is None else _low(call, y, 7, call[0])


@importer(_MS + "MatMulIntegerToFloat")
def integer_matmul(call: Call) -> Result:
    """Import MatMulIntegerToFloat: a @ b of quantised matrices, as float. Inputs: a, b, their
    scales, their zero points, a bias."""
    scales = _product_scale(call, 2, 3)
    return _scaled_product(call, call[0], call[1], scales, call.arg(4), call.arg(5), call.arg(6))


@importer(_MS + "DynamicQuantizeMatMul")
def dynamic_matmul(call: Call) -> Result:
    """Import DynamicQuantizeMatMul: a @ b as float, for a float a, which is quantised in the run,
    and a quantised b. Inputs: a, b, the scale and zero point of b, a bias."""
    a, scale, zero = call.emit("DynamicQuantizeLinear", call[0])
    need_scale(call[2], "b_scale", divides=False)
    scales = call.emit("Mul", scale, call[2])
    return _scaled_product(call, a, call[1], scales, zero, call.arg(3), call.arg(4))


@importer(_MS + "DynamicQuantizeLSTM")
def dynamic_lstm(call: Call) -> Result:
    """Import DynamicQuantizeLSTM: an LSTM that quantises x and each h. Inputs: those of LSTM, with
    quantised weights [direction, input, gates]; scale and zero point of W, and of R."""
    inputs = [call.arg(i) for i in range(8)]
    inputs[1], inputs[2] = _gates(call, 1, 8), _gates(call, 2, 10)
    return recurrent_of(call, "LSTM", inputs, rounded=True)


def _gates(call: Call, at: int, scale: int) -> Value:
    """The constant weights in input number `at`, [direction, input, gates], dequantised, as
    [direction, gates, input]. Input number `scale` has the scales, the next one zero points
    (default 0): for each direction, [D], or output, [D, gates]. Raises Unsupported for other shapes
    or computed ones."""
    w, factor = call.constant(at, "weights"), call.constant(scale, "scale")
    assert w is not None and factor is not None
    zero = call.constant(scale + 1, "zero point")
    numbers = factor, np.zeros_like(factor, w.dtype) if zero is None else zero
    if w.ndim != 3 or any(v.ndim not in (1, 2) for v in numbers):
        raise Unsupported("weights are not of rank 3, with scales and zero points of rank 1 or 2")
    outputs = (w.shape[0], w.shape[2], 1)
    spread = [np.broadcast_to(v.reshape(len(v), -1, 1), outputs).copy() for v in numbers]
    turned = np.ascontiguousarray(w.transpose(0, 2, 1))
    block = max(1, w.shape[1])
    return call.emit("DequantizeLinear", turned, *spread, axis=2, block_size=block)


def _product_scale(call: Call, a: int, b: int) -> Value:
    """The inputs number a and b, which are scales, checked and multiplied."""
    for at in (a, b):
        need_scale(call[at], "scale", divides=False)
    return call.emit("Mul", call[a], call[b])


def _scaled_product(
    call: Call, a: Value, b: Value, scales: Value, a_zero: Value | None, b_zero: Value | None,
    bias: Value | None,
) -> Value:  # fmt: skip
    """(a - a_zero) @ (b - b_zero) * scales + bias, as float, for integers a and b."""
    product = call.emit("MatMulInteger", a, b, a_zero, b_zero)
    y = call.emit("Mul", call.emit("Cast", product, to=scales.dtype.name), scales)
    return y if bias is None else call.emit("Add", y, bias)
