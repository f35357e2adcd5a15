"""The sizes at which `verify` compares a program for free sizes with the reference: typical sizes,
for which the program is compiled, then 1, odd sizes that differ between dimensions, and both ends
of the ranges in hints. `Freed` has those at which `bisect` searches such a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from tinsmith.compiler.build import Compilation
from tinsmith.compiler.free import leaving_free
from tinsmith.compiler.hints import Hint, Hints, free_dimensions, sized, typical
from tinsmith.errors import DataError, NoKernel, PassError, ReferenceFailed, TypeRuleError
from tinsmith.formulas import computed
from tinsmith.graph import Graph
from tinsmith.graph.copy import with_numbers
from tinsmith.runtime.free import FreeProgram, Shape, SizedProgram
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program
from tinsmith.sizes import Size
from tinsmith.sizes import typical as example_of

UNFIT = (TypeRuleError, ReferenceFailed, DataError, PassError, NoKernel)
"""Errors for sizes that a model, or a kernel that is asked for by name, does not take."""
BASES = (16, 64, 224)
"""Typical sizes of dimensions without a hint: all get the first one that the model takes.
Estimated."""
ODD = (7, 5, 9, 3, 11)
"""Odd sizes of the first to fifth dimension; the sixth has the first again. Chosen freely."""

Sizes = dict[str, int]
Shapes = Sequence[Shape | None]


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


def made_for(program: Program) -> Shapes | None:
    """Return the input shapes, with Sizes, of a `SizedProgram`'s program for free sizes; None for
    another program."""
    return program.free.shapes if isinstance(program, SizedProgram) else None


def text(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


class Freed:
    """The sizes of a program for free sizes in which `bisect` searches: parts of the graph are
    compiled for the same free sizes, and run at the signature.

    made_for   shapes of the program's inputs, with Sizes where they are free
    signature  the input shapes of the call whose results differ
    shapes     like `made_for`, with symbols of the new `scope`
    """

    def __init__(self, compilation: Compilation, made_for: Shapes, signature: Signature) -> None:
        example = tuple(None if own is None else tuple(map(example_of, own)) for own in made_for)
        numbers = {
            wanted
            for v, own in zip(compilation.canonical.inputs, made_for, strict=True)
            for wanted, given in zip(v.type.shape or (), own or (), strict=False)
            if isinstance(wanted, str) and not isinstance(given, Size)
        }
        self.scope, self.shapes, *_ = leaving_free(compilation, example, numbers)
        self._signature = signature
        self._values: dict[str, int] = {}
        for own, dims in zip(self.shapes, signature, strict=True):
            pairs = zip(own or (), dims or (), strict=True)
            self._values |= {str(d): n for d, n in pairs if isinstance(d, Size)}

    def numbered(self, graph: Graph) -> Graph:
        """Return a copy of a graph with the signature's numbers for Sizes."""

        def number(size: Size) -> int:
            return computed([size.form], self._values)(*self._values.values())[0]

        return with_numbers(graph, number)

    def sized(self, program: Program) -> Program | None:
        """Return a program that was compiled for `shapes` as one for the signature; None where the
        program's conditions exclude these sizes."""
        return FreeProgram(program, self.shapes, self.scope).sized(self._signature)
