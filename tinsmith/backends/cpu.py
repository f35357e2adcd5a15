"""The cpu backend: plan a placed static graph, generate its machine code, load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinsmith.backends.library import load_code, team_address
from tinsmith.codegen.target import Target, runnable
from tinsmith.errors import TargetError
from tinsmith.graph import Graph
from tinsmith.plan.pick import Preferences
from tinsmith.plan.planner import Built, make_plan
from tinsmith.runtime.program import Program, aligned


@dataclass
class Compiled:
    """A program, what it was built from, its code as a shared library, its packed weights."""

    program: Program
    built: Built
    code: bytes
    weights: np.ndarray[Any, Any]


def compile_placed(
    graph: Graph,
    target: Target,
    *,
    threads: int = 1,
    overrides: Mapping[str, str] | None = None,
    precision: str = "default",
    cache: bool = True,
    preferences: Preferences | None = None,
    small: bool = False,
) -> Compiled:
    """A runnable program for a placed graph of static shapes.

    Raises TargetError where this process cannot run code for the target.
    """
    if not runnable(target):
        raise TargetError(
            f"this machine cannot run code for {target.isa}; leave `target` out for its own"
        )
    built = make_plan(graph, target, threads, overrides, precision, preferences, small)
    library = load_code(built.codes, target, cache)
    plan = built.plan._replace(memory=built.plan.memory._replace(code=len(library.data)))
    nodes = {name: (node.op, node.attrs) for name, node in built.nodes.items()}
    team = team_address(target, cache, threads)
    weights = gather_weights(built)
    program = Program(plan, library, weights, nodes, built.constants, team)
    return Compiled(program, built, library.data, weights)


def gather_weights(built: Built) -> np.ndarray[Any, Any]:
    """All packed weights and constants in one aligned buffer, with readable slack."""
    blob = aligned(built.plan.memory.weights + 4096)
    for offset, array in built.weights:
        blob[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    return blob
