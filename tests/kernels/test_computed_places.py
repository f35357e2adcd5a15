"""Gathers and scatters at places that the model computes."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels
from tinsmith import ops
from tinsmith.errors import DataError, ReferenceFailed
from tinsmith.graph import Graph, Type

RNG = np.random.default_rng(5)
FEW = [p for p in levels() if p.values[0] in ("avx512", "sse2")]
DTYPES = ["float32", "float64", "int64", "int32", "uint8", "bool", "float16"]


def array(dtype: str, *shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape) * 50
    return (x > 0) if dtype == "bool" else x.astype(dtype)


def places(extent: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    return RNG.integers(-extent, extent, shape).astype(dtype)


ELEMENTS = [((7,), (3,), 0), ((3, 10), (2, 10), 0), ((3, 10), (3, 17), 1), ((3, 10), (2, 4), -1),
            ((2, 5, 6, 3), (2, 5, 9, 2), 2), ((4, 3, 5), (9, 1, 5), 0), ((1, 1), (1, 1), 1),
            ((300, 70), (300, 70), 0)]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("shape, counts, axis", ELEMENTS)
def test_elements(shape, counts, axis, target):
    at = places(shape[axis], *counts)
    check("GatherElements", [array("float32", *shape), at], {"axis": axis},
          kernel="gather_elements", target=target)  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_width(dtype, target):
    for kind, axis in (("int32", 0), ("int64", 1)):
        inputs = [array(dtype, 9, 9), places(9, 9, 9, dtype=kind)]
        check("GatherElements", inputs, {"axis": axis}, kernel="gather_elements", target=target)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_elements_of_every_type(dtype, kind):
    at = places(4, 4, 7, dtype=kind)
    check("GatherND", [array(dtype, 4, 7), at[:, :1].copy()], kernel="gather_slices")
    new = array(dtype, 4, 7)
    check("ScatterElements", [array(dtype, 4, 7), at, new], {"axis": 0}, kernel="scatter_elements")
    check("ScatterND", [array(dtype, 4, 7), at[:, :1].copy(), new], kernel="scatter_slices")


SLICES = [((7,), (3, 1), 0), ((4, 5, 6), (3, 2, 2), 0), ((4, 5, 6), (5, 3), 0),
          ((3, 5, 6), (3, 4, 1), 1), ((2, 3, 5, 4), (2, 3, 7, 2), 2), ((3, 40), (9, 1), 0),
          ((2, 6), (2, 1), 1)]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("shape, counts, batch", SLICES)
def test_slices(shape, counts, batch, target):
    least = min(shape[batch : batch + counts[-1]])
    attrs = {"batch_dims": batch}
    check("GatherND", [array("float32", *shape), places(least, *counts)], attrs,
          kernel="gather_slices", target=target)  # fmt: skip


REDUCTIONS = ["none", "add", "mul", "max", "min"]


@pytest.mark.parametrize("target", FEW)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape, counts, axis", [
    ((7,), (12,), 0), ((3, 10), (2, 10), 0), ((3, 10), (3, 17), 1), ((2, 5, 6), (2, 9, 4), 1),
    ((90, 100), (1, 100), 0), ((64, 128), (3, 1), 0),
])  # fmt: skip
def test_scattered_elements(shape, counts, axis, reduction, target):
    inputs = [array("float32", *shape), places(shape[axis], *counts), array("float32", *counts)]
    check("ScatterElements", inputs, {"axis": axis, "reduction": reduction},
          kernel="scatter_elements", target=target)  # fmt: skip


@pytest.mark.parametrize("target", FEW)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape, counts", [
    ((7,), (12, 1)), ((4, 5, 6), (3, 2, 2)), ((4, 5, 6), (9, 1)), ((4, 5), (2, 2)),
    ((90, 100), (3, 1)),
])  # fmt: skip
def test_scattered_slices(shape, counts, reduction, target):
    depth = counts[-1]
    new = array("float32", *counts[:-1], *shape[depth:])
    inputs = [array("float32", *shape), places(min(shape[:depth]), *counts), new]
    check("ScatterND", inputs, {"reduction": reduction}, kernel="scatter_slices", target=target)


ROWS = [((2, 3, 9, 4), 2, 2), ((1, 1, 5, 8), 2, 1), ((3, 7), 1, 7), ((2, 40, 3), 1, 17),
        ((4, 2, 3, 70), -1, 5), ((2, 300, 33), -2, 260), ((1, 1), 1, 1)]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("shape, axis, count", ROWS)
def test_scattered_rows(shape, axis, count, mode, target):
    new = list(shape)
    new[axis] = count
    most = shape[axis] - (count if mode == "linear" else 0)
    inputs = [array("float32", *shape), array("float32", *new)]
    attrs = {"axis": axis, "mode": mode}
    check("TensorScatter", inputs, attrs, kernel="scatter_rows", target=target)
    if mode == "linear":
        beyond = {**attrs, "start": most}
        check("TensorScatter", inputs, beyond, kernel="scatter_rows", target=target)
    for kind in ("int32", "int64"):
        at = RNG.integers(0, most + 1, shape[0]).astype(kind)
        check("TensorScatter", [*inputs, at], attrs, kernel="scatter_rows", target=target)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scattered_rows_of_every_type(dtype):
    inputs = [array(dtype, 3, 9, 5), array(dtype, 3, 4, 5), np.array([5, 0, 3])]
    check("TensorScatter", inputs, {"axis": 1}, kernel="scatter_rows")


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_rows_out_of_range_are_an_error(bad, mode):
    g = Graph("g")
    rows = [g.input(n, Type("float32", (2, k, 3))) for n, k in (("x", 6), ("new", 3))]
    at = g.input("at", Type("int64", (2,)))
    g.outputs = [ops.TensorScatter(*rows, at, axis=1, mode=mode)]
    arrays = [np.ones((2, 6, 3), np.float32), np.ones((2, 3, 3), np.float32)]
    for net in (ts.compile(g, cache=False), ts.compile(g, backend="numpy")):
        net.run([*arrays, np.array([0, 3])])
        if mode == "linear" or bad < 0:
            with pytest.raises((DataError, ReferenceFailed), match="lie in an axis of 6"):
                net.run([*arrays, np.array([1, bad])])


def test_nan_wins_as_in_numpy():
    x, new = np.array([1, np.nan, 3], np.float32), np.array([np.nan, 5, 2], np.float32)
    for how in ("max", "min"):
        check("ScatterElements", [x, np.array([0, 1, 2]), new], {"reduction": how},
              kernel="scatter_elements")  # fmt: skip


@pytest.mark.parametrize("bad", [4, -5, 2**40])
@pytest.mark.parametrize("op", ["GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_a_place_out_of_range_is_an_error(op, bad):
    g = Graph("g")
    x = g.input("x", Type(np.dtype(np.float32), (4, 3)))
    at = g.input("at", Type(np.dtype(np.int64), (2, 1)))
    shape = (2, 1) if op == "ScatterElements" else (2, 3)
    new = g.input("new", Type(np.dtype(np.float32), shape)) if "Scatter" in op else None
    node = g.add(ops.OPS[op], x, at, *([] if new is None else [new]))
    g.outputs = [node.output]
    net = ts.compile(g, cache=False)
    arrays = [np.ones((4, 3), np.float32), np.array([[0], [3]])]
    arrays += [] if new is None else [np.ones(shape, np.float32)]
    net.run(arrays)
    with pytest.raises(DataError, match="out of range"):
        net.run([arrays[0], np.array([[1], [bad]]), *arrays[2:]])
