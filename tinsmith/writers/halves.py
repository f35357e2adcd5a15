"""Weights that files keep as float16 and models compute with as float32."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Graph, Value
from tinsmith.ops import OPS

LEAST = 64
"""Elements of the smallest constant that is kept so: what is smaller saves less than a node takes.
Estimated."""


def halved(graph: Graph) -> Graph:
    """A copy of a graph whose weights, large float32 constants of two axes and more, are float16
    and become float32 where they are read. Those with numbers that float16 has not stay."""
    copy = graph.clone()
    first = {id(v): n for n in reversed(copy.nodes) for v in n.inputs if v is not None}
    for v in copy.constants():
        if not _is_weight(v):
            continue
        assert v.const is not None
        with np.errstate(over="ignore"):
            small = v.const.astype(np.float16)
        if np.isfinite(small).all():
            name = copy.unique(f"{v.name}/float16")
            node = copy.add(
                OPS["Cast"], copy.const(small, name), name=f"{v.name}/float32", to="float32",
                before=first.get(id(v)),
            )  # fmt: skip
            copy.replace(v, node.output, keep_name=False)
    return copy


def _is_weight(v: Value) -> bool:
    array = v.const
    return (
        array is not None and array.dtype == np.float32 and array.ndim > 1 and array.size >= LEAST
    )
