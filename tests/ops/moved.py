"""Samples of the operators that move elements, and nodes of them."""

from __future__ import annotations

from tests.ops.samples import SAMPLES, Sample, data, load_samples
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS

load_samples()
JOINED = {"sources": ((1, 2, 2), (0, 0, 3), (1, 0, 1))}
MOVERS = [name for name in OPS if OPS[name].traits & {"move", "view"}]
MOVED = [s for s in SAMPLES if s.op in MOVERS]
MOVED.append(Sample("ChannelGather", (data((2, 3, 2)), data((2, 4, 2))), JOINED))


def node_of(sample: Sample, symbols: int = 0) -> Node:
    """The operands are constants; data are inputs, with symbols for the first axes."""
    op, graph = OPS[sample.op], Graph("moved")
    values: list[Value | None] = []
    for i, a in enumerate(sample.inputs):
        if a is None or (i and not op.variadic):
            values.append(None if a is None else graph.const(a))
            continue
        shape = tuple(f"d{i}_{k}" if k < symbols else n for k, n in enumerate(a.shape))
        values.append(graph.input(f"x{i}", Type(a.dtype, shape)))
    return graph.add(op, *values, **sample.attrs)
