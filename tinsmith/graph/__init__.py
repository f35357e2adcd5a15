"""The model graph: `Graph`, `Node`, `Value`, `Type`, `Dim`, `Origin`."""

from typing import TYPE_CHECKING, Any

from tinsmith.graph.types import (
    Array,
    Dim,
    Holder,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    Type,
    agree,
    bare,
    compatible,
    dtype_of,
    kind_of,
    same_kind,
    shapes_agree,
    shown,
)

if TYPE_CHECKING:
    from tinsmith.graph.core import Graph, Node, Value
    from tinsmith.graph.origin import Origin

__all__ = [
    "Array", "Dim", "Graph", "Holder", "MapType", "Node", "OptionalType", "Origin", "SequenceType",
    "Shape", "Type", "Value", "agree", "bare", "compatible", "dtype_of", "kind_of", "same_kind",
    "shapes_agree", "shown",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import `Graph`, `Node`, `Origin` and `Value` when one of them is first asked for: a stored
    program runs without them."""
    if name not in ("Graph", "Node", "Origin", "Value"):
        raise AttributeError(f"module 'tinsmith.graph' has no attribute {name!r}")
    from tinsmith.graph import core

    for known in ("Graph", "Node", "Origin", "Value"):
        globals()[known] = getattr(core, known)
    return globals()[name]
