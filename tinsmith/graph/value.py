"""Values of a graph, and what a graph needs of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tinsmith.graph.types import Dim, Type
from tinsmith.graph.uses import Uses

if TYPE_CHECKING:
    from tinsmith.graph.core import Graph, Node


class OpLike(Protocol):
    """What a graph needs of an operator: a name, traits, `bind` (check and complete attributes) and
    `infer` (output types). The operators are in `tinsmith.ops`."""

    name: str
    traits: frozenset[str]

    def bind(
        self, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]
    ) -> dict[str, Any]: ...
    def infer(
        self, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]
    ) -> tuple[Type, ...]: ...


class Value:
    """One value of a graph, an edge of the dataflow: an input, a constant (`const` is its array),
    or output number `index` of the node `producer`. `producer` is None for inputs and constants.
    `type` tells whether it is a tensor or a `Holder`; `uses` are the nodes that read it."""

    __slots__ = ("const", "graph", "index", "name", "producer", "type", "uses")

    def __init__(
        self, graph: Graph, type: Type, name: str, producer: Node | None = None, index: int = 0,
        const: np.ndarray[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.type, self.name = graph, type, name
        self.producer, self.index, self.const = producer, index, const
        self.uses = Uses()

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The array of a constant, which the value must be (asserted)."""
        assert self.const is not None, self
        return self.const

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...] | None:
        return self.type.shape

    @property
    def rank(self) -> int | None:
        return self.type.rank

    @property
    def dims(self) -> tuple[int, ...]:
        return self.type.dims

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"
