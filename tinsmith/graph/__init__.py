"""The model graph: `Graph`, `Node`, `Value`, `Type`, `Dim`, `Origin`."""

from tinsmith.graph.core import Graph, Node, Origin, Value
from tinsmith.graph.types import Dim, Shape, Type, compatible, dtype_of

__all__ = ["Dim", "Graph", "Node", "Origin", "Shape", "Type", "Value", "compatible", "dtype_of"]
