"""What follows a count that the data tell runs in generated code, whatever the count."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.counted import COUNTED, given, parts, results
from tests.dependent import DEPENDENT, INT, F, model_of, node
from tests.models import agree
from tinsmith.compiler.later import MOST
from tinsmith.errors import DataError, TinsmithError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.runtime.program import Program

Array = np.ndarray[Any, Any]

MODELS = COUNTED | {n: m for n, m in DEPENDENT.items() if n not in ("if", "loop", "scan")}
ROWS = (6, 3, 8, 1, 2, 40, 7, 0, 90, 70)
BY_REFERENCE = {"Unique", "Range", "Unsqueeze"}
"""Operators of these models that have no kernel, or for what it takes only in some sizes."""


def slow(program: Program) -> list[tuple[str, str]]:
    """The steps that run by reference, though they have elements, at any depth."""
    own = [
        (s.op, s.detail)
        for s in program.plan.steps
        if s.kind == "reference" and s.op not in (*BY_REFERENCE, "Part")
    ]
    empty = ("is empty", "a shape known only then")
    own = [s for s in own if not any(e in s[1] for e in empty)]
    return own + [s for p in parts(program) for made, _ in p.told for s in slow(made)]


@pytest.mark.parametrize("shapes", ["fixed", "both"])
@pytest.mark.parametrize("name", MODELS)
def test_any_count(name: str, shapes: str) -> None:
    graph = ts.load(MODELS[name])
    net = ts.compile(graph, cache=False, shapes=shapes)
    reference = ts.compile(graph, backend="numpy")
    for rows in ROWS[: 6 if shapes == "fixed" else None]:
        x = given(rows)
        want, got = results(reference, x), results(net, x)
        if isinstance(want, type):
            assert isinstance(got, type)
            continue
        assert not isinstance(got, type), (rows, got)
        for k, array in want.items():
            assert got[k].dtype == array.dtype
            agree(got[k], array)
        if rows:
            assert slow(net.program()) == []


@pytest.mark.parametrize("name", ["experts", "durations", "two counts", "compress"])
def test_counts_of_equal_shapes_get_few_programs(name: str) -> None:
    graph = ts.load(MODELS[name])
    net = ts.compile(graph, cache=False)
    reference = ts.compile(graph, backend="numpy")
    for seed in range(30):
        x = given(24, seed, 0.1 + seed % 7)
        want, got = results(reference, x), results(net, x)
        for k, array in want.items():  # type: ignore[union-attr]
            agree(got[k], array)  # type: ignore[index]
    found = parts(net.program())
    assert found and all(1 <= len(p.free.found) <= 3 for p in found)
    assert not any("by reference for some sizes" in note for note in net.notes)


@pytest.mark.parametrize("name", ["experts", "detections", "durations", "two counts"])
def test_shapes_share_the_programs_of_parts(name: str) -> None:
    graph = ts.load(MODELS[name])
    net = ts.compile(graph, cache=False, shapes="free")
    reference = ts.compile(graph, backend="numpy")
    for rows in (24, 40, 17, 63, 90, 33):
        x = given(rows)
        for k, array in results(reference, x).items():  # type: ignore[union-attr]
            agree(results(net, x)[k], array)  # type: ignore[index]
    found = parts(net.program())
    assert found and all(len(p.free.found) == 1 for p in found)


def test_each_expert_has_programs_of_its_own() -> None:
    """Counts that have nothing to do with each other are not taken together."""
    net = ts.compile(ts.load(COUNTED["experts"]), cache=False)
    x = given(24)
    net(x)
    assert len(parts(net.program())) == 3


def test_a_part_whose_sizes_no_program_takes_is_noted_and_right() -> None:
    graph = ts.load(COUNTED["experts"])
    net = ts.compile(graph, cache=False)
    x = given(24)
    want = net(x)
    (part, *_) = parts(net.program())
    part.free.found.clear()
    part.free.notes.append("for the sake of the test")
    part._local = threading.local()
    agree(net(x), want)
    assert [n for n in net.notes if "runs by reference for some sizes: for the sake" in n]


def test_threads_share_what_was_made() -> None:
    net = ts.compile(ts.load(COUNTED["durations"]), cache=False, threads=2)
    xs = [given(12, seed, 2.0) for seed in range(8)]
    want = [net(x) for x in xs]
    found: list[Any] = [None] * len(xs)

    def run(k: int) -> None:
        for _ in range(5):
            found[k] = net(xs[k])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(xs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for a, b in zip(found, want, strict=True):
        agree(a, b)
    assert all(len(p.free.found) <= MOST for p in parts(net.program()))


def test_what_runs_later_is_explained_and_timed() -> None:
    net = ts.compile(ts.load(COUNTED["durations"]), cache=False)
    x = given(12, 0, 3.0)
    net(x)
    assert "a program of its own computes it" in net.explain()
    names = {one.name for one in net.explanations()}
    assert {"y", "s"} <= names
    rows = {row.name: row for row in net.profile(x).rows}
    assert "y" in rows and rows["y"].kernel != "reference"
    assert 0 < sum(row.ms for row in rows.values()) < 1000


# ---- lies


def declared(count: int) -> Any:
    """The rows of x that begin above 0, of which the model says that there are `count`."""
    graph = Graph("declared")
    x = graph.input("x", Type(np.dtype("float32"), (6, 8)))
    first = OPS["Reshape"](OPS["Slice"](x, [0], [1], [1]), np.array([-1]))
    some = OPS["Compress"](x, OPS["Greater"](first, np.float32(0)), axis=0)
    out = OPS["MatMul"](some, np.ones((8, 3), np.float32))
    said = OPS["Declared"](out, shape=(count, 3))
    graph.outputs = [OPS["Exp"](said)]
    return graph


@pytest.mark.parametrize("rows", [0, 1, 2, 4, 6])
def test_a_declared_count_that_is_not_so_is_an_error(rows: int) -> None:
    x = np.full((6, 8), 0.1, np.float32)
    x[rows:, 0] = -1
    for count in (2, 4):
        net = ts.compile(declared(count), cache=False)
        if rows == count:
            assert net(x).shape == (count, 3)
        else:
            with pytest.raises(DataError, match="not so"):
                net(x)
        if count != rows:
            continue
        x[rows - 1, 0] = -1  # and after a program was made
        with pytest.raises(DataError, match="not so"):
            net(x)


@pytest.mark.parametrize("k", [-1, 9, 1 << 33, -(1 << 62)])
def test_computed_numbers_that_do_not_fit_are_errors(k: int) -> None:
    model = model_of(
        [node("Add", "i zero", "j"), node("TopK", "x j", "v p"), node("Exp", "v", "y")],
        [("x", F, [4, 8]), ("i", INT, [1])], [("y", F), ("p", INT)], [("zero", [0])],
    )  # fmt: skip
    net = ts.compile(ts.load(model), cache=False)
    x = given(4)
    for good in (3, 1, 8, 0):
        agree(net(x, np.array([good]))["y"], np.exp(-np.sort(-x)[:, :good]))
    with pytest.raises(TinsmithError):
        net(x, np.array([k]))


SIZES_OUTSIDE = {
    "filled": (
        [node("NonZero", "x", "z"), node("Shape", "z", "a"), node("Shape", "x", "b"),
         node("Concat", "a b", "s", axis=0), node("ConstantOfShape", "s", "y")],
        lambda x: np.zeros((2, np.count_nonzero(x), *x.shape), np.float32),
    ),
    "one hot": (
        [node("ReduceSum", "x", "sum", keepdims=0), node("Cast", "sum", "n", to=INT),
         node("Range", "zero n one", "r"), node("Shape", "x", "b", start=0, end=1),
         node("OneHot", "r b values", "y")],
        lambda x: np.eye(len(x), dtype=np.float32)[np.arange(int(x.sum()))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("shapes", ["free", "both"])
@pytest.mark.parametrize("name", SIZES_OUTSIDE)
def test_a_part_reads_sizes_of_the_model_around_it_as_numbers(name: str, shapes: Any) -> None:
    nodes, want = SIZES_OUTSIDE[name]
    weights = [("zero", np.int64(0)), ("one", np.int64(1)), ("values", np.float32([0, 1]))]
    model = model_of(nodes, [("x", F, ["n", "m"])], [("y", F)], weights)
    net = ts.compile(ts.load(model), shapes=shapes, cache=False)
    for rows in (2, 3, 3, 2, 4):
        x = np.eye(rows, 4, dtype=np.float32)
        np.testing.assert_array_equal(net(x), want(x))


def test_the_same_program_takes_a_size_whatever_was_called_since() -> None:
    """A part gets a second program, which takes earlier sizes, too."""
    nodes = [
        node("Resize", "x  s", "a", axes=[2, 3], mode="linear"),
        node("MaxPool", "a", "b", ceil_mode=1, kernel_shape=[2, 1], strides=[3, 2]),
        node("Transpose", "b", "c", perm=[0, 1, 3, 2]), node("MatMul", "b c", "y"),
    ]  # fmt: skip
    nodes[0].input[:] = ["x", "", "s"]
    inputs = [("x", F, ["n", 16, "h", "w"]), ("s", F, [2])]
    model = ts.load(model_of(nodes, inputs, [("y", F)], opset=20))
    net = ts.compile(model, shapes="free", threads=2, cache=False)
    rng, s = np.random.default_rng(0), np.float32([3.25, 3.25])
    shapes = (2, 16, 17, 3), (4, 16, 4, 31), (2, 16, 9, 8)
    xs = [rng.standard_normal(dims).astype(np.float32) for dims in shapes]
    first, again = [net(x, s) for x in xs], list[Array]()
    thread = threading.Thread(target=lambda: again.extend(net(x, s) for x in xs))
    thread.start()
    thread.join()
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
