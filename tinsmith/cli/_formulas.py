"""The shapes of a model's values as formulas of its free dimensions, for `inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tinsmith.compiler.hints import free_dimensions, sized
from tinsmith.conditions import Scope
from tinsmith.errors import PassError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.sizes import NeedsNumber, Size, symbol

EXAMPLES = (64, 16, 224)
"""Example sizes of free dimensions without a given size: the first that the model takes is used.
Chosen freely among sizes that can be halved."""


def with_formulas(graph: Graph, chosen: Mapping[str, int]) -> Graph | None:
    """A copy of a graph whose types have formulas (`Size`) of its free dimensions, by example
    sizes: those `chosen`, else of `EXAMPLES`. None where the graph has no free dimensions, or its
    types cannot be inferred with formulas."""
    names = free_dimensions({v.name: v.type for v in graph.inputs})
    if not names:
        return None
    for example in EXAMPLES:
        scope = Scope()
        sizes: dict[str, Any] = {
            n: symbol(scope, n, max(chosen.get(n, example), 2), 1) for n in names
        }
        types = {v.name: sized(v.type, sizes) for v in graph.inputs if v.type.shape is not None}
        with suppress(TypeRuleError, ReferenceFailed, PassError, NeedsNumber):
            return graph.clone(types)
    return None


def row_of(value: Any) -> dict[str, Any]:
    """A value's entry in --json: name, dtype, shape."""
    return {"name": value.name, "dtype": value.dtype.name, "shape": dims_of(value.type)}


def dims_of(type: Type) -> list[int | str] | None:
    """The dims of a type, names and formulas as text; None for an unknown rank."""
    if type.shape is None:
        return None
    return [str(d) if isinstance(d, Size) else d for d in type.shape]


def given_by(graph: Graph) -> list[Any]:
    """All values that nodes compute, in order."""
    return [v for node in graph.nodes for v in node.outputs]


def formulas(graph: Graph | None) -> dict[str, list[int | str] | None] | None:
    """Name -> dims of the outputs of a graph of `with_formulas`; None for None."""
    return None if graph is None else {v.name: dims_of(v.type) for v in graph.outputs}
