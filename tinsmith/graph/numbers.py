"""Copies of a graph in which sizes that only a call tells are the numbers of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinsmith.graph.copy import Copier
from tinsmith.graph.core import Graph
from tinsmith.graph.types import Type
from tinsmith.sizes import Size, has_sizes


def with_numbers(graph: Graph, number: Callable[[Size], int]) -> Graph:
    """A copy, with the same names, of a graph whose types, attributes, constants and nested graphs
    may hold `Size`s (sizes that only a call tells): in place of each stands `number(size)`."""

    def settled(value: Any) -> Any:
        if isinstance(value, Size):
            return number(value)
        if isinstance(value, Graph):
            return with_numbers(value, number)
        if isinstance(value, Type):
            return value.like(shape=settled(value.shape)) if value.shape is not None else value
        if isinstance(value, Mapping):
            return {name: settled(item) for name, item in value.items()}
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(settled, value))
        return value

    copy = Copier(graph).copy({})
    for v in copy.values():
        v.type = settled(v.type)
        if v.const is not None and has_sizes(v.const):
            flat = [settled(d) for d in v.const.reshape(-1).tolist()]
            v.const = np.array(flat, v.dtype).reshape(v.const.shape)
    for node in copy.nodes:
        node.attrs = settled(node.attrs)
    return copy
