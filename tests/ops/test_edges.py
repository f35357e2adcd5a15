"""Values at the edges of their types: generated code and references agree, on every machine."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.codegen.target import level, runnable
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

LEVELS = [t for t in ("amx", "avx512", "avx2", "sse2", "scalar") if runnable(level(t))]
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NAN, INF = np.nan, np.inf
on_every_machine = pytest.mark.parametrize("target", LEVELS)


def agree(target, arrays, calls):
    """Each call (operator, numbers of its inputs, attributes) in one graph, natively and not.

    Returns the results, by the reference.
    """
    g = Graph("edges")
    xs = [g.input(f"x{i}", Type(a.dtype, a.shape)) for i, a in enumerate(arrays)]
    want = []
    for op, places, attrs in calls:
        g.outputs.append(g.add(OPS[op], *(xs[i] for i in places), **attrs).output)
        want.append(OPS[op](*(arrays[i] for i in places), **attrs))
    net = ts.compile(g, target=target, cache=False)
    assert {s.kind for s in net.program().plan.steps} <= {"native", "view"}
    for call, got, w in zip(calls, net.run(arrays), want, strict=True):
        assert (got.dtype, got.shape) == (w.dtype, w.shape), call
        np.testing.assert_array_equal(got, w, str(call))
    return want


EDGES = [
    1e10, -1e10, 3e9, -3e9, 300.7, -1.5, NAN, INF, -INF, 1e20, -1e20, 2.0**31, -(2.0**31), 2.0**63,
    2.0**64, -(2.0**63), 127.9, 128.5, -128.9, -129.5, 255.9, 256.1, -0.9, 65535.9, 0.0, -0.0,
]  # fmt: skip


@on_every_machine
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_casts_saturate_and_nan_becomes_zero(source, target):
    x = np.array(EDGES, source)
    results = agree(target, [x], [("Cast", [0], {"to": t}) for t in [*INTS, "bool"]])
    for name, y in zip(INTS, results, strict=False):
        info = np.iinfo(name)
        for v, got in zip(x.tolist(), y.tolist(), strict=True):
            exact = 0 if v != v else min(max(v, info.min), info.max)
            assert got == (int(exact) if abs(exact) != INF else exact), (v, name)


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_casts_of_halves_saturate(source):
    x = np.array([300.0, -300.0, NAN, INF, -INF, 1.5], np.float32)
    half = OPS["Cast"](x, to=source)
    assert OPS["Cast"](half, to="int8").tolist() == [127, -128, 0, 127, -128, 1]
    assert OPS["Cast"](half, to="uint64").tolist() == [300, 0, 0, 2**64 - 1, 0, 1]


@on_every_machine
def test_a_bound_of_nan_is_no_bound(target):
    x = np.array([1, NAN, -3, INF, -INF, 0.5] * 3, np.float32)
    pairs = [(NAN, 1.0), (0.0, NAN), (NAN, NAN), (2.0, 1.0), (None, NAN), (-INF, INF)]
    results = agree(target, [x], [("Clip", [0], {"min": a, "max": b}) for a, b in pairs])
    np.testing.assert_array_equal(results[0], np.minimum(x, 1))
    np.testing.assert_array_equal(results[2], x)
    np.testing.assert_array_equal(results[3], np.where(np.isnan(x), x, 1))


def test_the_maximum_with_nan_is_no_clip():
    g = Graph("nan")
    x = g.input("x", Type("float32", (4,)))
    top = g.add(OPS["Max"], x, np.float32(NAN)).output
    g.outputs = [g.add(OPS["Min"], top, np.float32(1), name="y").output]
    assert np.isnan(ts.compile(g)(np.arange(4, dtype=np.float32))).all()


@on_every_machine
@pytest.mark.parametrize("dtype", INTS)
def test_division_by_zero_and_its_overflow_end_no_process(dtype, target):
    info = np.iinfo(dtype)
    a = np.array([7, 100, 0, info.min, info.max, 5, info.min] * 3, dtype)
    minus = -1 if info.min else 3
    b = np.array([0, 3, 0, minus, 2, 0, 1] * 3, dtype)
    div, mod, fmod = agree(
        target, [a, b], [("Div", [0, 1], {}), ("Mod", [0, 1], {}), ("Mod", [0, 1], {"fmod": True})]
    )
    assert (div[b == 0] == 0).all() and (mod[b == 0] == 0).all() and (fmod[b == 0] == 0).all()
    if info.min:
        assert div[3] == info.min  # -min does not exist: it wraps around
        assert mod[3] == 0


@on_every_machine
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_shifts_by_the_width_and_beyond_give_zero(dtype, target):
    width = np.iinfo(dtype).bits
    a = np.full(16, np.iinfo(dtype).max, dtype)
    b = np.array([0, 1, width - 1, width, width + 1, 255, 128, 7] * 2, dtype)
    left, right = agree(
        target, [a, b], [("BitShift", [0, 1], {"direction": d}) for d in ("LEFT", "RIGHT")]
    )
    for y in (left, right):
        assert (y[b >= width] == 0).all() and (y[b < width] != 0).all()


@on_every_machine
def test_extremes_of_nan_and_zeros(target):
    a = np.array([1, NAN, 0.0, -0.0, NAN, INF, -2, 3] * 3, np.float32)
    b = np.array([NAN, 1, -0.0, 0.0, NAN, -INF, 0, 0] * 3, np.float32)
    names = ("Min", "Max", "Div", "Greater", "Equal")
    low, high, *_ = agree(target, [a, b], [(n, [0, 1], {}) for n in names])
    unordered = np.isnan(a) | np.isnan(b)
    assert np.isnan(low[unordered]).all() and np.isnan(high[unordered]).all()


@pytest.mark.parametrize("shapes", ["fixed", "free"])
@pytest.mark.parametrize(
    "dtype, mean", [("int32", 0), ("uint8", 0), ("int64", 0), ("float32", NAN)]
)
def test_means_of_nothing(dtype, mean, shapes):
    g = Graph("means")
    x = g.input("x", Type(dtype, ("n", "k", 2)))
    g.outputs = [OPS["Reduce"](x, np.array([1]), kind="mean", keepdims=False)]
    with np.errstate(invalid="ignore"):
        y = ts.compile(g, cache=False, shapes=shapes)(np.zeros((3, 0, 2), dtype))
    np.testing.assert_array_equal(y, np.full((3, 2), mean, dtype))
