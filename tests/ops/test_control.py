"""Operators that hold graphs, and the interpreter."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check, close, normal, refused, types_of
from tinsmith.errors import DataError, GraphError, ReferenceFailed
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS, op
from tinsmith.ops.interpret import run_graph

F32, I64, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(bool)


def graph(inputs: dict[str, Type], build: Any, name: str = "body") -> Graph:
    """A graph whose outputs are what `build(graph, *inputs)` returns."""
    g = Graph(name)
    g.outputs = list(build(g, *(g.input(n, t) for n, t in inputs.items())))
    return g


def f32(*shape: Any) -> Type:
    return Type(F32, shape)


# ---- the interpreter


def test_run_graph_by_order_and_by_name():
    def build(g, a, b):
        return [OPS["Sub"](a, b), OPS["MatMul"](a, g.const(np.eye(2, dtype=np.float32))), b]

    g = graph({"a": f32(2, 2), "b": f32(2, 2)}, build)
    a, b = normal(2, 2), normal(2, 2, seed=1)
    for feeds in ([a, b], {"b": b, "a": a}):
        got = run_graph(g, feeds)
        for y, want in zip(got, (a - b, a, b), strict=True):
            close(y, want)


def test_outputs_may_be_constants_inputs_and_twice_the_same():
    def build(g, a):
        y = OPS["Relu"](a)
        return [y, a, y, g.const(np.float32(3))]

    a = normal(3)
    got = run_graph(graph({"a": f32(3)}, build), [a])
    assert [v.tolist() for v in got[:3]] == [np.maximum(a, 0).tolist(), a.tolist(), got[0].tolist()]
    assert got[3] == 3


def test_dead_values_are_freed():
    """At no time do more than two results of a chain live."""
    alive: list[Any] = []
    most = 0

    class Tracked(np.ndarray):
        pass

    def reference(x):
        nonlocal most
        y = (np.asarray(x) + 1).view(Tracked)
        alive[:] = [r for r in alive if r() is not None]
        alive.append(weakref.ref(y))
        most = max(most, len(alive))
        return y

    reference.__name__ = "TrackedForTheTest"
    tracked = op("elementwise")(reference)
    try:

        def build(g, a):
            for _ in range(10):
                a = tracked(a)
            return [a]

        (y,) = run_graph(graph({"a": f32(4)}, build), [np.zeros(4, np.float32)])
    finally:
        OPS.remove(tracked.name)
    assert (y == 10).all() and most <= 2


def test_failures_name_the_node():
    g = graph({"a": f32("N"), "b": f32("M")}, lambda g, a, b: [OPS["Add"](a, b, name="sum")])
    with pytest.raises(ReferenceFailed, match=r"'sum'.*Add\(float32\[2\], float32\[3\]\)"):
        run_graph(g, [np.zeros(2, np.float32), np.zeros(3, np.float32)])


@pytest.mark.parametrize(
    ("feeds", "message"), [([], "1 inputs, 0 are given"), ({"b": 1}, "needs the inputs a")]
)
def test_wrong_feeds(feeds, message):
    with pytest.raises(GraphError, match=message):
        run_graph(graph({"a": f32(2)}, lambda g, a: [a]), feeds)


# ---- If


def branches(*shapes: Any, same: bool = True) -> dict[str, Graph]:
    yes = graph({"a": f32(*shapes), "b": f32(*shapes)}, lambda g, a, b: [OPS["Add"](a, b), a])
    no = graph(
        {"a": f32(*shapes), "b": f32(*shapes)},
        lambda g, a, b: [
            OPS["Sub"](a, b) if same else OPS["Concat"](a, b, axis=0),
            OPS["Identity"](b),
        ],
    )
    return {"then_branch": yes, "else_branch": no}


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_if(condition, shape):
    a, b = normal(2, 3), normal(2, 3, seed=1)
    got = check("If", np.full(shape, condition), a, b, fixed=[1, 2], **branches(2, 3))
    close(got[0], a + b if condition else a - b)
    close(got[1], a if condition else b)


def test_if_of_different_shapes():
    types = types_of("If", [Type(BOOL, ()), f32(2, 3), f32(2, 3)], branches(2, 3, same=False))
    assert types[0].shape is not None
    first, second = types[0].shape
    assert isinstance(first, str) and second == 3 and types[1].shape == (2, 3)


def test_branches_follow_the_outer_types():
    """The branches were built for [A,B], and are used for [7,N]."""
    types = types_of("If", [Type(BOOL, ()), f32(7, "N"), f32(7, "N")], branches("A", "B"))
    assert [t.shape for t in types] == [(7, "N"), (7, "N")]


# ---- Loop


def counting(shape: Any, stop: Any = None) -> Graph:
    """total += step * (i + 1), and the total as an item; go on while i + 1 < stop."""

    def build(g, i, go, total, step):
        one = OPS["Add"](i, g.const(np.array(1)))
        total = OPS["Add"](total, OPS["Mul"](step, OPS["Cast"](one, to="float32")))
        go = go if stop is None else OPS["Less"](one, g.const(np.array(stop)))
        return [go, total, OPS["Identity"](total)]

    inputs = {"i": Type(I64, ()), "go": Type(BOOL, ()), "total": f32(*shape), "step": f32(*shape)}
    return graph(inputs, build)


@pytest.mark.parametrize(
    ("count", "condition", "stop", "iterations"),
    [
        (3, None, None, 3),
        (3, True, None, 3),
        (3, False, None, 0),
        (0, None, None, 0),
        (5, True, 2, 2),
        (None, True, 4, 4),
        (None, False, 4, 0),
    ],
)
def test_loop(count, condition, stop, iterations):
    total, step = normal(2, 3), normal(2, 3, seed=1)
    flags = [
        None if count is None else np.array(count),
        None if condition is None else np.array(condition),
    ]
    arrays = [*flags, total, step]
    y, items = check(
        "Loop", *arrays, consts=[0, 1], fixed=[2, 3], body=counting((2, 3), stop), captured=1
    )
    want = [total + step * (t + 1) * (t + 2) / 2 for t in range(iterations)]
    close(y, want[-1] if want else total)
    assert items.shape == (iterations, 2, 3)
    if want:
        close(items, np.stack(want), atol=1e-4)


def test_loop_of_a_known_number_of_iterations_has_a_known_size():
    types = [np.array(4), None, f32(2, 3), f32(2, 3)]
    attrs = {"body": counting((2, 3)), "captured": 1}
    assert [t.shape for t in types_of("Loop", types, attrs)] == [(2, 3), (4, 2, 3)]
    attrs["body"] = counting((2, 3), stop=2)
    iterations = types_of("Loop", types, attrs)[1].shape
    assert iterations is not None and isinstance(iterations[0], str)


def test_a_state_that_grows_is_symbolic():
    def build(g, i, go, x):
        return [go, OPS["Concat"](x, x, axis=0)]

    body = graph({"i": Type(I64, ()), "go": Type(BOOL, ()), "x": Type(F32, None)}, build)
    (y,) = check("Loop", np.array(3), None, normal(1, 3), body=body)
    assert y.shape == (8, 3)
    shape = types_of("Loop", [np.array(3), None, f32(1, 3)], {"body": body})[0].shape
    assert shape is not None and isinstance(shape[0], str) and shape[1] == 3


# ---- Scan


def scanning() -> Graph:
    """state += x * k; items: the state, and x."""

    def build(g, state, x, k):
        state = OPS["Add"](state, OPS["Mul"](x, k))
        return [state, OPS["Identity"](state), x]

    return graph({"state": f32(3), "x": f32(3), "k": f32()}, build)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
@pytest.mark.parametrize("out_backward", [0, 1])
def test_scan(axis, backward, out_axis, out_backward):
    rows, start, k = normal(4, 3), normal(3, seed=1), np.float32(2)
    order = range(3, -1, -1) if backward else range(4)
    x = rows if axis == 0 else np.ascontiguousarray(rows.T)
    state, items, seen = check(
        "Scan",
        start,
        x,
        k,
        fixed=[0, 1, 2],
        body=scanning(),
        num_scan_inputs=1,
        captured=1,
        scan_input_axes=(axis,),
        scan_input_directions=(backward,),
        scan_output_axes=(0, out_axis),
        scan_output_directions=(out_backward, 0),
    )
    states = start + np.cumsum(rows[list(order)] * 2, axis=0)
    close(state, states[-1], atol=1e-4)
    close(items, states[::-1] if out_backward else states, atol=1e-4)
    close(seen, np.moveaxis(rows[list(order)], 0, out_axis))


def test_scan_of_nothing():
    state, items, _ = check(
        "Scan",
        normal(3),
        normal(0, 3),
        np.float32(1),
        fixed=[0, 1, 2],
        body=scanning(),
        num_scan_inputs=1,
        captured=1,
    )
    close(state, normal(3))
    assert items.shape == (0, 3)


def test_inputs_of_a_scan_are_equally_long():
    a, b = f32(3), f32(3)
    body = graph({"a": a, "b": b}, lambda g, a, b: [OPS["Add"](a, b)])
    attrs: dict[str, Any] = {"body": body, "num_scan_inputs": 2}
    with refused("scanned for 1 and 4"):
        types_of("Scan", [f32(1, 3), f32(4, 3)], attrs)
    with pytest.raises(DataError, match=r"scanned for \[1, 4\]"):
        OPS["Scan"](normal(1, 3), normal(4, 3), **attrs)
    assert types_of("Scan", [f32("N", 3), f32(4, 3)], attrs)[0].shape == (4, 3)


# ---- Fused


ANY = Type(F32, None)


def fused_body(x: Type = ANY) -> Graph:
    def build(g, x, w, b):
        return [OPS["Relu"](OPS["Add"](OPS["MatMul"](x, w), b))]

    return graph({"x": x, "w": f32(3, 4), "b": f32(4)}, build)


def test_fused():
    x, w, b = normal(2, 3), normal(3, 4), normal(4)
    body = fused_body()
    (y,) = check("Fused", x, w, b, fixed=[1, 2], body=body)
    close(y, np.maximum(x @ w + b, 0))
    assert types_of("Fused", [f32("N", 3), f32(3, 4), f32(4)], {"body": body})[0].shape == ("N", 4)
    g = Graph()
    types = {"x": f32(2, 3), "w": f32(3, 4), "b": f32(4)}
    values = [g.input(n, t) for n, t in types.items()]
    node = g.add(OPS["Fused"], *values, body=fused_body(f32(2, 3)))
    assert OPS["Fused"].flops(node.inputs, node.outputs, node.attrs) == 2 * 2 * 3 * 4 + 8 + 8


@pytest.mark.parametrize(
    ("name", "types", "attrs", "fragments"),
    [
        ("Fused", [f32(2, 3)], {"body": fused_body()}, ["3 inputs, 1 are given", "x, w, b"]),
        (
            "Fused",
            [f32(2, 5), f32(3, 4), f32(4)],
            {"body": fused_body()},
            ["MatMul", "b wants 3 columns, a has 5"],
        ),
        ("If", [Type(I64, ()), f32(2), f32(2)], branches(2), ["condition must be bool"]),
        ("If", [Type(BOOL, ()), f32(2)], branches(2), ["2 inputs, 1 are given"]),
        ("Loop", [None, None, f32(2), Type(I64, (2,))], {"body": counting((2,)), "captured": 1},
         ["'step'", "float32", "int64"]),
        ("Scan", [f32(3)], {"body": scanning(), "num_scan_inputs": 2}, ["2 scan inputs"]),
        (
            "Scan",
            [f32(3), f32(3, 4), f32()],
            {"body": scanning(), "num_scan_inputs": 1, "captured": 1, "scan_input_axes": (2,)},
            ["scan_input_axes 2"],
        ),
        *(
            (
                "Scan",
                [f32(3), f32(4, 3), f32()],
                {"body": scanning(), "num_scan_inputs": 1, "captured": 1, name: value},
                fragments,
            )
            for name, value, fragments in [
                ("scan_input_directions", (2,), ["0 (forward) or 1 (backward)", "2"]),
                ("scan_output_directions", (0, -1), ["0 (forward) or 1 (backward)", "-1"]),
                ("scan_input_axes", (0, 0), ["scan_input_axes", "1 values"]),
                ("scan_input_directions", (0, 0), ["scan_input_directions", "1 values"]),
                ("scan_output_axes", (), ["scan_output_axes", "2 values"]),
                ("scan_output_directions", (0,), ["scan_output_directions", "2 values"]),
            ]
        ),
    ],
)  # fmt: skip
def test_refused(name, types, attrs, fragments):
    with refused(*fragments):
        types_of(name, types, attrs)
