"""Whole programs for machines that this one is not: emitted, compiled and linked, not run."""

from __future__ import annotations

import pytest

import tinsmith as ts
from benchmarks.models import PANEL
from benchmarks.places import Places
from tests.models import GRAPHS
from tinsmith.codegen.elf import link
from tinsmith.codegen.jit import assembly, compile_object
from tinsmith.codegen.target import level
from tinsmith.graph import Graph
from tinsmith.passes.manager import run_passes
from tinsmith.plain import decode
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.plan import Plan
from tinsmith.plan.planner import MAIN, make_plan

AARCH64 = 183


def placed(graph: Graph) -> Graph:
    run_passes(graph, "portable", "cpu")
    run_passes(graph, "machine", "cpu")
    return graph


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("threads", [1, 2])
def test_programs_for_aarch64_link(name: str, threads: int) -> None:
    target = level("neon")
    built = make_plan(placed(GRAPHS[name]()), target, PlanOptions(threads))
    library = link([compile_object(text, target) for text in built.codes.values()])
    assert library[:4] == b"\x7fELF" and int.from_bytes(library[18:20], "little") == AARCH64
    kinds = {s.kind for s in built.plan.steps}
    assert "native" in kinds and ("reference" not in kinds or name == "mixed")


@pytest.mark.parametrize("name", PANEL)
def test_the_panel_links_for_aarch64_without_undefined_symbols(name: str) -> None:
    file = Places.find().models / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"{file} is missing; python -m benchmarks.setup makes it")
    target = level("neon")
    built = make_plan(placed(ts.load(file)), target, PlanOptions(threads=2))
    library = link([compile_object(text, target) for text in built.codes.values()])
    assert int.from_bytes(library[18:20], "little") == AARCH64
    assert {s.kind for s in built.plan.steps} == {"native", "view"}


def test_neon_code_uses_vectors() -> None:
    target = level("neon")
    built = make_plan(placed(GRAPHS["residual"]()), target)
    text = "\n".join(assembly(t, target) for s, t in built.codes.items() if s != MAIN)
    assert "fmla\tv" in text and "4s" in text


def test_plans_survive_json() -> None:
    import json

    for make in GRAPHS.values():
        plan = make_plan(placed(make()), level("avx2"), PlanOptions(threads=2)).plan
        assert decode(Plan, json.loads(json.dumps(plan))) == plan
        assert str(plan).startswith("plan ")
