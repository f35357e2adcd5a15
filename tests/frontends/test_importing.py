"""What the importers of all formats share, by a format that is registered from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.layers import FORMAT, Layer, layer
from tests.frontends.models import floats
from tinsmith.errors import (
    BudgetExceeded,
    DataError,
    DuplicateName,
    GraphError,
    ImportFailed,
    ModelFileError,
    ModelWarning,
)
from tinsmith.frontends import FRONTENDS
from tinsmith.frontends.importing import Import
from tinsmith.frontends.nodes import Scope
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph

SHAPE = (1, 4, 6, 6)


@pytest.fixture(autouse=True)
def format() -> Iterator[None]:
    FRONTENDS.register("layers", FORMAT)
    yield
    FRONTENDS.remove("layers")


def one(type: str, reads: str, gives: str, **attrs: Any) -> dict[str, Any]:
    return {
        "type": type,
        "name": f"the {gives[:1]}",
        "in": reads.split(),
        "out": gives.split(),
    } | attrs


def text(*net: dict[str, Any], outputs: str = "y", **more: Any) -> bytes:
    said = {"layers": 1, "inputs": {"x": SHAPE}, "outputs": outputs.split(), "net": net, **more}
    return json.dumps(said).encode()


def written(folder: Path, weight: float) -> Path:
    """y = relu(conv(x)) + x, in two files."""
    np.full((4, 4, 3, 3), weight, np.float32).tofile(folder / "net.bin")
    path = folder / "net.layers"
    net = [
        one("Conv", "x", "c", weight=[4, 4, 3, 3], pad=[1] * 4, shape=SHAPE),
        one("Relu", "c", "r"),
        one("Add", "r x", "y"),
    ]
    path.write_bytes(text(*net, weights="net.bin"))
    return path


def test_a_model_of_another_format(tmp_path: Path) -> None:
    path = written(tmp_path, 0.5)
    graph = ts.load(path)
    assert [(n.name, n.op.name, n.output.name) for n in graph.nodes] == [
        ("the c", "Conv", "c"),
        ("the r", "Relu", "r"),
        ("the y", "Add", "y"),
    ]
    assert str(graph.nodes[0].origin) == "Conv 'the c' of net.layers"
    assert {f.name for f in graph.files} == {"net.layers", "net.bin"}
    x = floats(*SHAPE)
    (want,) = run_graph(graph, {"x": x})
    np.testing.assert_allclose(ts.compile(path)(x), want, rtol=1e-5, atol=1e-5)


def test_kept_programs_know_of_a_change_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(FRONTENDS, "outside", set())  # as a format of the package
    path, x = written(tmp_path, 0.5), np.ones(SHAPE, np.float32)
    first = ts.compile(path)(x)
    np.testing.assert_array_equal(ts.compile(path)(x), first)
    written(tmp_path, 1.0)
    np.testing.assert_allclose(ts.compile(path)(x) - 1, 2 * (first - 1), rtol=1e-6)


def test_layers_in_any_order() -> None:
    graph = ts.load(text(one("Add", "a b", "y"), one("Relu", "x", "a"), one("Sigmoid", "a", "b")))
    assert [n.op.name for n in graph.nodes] == ["Relu", "Sigmoid", "Add"]


def test_all_problems_are_told_at_once() -> None:
    net = [
        one("Reul", "x", "a"),
        one("Relu", "a", "b"),  # reads what is not there: no problem of its own
        one("Reul", "x", "c", version=2),
        one("Reul", "x", "d"),
        one("Clamp", "x", "e"),
        one("Relu", "x", "f", slope=0.1, bias=1),
        one("Add", "x", "g"),
        one("Clamp", "x", "h", most="none"),
        one("Halves", "x", "i j", both=False),
        one("Add", "i j", "y"),
    ]
    with pytest.raises(ImportFailed) as caught:
        ts.load(text(*net))
    first, *lines, last = str(caught.value).splitlines()
    assert first == "the model cannot be imported; 8 nodes are not understood:"
    missing = "there is no importer for this operator. Did you mean 'Relu'?"
    wrong = "its inputs or attributes are not as expected"
    for line, want in zip(
        lines,
        [
            f"Reul (version 1) x2: {missing} ['the a', 'the d']",
            f"Reul (version 2) x1: {missing} ['the c']",
            "Clamp (version 1) x1: its attribute 'most' is missing ['the e']",
            "Relu (version 1) x1: it has attributes that are not known: 'bias', 'slope' ['the f']",
            "Add (version 1) x1: its input 1 is missing ['the g']",
            f"Clamp (version 1) x1: {wrong} (TypeError: ",
            "Halves (version 1) x1: its output 1 ('j') is not supported ['the i']",
        ],
        strict=True,
    ):
        assert line.strip().startswith(want)
    assert last == layer.help


def test_outputs_that_nothing_reads_need_no_importer() -> None:
    graph = ts.load(text(one("Halves", "x", "y j", both=False)))
    assert graph.outputs[0].name == "y"


def test_an_importer_that_gives_nothing_is_a_problem() -> None:
    layer("Nothing")(lambda node: None)
    try:
        with pytest.raises(ImportFailed, match=r"Nothing .*its output 0 \('y'\) is not supported"):
            ts.load(text(one("Nothing", "x", "y")))
    finally:
        layer.remove("Nothing")


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ([one("Relu", "z", "y")], "'the y' \\(Relu\\) of the model reads 'z', which is neither"),
        ([one("Relu", "x", "first"), one("Relu", "fisrt", "y")], "Did you mean 'first'"),
        ([one("Relu", "x", "a")], "the output 'y' of the model is computed by no node"),
        ([one("Relu", "x", "y"), one("Relu", "x", "y")], "computes the value 'y' twice"),
        ([one("Relu", "x", "x")], "computes the value 'x' twice|cycle"),
        ([one("Relu", "y", "a"), one("Relu", "a", "y")], "has a cycle through 'the a', 'the y'"),
        (
            [one("Relu", "b", "a"), one("Relu", "a", "b"), one("Relu", "b", "y")],
            "'the a', 'the b'$",
        ),
    ],
    ids=["unknown", "misspelled", "no output", "twice", "an input", "cycle", "cycle and reader"],
)
def test_graphs_that_are_none(net: list[Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        ts.load(text(*net))


def test_names_of_the_file_come_before_those_that_importers_make() -> None:
    net = [
        one("Clamp", "x", "a", most=1.0) | {"name": "k"},  # makes a node "k/Relu"
        one("Clamp", "a", "b", most=1.0) | {"name": "h"},  # makes a value "h/Relu"
        one("Relu", "b", "h/Relu"),
        one("Relu", "h/Relu", "y") | {"name": "k/Relu"},
    ]
    graph = ts.load(text(*net))
    assert (graph.nodes[-1].name, graph.nodes[-1].output.name) == ("k/Relu", "y")
    names = [v.name for n in graph.nodes for v in n.outputs]
    assert len(set(names)) == len(names) and "h/Relu" in names


def test_declared_sizes_are_checked() -> None:
    """Those that contradict what is known are noted; others, of which nothing is known, run."""
    with pytest.warns(ModelWarning, match="declares 'y' as .*; it is float32"):
        graph = ts.load(text(one("Relu", "x", "y", shape=[1, 4, 6, 7])))
    assert "declares 'y'" in graph.meta["notes"][0]
    assert len(ts.load(text(one("Relu", "x", "y", shape=SHAPE)))) == 1

    scope = Scope(Import(layer), Graph("free"))
    scope.add_input("x", Type("float32", None))  # type: ignore[arg-type]
    records = [one("Relu", "x", "y", shape=["N", 2])]
    scope.run(records, lambda record: Layer(scope, record, []), ["y"])
    scope.set_outputs(["y"])
    graph = scope.shared.finish(scope.graph)
    assert run_graph(graph, {"x": floats(3, 2)})[0].shape == (3, 2)
    with pytest.raises(DataError, match="a size that the model declares is not so"):
        run_graph(graph, {"x": floats(3, 2, 1)})


def test_notes_name_their_node() -> None:
    with pytest.warns(ModelWarning, match="Clamp 'the y': it clamps to negative numbers"):
        ts.load(text(one("Clamp", "x", "y", most=-1.0)))


@pytest.mark.parametrize("nested", [False, True])
def test_what_does_not_fit_in_a_body_is_an_error_of_the_run(nested: bool) -> None:
    scope = Scope(Import(layer), Graph("body"), nested=nested)
    for name, n in (("x", 3), ("z", 4)):
        scope.add_input(name, Type("float32", (n,)))
    scope.run([one("Add", "x z", "y")], lambda record: Layer(scope, record, []), ["y"])
    scope.set_outputs(["y"])
    if not nested:
        with pytest.raises(ImportFailed, match="Add"):
            scope.shared.finish(scope.graph)
        return
    graph = scope.shared.finish(scope.graph)
    with pytest.raises(DataError, match="Add"):
        run_graph(graph, {"x": floats(3), "z": floats(4)})


def test_a_function_is_imported_in_place_of_its_call() -> None:
    """Its names get a prefix, and its values are those that the call gives."""
    graph = Graph("g")
    outer = Scope(Import(layer), graph)
    x = outer.add_input("x", Type("float32", SHAPE))
    inner = Scope(outer.shared, graph, prefix="call")
    inner.bind("a", x)
    inner.run([one("Relu", "a", "b")], lambda record: Layer(inner, record, []), ["b"])
    assert inner.look_up("b").name == "call/b"
    assert graph.nodes[0].origin.name == "call/the b"


def test_constants_are_read_by_name() -> None:
    scope = Scope(Import(layer), Graph("g"))
    scope.add_input("x", Type("float32", (3,)))
    scope.add_constant("w", np.ones(3, np.float32))
    scope.run([one("Add", "x w", "y")], lambda record: Layer(scope, record, []), ["y", "w"])
    scope.set_outputs(["y", "w"])
    y, w = run_graph(scope.shared.finish(scope.graph), {"x": np.zeros(3, np.float32)})
    assert y.tolist() == w.tolist() == [1, 1, 1]


def test_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_BUDGET", "nodes=2")
    net = [one("Relu", "x", "a"), one("Relu", "a", "b"), one("Relu", "b", "y")]
    with pytest.raises(BudgetExceeded, match="3 nodes, where 2 nodes are allowed"):
        ts.load(text(*net))


def test_layers_have_one_importer_each() -> None:
    with pytest.raises(DuplicateName, match="layer 'Relu' is registered twice"):
        layer("Relu")(lambda node: None)


@pytest.mark.parametrize("size", [12, 40, 100])
def test_a_truncated_file_is_damaged(size: int) -> None:
    with pytest.raises(ModelFileError, match="the model is damaged"):
        ts.load(text(one("Relu", "x", "y"))[:size])
