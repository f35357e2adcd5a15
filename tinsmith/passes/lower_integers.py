"""Quantised convolutions and products as exact ones of bytes, and the arithmetic after them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import filled_dims, shape_of
from tinsmith.passes.lower_quant import FLOAT32, given, known, narrowed
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, opt, p, with_

rules = RuleSet("lower-integers", "Quantised products become exact ones of bytes, and arithmetic.")
register("machine")(rules)
groups = RuleSet("float-channels", "Convolutions of bytes with few channels a group become floats.")
register("machine")(groups)


def _column(v: Any, *tail: int) -> Any:
    """A vector reshaped to (-1, *tail), so that it varies along one axis when broadcast; a vector
    of one element as a scalar. Values of higher rank, and all without a tail, as they are."""
    shape = v.shape if isinstance(v, np.ndarray) else shape_of(v)
    if len(shape) > 1 or not tail:
        return v
    dims = () if shape in ((), (1,)) else (-1, *tail)
    return v if shape == dims else OPS["Reshape"](v, np.array(dims, np.int64))


def _need_float32(*scales: Any) -> None:
    if odd := [v.dtype.name for v in scales if v.dtype != FLOAT32]:
        raise Skip(f"a scale is {odd[0]}")


MOST_TAPS = 49  # of a depthwise kernel: 7x7; estimated
FEW = 4  # channels of a group up to which products of bytes leave most of a lane empty
EXACT = 1 << 24  # up to here every whole number is a float32
LARGEST = 255  # of the magnitudes of bytes less their zero points


_conv = p.ConvInteger("x", "w", opt("x_zero"), opt("w_zero")).named("conv")
_sample: dict[str, Any] = {
    "x": given("uint8", 1, 4, 5, 5),
    "w": np.arange(-36, 36, dtype=np.int8).reshape(4, 2, 3, 3),
    "x_zero": np.array(3, np.uint8),
    "w_zero": np.array([1, 0, -2, 5], np.int8),
    "conv": {"pad": (1, 1, 1, 1), "group": 2},
}


@groups.rule(_conv, **_sample)
def few_channels(
    x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, conv: Node
) -> Value:
    """conv_integer(x, w) -> int(conv(float(x - xz), float(w - wz))), in several groups of at most
    FEW input channels (`_has_few`), unless a kernel for bytes takes it (`is_depthwise`)."""
    dims = filled_dims(w)
    if is_depthwise(x, w, x_zero, w_zero, conv):
        raise Skip("a kernel computes it")
    if not _has_few(w, conv):
        raise Skip(f"its {conv.group} groups have {dims[1:]} weights for each output")
    return OPS["Cast"](_floats(x, x_zero, w, w_zero, conv), to="int32")


def is_depthwise(
    x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, conv: Node
) -> bool:
    """Whether a ConvInteger is depthwise, with as many groups as input and output channels, and the
    kernel for bytes takes it (`kernels/window/depthwise.py`): constant weights without zero points,
    one known zero point of x or none, at most MOST_TAPS taps. If it pads and the zero point is not
    0, all sizes must be known, and a kernel of three axes have extent 1 on the first."""
    dims, zero = filled_dims(w), None if x_zero is None else x_zero.const
    sizes = shape_of(x)
    if not conv.group == dims[0] == sizes[1] or not 3 <= len(dims) <= 5 or w.const is None:
        return False
    if (x_zero is not None and (zero is None or zero.size != 1)) or (
        w_zero is not None and (w_zero.const is None or w_zero.const.any())
    ):
        return False
    padded = conv.auto_pad not in ("NOTSET", "VALID") or any(conv.pad or ())
    if padded and zero is not None and zero.any():
        known = all(isinstance(d, int) for d in sizes)
        if not known or (len(dims) == 5 and dims[2] > 1):
            return False
    return prod(dims[2:]) <= MOST_TAPS


def _has_few(w: Value, conv: Node) -> bool:
    """Whether a convolution has several groups, of at most FEW input channels each, and no sum can
    exceed what float32 holds exactly."""
    dims = filled_dims(w)
    return conv.group > 1 and dims[1] <= FEW and most_of(dims[1:]) <= EXACT


def most_of(summed: Sequence[int]) -> int:
    """The greatest magnitude of a sum of products of bytes over axes of these extents."""
    return prod(summed) * LARGEST**2


def _floats(x: Value, x_zero: Value | None, w: Value, w_zero: Value | None, conv: Node) -> Value:
    """The sums of a ConvInteger as the result of a Conv in float32, of bytes less their zero
    points: exact if no sum can exceed EXACT, which callers test (`_has_few`)."""
    tail = (1,) * (len(filled_dims(w)) - 1)
    left = _real(x, None if x_zero is None else _column(known(x_zero), 1))
    right = _real(known(w), None if w_zero is None else _column(known(w_zero), *tail))
    return OPS["Conv"](left, right, **window_of(conv))


def _real(v: Any, zero: Any) -> Any:
    """Bytes less their zero points, as float32: an array if both are arrays, else a Value."""
    real = OPS["Cast"](v, to="float32")
    return real if zero is None else OPS["Sub"](real, OPS["Cast"](zero, to="float32"))


def window_of(conv: Node) -> dict[str, Any]:
    """The attributes of a convolution that a ConvInteger has as well."""
    return {n: getattr(conv, n) for n in ("stride", "pad", "dilation", "group", "auto_pad")}


@rules.rule(
    p.QLinearConv("x", "xs", "xz", "w", "ws", "wz", "ys", "yz", opt("b")).named("conv"),
    x=given("uint8", 1, 2, 5, 5),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    w=np.arange(-36, 36, dtype=np.int8).reshape(4, 2, 3, 3),
    ws=np.array([0.1, 0.2, 0.3, 0.01], np.float32),
    wz=np.array([1, 0, -2, 5], np.int8),
    ys=np.array(20, np.float32),
    yz=np.array(100, np.uint8),
    b=np.array([100, -200, 3000, 7], np.int32),
)
def qlinear_conv(conv: Node, b: Value | None) -> Value:
    """qlinear_conv(x, w, b) -> quantise((conv_integer(x, w) + b) * xs * ws / ys), sums exact."""
    inputs: Any = conv.inputs[:8]
    x, xs, xz, w, ws, wz, ys, yz = inputs
    _need_float32(xs, ws, ys)
    tail = (1,) * (len(shape_of(x)) - 2)
    begin = None if b is None else _column(known(b), *tail)
    if _has_few(w, conv) and not is_depthwise(x, w, xz, wz, conv):
        y = _floats(x, xz, w, wz, conv)
        room = EXACT - most_of(filled_dims(w)[1:])
        if isinstance(begin, np.ndarray) and np.abs(begin.astype(np.int64)).max() <= room:
            begin = begin.astype(FLOAT32)
        elif begin is not None:
            y = OPS["Cast"](y, to="int32")
    else:
        y = OPS["ConvInteger"](x, w, xz, wz, **window_of(conv))
    y = y if begin is None else OPS["Add"](y, begin)
    factor = OPS["Mul"](_column(known(xs), 1), _column(known(ws), *tail))
    factor = OPS["Div"](factor, _column(known(ys), 1))
    return narrowed(y, _column(known(yz), 1), yz.dtype, factor)


@rules.rule(
    p.QLinearMatMul("a", "sa", "za", "b", "sb", "zb", "sy", "zy").named("product"),
    a=given("uint8", 3, 4),
    sa=np.array(0.5, np.float32),
    za=np.array(3, np.uint8),
    b=np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    sb=np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    zb=np.array([1, 0, 0, 2, 5], np.int8),
    sy=np.array(9, np.float32),
    zy=np.array(100, np.uint8),
)
def qlinear_matmul(product: Node) -> Value:
    """qlinear_matmul(a, b) -> quantise(matmul_integer(a, b) * sa * sb / sy), sums exact."""
    inputs: Any = product.inputs
    a, sa, za, b, sb, zb, sy, zy = inputs
    _need_float32(sa, sb, sy)
    if len(shape_of(a)) < 2 or len(shape_of(b)) < 2:
        raise Skip("an operand is a vector")
    y = OPS["MatMulInteger"](a, b, za, zb)
    factor = OPS["Mul"](_column(known(sa), 1), known(sb))
    factor = OPS["Div"](factor, _column(known(sy), 1))
    return narrowed(y, _column(known(zy), 1), zy.dtype, factor)


@rules.rule(
    p.MatMulInteger("a", "b", ...).named("product"),
    a=given("uint8", 5),
    b=np.arange(-2, 3, dtype=np.int8),
)
def product_of_vectors(a: Value, b: Value, product: Node) -> Value:
    """matmul_integer(a, b) of two vectors -> number(matmul_integer(row of a, b))."""
    if len(shape_of(a)) > 1 or len(shape_of(b)) > 1:
        raise Skip("an operand is no vector")
    row = OPS["Reshape"](known(a), np.array([1, -1], np.int64))
    return OPS["Reshape"](with_(product, a=row), np.zeros(0, np.int64))
