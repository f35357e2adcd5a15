"""What two graphs have in common whatever their names are: nodes, edges, attributes and types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Holder, Type, Value


def structure(graph: Graph) -> list[Any]:
    """Equal for graphs that differ in names only, of values, nodes and free sizes."""
    return list(_rows(graph, {}))


def _rows(graph: Graph, symbols: dict[str, int]) -> Iterator[Any]:
    numbers: dict[Value, int] = {}

    def shown(v: Value | None) -> Any:
        if v is None or v in numbers:
            return None if v is None else numbers[v]
        if v.const is None:
            return numbers.setdefault(v, len(numbers))
        kept = v.const.tolist() if v.const.dtype == object else v.const.tobytes()
        return v.const.dtype.name, v.const.shape, kept

    yield [(shown(v), typed(v.type, symbols)) for v in graph.inputs]
    for node in graph.nodes:
        attrs = {
            k: structure(a) if isinstance(a, Graph) else rounded(a) for k, a in node.attrs.items()
        }
        yield (
            node.op.name,
            [shown(v) for v in node.inputs],
            attrs,
            [(shown(v), typed(v.type, symbols)) for v in node.outputs],
        )
    yield [shown(v) for v in graph.outputs]


def rounded(value: Any) -> Any:
    """Numbers as files hold them, in float32."""
    if isinstance(value, float):
        return float(np.float32(value))
    return tuple(map(rounded, value)) if isinstance(value, tuple | list) else value


def typed(type: Type, symbols: dict[str, int]) -> Any:
    if isinstance(type, Holder):
        return type.word, typed(type.item, {})
    dims = type.shape
    if dims is not None:
        dims = tuple(d if isinstance(d, int) else f"s{symbols.setdefault(d, len(symbols))}"
                     for d in dims)  # fmt: skip
    return type.dtype.name, dims
