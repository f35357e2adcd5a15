"""Importers of operators on quantised tensors. In the graph these are floats behind a
QuantizeLinear and a DequantizeLinear, from which passes make products of bytes. Scale and zero
point (`node.Grid`) are kept while the model is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Importer, Unsupported
from tinsmith.frontends.pnnx import layers
from tinsmith.frontends.pnnx.node import IMPORTERS, Grid, PnnxNode, operator
from tinsmith.graph import Value

LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
KINDS = {12: "int8", 13: "uint8", "qint8": "int8", "quint8": "uint8"}
"""PyTorch's quantised types, as numbers and as words -> the type of their integers."""

OWN = {"sigmoid": (1 / 256, 0), "hardsigmoid": (1 / 256, 0), "tanh": (1 / 128, 128)}
"""Activations whose results have a fixed (scale, zero point): that for uint8."""

MOVED = 128
"""By how much the zero points in OWN are less for int8."""


def placed(node: PnnxNode, results: Any) -> Any:
    """The results of an operator, floats among them quantised and dequantised by `node.grid`,
    unless that is None. Activations in OWN have a fixed scale and zero point, which `node.grid`
    gets. Raises Unsupported for inputs quantised by channel."""
    grid = node.grid
    if isinstance(results, tuple):
        return tuple(placed(node, y) for y in results)
    if grid is None or not isinstance(results, Value) or results.dtype.kind != "f":
        return results
    if grid.axis is not None and node.quantised:
        raise Unsupported("it takes a tensor that is quantised by channel")
    room, _, name = node.type.partition(".")
    if node.quantised and room != "pnnx" and (own := OWN.get(name.lower())):
        zero = own[1] - MOVED * (grid.dtype == "int8")
        grid = node.grid = Grid(own[0], zero, grid.dtype)
    return real(node, whole(node, results, grid), grid)


def _constants(grid: Grid) -> tuple[Any, ...]:
    """The scale and the zero point of a grid as arrays for QuantizeLinear. Raises Unsupported if
    they are not possible ones."""
    scale, zero = np.asarray(grid.scale), np.asarray(grid.zero)
    least, most = LIMITS[grid.dtype]
    if scale.dtype.kind not in "iuf" or zero.dtype.kind not in "iuf":
        raise Unsupported("its scale or zero point is no number")
    if not ((least <= zero) & (zero <= most)).all():
        raise Unsupported(f"its zero point lies outside {grid.dtype}")
    return scale.astype(np.float32), zero.astype(grid.dtype)


def whole(node: PnnxNode, x: Value, grid: Grid) -> Value:
    """Quantise floats: the integers of `grid`."""
    return node.emit("QuantizeLinear", x, *_constants(grid), axis=grid.axis or 0)


def real(node: PnnxNode, x: Any, grid: Grid) -> Value:
    """Dequantise integers of `grid` to floats."""
    return node.emit("DequantizeLinear", x, *_constants(grid), axis=grid.axis or 0)


def _known(value: Any, what: str) -> Any:
    """`value` itself if it is a number or an array, the array of a constant. Raises Unsupported,
    which calls it `what`, if it is computed."""
    value = value.const if isinstance(value, Value) else value
    if value is None:
        raise Unsupported(f"its {what} is computed")
    return value


def _lies_on(node: PnnxNode, scale: Any, zero: Any, dtype: Any = None, axis: Any = None) -> None:
    """Set `node.grid`: the results of the node are quantised with this scale and zero point, or
    with vectors of them along `axis`. The type of the integers is what the file says of the first
    result, else `dtype`, else uint8. Raises Unsupported if scale or zero point is computed."""
    scale, zero = _known(scale, "scale"), _known(zero, "zero point")
    said = node.op.tensors.get(node.outputs[0])
    word = str(dtype).removeprefix("torch.")
    kind = said.dtype if said else KINDS.get(dtype if isinstance(dtype, int) else word, "uint8")
    if kind not in LIMITS:
        raise Unsupported(f"its result is quantised as {kind}")
    if axis is None:
        scale, zero = np.float64(np.asarray(scale).item()), int(np.asarray(zero).item())
    node.grid = Grid(scale, zero, kind, axis)


@operator("aten::quantize_per_tensor", "torch.quantize_per_tensor", "nn.quantized.Quantize")
def quantize(node: PnnxNode, input: Value, scale: Any, zero_point: Any, dtype: Any = None) -> Value:
    _lies_on(node, scale, zero_point, dtype)
    return input


@operator("aten::quantize_per_channel", "torch.quantize_per_channel")
def quantize_per_channel(
    node: PnnxNode, input: Value, scales: Any, zero_points: Any, axis: int, dtype: Any = None
) -> Value:  # fmt: skip
    _lies_on(node, scales, zero_points, dtype, node.axis(input, axis))
    return input


@operator("torch.dequantize", "Tensor.dequantize", "nn.quantized.DeQuantize")
def dequantize(node: PnnxNode, input: Value) -> Value:
    node.grid = None
    return input


@operator("aten::fake_quantize_per_tensor_affine", "aten::fake_quantize_per_channel_affine")
def fake_quantize(node: PnnxNode, input: Value, scale: Any, zero_point: Any, *rest: Any) -> Value:
    """Import fake quantisation: x quantised and dequantised. `rest` is the axis, for scales by
    channel, then the least and the largest integer."""
    *axis, least, most = rest
    grid = Grid(
        _known(scale, "scale"), _known(zero_point, "zero point"), "int8" if least < 0 else "uint8",
        node.axis(input, axis[0]) if axis else None,
    )  # fmt: skip
    ends = LIMITS[grid.dtype]
    if not ends[0] <= least <= most <= ends[1]:
        raise Unsupported(f"its numbers are from {least} to {most}, more than {grid.dtype} has")
    y = whole(node, input, grid)
    if (least, most) != ends:
        y = node.emit("Min", y, np.array(most, grid.dtype))
        y = node.emit("Max", y, np.array(least, grid.dtype))
    return real(node, y, grid)


# ---- layers: their weights are bytes, with a scale for each channel


def _weight(node: PnnxNode, weight: Any) -> Value:
    """The quantised weights of a layer, dequantised. Raises Unsupported for weights that are not
    quantised by channel, whose scale pnnx does not write."""
    array, scales = _known(weight, "weight"), "weight.q_per_channel_scales"
    if f"@{scales}" not in node.attrs:
        raise Unsupported(
            "pnnx has not written the scale of its weights, which are quantised as a whole: "
            "quantise them by channel (PyTorch's default_per_channel_weight_observer), "
            "or export the model to ONNX"
        )
    zeros = node.weight("weight.q_per_channel_zero_points")
    return real(node, array, Grid(node.weight(scales), zeros, array.dtype.name, 0))


@operator("nn.quantized.Conv2d", "nn.intrinsic.quantized.ConvReLU2d")
def conv(
    node: PnnxNode, input: Value, weight: Any, bias: Any = None, *, scale: Any, zero_point: Any
) -> Value:
    _lies_on(node, scale, zero_point)
    names = ("stride", "padding", "dilation", "groups", "padding_mode")
    y = layers.conv(node, input, _weight(node, weight), bias, **node.given(*names))
    return node.emit("Relu", y) if "ReLU" in node.type else y


@operator("nn.quantized.Linear", "nn.intrinsic.quantized.LinearReLU")
def linear(
    node: PnnxNode, input: Value, weight: Any, bias: Any = None, *, scale: Any, zero_point: Any
) -> Value:  # fmt: skip
    _lies_on(node, scale, zero_point)
    y = layers.linear(node, input, _weight(node, weight), bias)
    return node.emit("Relu", y) if "ReLU" in node.type else y


@operator("nn.quantized.cat")
def cat(node: PnnxNode, tensors: Any, *, dim: int = 0, scale: Any, zero_point: Any) -> Value:
    _lies_on(node, scale, zero_point)
    return node.emit("Concat", *tensors, axis=dim)


# ---- functions, whose parameters have no names in the file


def _two(op: str, then: str = "") -> Callable[..., Value]:
    def run(node: PnnxNode, x: Any, y: Any) -> Value:
        z = node.emit(op, x, y)
        return node.emit(then, z) if then else z

    return run


FUNCTIONS: dict[str, tuple[int | None, Callable[..., Any]]] = {
    "add": (2, _two("Add")),
    "add_relu": (2, _two("Add", "Relu")),
    "mul": (2, _two("Mul")),
    "mul_relu": (2, _two("Mul", "Relu")),
    "matmul": (2, _two("MatMul")),
    "hardswish": (1, lambda node, x: node.emit("HardSwish", x)),
    "sigmoid": (1, lambda node, x: node.emit("Sigmoid", x)),
    "elu": (1, lambda node, x, alpha, *_: node.emit("Elu", x, alpha=alpha)),
    "relu6": (None, lambda node, x, *_: node.emit("Clip", x, min=0.0, max=6.0)),
    "leaky_relu": (3, lambda node, x, slope, *_: node.emit("LeakyRelu", x, alpha=slope)),
    "softmax": (2, lambda node, x, axis: node.emit("Softmax", x, axis=axis)),
    "batch_norm2d": (
        6, lambda node, x, w, b, mean, var, eps: layers.batch_norm(
            node, x, mean, var, w, b, eps=eps),
    ),
    "layer_norm": (
        5, lambda node, x, shape, w, b, eps: layers.layer_norm(
            node, x, w, b, normalized_shape=shape, eps=eps),
    ),
    "group_norm": (
        5, lambda node, x, groups, w, b, eps: layers.group_norm(
            node, x, w, b, num_groups=groups, eps=eps),
    ),
    "instance_norm": (
        4, lambda node, x, w, b, eps: layers.instance_norm(node, x, None, None, w, b, eps=eps),
    ),
}  # fmt: skip
"""Name -> (the position of the argument that is the result's scale, with its zero point after it;
None: those of the input), and the function that computes the result from the other arguments."""


def _scalar(op: str) -> Callable[..., Value]:
    """The importer function of a sum or product (`op`: "Add", "Mul") with a number. It emits `op`
    on floats; `node.grid` gets the scale and zero point that PyTorch derives from those of x. It
    raises Unsupported for an x that is not quantised, or quantised by channel."""

    def run(node: PnnxNode, x: Value, number: float) -> Value:
        grid = node.grid
        if grid is None or grid.axis is not None:
            raise Unsupported("its input is not quantised, or by channel")
        (least, most), scale, zero = LIMITS[grid.dtype], grid.scale, grid.zero
        if op == "Add":
            number = np.rint(number / scale) * scale
            ends = np.array([(v - zero) * scale + number for v in (least, most)])
            zero = zero - int(np.rint(number / scale))
            if not least <= zero <= most:  # 0 lies outside of what is left: then to that
                end = max(min(zero, most), least)
                scale = np.abs(ends).max() / (most - least)
                zero = end
        elif number:
            scale, zero = scale * abs(number), zero if number > 0 else least + most - zero
        node.grid = Grid(scale, zero if number or op == "Add" else 0, grid.dtype)
        return node.emit(op, x, node.number(number, x))

    return run


FUNCTIONS |= {"add_scalar": (None, _scalar("Add")), "mul_scalar": (None, _scalar("Mul"))}


def _function(scale: int | None, made: Callable[..., Any]) -> Importer:
    def run(node: PnnxNode) -> Any:
        given = {key: node.scope.look_up(name) for key, name in node.op.keywords.items()}
        given |= {key: node.attr(key) for key in node.op.params if key.startswith("arg_")}
        args = [given.get(f"arg_{i}") for i in range(len(given))]
        if scale is not None:
            _lies_on(node, *args[scale : scale + 2])
            del args[scale : scale + 2]
        return made(node, *args)

    return run


def _refused(node: PnnxNode) -> Any:
    raise Unsupported(
        "its weights are quantised, and pnnx has not written their scale: leave this layer as "
        "floats, or export the model to ONNX"
    )


for _name, (_scale, _made) in FUNCTIONS.items():
    IMPORTERS(f"pnnx.custom_op.quantized.{_name}")(_function(_scale, _made))
for _name in ("prelu", "conv2d", "conv2d_relu", "linear", "linear_relu", "linear_dynamic"):
    IMPORTERS(f"pnnx.custom_op.quantized.{_name}")(_refused)
