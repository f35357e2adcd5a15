"""What ONNX files declare of values, bodies and functions; and branches that do not fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.helper import make_node as node

import tinsmith as ts
from tests.frontends.models import info, load, model
from tinsmith.errors import DataError, ModelWarning, ReferenceFailed, TypeRuleError
from tinsmith.graph.text import format_graph, parse_graph
from tinsmith.graph.verify import verify

INT, BOOL = TensorProto.INT64, TensorProto.BOOL
BACKENDS = ("cpu", "numpy")
ONE = {"one": np.array([1])}
X = np.arange(4, dtype=np.float32)


def operators(graph: Any) -> list[str]:
    return [n.op.name for n in graph]


def reshaped(declared: Any, more: Any = (), output: Any = "y") -> ModelProto:
    """y = Reshape(x[4], s[2])"""
    nodes = [node("Reshape", ["x", "s"], ["y"]), *more]
    return model(nodes, [info("x", [4]), info("s", [2], INT)], [output], value_info=declared)


# ---- where checks come, and where they go


def test_what_follows_is_not_checked() -> None:
    graph = load(model([node("Relu", ["x"], ["y"])], [info("x", [4])], [info("y", [4])]))
    assert operators(graph) == ["Relu"]


def test_a_check_bears_the_name_of_the_value() -> None:
    graph = load(reshaped([], output=info("y", [2, 2])))
    assert operators(graph) == ["Reshape", "Declared"]
    assert [v.name for v in graph.outputs] == ["y"]
    assert graph.nodes[1].origin == graph.nodes[0].origin


def test_what_no_output_depends_on_is_not_checked() -> None:
    nodes = [node("Reshape", ["x", "s"], ["dead"]), node("Relu", ["dead"], ["deader"]),
             node("Relu", ["x"], ["y"])]  # fmt: skip
    inputs = [info("x", [4]), info("s", [2], INT)]
    graph = load(model(nodes, inputs, ["y"], value_info=[info("dead", [3, 3])]))
    assert "Declared" not in operators(graph)


def test_a_size_that_passes_prove_is_not_checked_in_the_run() -> None:
    """The target follows from shapes, which the importer does not look into."""
    nodes = [node("Shape", ["x"], ["s"]), node("Mul", ["s", "half"], ["t"]),
             node("Concat", ["t", "two"], ["u"], axis=0), node("Cast", ["u"], ["v"], to=INT),
             node("Reshape", ["x", "v"], ["y"])]  # fmt: skip
    weights = {"half": np.array([1]), "two": np.array([1])}
    proto = model(nodes, [info("x", [4])], [info("y", [4, 1])], weights)
    assert "Declared" in operators(load(proto))
    net = ts.compile(ts.load(proto), cache=False)
    assert "Declared" not in net.graph("canonical")
    assert {s.op: s.kind for s in net.program().plan.steps}["Reshape"] == "view"


def test_a_size_that_passes_disprove_is_an_error() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["y"])]
    proto = model(nodes, [info("x", [4])], [info("y", [5])])
    with pytest.raises(TypeRuleError, match=r"declares \[5\]"):
        ts.compile(ts.load(proto), cache=False)
    with pytest.raises(DataError, match=r"declares \[5\]"):
        ts.compile(ts.load(proto), backend="numpy")(X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_check_stays_where_only_the_shape_is_read(backend: str) -> None:
    proto = reshaped([info("y", [4, 1])], [node("Shape", ["y"], ["z"])], "z")
    net = ts.compile(ts.load(proto), backend=backend, cache=False)
    np.testing.assert_array_equal(net(X, np.array([4, 1])), [4, 1])
    with pytest.raises(DataError, match=r"Reshape 'y'.*declares"):
        net(X, np.array([2, 2]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_is_checked_where_it_is_not_known(backend: str) -> None:
    inputs = [info("x", ["a", "b", "c"])]
    proto = model([node("Squeeze", ["x"], ["y"])], inputs, [info("y", ["p", "q"])])
    net = ts.compile(ts.load(proto), backend=backend, cache=False)
    assert net(np.ones((2, 1, 3), np.float32)).shape == (2, 3)
    with pytest.raises((DataError, TypeRuleError), match=r"declares \[\?,\?\]"):
        net(np.ones((2, 1, 1), np.float32))


def test_what_was_proven_is_native_behind_a_check() -> None:
    more = [node("MatMul", ["y", "w"], ["z"])]
    proto = model(
        [node("Reshape", ["x", "s"], ["y"]), *more], [info("x", [4]), info("s", [2], INT)], ["z"],
        {"w": np.eye(2, dtype=np.float32)}, value_info=[info("y", [2, 2])],
    )  # fmt: skip
    net = ts.compile(ts.load(proto), cache=False)
    kinds = {s.op: s.kind for s in net.program().plan.steps}
    assert kinds == {"Reshape": "reference", "MatMul": "native"}
    np.testing.assert_array_equal(net(X, np.array([2, 2])), X.reshape(2, 2))


def test_text_of_a_declared_shape_is_checked() -> None:
    nodes = [node("StringSplit", ["x"], ["y", "n"]), node("Shape", ["y"], ["z"])]
    value = [info("y", [1, 3], TensorProto.STRING)]
    proto = model(nodes, [info("x", [1], TensorProto.STRING)], ["z"], value_info=value)
    net = ts.compile(ts.load(proto), cache=False)
    np.testing.assert_array_equal(net(np.array(["a b c"], object)), [1, 3])
    with pytest.raises(DataError, match="declares"):
        net(np.array(["a b"], object))


# ---- bodies


def looped(formal: Any) -> ModelProto:
    """A state that grows: it is joined with itself, n times."""
    body = helper.make_graph(
        [node("Concat", ["s", "s"], ["t"], axis=0), node("Identity", ["c"], ["d"])], "body",
        [info("i", [], INT), info("c", [], BOOL), info("s", formal)],
        [info("d", [], BOOL), info("t", formal)],
    )  # fmt: skip
    nodes = [node("Loop", ["n", "", "x"], ["y"], body=body), node("Shape", ["y"], ["z"])]
    return model(nodes, [info("n", [], INT), info("x", [4])], ["y", "z"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("formal", [None, [4], [8], ["k"], [7], [2, 2]], ids=str)
def test_a_state_is_not_what_the_body_declares(formal: Any, backend: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            graph = ts.load(looped(formal))
        verify(graph, proven=True)
        y, z = ts.compile(graph, backend=backend, cache=False).run([np.array(3), X])
    except (DataError, TypeRuleError):
        assert formal is not None and formal != ["k"]
        return
    np.testing.assert_array_equal(y, np.tile(X, 8))
    np.testing.assert_array_equal(z, [32])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_an_if_gives_is_checked(backend: str) -> None:
    yes = helper.make_graph([node("Relu", ["x"], ["a"])], "yes", [], [info("a", [4])])
    no = helper.make_graph([node("Concat", ["x", "x"], ["b"], axis=0)], "no", [], [info("b", [8])])
    nodes = [node("If", ["c"], ["m"], then_branch=yes, else_branch=no), node("Exp", ["m"], ["y"])]
    inputs = [info("c", [], BOOL), info("x", [4])]
    net = ts.compile(
        ts.load(model(nodes, inputs, ["y"], value_info=[info("m", [4])])),
        backend=backend, cache=False,
    )  # fmt: skip
    np.testing.assert_allclose(net(np.array(True), X), np.exp(X), rtol=1e-5)
    with pytest.raises(DataError, match=r"If 'm'.*declares"):
        net(np.array(False), X)


def test_a_text_whose_body_takes_its_input_for_more_than_it_is() -> None:
    text = """graph g (c: bool[], x: float32[N]) {
      y = If(c, x, then_branch=graph a (x: float32[4]) { return x },
                   else_branch=graph b (x: float32[4]) { return x })
      return y
    }"""
    with pytest.raises(ts.errors.GraphSyntaxError, match=r"taken for float32\[4\]"):
        parse_graph(text)


def test_names_of_sizes_in_a_text_are_not_believed() -> None:
    text = """graph g (x: float32[N], s: int64[1]) {
      y = Reshape(x, s) : float32[N]
      z = Reshape(x, s) : float32[k]
      return y, z
    }"""
    graph = parse_graph(text)
    (y,), (z,) = (v.shape for v in graph.outputs)
    assert z == "k" and y not in ("N", "k")
    assert format_graph(parse_graph(format_graph(graph))) == format_graph(graph)


# ---- branches that do not fit


def branched(x: Any, condition: Any = None) -> ModelProto:
    """ReduceSum(x) if c else Squeeze(x, 1)"""
    yes = helper.make_graph([node("ReduceSum", ["x"], ["a"])], "yes", [], [info("a")])
    no = helper.make_graph([node("Squeeze", ["x", "one"], ["b"])], "no", [], [info("b")])
    nodes = [node("If", ["c"], ["m"], then_branch=yes, else_branch=no), node("Exp", ["m"], ["y"])]
    inputs = [info("x", x)] if condition is not None else [info("c", [], BOOL), info("x", x)]
    weights = ONE if condition is None else {**ONE, "c": np.array(condition)}
    return model(nodes, inputs, ["y"], weights)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [[1, 2], ["n", "m"]], ids=str)
def test_a_branch_that_is_not_taken_need_not_fit(sizes: Any, backend: str) -> None:
    net = ts.compile(load(branched(sizes)), backend=backend, cache=False)
    x = np.ones((1, 2), np.float32)
    np.testing.assert_allclose(net(np.array(True), x), np.exp([[2]]), rtol=1e-5)
    with pytest.raises((DataError, ReferenceFailed), match="Squeeze 'b'"):
        net(np.array(False), x)
    if sizes == ["n", "m"]:
        x = np.ones((3, 1), np.float32)
        np.testing.assert_allclose(net(np.array(False), x), np.exp([1, 1, 1]), rtol=1e-5)


def test_the_branch_that_alone_fits_is_native() -> None:
    net = ts.compile(load(branched([1, 2])), cache=False)
    assert {s.kind for s in net.program().plan.steps} <= {"native", "view"}
    assert net(np.array(True), np.ones((1, 2), np.float32)).shape == (1, 1)


def test_a_branch_that_is_taken_must_fit() -> None:
    x = np.ones((1, 2), np.float32)
    assert ts.compile(load(branched([1, 2], True)), cache=False)(x).shape == (1, 1)
    with pytest.raises((DataError, TypeRuleError), match="Squeeze 'b'"):
        ts.compile(load(branched([1, 2], False)), cache=False)(x)
    free = ts.compile(load(branched(["n", "m"], False)), cache=False)
    assert free(np.ones((2, 1), np.float32)).shape == (2,)
    with pytest.raises((DataError, TypeRuleError), match="Squeeze 'b'"):
        free(x)


def test_a_body_of_a_loop_that_never_runs_need_not_fit() -> None:
    body = helper.make_graph(
        [node("Squeeze", ["x", "one"], ["t"]), node("Identity", ["c"], ["d"]),
         node("Identity", ["s"], ["u"])], "body",
        [info("i", [], INT), info("c", [], BOOL), info("s", [4])],
        [info("d", [], BOOL), info("u"), info("t")],
    )  # fmt: skip
    nodes = [node("Loop", ["n", "", "s0"], ["y", "all"], body=body)]
    inputs = [info("n", [], INT), info("s0", [4]), info("x", [1, 2])]
    graph = load(model(nodes, inputs, ["y"], ONE))
    x = np.ones((1, 2), np.float32)
    for backend in BACKENDS:
        net = ts.compile(graph, backend=backend, cache=False)
        np.testing.assert_array_equal(net(np.array(0), X, x), X)
        with pytest.raises(DataError, match="Squeeze 't'"):
            net(np.array(1), X, x)


def test_both_branches_that_do_not_fit_are_an_error_of_the_model() -> None:
    no = [helper.make_graph([node("Squeeze", ["x", "one"], [v])], v, [], [info(v)]) for v in "ab"]
    nodes = [node("If", ["c"], ["y"], then_branch=no[0], else_branch=no[1])]
    with pytest.raises(ts.errors.ImportFailed, match="axis 1"):
        ts.load(model(nodes, [info("c", [], BOOL), info("x", [1, 2])], ["y"], ONE))
