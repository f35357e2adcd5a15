"""Splits a graph between the backends that the caller names.

Each node goes to the first backend that takes it. Nodes of the `cpu` backend, whose program runs
the graph, stay as they are; nodes of another backend are moved into Part nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinsmith.backends import DEFAULT, Backend
from tinsmith.backends.cpu import HOST
from tinsmith.errors import NoBackend
from tinsmith.graph import Graph, Node
from tinsmith.ops.control import Part
from tinsmith.passes.regions import body_of, take_place
from tinsmith.passes.report import Report
from tinsmith.rewrite import Refusal
from tinsmith.sizes import as_number, as_numbers


def split(graph: Graph, backends: Mapping[str, Backend]) -> Report:
    """Split a graph, in place, as the module says. In nodes of other backends, free sizes become
    the example's numbers. The report tells which backend declined which node, and why. Raises
    NoBackend for a node that none of the backends takes."""
    report = Report()
    owners = {node: _owner(node, backends, report) for node in graph.nodes}
    for (backend, _), nodes in groups_of(owners).items():
        for v in [v for n in nodes for v in (*n.inputs, *n.outputs) if v is not None]:
            if v.type.is_free:
                v.type = v.type.like(shape=as_number(v.type.dims))
            if v.const is not None:
                v.const = as_numbers(v.const, v.dtype)
        make_part(graph, nodes, backend)
    return report


def idle(graph: Graph, backends: Mapping[str, Backend]) -> list[str]:
    """Return the names of the backends that compute no node of a split graph."""
    named = {n.attrs["backend"] for n in graph.nodes if n.op is Part}
    if any(n.op is not Part for n in graph.nodes):
        named |= {name for name, backend in backends.items() if backend is HOST}
    return [name for name in backends if name not in named]


def _owner(node: Node, backends: Mapping[str, Backend], report: Report) -> str:
    """Return the name of the first backend that takes a node; "" if it is `HOST`, or if the node is
    a check. `report` gets the reasons of backends that declined. Raises NoBackend."""
    if "check" in node.op.traits:
        return ""
    reasons = []
    for name, backend in backends.items():
        if not (why := backend.takes(node)):
            return "" if backend is HOST else name
        reasons.append(f"{name}: {why}")
        report.refusals.append(Refusal(f"backend {name}", node.name, why, (node.name,)))
    raise NoBackend(
        f"{node.origin}: no backend that was asked for computes {node.op.name} ("
        f"{'; '.join(reasons)}); backend={','.join([*backends, DEFAULT])!r} lets "
        f"{DEFAULT!r} do it"
    )


def groups_of(owners: Mapping[Node, str]) -> dict[tuple[str, int], list[Node]]:
    """Return (owner, level) -> nodes, each entry one part; nodes of owner "" are left out. `owners`
    is in graph order. A node's level is the greatest number of changes of owner on a path to it. So
    no part depends on its own results through nodes of other owners: parts can run one after the
    other."""
    levels: dict[Node, int] = {}
    groups: dict[tuple[str, int], list[Node]] = {}
    for node, owner in owners.items():
        before = [v.producer for v in node.inputs if v is not None and v.producer is not None]
        level = max((levels[p] + (owners[p] != owner) for p in before), default=0)
        levels[node] = level
        if owner:
            groups.setdefault((owner, level), []).append(node)
    return groups


def make_part(graph: Graph, nodes: list[Node], backend: str, name: str = "") -> None:
    """Replace `nodes`, in the graph's order, by one Part node of a backend. Its inputs are the
    values that they read from other nodes; its outputs, of unchanged names, those that other nodes
    or the graph's outputs read. Constants are copied into its body."""
    for node in nodes:
        node.attrs.update(as_number(node.attrs))
    body, read, given = body_of(graph, nodes, f"{graph.name} on {backend}")
    part = graph.add(
        Part, *read, name=name or backend, outputs=[v.name for v in given], origin=nodes[0].origin,
        before=nodes[0], body=body, backend=backend,
    )  # fmt: skip
    for old, new in zip(given, part.outputs, strict=True):
        take_place(graph, old, new)
    for node in reversed(nodes):
        graph.remove(node)
