"""Declared types that lie: no model computes another number for them, and no process ends.

Operators whose sizes depend on data are found by their type rules; each needs a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import pytest

import tinsmith as ts
from tests.fuzz import cage, declarations
from tests.fuzz.cores import CORES, ROWS, Sketch
from tests.fuzz.declarations import AGREED, ELIDED, FINE, REFUSED, UNSAID
from tests.fuzz.mutants import Dice
from tests.fuzz.places import PLACES, Place, at_the_top
from tests.fuzz.seeds import chunks
from tests.ops.samples import Sample, load_samples
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS, Op

ALONE, PART = 2000, 500
LEAST_AGREED, LEAST_REFUSED, MOST_ELIDED = 0.4, 0.1, 0.01  # of the models of a part

NEVER_FED = {
    "BestBoxes": "passes make it, of ncnn's last layers of detectors",
    "Block": "passes make it, of nodes that have been imported",
    "Fused": "passes make it, of nodes that have been imported",
    "Part": "splits between backends make it, of nodes that have been imported",
    "RowAttention": "passes make it, of nodes that have been imported",
    "TreeEnsemble": "its tables come from attributes",
}
"""Operators whose sizes may depend on data, but on none that a file can feed, and why."""


# ---- which operators


def depends(sample: Sample) -> bool:
    """Whether the rule knows sizes where the operands are constant that it does not know where
    only their types are."""

    def static(fed: bool) -> bool:
        graph = Graph("sample")
        values = [
            None if a is None else graph.input(f"x{i}", Type(a.dtype, a.shape)) if fed
            else graph.const(a)
            for i, a in enumerate(sample.inputs)
        ]  # fmt: skip
        return all(
            v.type.is_static for v in graph.add(OPS[sample.op], *values, **sample.attrs).outputs
        )

    return static(fed=False) and not static(fed=True)


def names_of(code: CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(names_of, inner))


def reads_numbers(function: Any, seen: set[Any]) -> bool:
    """Whether a type rule, or a function of operators that it calls, asks for `.const`."""
    if not isinstance(function, FunctionType) or function in seen:
        return False
    seen.add(function)
    names = names_of(function.__code__)
    own = (function.__globals__.get(n) for n in names)
    called = [f for f in own if getattr(f, "__module__", "").startswith("tinsmith.ops")]
    return "const" in names or any(reads_numbers(f, seen) for f in called)


@cache
def dependent() -> set[str]:
    """Operators whose sizes may depend on data: those that count, hold tensors or graphs, whose
    samples say so, or, without samples, whose rule reads numbers."""
    samples = load_samples()
    sampled = {s.op for s in samples}

    def may(op: Op) -> bool:
        if op._most is not None or op.traits & {"control", "holder"}:
            return True
        return op.name not in sampled and reads_numbers(op._rule, set())

    return {n for n in OPS if may(OPS[n])} | {s.op for s in samples if depends(s)}


def operators(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield node.op.name
        for attr in node.attrs.values():
            if isinstance(attr, Graph):
                yield from operators(attr)


DRAWN = 40
"""How often cores are drawn that may draw one of several operators."""


def imported(m: Sketch, place: Place) -> Graph:
    types = declarations.input_types(m, [declarations.chosen(m, first=True)])
    return ts.load(declarations.model_of(m, place, types, declarations.silent))


@cache
def reached() -> set[str]:
    """The operators of the graphs of all cores, and of all places."""
    found: set[str] = set()
    for name, core in CORES.items():
        for seed in range(1 if name in ROWS else DRAWN):
            m = Sketch(Dice(seed))
            outputs = list(core(m))
            found |= set(operators(imported(m, at_the_top(m, outputs, {}))))
    for make in set(PLACES):
        m = Sketch(Dice(0))
        outputs = list(CORES["reshape"](m))
        known = declarations.known_of(m, declarations.chosen(m, first=True))
        found |= set(operators(imported(m, make(m, outputs, known))))
    return found


def test_every_operator_that_depends_on_data_is_tried() -> None:
    assert dependent() - reached() - NEVER_FED.keys() == set()


def test_exceptions_are_needed() -> None:
    assert NEVER_FED.keys() <= dependent() - reached()


def test_what_is_known_to_depend_on_data_is_found() -> None:
    known = {"Reshape", "Tile", "Split", "NonZero", "Resize", "NonMaxSuppression", "Loop"}
    assert known <= dependent()
    assert dependent().isdisjoint({"Conv", "MatMul", "Relu", "Softmax", "Transpose", "Concat"})


# ---- lies


@pytest.mark.parametrize("part", chunks(ALONE, PART), ids=str)
def test_lies_change_no_number(part: range) -> None:
    found = cage.run(declarations.__name__, part)
    agreed = sum(said == AGREED for said in found.values())
    refused = sum(said.startswith(REFUSED) for said in found.values())
    unsaid = [said for said in found.values() if said.startswith(UNSAID)]
    elided = sum(said == ELIDED for said in found.values())
    assert {seed: said for seed, said in found.items() if not said.startswith(FINE)} == {}
    assert not unsaid
    if len(part) == PART:
        assert agreed >= LEAST_AGREED * PART
        assert refused >= LEAST_REFUSED * PART
        assert elided <= MOST_ELIDED * PART


@pytest.mark.parametrize("seed", [1612, 30579])
def test_what_was_wrong_once(seed: int) -> None:
    """Axes that a run tells, and references of what is computed once for its sizes."""
    (said,) = cage.run(declarations.__name__, range(seed, seed + 1)).values()
    assert said.startswith(FINE)
