"""The model graph: `Graph`, `Node`, `Value`, `Type`, `Dim`, `Origin`."""

from tinsmith.graph.core import Graph, Node, Value
from tinsmith.graph.origin import Origin
from tinsmith.graph.types import (
    Dim,
    Holder,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    Type,
    bare,
    compatible,
    dtype_of,
    kind_of,
    same_kind,
    shown,
)

__all__ = [
    "Dim", "Graph", "Holder", "MapType", "Node", "OptionalType", "Origin", "SequenceType", "Shape",
    "Type", "Value", "bare", "compatible", "dtype_of", "kind_of", "same_kind", "shown",
]  # fmt: skip
