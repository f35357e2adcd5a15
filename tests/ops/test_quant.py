"""Quantisation against exact integer arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.checking import check, close, normal, refused, rng, types_of
from tests.ops.naive import naive_conv
from tinsmith.graph import Type, dtype_of
from tinsmith.ops import OPS

INTEGERS = ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2"]
FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]


def scales(kind: str, shape: tuple[int, ...], axis: int, block: int) -> Any:
    if kind == "tensor":
        return np.float32(0.37)
    if kind == "axis":
        return np.abs(normal(shape[axis])) + 0.1
    sizes = list(shape)
    sizes[axis] = -(-sizes[axis] // block)
    return np.abs(normal(*sizes)) + 0.1


def spread(s: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """One scale for each element, element by element."""
    if s.ndim == 0:
        return np.full(shape, s, s.dtype)
    y = np.zeros(shape, s.dtype)
    for at in np.ndindex(*shape):
        where = list(at)
        where[axis] = at[axis] // block if block else at[axis]
        y[at] = s[tuple(where)] if s.ndim == len(shape) and block else s[at[axis]]
    return y


KINDS = [("tensor", 1, 0), ("axis", 0, 0), ("axis", -1, 0), ("block", 1, 2), ("block", -1, 3)]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("kind", "axis", "block"), KINDS)
@pytest.mark.parametrize("with_zero", [False, True])
def test_to_and_from_integers(kind, axis, block, with_zero, dtype):
    x, real = normal(3, 5, 4) * 3, dtype_of(dtype)
    s = scales(kind, x.shape, axis, block)
    info = ml_dtypes.iinfo(real)
    zero = None
    if with_zero:
        zero = rng(1).integers(int(info.min), int(info.max) + 1, s.shape).astype(real)
    attrs: dict[str, Any] = {"axis": axis, "block_size": block}
    (q,) = check("QuantizeLinear", x, s, zero, **attrs, **({} if with_zero else {"dtype": dtype}))
    assert q.dtype == real
    wide = spread(s, x.shape, axis, block)
    shift = 0 if zero is None else spread(zero.astype(np.int64), x.shape, axis, block)
    want = np.clip(np.rint(x / wide).astype(np.int64) + shift, int(info.min), int(info.max))
    np.testing.assert_array_equal(q.astype(np.int64), want)
    (back,) = check("DequantizeLinear", q, s, zero, **attrs)
    close(back, (want - shift) * wide.astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
def test_to_floats(dtype):
    real = dtype_of(dtype)
    x = np.array([0, 0.3, -1.7, 5, 1e6, -1e6, np.inf], np.float32)
    (q,) = check("QuantizeLinear", x, np.float32(2), dtype=dtype)
    largest = float(ml_dtypes.finfo(real).max)
    want = np.clip(x / 2, -largest, largest).astype(real)
    np.testing.assert_array_equal(q.astype(np.float32), want.astype(np.float32))
    (back,) = check("DequantizeLinear", q, np.float32(2))
    close(back, want.astype(np.float32) * 2)


@pytest.mark.parametrize("dtype", FLOATS[:4])
def test_float8_overflows_where_it_may(dtype):
    q = OPS["QuantizeLinear"](
        np.array([1e6], np.float32), np.float32(1), saturate=False, dtype=dtype
    )
    assert not np.isfinite(q.astype(np.float32)).any()


def test_far_values_saturate_and_ties_go_to_even():
    x = np.array([1e20, -1e20, 0.5, 1.5, 2.5, -0.5, np.inf], np.float32)
    (q,) = check("QuantizeLinear", x, np.float32(1), np.int8(1))
    assert q.tolist() == [127, -128, 1, 3, 3, 1, 127]


@pytest.mark.parametrize("scale_type", [np.float16, ml_dtypes.bfloat16])
def test_types_of_the_scale(scale_type):
    x, s = normal(4).astype(np.float32), np.array(0.25, scale_type)
    (q,) = check("QuantizeLinear", x, s)
    assert q.dtype == np.uint8
    (y,) = check("DequantizeLinear", q, s)
    assert y.dtype == scale_type
    assert check("DequantizeLinear", q, s, dtype="float32")[0].dtype == np.float32
    check("QuantizeLinear", x, s, precision="float32")


@pytest.mark.parametrize("x", [[0, 2, -3, -2.5, 1.34, 0.5], [1, 2.1, 3], [-1, -2, -3.5], [0, 0]])
def test_dynamic(x):
    x = np.array(x, np.float32)
    q, scale, zero = check("DynamicQuantizeLinear", x)
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    close(scale, (high - low) / 255 if high > low else 1 / 255)
    assert zero == np.rint(-low / float(scale))
    close((q.astype(float) - float(zero)) * float(scale), x, atol=float(scale))


def test_dynamic_of_nothing():
    q, _, zero = check("DynamicQuantizeLinear", np.zeros((0, 3), np.float32))
    assert q.shape == (0, 3) and zero == 0


# ---- products


def integers(dtype: str, *shape: int, seed: int = 0) -> Any:
    info = np.iinfo(dtype)
    return rng(seed + sum(shape)).integers(info.min, info.max + 1, shape).astype(dtype)


PRODUCTS = [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4))]


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize(("a", "b"), PRODUCTS)
@pytest.mark.parametrize("zeros", ["none", "one", "many"])
def test_matmul_integer(a, b, left, right, zeros):
    x, y = integers(left, *a), integers(right, *b, seed=1)
    xz = {"none": None, "one": np.array(3, left), "many": integers(left, a[-2], seed=2)}[zeros]
    yz = {"none": None, "one": np.array(5, right), "many": integers(right, b[-1], seed=3)}[zeros]
    (z,) = check("MatMulInteger", x, y, xz, yz)
    rows = 0 if xz is None else xz.astype(np.int64).reshape(-1, 1)
    columns = 0 if yz is None else yz.astype(np.int64)
    want = np.matmul(x.astype(np.int64) - rows, y.astype(np.int64) - columns)
    assert z.dtype == np.int32
    np.testing.assert_array_equal(z, want)


def test_zero_points_of_one_number_have_any_rank():
    a, b, zero = np.arange(4, dtype=np.int8), integers("int8", 4, 5), np.ones((1, 1), np.int8)
    for x, y in ((a, b), (b.T.copy(), a)):
        (z,) = check("MatMulInteger", x, y, zero, zero)
        np.testing.assert_array_equal(z, (x.astype(int) - 1) @ (y.astype(int) - 1))


def test_long_integer_sums_are_exact():
    a = np.full((1, 30000), 255, np.uint8)
    (z,) = check("MatMulInteger", a, a.T.copy())
    assert z[0, 0] == 255 * 255 * 30000


CONVS = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 5, 4), (4, 3, 3, 3), {"pad": (1, 0, 2, 1), "stride": (2, 1)}),
    ((1, 4, 5, 5), (4, 1, 3, 3), {"group": 4, "pad": (1, 1, 1, 1)}),
    ((1, 4, 6), (6, 2, 2), {"group": 2, "dilation": (2,)}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_conv_integer(x, w, attrs, left, right, per_channel):
    a, k = integers(left, *x), integers(right, *w, seed=1)
    az = np.array(7, left)
    kz = integers(right, w[0], seed=2) if per_channel else np.array(2, right)
    (y,) = check("ConvInteger", a, k, az, kz, **attrs)
    column = kz.astype(np.int64).reshape(-1, *[1] * (len(w) - 1))
    want = naive_conv(a.astype(np.int64) - 7, k.astype(np.int64) - column, **attrs)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]
)
@pytest.mark.parametrize("bias", [False, True])
def test_qlinear_conv(x, w, attrs, left, right, bias):
    a, k = integers(left, *x), integers(right, *w, seed=1)
    az, kz, yz = np.array(7, left), np.array(2, right), np.array(9, left)
    s = np.float32(0.02), np.abs(normal(w[0])) * 0.01 + 0.001, np.float32(0.5)
    b = rng(5).integers(-500, 500, w[0]).astype(np.int32) if bias else None
    (y,) = check("QLinearConv", a, s[0], az, k, s[1], kz, s[2], yz, b, **attrs)
    sums = naive_conv(a.astype(np.int64) - 7, k.astype(np.int64) - 2, b, **attrs)
    factor = (s[0] * s[1] / s[2]).reshape(-1, *[1] * (len(x) - 2))
    info = np.iinfo(left)
    want = np.clip(np.rint(sums * factor.astype(float)) + 9, info.min, info.max)
    assert y.dtype == np.dtype(left)
    close(y, want, atol=1)
    assert (y == want).mean() > 0.95  # ties are decided in float32


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
@pytest.mark.parametrize("many", [False, True])
def test_qlinear_matmul(a, b, many):
    x, y = integers("uint8", *a), integers("int8", *b, seed=1)
    xs = np.abs(normal(a[-2])) * 0.01 if many else np.float32(0.02)
    ys = np.abs(normal(b[-1], seed=4)) * 0.01 if many else np.float32(0.03)
    xz = integers("uint8", a[-2], seed=2) if many else np.uint8(4)
    yz = integers("int8", b[-1], seed=3) if many else np.int8(-4)
    zs, zz = np.float32(0.6), np.uint8(100)
    (z,) = check("QLinearMatMul", x, xs, xz, y, ys, yz, zs, zz)
    left = (x.astype(np.int64) - np.asarray(xz, np.int64).reshape(-1, 1)) * np.asarray(
        xs, np.float64
    ).reshape(-1, 1)
    right = (y.astype(np.int64) - np.asarray(yz, np.int64)) * np.asarray(ys, np.float64)
    want = np.clip(np.rint(np.matmul(left, right) / 0.6) + 100, 0, 255)
    close(z, want, atol=1)
    assert (z == want).mean() > 0.95


F32, U8, I8 = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int8)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "fragments"),
    [
        ("QuantizeLinear", [Type(F32, (2, 3)), Type(F32, (4,))], {}, ["4 numbers", "has 3"]),
        ("QuantizeLinear", [Type(F32, (2, 3)), Type(F32, ())], {"dtype": "int32"}, ["int32"]),
        ("QuantizeLinear", [Type(F32, (2, 3)), Type(F32, (2, 2))], {}, ["without block_size"]),
        (
            "QuantizeLinear",
            [Type(F32, (2, 5)), Type(F32, (2, 2))],
            {"block_size": 2},
            ["blocks of 2", "[2,3]"],
        ),
        (
            "QuantizeLinear",
            [Type(F32, (2, 3)), Type(F32, ()), Type(U8, ())],
            {"dtype": "int8"},
            ["int8", "uint8"],
        ),
        (
            "DequantizeLinear",
            [Type(U8, (2, 3)), Type(F32, ()), Type(I8, ())],
            {},
            ["uint8", "int8"],
        ),
        ("DequantizeLinear", [Type(F32, (2, 3)), Type(F32, ())], {}, ["quantised", "float32"]),
        ("DynamicQuantizeLinear", [Type(np.dtype(np.float64), (2,))], {}, ["float32"]),
        ("MatMulInteger", [Type(F32, (2, 3)), Type(I8, (3, 4))], {}, ["a must be int8 or uint8"]),
        (
            "ConvInteger",
            [Type(U8, (1, 2, 4, 4)), Type(I8, (3, 3, 3, 3))],
            {},
            ["w wants 3 channels, x has 2"],
        ),
        (
            "ConvInteger",
            [Type(U8, (1, 3, 4, 4)), Type(I8, (3, 3, 3, 3)), Type(U8, (3,))],
            {},
            ["x_zero_point must be one number"],
        ),
        (
            "QLinearMatMul",
            [
                Type(U8, (2, 3)),
                Type(F32, ()),
                Type(U8, ()),
                Type(I8, (3, 4)),
                Type(F32, ()),
                Type(I8, ()),
                Type(F32, (2,)),
                Type(U8, ()),
            ],
            {},
            ["y_scale must be one number"],
        ),
    ],
)
def test_refused(op, types, attrs, fragments):
    with refused(*fragments):
        types_of(op, types, attrs)
