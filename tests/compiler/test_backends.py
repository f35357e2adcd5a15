"""Backends from outside the package, and graphs that are split between several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.cli.harness import tinsmith
from tinsmith import ops
from tinsmith.backends import BACKENDS, Backend, Job, backends_of
from tinsmith.codegen.target import Target, level
from tinsmith.compiler.split import split
from tinsmith.errors import (
    BackendFailed,
    NoBackend,
    OptionError,
    TargetError,
    TinsmithError,
    UnknownName,
)
from tinsmith.graph import Graph, Node, Type
from tinsmith.graph.verify import verify
from tinsmith.kernels._kernel import KERNELS, Skip, Tier, kernel, kernels_for
from tinsmith.kernels.select import REFERENCE
from tinsmith.ops.control import Part
from tinsmith.ops.interpret import run_graph

KNOWN = {"Relu": lambda x: np.maximum(x, 0), "Add": np.add, "MatMul": np.matmul}


class Functions:
    """A graph of a few operators in numpy."""

    def __init__(self, graph: Graph, toy: Toy) -> None:
        self.graph, self.toy = graph, toy

    def run(self, arrays: Any) -> Any:
        self.toy.calls.append([n.name for n in self.graph.nodes])
        for v, a in zip(self.graph.inputs, arrays, strict=True):
            assert a.flags.c_contiguous and (a.dtype, a.shape) == (v.dtype, v.dims)
        env: dict[Any, Any] = dict(zip(self.graph.inputs, arrays, strict=True))
        env |= {v: v.const for v in self.graph.constants()}
        for node in self.graph.nodes:
            env[node.output] = KNOWN[node.op.name](*[env[v] for v in node.inputs])
        return self.toy.spoil([env[v] for v in self.graph.outputs])


class Toy(Backend):
    column = "toy"

    def __init__(self, known: Any = tuple(KNOWN), spoil: Any = lambda results: results) -> None:
        self.known, self.spoil = known, spoil
        self.calls: list[list[str]] = []
        self.graphs: list[Graph] = []

    def need_target(self, target: Target) -> None:
        if target.isa == "scalar":
            raise TargetError("toy has vectors")

    def takes(self, node: Node) -> str:
        return "" if node.op.name in self.known else f"it knows no {node.op.name}"

    def compile(self, graph: Graph, job: Job) -> Functions:
        self.graphs.append(graph)
        return Functions(graph, self)

    def explain(self, graph: Graph) -> str:
        return f"{len(graph)} functions"


@pytest.fixture
def toy() -> Iterator[Toy]:
    made = Toy()
    BACKENDS.register("toy", made)
    yield made
    BACKENDS.remove("toy")


@pytest.fixture
def relus() -> Iterator[Toy]:
    made = Toy(("Relu",))
    BACKENDS.register("relus", made)
    yield made
    BACKENDS.remove("relus")


W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def layered(rows: int | str = 4) -> Graph:
    """Two islands of what toy knows around what it does not; every kind of value leaves the model:
    one inside an island, one that the next island reads, one of the cpu's."""
    g = Graph("layered")
    x = g.input("x", Type("float32", (rows, 8)))
    first = ops.Relu(ops.MatMul(x, W, name="product"), name="first")
    middle = ops.Sigmoid(first, name="middle")
    second = ops.Relu(middle, name="second")
    total = ops.Add(second, first, name="total")
    g.outputs = [ops.Exp(total, name="y"), first, middle, total]
    return g


def fed(rows: int = 4) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)


def agrees(net: Any, graph: Graph, *arrays: Any) -> None:
    found, want = net.run(list(arrays)), run_graph(graph, list(arrays))
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("names", ["toy,cpu", ("toy", "cpu"), ["toy", "cpu"], "toy , cpu"])
def test_a_graph_is_split(toy: Toy, names: Any, threads: int) -> None:
    net = ts.compile(layered(), backend=names, threads=threads, cache=False)
    for _ in range(2):
        toy.calls.clear()
        agrees(net, layered(), fed())
        assert toy.calls == [["product", "first"], ["second", "total"]]
    kernels = [(s.name, s.kernel) for s in net.program().plan.steps]
    assert kernels == [
        ("toy", "toy"), ("middle", "elementwise"), ("toy.1", "toy"), ("y", "elementwise"),
    ]  # fmt: skip
    assert list(net.outputs) == ["y", "first", "middle", "total"]


def test_what_a_part_gets(toy: Toy) -> None:
    ts.compile(layered(), backend="toy,cpu", cache=False)
    one, two = toy.graphs
    assert [v.name for v in one.outputs] == ["first"] and [v.name for v in one.inputs] == ["x"]
    assert one.nodes[0].inputs[1] is not None and one.nodes[0].inputs[1].const is not None
    assert [v.name for v in two.inputs] == ["middle", "first"]


def test_explain_says_where_each_node_went_and_why(toy: Toy) -> None:
    net = ts.compile(layered(), backend="toy,cpu", cache=False)
    for name in ("product", "first", "toy"):
        text = net.explain(name)
        assert text.startswith("toy: Part -> toy") and "fused      MatMul product, Relu" in text
        assert "computed   2 functions" in text and "the backend 'toy' computes it" in text
    assert "backend toy: it knows no Exp" in net.explain("y")
    assert "toy" in str(net.profile(fed(), repeat=1)) and 'backend="toy"' in net.graph("placed")


def test_free_shapes_are_split_for_each(toy: Toy) -> None:
    net = ts.compile(layered("N"), backend="toy,cpu", cache=False)
    for rows in (1, 3, 5, 1):
        agrees(net, layered("N"), fed(rows))
    assert len(toy.graphs) == 6
    assert all(type(d) is int for g in toy.graphs for d in g.inputs[0].dims)


def test_three_backends_take_turns(toy: Toy, relus: Toy) -> None:
    net = ts.compile(layered(), backend="relus,toy,numpy", cache=False)
    agrees(net, layered(), fed())
    assert toy.calls == [["product"], ["total"]] and relus.calls == [["first"], ["second"]]
    text = net.explain("total")
    assert "fused      Add total" in text and "not        backend relus: it knows no Add" in text
    assert "Part -> numpy" in net.explain("middle")
    assert {s.kind for s in net.program().plan.steps} == {"reference"}


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_stay_free_of_cycles(toy: Toy, relus: Toy, seed: int) -> None:
    random = np.random.default_rng(seed)
    g = Graph("random")
    values = [g.input(n, Type("float32", (8, 8))) for n in "ab"]
    for _ in range(30):
        x, y = (values[i] for i in random.integers(0, len(values), 2))
        op = random.choice(["Relu", "Add", "MatMul", "Tanh", "Mul"])
        made = ops.OPS[op]
        values.append(ops.Tanh(made(x, y)) if made.required == 2 else made(x))
    g.outputs = list(dict.fromkeys(values[i] for i in random.integers(2, len(values), 4)))
    arrays = [random.standard_normal((8, 8)).astype(np.float32) for _ in "ab"]
    agrees(ts.compile(g, backend="relus,toy,cpu", cache=False), g, *arrays)
    parted = g.clone()
    split(parted, backends_of("relus,toy,cpu"))
    verify(parted)
    assert any(n.op is Part for n in parted.nodes)
    for one, other in zip(run_graph(parted, arrays), run_graph(g, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_whole_model_on_one_backend(toy: Toy) -> None:
    g = Graph("small")
    g.outputs = [ops.Relu(g.input("x", Type("float32", (4, 8))), name="y")]
    agrees(ts.compile(g, backend="toy", cache=False), g, fed())
    assert toy.calls == [["y"]]


def test_backends_that_get_no_node_are_told(toy: Toy) -> None:
    g = Graph("small")
    g.outputs = [ops.Relu(g.input("x", Type("float32", (4, 8))), name="y")]
    for names, idle in (("cpu,toy", "'toy'"), ("toy,cpu,numpy", "'cpu', 'numpy'")):
        net = ts.compile(g, backend=names, cache=False)
        assert f"backend: {idle} had no effect" in "\n".join(net.notes)
    assert ts.compile(g, backend="toy", cache=False).notes == []


WRONG: list[tuple[Any, type[TinsmithError], str]] = [
    ("toi", UnknownName, "no backend named 'toi'. Did you mean 'toy'"),
    ("toy,cpuu", UnknownName, "Did you mean 'cpu'"),
    ("toy,toy", OptionError, "once"),
    ("", UnknownName, "no backend named ''"),
    ((), OptionError, "once"),
    (3, OptionError, "one of 'cpu', 'numpy', 'toy'"),
    (("toy", 3), OptionError, "one of"),
    ("toy", NoBackend, r"'middle': no backend.* Sigmoid \(toy: it knows no Sigmoid\).*'toy,cpu'"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_names_that_are_wrong(toy: Toy, case: int) -> None:
    names, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        ts.compile(layered(), backend=names, cache=False)


def test_each_backend_may_refuse_a_target(toy: Toy) -> None:
    with pytest.raises(TargetError, match="toy has vectors"):
        ts.compile(layered(), backend="toy,cpu", target="scalar")
    ts.compile(layered(), target=level("scalar"), cache=False)


def fails(results: Any) -> Any:
    raise ValueError("no more ink")


SPOILT = [
    (fails, r"backend 'toy' failed on float32\[4, 8\]: ValueError: no more ink"),
    (lambda results: [], "must give a list of 1 arrays"),
    (lambda results: None, "must give a list"),
    (lambda results: [r.astype(np.float64) for r in results], "gave float64.* for 'first'"),
    (lambda results: [r[:2] for r in results], r"gave float32\[2, 8\] for 'first'"),
    (lambda results: [r.tolist() for r in results], "gave list for 'first'"),
]


@pytest.mark.parametrize("case", range(len(SPOILT)))
def test_results_that_are_not_as_planned(toy: Toy, case: int) -> None:
    toy.spoil, message = SPOILT[case]
    net = ts.compile(layered(), backend="toy,cpu", cache=False)
    with pytest.raises(BackendFailed, match=message):
        net(fed())


def test_a_backend_that_cannot_compile(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "compile", lambda graph, job: 1 // 0)
    with pytest.raises(BackendFailed, match="'toy' cannot compile 2 nodes: ZeroDivisionError"):
        ts.compile(layered(), backend="toy,cpu", cache=False)


def test_verify_finds_the_part_that_is_wrong(toy: Toy) -> None:
    assert ts.verify(layered(), [fed()], backend="toy,cpu", cache=False)
    toy.spoil = lambda results: [r + 1 if len(toy.graphs[0]) else r for r in results]
    found = ts.verify(layered(), [fed()], backend=("toy", "cpu"), cache=False)
    assert not found and found.culprit is not None
    assert (found.culprit.kernel, found.culprit.op) == ("toy", "MatMul+Relu")


def test_rows_of_the_table_of_kernels_are_for_their_backend(relus: Toy) -> None:
    @kernel("Exp", Tier.MEASURED, backend="relus")
    def exp_elsewhere(site: Any) -> Any:
        """Never asked by the cpu."""
        raise Skip("this code is for another machine")

    try:
        assert "exp_elsewhere" not in [k.name for k in kernels_for("Exp")]
        assert [k.name for k in kernels_for("Exp", "relus")] == ["exp_elsewhere"]
        assert "exp_elsewhere" not in ts.compile(layered(), cache=False).explain("y")
        nodes = {n.op.name: n for n in layered().nodes}
        relus.column = "relus"
        assert Backend.takes(relus, nodes["Exp"]) == ""
        assert Backend.takes(relus, nodes["Add"]) == "no kernel of relus computes Add"
    finally:
        KERNELS.remove("exp_elsewhere")


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_every_backend_runs_a_graph(name: str) -> None:
    runner = BACKENDS[name].compile(layered(), Job(target=level("host"), cache=False))
    for a, b in zip(runner.run([fed()]), run_graph(layered(), [fed()]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_command_line_splits(toy: Toy, tmp_path: Any) -> None:
    file = str(tmp_path / "layered.tin")
    ts.save(layered(), file)
    for command in ("run", "bench --repeat 1", "explain", "inspect", "verify"):
        words = command.split()
        text = tinsmith(words[0], file, *words[1:], "--backend", "toy,cpu", "--no-cache").output
        assert words[0] not in ("run", "explain") or "toy" in text
    assert "[cpu|numpy|toy]" in tinsmith("run", "--help").output
    assert REFERENCE not in tinsmith("run", file, "--backend", "toy,cpu").output
    assert "Did you mean" in tinsmith("run", file, "--backend", "toi", code=2).output
