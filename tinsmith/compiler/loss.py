"""The error of an approximate (quantised) model against the exact one: for each output, and for
each operator alone.

Values of the two models are paired by name: a quantised model keeps the names of the float model
and adds others. To measure an operator alone, the approximate model's nodes between two paired
values are run on the exact input values, and their result is compared with the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.records import dataclass


@dataclass
class Noise:
    """Sums of squares over pairs of arrays: of exact values (`signal`; NaN once two shapes have
    differed), and of the differences from them (`noise`)."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, want: Array, got: Array) -> None:
        if want.shape != got.shape:
            self.signal = math.nan
            return
        exact = want.astype(np.float64)
        off = exact - got.astype(np.float64)
        self.signal += float(np.vdot(exact, exact).real)
        self.noise += float(np.vdot(off, off).real)

    @property
    def decibels(self) -> float:
        """10 log10(signal / noise); infinite without noise, NaN where shapes have differed."""
        if math.isnan(self.signal):
            return math.nan
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf


@dataclass(frozen=True)
class Alone:
    """One operator of the approximate model, to be measured alone: `nodes`, in order, compute the
    value named `value` from others; both models have values of all these names. `name` and `op` are
    those of the last node, the operator itself."""

    name: str
    op: str
    value: str
    nodes: tuple[Node, ...]


def operators_alone(exact: Graph, lossy: Graph) -> list[Alone]:
    """Return the operators of the approximate graph `lossy` to be measured alone: those with an
    output whose name `exact` has, too, if computing it from values with such names takes further
    nodes, such as quantisation. Operators that only move elements are left out."""
    known = {v.name for v in exact.values() if v.const is None}
    rank = {node: i for i, node in enumerate(lossy.nodes)}
    found = []
    for node in lossy.nodes:
        if node.op.traits & {"view", "move"}:
            continue
        read = (v for v in node.outputs if v.uses or v in v.graph.outputs)
        v = next((v for v in read if v.name in known), None)
        nodes = [] if v is None else sorted(_between(v, known), key=rank.__getitem__)
        if v is not None and len(nodes) > 1:
            found.append(Alone(node.name, node.op.name, v.name, tuple(nodes)))
    return found


def _between(v: Value, known: set[str]) -> list[Node]:
    """Return, in no certain order, the nodes that compute v, whether or not its name is known, from
    constants and values of `known` names."""
    assert v.producer is not None
    seen: dict[Node, None] = {}
    work = [v.producer]
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen[node] = None
        work += [
            x.producer
            for x in node.inputs
            if x is not None and x.producer is not None and x.name not in known
        ]
    return list(seen)


def with_alone(exact: Graph, alone: Sequence[Alone]) -> Graph:
    """Return a copy of the exact graph that also computes each operator of `alone` approximately,
    from exact values. Its outputs are, for each operator, the exact and the approximate value."""
    graph = exact.clone()
    values = {v.name: v for v in graph.values()}
    outputs = []
    for one in alone:
        made: dict[Value, Value] = {}
        for node in one.nodes:
            inputs = [None if v is None else _own(graph, v, made, values) for v in node.inputs]
            copy = graph.adopt(node, tuple(inputs))
            made |= dict(zip(node.outputs, copy.outputs, strict=True))
            last = {v.name: made[v] for v in node.outputs}
            if one.value in last:
                outputs += [values[one.value], last[one.value]]
    graph.outputs = outputs
    graph.sweep()
    return graph


def _own(graph: Graph, v: Value, made: dict[Value, Value], values: Mapping[str, Value]) -> Value:
    """Return the value of `graph`, a copy of the exact graph, in the place of the approximate
    graph's v: `made[v]`, set first if missing: to a copy of a constant, or to the exact value of
    the same name (`values`)."""
    if v not in made:
        made[v] = values[v.name] if v.const is None else graph.const(v.const, v.name)
    return made[v]
