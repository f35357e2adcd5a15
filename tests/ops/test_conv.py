"""Convolutions against naive loops, and their type rules against the results."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.checking import assert_static, check, close, normal, refused, types_of
from tests.ops.naive import naive_conv, naive_transposed
from tinsmith.graph import Type
from tinsmith.ops import OPS

Array = np.ndarray[Any, Any]


CONVS = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 5, 6), (4, 3, 3, 3), {}),
    ((2, 3, 5, 6), (4, 3, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((1, 3, 7, 5), (2, 3, 3, 2), {"pad": (0, 1, 2, 0), "stride": (3, 2)}),
    ((1, 2, 9, 9), (2, 2, 3, 3), {"dilation": (2, 3)}),
    ((1, 2, 9, 9), (2, 2, 3, 3), {"dilation": 2, "stride": 2, "pad": 1}),
    ((2, 4, 4, 4), (6, 2, 3, 3), {"group": 2, "pad": (1, 1, 1, 1)}),
    ((2, 4, 5, 5), (4, 1, 3, 3), {"group": 4, "pad": (1, 1, 1, 1), "stride": (2, 2)}),
    ((1, 3, 5, 5), (6, 1, 3, 3), {"group": 3}),
    ((1, 3, 5, 5), (6, 1, 1, 1), {"group": 3}),
    ((2, 5, 4, 3), (7, 5, 1, 1), {}),
    ((2, 5, 4, 3), (7, 5, 1, 1), {"stride": (2, 1)}),
    ((1, 4, 4, 4), (6, 2, 1, 1), {"group": 2}),
    ((1, 2, 1, 1), (3, 2, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((1, 2, 1, 7), (3, 2, 1, 5), {"pad": (0, 2, 0, 2)}),
    ((2, 3, 8), (4, 3, 3), {"pad": (2, 0), "stride": (2,)}),
    ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"pad": (1, 0, 1, 0, 1, 0), "stride": (1, 2, 1)}),
    ((0, 3, 5, 5), (4, 3, 3, 3), {}),
    ((3, 2, 6, 2), (2, 2, 6, 2), {}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
def test_conv(x, w, attrs, bias):
    arrays = [normal(*x), normal(*w, seed=1), normal(w[0], seed=2) if bias else None]
    (y,) = check("Conv", *arrays, **attrs)
    assert_static("Conv", *arrays, **attrs)
    close(y, naive_conv(*arrays, **attrs), atol=1e-4)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        *itertools.product([1, 5, 6], [1], [1, 2, 3], [1]),
        *itertools.product([5, 6], [2, 3], [1, 2, 3], [1, 2]),
    ],
)
def test_auto_pad(auto_pad, size, kernel, stride, dilation):
    span = (kernel - 1) * dilation + 1
    x, w = normal(1, 2, size), normal(2, 2, kernel)
    attrs = {"stride": (stride,), "dilation": (dilation,)}
    (y,) = check("Conv", x, w, auto_pad=auto_pad, **attrs)
    total = 0 if auto_pad == "VALID" else max((-(-size // stride) - 1) * stride + span - size, 0)
    less, more = total // 2, total - total // 2
    pad = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    close(y, naive_conv(x, w, pad=pad, **attrs))
    if auto_pad != "VALID":
        assert y.shape[2] == -(-size // stride)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types(dtype):
    x, w, b = (normal(*s).astype(dtype) for s in ((1, 3, 5, 5), (2, 3, 3, 3), (2,)))
    (y,) = check("Conv", x, w, b)
    eps = float(ml_dtypes.finfo(dtype).eps)
    close(y, naive_conv(x, w, b), rtol=4 * eps, atol=4 * eps)


def test_long_outputs_are_done_in_parts(monkeypatch):
    import tinsmith.ops.conv as module

    x, w = normal(2, 3, 11, 7), normal(4, 3, 3, 3)
    whole = OPS["Conv"](x, w, pad=1)
    monkeypatch.setattr(module, "COLUMN_BYTES", 1)
    close(OPS["Conv"](x, w, pad=1), whole)


def test_infinity_stays_in_its_windows():
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, 0, 0] = np.inf
    y = OPS["Conv"](x, np.ones((1, 1, 3, 3), np.float32))
    assert np.isinf(y[0, 0, 0, 0]) and np.isfinite(y[0, 0, 1:, 1:]).all()


TRANSPOSED = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 4, 5), (3, 2, 3, 3), {}),
    ((2, 3, 4, 5), (3, 2, 3, 3), {"stride": (2, 3), "pad": (1, 0, 2, 1)}),
    ((1, 2, 3, 3), (2, 4, 4, 4), {"stride": (2, 2), "pad": (1, 1, 1, 1)}),
    ((1, 2, 3, 3), (2, 1, 2, 2), {"stride": 3, "output_padding": (1, 2)}),
    ((1, 2, 3, 4), (2, 1, 3, 2), {"dilation": (2, 3)}),
    ((2, 4, 3, 3), (4, 2, 3, 3), {"group": 2, "stride": 2}),
    ((1, 4, 3, 3), (4, 1, 3, 3), {"group": 4, "stride": 2, "pad": 1, "output_padding": 1}),
    ((2, 3, 5), (3, 2, 4), {"stride": (2,), "pad": (1, 2)}),
    ((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), {"stride": (2, 1, 2)}),
    ((0, 2, 3, 3), (2, 2, 3, 3), {"stride": 2}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_conv_transpose(x, w, attrs, bias):
    b = normal(w[1] * attrs.get("group", 1), seed=2) if bias else None
    arrays = [normal(*x), normal(*w, seed=1), b]
    (y,) = check("ConvTranspose", *arrays, **attrs)
    assert_static("ConvTranspose", *arrays, **attrs)
    close(y, naive_transposed(*arrays, **attrs), atol=1e-4)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("wanted", [6, 7, 8, 9])
def test_conv_transpose_output_shape(auto_pad, wanted):
    """Total padding is (3 - 1) * 3 + 3 - wanted, and the odd one goes where auto_pad says."""
    x, w = normal(1, 1, 3), normal(1, 1, 3)
    (y,) = check("ConvTranspose", x, w, stride=(3,), output_shape=(wanted,), auto_pad=auto_pad)
    total = 9 - wanted
    less, more = total // 2, total - total // 2
    pad = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    close(y, naive_transposed(x, w, stride=3, pad=pad))


def test_conv_transpose_output_shape_beyond_the_sum_is_bias():
    x, w, b = normal(1, 1, 2), normal(1, 1, 2), np.array([3], np.float32)
    (y,) = check("ConvTranspose", x, w, b, stride=(2,), output_shape=(6,))
    close(y[0, 0, 4:], [3, 3])


def test_conv_transpose_same():
    (y,) = check("ConvTranspose", normal(1, 1, 4), normal(1, 1, 3), stride=2, auto_pad="SAME_UPPER")
    assert y.shape == (1, 1, 8)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("offset_group", [1, 2])
@pytest.mark.parametrize("mask", [False, True])
def test_deform_conv_is_conv_at_whole_offsets(group, offset_group, mask):
    """Offsets of one element right and down: the same as a shifted input."""
    x, w, b = normal(2, 4, 6, 6), normal(2, 4 // group, 3, 3), normal(2)
    offset = np.ones((2, offset_group * 18, 4, 4), np.float32)
    scale = np.full((2, offset_group * 9, 4, 4), 0.5, np.float32) if mask else None
    attrs = {"group": group, "offset_group": offset_group}
    (y,) = check("DeformConv", x, w, offset, b, scale, **attrs)
    shifted = np.zeros_like(x)
    shifted[..., :-1, :-1] = x[..., 1:, 1:]
    plain = naive_conv(shifted, w * (0.5 if mask else 1), b, group=group)
    close(y, plain, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_deform_conv_between_elements(rank):
    """Halfway offsets read the mean of the 2^rank neighbours, with zeros outside."""
    x, w = normal(1, 1, *[4] * rank), np.ones((1, 1, *[1] * rank), np.float32)
    offset = np.full((1, rank, *[4] * rank), 0.5, np.float32)
    (y,) = check("DeformConv", x, w, offset)
    want = np.pad(x, [(0, 0)] * 2 + [(0, 1)] * rank)
    for axis in range(2, 2 + rank):
        want = (want.take(range(4), axis) + want.take(range(1, 5), axis)) / 2
    close(y, want)


F32 = np.dtype(np.float32)


def of(*shape: Any) -> Type:
    return Type(F32, shape)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "fragments"),
    [
        ("Conv", [of(1, 32, 5, 5), of(8, 64, 3, 3)], {}, ["w wants 64 channels, x has 32"]),
        ("Conv", [of(1, 4, 5, 5), of(3, 2, 3, 3)], {"group": 2}, ["group 2", "3 outputs"]),
        ("Conv", [of(1, 4, 5, 5), of(3, 4, 3)], {}, ["rank 4", "has 3"]),
        ("Conv", [of(1, 4), of(3, 4)], {}, ["rank of 3 or more"]),
        ("Conv", [of(1, 4, 2, 2), of(3, 4, 3, 3)], {}, ["window of 3", "axis 0"]),
        ("Conv", [of(1, 4, 5, 5), of(3, 4, 3, 3), of(4)], {}, ["b has 4", "3 channels"]),
        ("Conv", [of(1, 4, 5, 5), of(3, 4, 3, 3)], {"pad": (1, 1)}, ["pad has 2", "4"]),
        ("Conv", [of(1, 4, 5, 5), of(3, 4, 3, 3)], {"stride": (0, 1)}, ["stride", "at least 1"]),
        ("Conv", [of(1, 4, 5, 5), of(3, 4, 3, 3)], {"auto_pad": "SAME"}, ["SAME_UPPER"]),
        ("Conv", [of(1, 4, 5, 5), Type(np.dtype("f8"), (3, 4, 3, 3))], {}, ["float64"]),
        ("ConvTranspose", [of(1, 4, 5, 5), of(3, 4, 3, 3)], {}, ["w wants 3 channels, x has 4"]),
        (
            "DeformConv",
            [of(1, 4, 5, 5), of(3, 4, 3, 3), of(1, 17, 3, 3)],
            {},
            ["offset has 17 channels, 18 are needed"],
        ),
    ],
)
def test_refused(op, types, attrs, fragments):
    with refused(*fragments):
        types_of(op, types, attrs)


def test_symbols_survive_where_the_size_does():
    x, w = of("N", 3, "H", "W"), of(8, 3, 3, 3)
    same = types_of("Conv", [x, w], {"pad": (1, 1, 1, 1)})[0]
    assert same.shape == ("N", 8, "H", "W")
    same = types_of("Conv", [x, w], {"auto_pad": "SAME_LOWER"})[0]
    assert same.shape == ("N", 8, "H", "W")
    fewer = types_of("Conv", [x, w], {"pad": (1, 1, 1, 1), "stride": (2, 1)})[0].shape
    assert fewer is not None
    assert fewer[2] not in ("H", "W") and fewer[3] == "W"
    known = types_of("Conv", [Type(F32, None), w], {})[0].shape
    assert known is not None and len(known) == 4 and known[1] == 8
