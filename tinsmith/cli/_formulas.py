"""Sizes of a model's values as formulas of its free dimensions: what `inspect` shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tinsmith.compiler.hints import free_dimensions
from tinsmith.conditions import Scope
from tinsmith.errors import PassError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.sizes import NeedsNumber, Size, symbol

EXAMPLES = (64, 16, 224)
"""Sizes of free dimensions that nobody gives one: the first that a model takes. Any that can be
halved."""


def with_formulas(graph: Graph, chosen: Mapping[str, int]) -> Graph | None:
    """A graph whose types have formulas of its free dimensions; None where it has none, or where
    its types are not told by formulas."""
    names = free_dimensions({v.name: v.type for v in graph.inputs})
    if not names:
        return None
    for example in EXAMPLES:
        scope = Scope()
        sizes = {n: symbol(scope, n, max(chosen.get(n, example), 2), 1) for n in names}
        types = {
            v.name: v.type.like(
                shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in v.type.shape)
            )
            for v in graph.inputs
            if v.type.shape is not None
        }
        with suppress(TypeRuleError, ReferenceFailed, PassError, NeedsNumber):
            return graph.clone(types)
    return None


def row_of(value: Any) -> dict[str, Any]:
    """The row of --json about a value."""
    return {"name": value.name, "dtype": value.dtype.name, "shape": dims_of(value.type)}


def dims_of(type: Type) -> list[int | str] | None:
    """The dims of a type, with text for what is no number."""
    if type.shape is None:
        return None
    return [str(d) if isinstance(d, Size) else d for d in type.shape]


def given_by(graph: Graph) -> list[Any]:
    """All outputs of a list of nodes, in order."""
    return [v for node in graph.nodes for v in node.outputs]


def formulas(graph: Graph | None) -> dict[str, list[int | str] | None] | None:
    """The dims of the outputs, by name."""
    return None if graph is None else {v.name: dims_of(v.type) for v in graph.outputs}
