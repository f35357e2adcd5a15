"""Reductions, extremes and scans against numpy: every form of axes, kind and element type."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels
from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.kernels.reduce import KINDS, Run, runs_of
from tinsmith.ops import OPS

VECTORS = levels()[:3]
"""Without the scalar level, whose code is that of sse2; the broadest tests run it too."""

RNG = np.random.default_rng(11)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


FORMS = [  # shape, axes
    ((1,), (0,)), ((300,), None), ((5, 7), (-1,)), ((5, 37), (0,)), ((2, 3, 4, 35), (0, 2)),
    ((2, 3, 4, 35), (1, 3)), ((3, 2, 70, 1), (1,)), ((2, 3, 4, 5, 6), (0, 2, 4)),
    ((4, 9, 3), (2,)), ((16, 8), (1,)), ((19, 2), (1,)),
]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(("shape", "axes"), [FORMS[4], FORMS[5], FORMS[8]])
def test_kinds(target: str, kind: str, shape: tuple, axes: tuple) -> None:
    x = rand(*shape)
    x = np.abs(x) if kind == "logsum" else x
    check(
        "Reduce", [x, np.array(axes)], {"kind": kind}, consts=(1,), kernel="reduce", target=target
    )


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("shape", "axes"), FORMS)
@pytest.mark.parametrize("kind", ["mean", "max"])
def test_forms(target: str, kind: str, shape: tuple, axes: tuple | None) -> None:
    axes_input = None if axes is None else np.array(axes)
    check("Reduce", [rand(*shape), axes_input], {"kind": kind, "keepdims": False}, consts=(1,),
          kernel="reduce", target=target)  # fmt: skip


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("int32", "sum"), ("int64", "max"), ("int64", "prod"), ("int32", "min"), ("bool", "max"),
     ("bool", "min"), ("int32", "sumsquare"), ("int8", "max"), ("uint8", "min")],
)  # fmt: skip
def test_whole_numbers(target: str, dtype: str, kind: str) -> None:
    for shape, axes in (((170,), (0,)), ((2, 3, 4, 35), (0, 2)), ((67, 3), (1,))):
        x = RNG.integers(-9, 9, shape).astype(dtype)
        check("Reduce", [x, np.array(axes)], {"kind": kind}, consts=(1,), kernel="reduce",
              target=target)  # fmt: skip


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("shape", "axes"), FORMS)
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod", "l2"])
def test_double_precision(target: str, kind: str, shape: tuple, axes: tuple | None) -> None:
    arrays = [rand(*shape).astype("f8"), None if axes is None else np.array(axes)]
    check("Reduce", arrays, {"kind": kind}, consts=(1,), kernel="reduce", target=target,
          rtol=1e-14)  # fmt: skip


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_infinities_and_nan(target: str, axis: int) -> None:
    x = rand(3, 40, 5)
    x[1, 3, 2], x[2, 39, 4], x[0, 39, 4] = np.nan, np.inf, -np.inf
    for kind in ("max", "min", "sum", "logsumexp"):
        check("Reduce", [x, np.array([axis])], {"kind": kind}, consts=(1,), kernel="reduce",
              target=target)  # fmt: skip


def test_no_axes_reduce_nothing_if_told_so() -> None:
    attrs = {"kind": "l2", "noop_with_empty_axes": True}
    check("Reduce", [rand(3, 20), None], attrs, kernel="reduce", epilogue=[("Relu",)])
    check("Reduce", [rand(3, 20), None], attrs, kernel="reduce", epilogue=[("Mul", rand(3, 1))])


def test_runs_alternate() -> None:
    assert runs_of((2, 3, 1, 4, 5), {1, 3}) == [
        Run(2, 60, False),
        Run(12, 5, True),
        Run(5, 1, False),
    ]


AXES = [((1,), 0), ((40,), 0), ((5, 7), 1), ((5, 37), 0), ((2, 3, 5, 4), 1), ((2, 33, 1), 1),
        ((5, 7, 3), 2), ((17, 8), 1), ((3, 150), 0), ((2, 1, 5), 1)]  # fmt: skip


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_arg_reduce(target: str, kind: str, shape: tuple, axis: int) -> None:
    ties = RNG.integers(-3, 3, shape).astype("f4")
    nan = ties.copy()
    nan.reshape(-1)[[0, -1]] = np.nan
    for x, last in ((ties, False), (ties, True), (nan, False), (nan, True)):
        attrs = {"kind": kind, "axis": axis, "select_last": last, "keepdims": last}
        check("ArgReduce", [x], attrs, kernel="arg_reduce", target=target)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "int32", "int64"])
def test_arg_reduce_of_any_type(target: str, dtype: str, shape: tuple, axis: int) -> None:
    info = np.iinfo(dtype) if dtype != "float64" else None
    choices = [0, 1, 120] if info is None else [info.min, 1, info.max]
    x = RNG.choice(choices, shape).astype(dtype)
    for kind, last in (("max", False), ("max", True), ("min", False), ("min", True)):
        attrs = {"kind": kind, "axis": axis, "select_last": last}
        check("ArgReduce", [x], attrs, kernel="arg_reduce", target=target)
        check("ArgReduce", [np.full_like(x, choices[0])], attrs, kernel="arg_reduce", target=target)


def test_places_lie_where_an_addend_lay() -> None:
    """The last rows overlap those before: to what they have finished nothing is added again."""
    places = np.arange(37)[:, None]
    check("ArgReduce", [rand(37, 3)], {"kind": "max", "axis": 1}, kernel="arg_reduce",
          epilogue=[("Add", places)])  # fmt: skip


def test_arg_reduce_of_infinities() -> None:
    for kind, value in (("max", -np.inf), ("min", np.inf)):
        for shape, axis in (((3, 21), 1), ((3, 21), 0)):
            x = np.full(shape, value, "f4")
            check("ArgReduce", [x], {"kind": kind, "axis": axis}, kernel="arg_reduce")


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_scans(target: str, op: str, shape: tuple, axis: int) -> None:
    whole = RNG.integers(-3, 4, shape)
    flags = [(rand(*shape), False, True), (whole, True, False)]
    flags += [(rand(*shape).astype("f8"), True, True), (whole.astype("i4"), False, False)]
    for x, exclusive, reverse in flags:
        attrs = {"exclusive": exclusive, "reverse": reverse}
        check(op, [x, np.array(axis)], attrs, consts=(1,), kernel=op.lower(), target=target)


LONG = [  # operator, shape, attributes: rows of 2^21 elements, and rows across
    ("Reduce", (1, 1 << 21), {"axes": 1}), ("Reduce", (3, 1 << 19), {"axes": 1}),
    ("GlobalPool", (1, 20, 1024, 700), {}), ("GlobalPool", (1, 3, 2, 1 << 19), {}),
]  # fmt: skip


@pytest.mark.parametrize("shapes", ["fixed", "free"])
@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("op", "shape", "attrs"), LONG)
def test_long_sums_keep_their_digits(op, shape, attrs, target, shapes) -> None:
    """Of numbers that are alike, each addition to a long sum rounds the same way."""
    x = np.full(shape, 0.1, np.float32)
    graph = Graph("g")
    free = [f"d{i}" if shapes == "free" and i != 1 else d for i, d in enumerate(shape)]
    if op == "Reduce" and shapes == "free":
        free = [shape[0], "n"]
    values = [graph.input("x", Type("float32", tuple(free)))]
    values += [graph.const(np.array([attrs["axes"]]))] if attrs else []
    graph.outputs = list(graph.add(OPS[op], *values, kind="mean").outputs)
    y = ts.compile(graph, target=target, shapes=shapes, cache=False)(x)
    np.testing.assert_allclose(y, np.float32(0.1), rtol=3e-5)


@pytest.mark.parametrize("target", VECTORS)
def test_long_norms_keep_their_digits(target: str) -> None:
    x = 100 + rand(1, 1 << 22)
    graph = Graph("g")
    graph.outputs = [ops.LayerNorm(graph.input("x", Type("float32", x.shape)))]
    y = ts.compile(graph, target=target, cache=False)(x)
    exact = x.astype(float)
    np.testing.assert_allclose(y, (exact - exact.mean()) / exact.std(), rtol=0, atol=5e-5)
