"""Dead code."""

from __future__ import annotations

from tinsmith.graph import Graph
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass


@register("portable", name="drop-dead")
@dataclass(frozen=True)
class DropDead:
    """Nodes that nothing uses are dropped."""

    def run(self, graph: Graph, context: Context) -> int:
        return graph.sweep()


register("machine", name="drop-dead-machine")(DropDead)
