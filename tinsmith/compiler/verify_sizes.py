"""The sizes at which `verify` compares a program for free sizes with the reference: typical sizes,
for which the program is compiled, then 1, odd sizes that differ between dimensions, and both ends
of the ranges in hints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from tinsmith.compiler.hints import Hint, Hints, free_dimensions, sized, typical
from tinsmith.errors import DataError, NoKernel, PassError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph
from tinsmith.runtime.free import Shape, SizedProgram
from tinsmith.runtime.program import Program

UNFIT = (TypeRuleError, ReferenceFailed, DataError, PassError, NoKernel)
"""Errors for sizes that a model, or a kernel that is asked for by name, does not take."""
BASES = (16, 64, 224)
"""Typical sizes of dimensions without a hint: all get the first one that the model takes.
Estimated."""
ODD = (7, 5, 9, 3, 11)
"""Odd sizes of the first to fifth dimension; the sixth has the first again. Chosen freely."""

Sizes = dict[str, int]


def sizes_for(graph: Graph, hints: Hints | None) -> list[tuple[Sizes, Graph]]:
    """Return pairs (name of each free dimension -> size, the graph of these sizes) at which to
    compare, typical sizes first. Sizes that the graph refuses are left out. Only ({}, graph) if
    none are left, there are no free dimensions, or an input is of unknown rank."""
    types = {v.name: v.type for v in graph.inputs}
    names = free_dimensions(types)
    if not names or any(t.shape is None for t in types.values()):
        return [({}, graph)]
    hints = hints or {}
    middles = [{n: typical(hints[n]) if n in hints else base for n in names} for base in BASES]
    middle = next((one for one in (_sized(graph, sizes) for sizes in middles) if one), None)
    found = {} if middle is None else {text(middle[0]): middle}
    for sizes in _others(names, hints, middles[0] if middle is None else middle[0]):
        if text(sizes) not in found and (one := _sized(graph, sizes)):
            found[text(sizes)] = one
    return list(found.values()) or [({}, graph)]


def _sized(graph: Graph, sizes: Sizes) -> tuple[Sizes, Graph] | None:
    """Return (sizes, the graph of these sizes); None where its types refuse them."""
    with suppress(*UNFIT):
        return sizes, graph.clone({v.name: sized(v.type, sizes) for v in graph.inputs})
    return None


def _others(names: Sequence[str], hints: Hints, middle: Sizes) -> Iterator[Sizes]:
    yield {n: _within(hints.get(n), 1) for n in names}
    yield {n: _within(hints.get(n), ODD[k % len(ODD)]) for k, n in enumerate(names)}
    for end in (0, 1):
        yield {n: h[end] if isinstance(h := hints.get(n), tuple) else middle[n] for n in names}


def _within(hint: Hint | None, size: int) -> int:
    return min(max(size, hint[0]), hint[1]) if isinstance(hint, tuple) else size


def made_for(program: Program) -> Sequence[Shape | None] | None:
    """Return the input shapes, with Sizes, of a `SizedProgram`'s program for free sizes; None for
    another program."""
    return program.free.shapes if isinstance(program, SizedProgram) else None


def text(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
