"""Pooling against naive windows."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinsmith as ts
from tests.ops.checking import assert_static, check, close, normal, refused, types_of
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph

CASES = [
    ((1, 1, 1, 1), {"kernel": (1, 1)}),
    ((2, 3, 6, 5), {"kernel": (2, 2), "stride": (2, 2)}),
    ((2, 3, 6, 5), {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0, 1, 1)}),
    ((1, 2, 7, 7), {"kernel": (3, 3), "stride": (2, 2), "ceil_mode": True}),
    ((1, 2, 6, 6), {"kernel": (3, 3), "stride": (2, 2), "ceil_mode": True}),
    ((1, 2, 4, 4), {"kernel": (2, 2), "stride": (3, 3), "ceil_mode": True}),
    ((1, 2, 5, 5), {"kernel": 2, "stride": 2, "pad": 1, "ceil_mode": True}),
    ((1, 2, 2, 2), {"kernel": (3, 3), "stride": (2, 2), "ceil_mode": True, "pad": (1, 1, 0, 0)}),
    ((1, 2, 9, 8), {"kernel": (3, 2), "dilation": (2, 3), "stride": (1, 2)}),
    ((1, 2, 8, 8), {"kernel": 3, "dilation": 2, "stride": 3, "pad": 2, "ceil_mode": True}),
    ((2, 2, 9), {"kernel": (4,), "stride": (3,), "pad": (1, 2)}),
    ((1, 2, 4, 5, 4), {"kernel": (2, 3, 2), "stride": (2, 2, 1), "pad": (0, 1, 0, 1, 0, 1)}),
    ((1, 1, 5, 5), {"kernel": (3, 3), "auto_pad": "SAME_UPPER", "stride": (2, 2)}),
    ((1, 1, 4, 6), {"kernel": (3, 2), "auto_pad": "SAME_LOWER", "stride": (3, 1)}),
    ((1, 1, 7, 7), {"kernel": (2, 3), "auto_pad": "VALID", "stride": (2, 2)}),
    ((0, 2, 5, 5), {"kernel": (3, 3)}),
]


def geometry(
    size: int, i: int, rank: int, attrs: dict[str, Any]
) -> tuple[int, int, list[list[int]]]:
    """(begin, end, the places of every window along one axis), from first principles."""

    def at(name: str, default: int, index: int = i) -> int:
        value = attrs.get(name, default)
        return value if isinstance(value, int) else value[index]

    k, s, d = at("kernel", 1), at("stride", 1), at("dilation", 1)
    b, e = at("pad", 0), at("pad", 0, rank + i)
    span, auto = (k - 1) * d + 1, attrs.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        total = max((-(-size // s) - 1) * s + span - size, 0)
        b, e = total // 2, total - total // 2
        if auto == "SAME_LOWER":
            b, e = e, b
    starts = []
    at_ = -b
    last = size + e - span
    while at_ <= last or (attrs.get("ceil_mode") and at_ < size and at_ - s < last):
        starts.append(at_)
        at_ += s
    return b, e, [[start + t * d for t in range(k)] for start in starts]


def naive(x, kind, attrs, include_pad=False, p=2):
    rank = x.ndim - 2
    axes = [geometry(x.shape[2 + i], i, rank, attrs) for i in range(rank)]
    y = np.zeros((*x.shape[:2], *(len(a[2]) for a in axes)))
    for o in itertools.product(*(range(n) for n in y.shape[2:])):
        taps = list(itertools.product(*(axes[i][2][o[i]] for i in range(rank))))
        inside = [t for t in taps if all(0 <= a < s for a, s in zip(t, x.shape[2:], strict=True))]
        near = [
            t
            for t in taps
            if all(-axes[i][0] <= t[i] < x.shape[2 + i] + axes[i][1] for i in range(rank))
        ]
        values = [x[(slice(None), slice(None), *t)].astype(np.float64) for t in inside]
        place = (slice(None), slice(None), *o)
        if kind == "max":
            y[place] = np.max(values, axis=0)
        elif kind == "mean":
            y[place] = np.sum(values, axis=0) / (len(near) if include_pad else len(inside))
        else:
            y[place] = np.sum(np.abs(values) ** p, axis=0) ** (1 / p)
    return y


@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_max_pool(shape, attrs):
    x = normal(*shape)
    (y,) = check("MaxPool", x, **attrs)
    assert_static("MaxPool", x, **attrs)
    close(y, naive(x, "max", attrs))


@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_average_pool(shape, attrs, include_pad):
    x = normal(*shape)
    (y,) = check("AveragePool", x, count_include_pad=include_pad, **attrs)
    close(y, naive(x, "mean", attrs, include_pad))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_lp_pool(shape, attrs, p):
    x = normal(*shape)
    (y,) = check("LpPool", x, p=p, **attrs)
    close(y, naive(x, "lp", attrs, p=p))


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), CASES)
def test_max_pool_indices(shape, attrs, storage_order):
    x = normal(*shape)
    attrs = {**attrs, "storage_order": storage_order, "with_indices": True}
    y, where = check("MaxPool", x, **attrs)
    if not x.size:
        return
    planes = x.transpose(0, 1, *range(x.ndim - 1, 1, -1)) if storage_order else x
    close(planes.ravel()[where], y)


def test_the_first_of_equal_maxima_has_the_index():
    _, where = OPS["MaxPool"](np.zeros((1, 1, 3, 3), np.float32), kernel=2, with_indices=True)
    np.testing.assert_array_equal(where.ravel(), [0, 1, 3, 4])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.float64])
def test_max_pool_of_other_types(dtype):
    x = (normal(1, 2, 5, 5) * 20).astype(np.int8).astype(dtype)
    (y,) = check("MaxPool", x, kernel=3, pad=1)
    assert y.dtype == dtype
    close(y, naive(x, "max", {"kernel": 3, "pad": 1}))


def test_nan_wins_its_windows_only():
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 0, 0] = np.nan
    y = OPS["MaxPool"](x, kernel=2)
    assert np.isnan(y[0, 0, 0, 0]) and not np.isnan(y.ravel()[1:]).any()


def test_nan_has_the_index():
    x = np.array([[[1, np.nan, 5, 2, 3]]], np.float32)
    y, where = OPS["MaxPool"](x, kernel=3, with_indices=True)
    assert where.ravel().tolist() == [1, 1, 2] and np.isnan(y.ravel()).tolist() == [
        True,
        True,
        False,
    ]


def test_half_sums_are_wide():
    x = np.full((1, 1, 64, 64), 60000, np.float16)
    assert np.isfinite(OPS["AveragePool"](x, kernel=64)).all()
    assert np.isfinite(OPS["GlobalPool"](x)).all()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 4, 5), (2, 3, 7), (1, 2, 3, 2, 2), (0, 2, 3)]
)
def test_global_pool(shape):
    x, axes = normal(*shape), tuple(range(2, len(shape)))
    wide = x.astype(np.float64)
    close(check("GlobalPool", x)[0], wide.mean(axes, keepdims=True))
    close(check("GlobalPool", x, kind="max")[0], wide.max(axes, keepdims=True))
    close(
        check("GlobalPool", x, kind="lp", p=3)[0],
        (np.abs(wide) ** 3).sum(axes, keepdims=True) ** (1 / 3),
    )


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((2, 3, 6, 8), {"kernel": (2, 2), "stride": (2, 2)}),
        ((1, 1, 9), {"kernel": (3,), "stride": (3,)}),
        ((1, 2, 4, 4, 4), {"kernel": (2, 2, 2), "stride": (2, 2, 2)}),
    ],
)
def test_max_unpool_restores_the_maxima(shape, attrs):
    x = np.abs(normal(*shape)) + 1
    y, where = OPS["MaxPool"](x, with_indices=True, **attrs)
    (back,) = check("MaxUnpool", y, where, **attrs)
    assert back.shape == shape
    assert ((back == 0) | (back == x)).all() and (back != 0).sum() == y.size
    larger = np.array([*shape[:2], *(n + 1 for n in shape[2:])])
    (wide,) = check("MaxUnpool", y, where, larger, consts=[2], **attrs)
    close(wide[(slice(None), slice(None), *(slice(n) for n in shape[2:]))], back)


@pytest.mark.parametrize(("kind", "result"), [("mean", np.nan), ("max", -np.inf), ("lp", 0)])
def test_planes_without_elements_are_the_same_everywhere(kind, result):
    graph = Graph("empty")
    x = graph.input("x", Type(np.dtype(np.float32), (2, 3, "h", "w")))
    graph.outputs = [OPS["Add"](OPS["GlobalPool"](x, kind=kind), np.float32(0))]
    for options in ({"backend": "numpy"}, {"shapes": "fixed"}, {"shapes": "free"}):
        net = ts.compile(graph, cache=False, **options)
        assert np.isfinite(net(normal(2, 3, 5, 4))).all()
        np.testing.assert_array_equal(net(normal(2, 3, 0, 4)), np.full((2, 3, 1, 1), result))


F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "attrs", "fragments"),
    [
        ("MaxPool", "float32", (1, 2, 5, 5), {"kernel": (3,)}, ["(3,)", "2 spatial axes"]),
        ("MaxPool", "float32", (1, 2, 2, 2), {"kernel": (3, 3)}, ["window of 3"]),
        ("AveragePool", "int8", (1, 2, 5, 5), {"kernel": (3, 3)}, ["floating-point", "int8"]),
        ("LpPool", "float32", (1, 2, 5, 5), {"kernel": (3, 3), "p": 0}, ["positive"]),
        ("GlobalPool", "float32", (1, 2, 5, 5), {"kind": "sum"}, ["sum", "mean, max, lp"]),
    ],
)
def test_refused(op, dtype, shape, attrs, fragments):
    with refused(*fragments):
        types_of(op, [Type(np.dtype(dtype), shape)], attrs)


@pytest.mark.parametrize("shape", [(1, 2, 6, 7), (None, 2, None, 7)])
def test_one_number_is_for_all_axes(shape):
    graph = Graph("g")
    x = graph.input(
        "x", Type(np.dtype(np.float32), tuple(d or f"d{i}" for i, d in enumerate(shape)))
    )
    y = OPS["AveragePool"](OPS["MaxPool"](x, kernel=2), kernel=(2, 3), stride=2, pad=1)
    y = OPS["Conv"](
        OPS["LpPool"](y, kernel=1), np.ones((3, 2, 2, 2), np.float32), dilation=1, pad=1
    )
    graph.outputs.append(OPS["ConvTranspose"](y, np.ones((3, 1, 2, 2), np.float32), stride=2))
    for name, attrs in (
        ("MaxPool", {"kernel": (2, 2), "stride": None}),
        ("Conv", {"pad": (1,) * 4}),
    ):
        (node,) = (n for n in graph.nodes if n.op.name == name)
        assert {k: node.attrs[k] for k in attrs} == attrs
    data = normal(1, 2, 6, 7)
    (got,) = ts.compile(graph, cache=False).run([data])
    close(got, run_graph(graph, [data])[0])


def test_one_number_for_unknown_axes():
    x = Graph("g").input("x", Type(np.dtype(np.float32), None))
    with refused("the rank of the input is unknown"):
        OPS["MaxPool"](x, kernel=2)
