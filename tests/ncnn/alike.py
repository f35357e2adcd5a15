"""Whether two graphs are the same, whatever their values are called."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Value


def told(graph: Graph) -> list[Any]:
    """All of a graph but names: operators, attributes, constants, and which values they read."""
    place: dict[Value, Any] = {v: ("input", i) for i, v in enumerate(graph.inputs)}

    def of(v: Value | None) -> Any:
        if v is None:
            return None
        if v.const is not None:
            return str(v.type), np.ascontiguousarray(v.const).tobytes()
        return place[v]

    seen: list[Any] = [str(v.type) for v in graph.inputs]

    def visit(v: Value) -> None:
        waiting = [v]
        while waiting:
            node = waiting[-1].producer
            if node is None or waiting[-1] in place:
                waiting.pop()
                continue
            need = [i for i in node.inputs if i is not None and i.producer and i not in place]
            if need:
                waiting += reversed(need)
                continue
            attrs = sorted(node.attrs.items(), key=lambda a: a[0])
            seen.append((node.op.name, attrs, [of(i) for i in node.inputs]))
            place.update({o: (len(seen), k) for k, o in enumerate(node.outputs)})

    for v in graph.outputs:
        visit(v)
    return [*seen, [of(v) for v in graph.outputs]]
