"""Sizes that a model declares and that are not so: never believed, whoever computes them."""

from __future__ import annotations

import inspect
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.declared import CASES, FOLLOWERS, built, lies
from tinsmith.backends.cpu import compile_placed
from tinsmith.codegen.target import host
from tinsmith.errors import (
    DataError,
    ImportFailed,
    PlanError,
    ReferenceFailed,
    TinsmithError,
    TypeRuleError,
)
from tinsmith.graph import Graph, Type
from tinsmith.graph.text import format_graph, graph_weights, parse_graph
from tinsmith.graph.verify import verify
from tinsmith.kernels._kernel import KERNELS
from tinsmith.ops import OPS

NAMED = (DataError, ImportFailed, PlanError, TypeRuleError)
BACKENDS = ("cpu", "numpy")


@cache
def truth(name: str, after: str = "") -> tuple[list[np.ndarray[Any, Any]] | None, Any]:
    """What the model gives that declares nothing, by its references; the first result's shape."""
    proto, feeds = built(name)
    y = ts.compile(ts.load(proto), backend="numpy").run(feeds)[0]
    if not after:
        return ts.compile(ts.load(proto), backend="numpy").run(feeds), y.shape
    try:
        return ts.compile(ts.load(built(name, after=after)[0]), backend="numpy").run(feeds), y.shape
    except TinsmithError:
        return None, y.shape


def outcome(graph: Any, backend: str, feeds: Any, want: Any) -> list[np.ndarray[Any, Any]] | None:
    """The results, or None where there is an error that says what is wrong with the declaration, or
    any of the reference, where nothing is wanted."""
    try:
        return ts.compile(graph(), backend=backend, cache=False).run(feeds)
    except NAMED:
        return None
    except ReferenceFailed:
        assert want is None
        return None


def agree(got: Any, want: Any) -> None:
    """Raise AssertionError unless all results are what is wanted."""
    assert want is not None
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def loaded(*args: Any) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = ts.load(built(*args)[0])
    verify(graph, proven=True)
    return graph


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_declared_of_a_result(name: str, backend: str) -> None:
    want, shape = truth(name)
    feeds = built(name)[1]
    assert want is not None
    agree(outcome(lambda: loaded(name, shape), backend, feeds, want), want)
    for lie in lies(shape):
        got = outcome(lambda lie=lie: loaded(name, lie), backend, feeds, want)
        assert got is None or agree(got, want) is None, lie


@pytest.mark.parametrize("after", FOLLOWERS)
@pytest.mark.parametrize("name", ["Reshape", "Slice", "Tile", "Split"])
def test_what_is_declared_of_a_value_that_others_read(name: str, after: str) -> None:
    (want, shape), feeds = truth(name, after), built(name)[1]
    for lie in lies(shape):
        for backend in BACKENDS:
            got = outcome(lambda lie=lie: loaded(name, lie, after), backend, feeds, want)
            assert got is None or agree(got, want) is None, (lie, backend)


@pytest.mark.parametrize("name", CASES)
def test_a_text_is_not_believed_either(name: str) -> None:
    (want, shape), feeds = truth(name), built(name)[1]
    for lie in (shape, *lies(shape)):
        graph = loaded(name)
        graph.outputs[0].type = Type(graph.outputs[0].dtype, tuple(abs(d) for d in lie))
        text, weights = format_graph(graph), graph_weights(graph)
        try:
            parsed = parse_graph(text, weights)
        except TinsmithError:
            continue  # of another rank than the type rule gives
        verify(parsed, proven=True)
        got = outcome(lambda parsed=parsed: parsed, "cpu", feeds, want)
        assert got is None or agree(got, want) is None, lie


# ---- the planner's gate, without the checks in front of it


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_follow_are_checked_by_whoever_computes_them(name: str) -> None:
    (want, shape), feeds = truth(name), built(name)[1]
    for lie in (shape, *lies(shape)):
        graph = loaded(name)
        if graph.outputs[0].rank not in (None, len(lie)) or min(lie) < 0:
            continue
        graph.outputs[0].type = Type(graph.outputs[0].dtype, tuple(lie))
        try:
            compiled = compile_placed(graph, host(), cache=False)
        except (TypeRuleError, PlanError):  # another size of those that the rule tells
            assert tuple(lie) != shape
            continue
        (step,) = [s for s in compiled.program.plan.steps if s.op == graph.nodes[0].op.name]
        assert step.kind == "reference" or KERNELS[step.kernel].checks, step
        arrays = [np.ascontiguousarray(feeds[v.name]) for v in graph.inputs]
        try:
            agree(compiled.program.session().run(arrays), want)
        except DataError as error:
            assert "declares" in str(error) and 0 not in lie
            assert tuple(lie) != shape


def test_views_and_parts_say_why_they_are_computed() -> None:
    for name in ("Reshape", "Slice", "Tile"):
        _, shape = truth(name)
        net = ts.compile(loaded(name, shape), cache=False)
        text = net.explain()
        assert "reference" in text and "only the run can prove its sizes" in text, text


def test_kernels_that_check_sizes_are_those_of_what_counts() -> None:
    KERNELS.load()
    counting = {op.name for op in OPS.rows() if op._most is not None}
    assert {k.op for k in KERNELS.rows() if k.checks} == counting


LATE = {  # of which no case is here, and why
    "Concat": "symbols are added", "ConcatFromSequence": "sequences", "Loop": "bodies",
    "Scan": "bodies", "SplitToSequence": "sequences", "ImageDecoder": "needs Pillow",
    "StringSplit": "text is never native", "StringNormalizer": "text is never native",
    "Declared": "the check itself",
}  # fmt: skip
STATIC = {  # operators that tell all sizes of static inputs
    "Attention", "ConvTranspose", "Einsum", "EyeLike", "Flatten", "GridSample", "MaxRoiPool",
    "Multinomial", "ReverseSequence", "RoiAlign", "Shape", "Transpose", "GRU", "LSTM", "RNN",
    "BestBoxes", "GridDetection", "PriorDetection", "RegionProposal",
}  # fmt: skip


def test_every_operator_whose_rule_makes_sizes_up_has_a_case() -> None:
    words = ("fresh(", "unknown(", "length_of(")
    rules = {op.name: getattr(op._rule, "func", op._rule) for op in OPS.rows() if op._rule}
    made = {n for n, rule in rules.items() if any(w in inspect.getsource(rule) for w in words)}
    assert made - CASES.keys() - LATE.keys() - STATIC == set()
