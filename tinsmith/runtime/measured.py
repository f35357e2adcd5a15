"""Measures how much of the planned memory a run of a program uses."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tinsmith.graph import Array
from tinsmith.plan.memory import align
from tinsmith.plan.plan import SLACK
from tinsmith.runtime.program import Program
from tinsmith.runtime.results import RunMemory
from tinsmith.runtime.session import Session

PAINTS = (0xA5, 0x5A)
"""Bytes with which memory is filled before each of two runs: a byte that a run writes differs from
at least one of them."""


class Measured(NamedTuple):
    """The memory that a run has used, in bytes.

    arena, workspace  up to the last cache line written; the workspaces of all threads together
    weights  packed weights of the program, and of others with which it shares weights
    results  the arrays that it returned
    python   the peak of other allocations by Python and numpy (in steps by reference)
    """

    arena: int
    workspace: int
    weights: int
    results: int
    python: int


def measured(program: Program, inputs: Sequence[Array]) -> Measured:
    """Run a program twice, each time in memory filled with another byte, and find which bytes were
    written. `inputs` are as `Session.run` takes them."""
    memory = RunMemory()
    session = Session(program, memory)
    threads = program.brief.threads
    arena = workspace = results = python = 0
    for paint in PAINTS:
        memory.arena[:], memory.workspace[:] = paint, paint
        results, python = _traced(session, inputs)
        arena = max(arena, _written(memory.arena, paint))
        each = len(memory.workspace[: program.frame.workspace]) // threads
        parts = [memory.workspace[k * each : (k + 1) * each] for k in range(threads)]
        workspace = max(workspace, sum(_written(part, paint) for part in parts))
    weights = sum(max(0, b.data.size - SLACK) for b in program.blobs)
    return Measured(arena, workspace, weights, results, python)


def _traced(session: Session, inputs: Sequence[Array]) -> tuple[int, int]:
    """Run once; return the bytes of the results, and the peak of other allocations meanwhile."""
    running = tracemalloc.is_tracing()
    gc.collect()
    if not running:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        found = session.run(inputs)
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not running:
            tracemalloc.stop()
    kept = sum(a.nbytes for a in found if isinstance(a, np.ndarray))
    return kept, max(0, most - kept)


def _written(memory: Array, paint: int) -> int:
    """Return how many bytes of `memory` were used: up to the last that is not `paint`, rounded up
    to whole cache lines; 0 if there is none."""
    touched = np.flatnonzero(memory != paint)
    return align(int(touched[-1]) + 1) if touched.size else 0
