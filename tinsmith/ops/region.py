"""Regions: several nodes as one, which one kernel, or another backend, computes."""

from __future__ import annotations

from tinsmith.graph import Graph, Node
from tinsmith.ops._op import op
from tinsmith.ops.interpret import flops_of_graph, infer_graph, run_graph


@op("control", "region")
def Fused(*xs, body):
    """y = body(*xs): nodes that one kernel computes together; at most one of them is an anchor"""
    return tuple(run_graph(body, xs))


@op("control", "region")
def Block(*xs, body):
    """y = body(*xs): several anchors, Fused or alone, that one kernel may compute together"""
    return tuple(run_graph(body, xs))


@op("control", "region")
def Part(*xs, body, backend):
    """y = body(*xs): nodes that the backend of this name computes"""
    return tuple(run_graph(body, xs))


def fused_body(node: Node) -> Graph | None:
    """The graph inside a `Fused` node; None for any other node."""
    return node.attrs["body"] if node.op is Fused else None


def anchors_of(node: Node) -> list[Node]:
    """The nodes in a `Fused` node that are not elementwise; [node] for any other node."""
    body = fused_body(node)
    return [node] if body is None else [n for n in body.nodes if "elementwise" not in n.op.traits]


@Fused.type
@Block.type
@Part.type
def _(*xs, body, backend=""):
    if [x.type for x in xs] == [v.type for v in body.inputs]:
        return tuple(v.type for v in body.outputs)
    return tuple(infer_graph(body, xs))


@Fused.cost
@Block.cost
@Part.cost
def _(*xs, body, backend=""):
    return flops_of_graph(body)
