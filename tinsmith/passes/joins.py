"""Joins that repeat an earlier join and go on become a join of that one and the rest."""

from __future__ import annotations

from typing import ClassVar

from tinsmith.graph import Graph, Value
from tinsmith.ops import OPS
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass


@register("machine")
@dataclass(frozen=True)
class NestConcats:
    """concat(a, b, c) -> concat(concat(a, b), c), where concat(a, b) is computed anyway.

    Networks of dense blocks (DenseNet) join all earlier results before every layer: nested, each
    result lies in one place of one buffer, and nothing is copied.
    """

    operators: ClassVar = frozenset(("Concat",))

    def run(self, graph: Graph, context: Context) -> int:
        made: dict[tuple[int, tuple[Value | None, ...]], Value] = {}
        counts: dict[tuple[int, tuple[Value | None, ...]], set[int]] = {}  # by the first two
        changes = 0
        for node in graph.nodes:
            if node.op.name != "Concat" or not node.output.shape:
                continue
            axis, inputs = node.axis % len(node.output.shape), node.inputs
            made.setdefault((axis, inputs), node.output)
            like = counts.setdefault((axis, inputs[:2]), set())
            like.add(len(inputs))
            for count in sorted((n for n in like if 1 < n < len(inputs)), reverse=True):
                first = made.get((axis, inputs[:count]))
                if first is None:
                    continue
                new = OPS["Concat"](
                    first, *inputs[count:], axis=axis, before=node, origin=node.origin,
                    name=f"{node.name}.nested",
                )  # fmt: skip
                new.type = node.output.type
                graph.replace(node.output, new)
                made[axis, inputs] = new
                changes += 1
                break
        graph.sweep()
        return changes
