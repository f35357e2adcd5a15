"""The cpu backend: plan a static graph, generate its machine code, load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinsmith.backends.library import Library, load_code, team_address
from tinsmith.codegen.target import Target, runnable
from tinsmith.errors import TargetError
from tinsmith.graph import Graph
from tinsmith.passes.manager import Report, run_passes
from tinsmith.plan.explain import explain_steps
from tinsmith.plan.planner import Built, make_plan
from tinsmith.runtime.program import Program, aligned


@dataclass
class Compiled:
    """A program with what was made on the way: its placed graph, reports and explanations."""

    program: Program
    code: bytes
    placed_text: str
    report: Report
    explanations: dict[str, str]


def compile_static(
    graph: Graph,
    target: Target,
    *,
    threads: int = 1,
    overrides: Mapping[str, str] | None = None,
    passes: str | None = None,
    precision: str = "default",
    cache: bool = True,
) -> Compiled:
    """A runnable program for a canonical graph. The graph is not changed.

    Raises TargetError where this process cannot run code for the target.
    """
    if not runnable(target):
        raise TargetError(
            f"this machine cannot run code for {target.isa}; choose target='host', or export instead"
        )
    placed = graph.clone()
    report = run_passes(placed, "machine", "cpu", passes)
    built = make_plan(placed, target, threads, overrides, precision)
    library, code = load_code(built.codes, target, cache)
    plan = replace(built.plan, memory=replace(built.plan.memory, code=len(code)))
    nodes = {name: (node.op, node.attrs) for name, node in built.nodes.items()}
    program = Program(
        plan,
        library,
        gather_weights(built),
        nodes,
        built.constants,
        team_address(target, cache, threads),
    )
    return Compiled(program, code, str(placed), report, explain_steps(built, report))


def gather_weights(built: Built) -> np.ndarray[Any, Any]:
    """All packed weights and constants in one aligned buffer, with readable slack."""
    blob = aligned(built.plan.memory.weights + 4096)
    for offset, array in built.weights:
        blob[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    return blob


__all__ = ["Compiled", "Library", "compile_static"]
