"""Finds steps whose layouts no later node can change, while later nodes are still being placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinsmith.graph import Graph, Node, Value
from tinsmith.plan.placed import Placed
from tinsmith.plan.placement import Placement


class Settling:
    """Calls `take` with each step of a placement, in order, as soon as its tensors are settled, so
    that its code can be generated while later nodes are still being placed.

    A reader may widen a tensor's halo, or let the tensor lie inside another one. So a tensor is
    settled when all readers of all values that share its memory have been placed.
    """

    def __init__(self, placement: Placement, graph: Graph, take: Callable[[Placed], None]) -> None:
        self._placement, self._take = placement, take
        self._closing: dict[Node, list[Value]] = {}
        last = {v: n for n in graph.nodes for v in n.inputs if v is not None and v.const is None}
        for v, n in last.items():
            self._closing.setdefault(n, []).append(v)
        self._read = last.keys()
        self._open = {v for v in graph.inputs if v in last}
        self._awaited: Value | None = None
        self._done = 0

    def after(self, nodes: Iterable[Node]) -> None:
        """Call this whenever further `nodes` of the graph, in order, have been placed: settles
        the steps of which no node that is still to come reads or shares a tensor, up to the first
        step of which one does."""
        for n in nodes:
            self._open.update(v for v in n.outputs if v in self._read)
            self._open.difference_update(self._closing.get(n, ()))
        if self._awaited in self._open:
            return
        self._awaited = None
        roots = {t.root: v for v in self._open for t in self._placement.tensors(v)}
        for step in self._placement.steps[self._done :]:
            for t in step.tensors:
                self._awaited = self._awaited or roots.get(t.root)
            if self._awaited is not None:
                return
            self._settle(step)

    def finish(self) -> None:
        """Settle all remaining steps: all nodes have been placed."""
        for step in self._placement.steps[self._done :]:
            self._settle(step)

    def _settle(self, step: Placed) -> None:
        for t in step.tensors:
            t.settle()
        self._take(step)
        self._done += 1
