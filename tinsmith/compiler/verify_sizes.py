"""The sizes at which `verify` compares a program for free ones with the reference.

That is: typical sizes first, for which the program is made, then 1, odd sizes that differ from each
other, and both ends of ranges that hints give. Sizes that the model's types refuse are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from tinsmith.compiler.hints import Hint, Hints, free_dimensions, sized, typical
from tinsmith.errors import DataError, NoKernel, PassError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph
from tinsmith.runtime.free import Shape, SizedProgram
from tinsmith.runtime.program import Program

UNFIT = (TypeRuleError, ReferenceFailed, DataError, PassError, NoKernel)
"""Errors that sizes cause which a model, or a kernel that is asked for by name, does not take."""
BASES = (16, 64, 224)
"""Typical sizes where no hint gives one: the first that all dimensions may have. Estimated."""
ODD = (7, 5, 9, 3, 11)
"""Of dimensions in order; from the sixth on again. Any."""

Sizes = dict[str, int]


def sizes_for(graph: Graph, hints: Hints | None) -> list[tuple[Sizes, Graph]]:
    """(sizes, graph) pairs at which to compare: name -> size of the free dimensions, and the graph
    of these sizes. Typical sizes come first; sizes that the graph refuses are left out. One pair,
    with the graph itself, if there are no free dimensions, or an input of unknown rank."""
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
    """The graph of these sizes; None where its types refuse them."""
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
    """The shapes that a program for free sizes was made for; None for one of another kind."""
    return program.free.shapes if isinstance(program, SizedProgram) else None


def text(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
