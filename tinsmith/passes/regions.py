"""Nodes that hold several nodes as a graph, such as Fused: made of these, and taken apart again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinsmith.graph import Graph, Node, Value
from tinsmith.graph.uses import depend
from tinsmith.ops import OPS


def enclose(
    graph: Graph, op: str, region: list[Node], named: Node, inner: int | None, **attrs: Any
) -> Node:
    """Move the nodes of a region, in graph order, into the body of a new node of the operator `op`
    (Fused, Block, Part), with `attrs` as further attributes. The outputs of the new node are the
    region's values that are read outside. It takes the place of the region's last node in the
    graph's order, and the name of the node `named`. Constants of at most `inner` elements (None:
    all) lie in the body; other values that the region reads become its inputs."""
    last = region[-1]
    body, outer, results = body_of(graph, region, last.output.name, inner)
    made = graph.add(OPS[op], *outer, name=named.name, origin=named.origin, body=body, **attrs)
    made.seq = last.seq
    for old, new in zip(results, made.outputs, strict=True):
        new.type = old.type
        take_place(graph, old, new)
    graph.sweep(region)
    made.name, named.name = named.name, made.name
    return made


def body_of(
    graph: Graph, region: list[Node], name: str, inner: int | None = None
) -> tuple[Graph, list[Value], list[Value]]:
    """Copy the nodes of a region, in graph order, into a new graph called `name`; `graph` stays as
    it is. Returns (the new graph, the values of `graph` for which its inputs stand, those for which
    its outputs stand: all that are read outside the region, or are graph outputs). Constants of at
    most `inner` elements (None: all) are copied too, and need no input."""
    body, inside = Graph(name, graph.file), set(region)
    env: dict[Value, Value] = {}
    outer: list[Value] = []

    def get(v: Value | None) -> Value | None:
        if v is None or v in env:
            return None if v is None else env[v]
        if v.const is not None and (inner is None or v.const.size <= inner):
            env[v] = body.const(v.const, v.name)
        else:
            env[v] = body.input(v.name, v.type)
            outer.append(v)
        return env[v]

    for node in region:
        copy = body.adopt(node, tuple(map(get, node.inputs)))
        env.update(zip(node.outputs, copy.outputs, strict=True))
    results = [
        v for n in region for v in n.outputs if v in graph.outputs or not inside.issuperset(v.uses)
    ]
    body.outputs = [env[v] for v in results]
    return body, outer, results


def inlined(
    graph: Graph, root: Node, body: Graph, inputs: Sequence[Value | None]
) -> tuple[Value, ...]:
    """Copy the nodes of `body`, a graph that the node `root` holds, into `graph`, before the root,
    with `inputs` in place of the body's. Returns the copies of the body's outputs."""
    env: dict[Value, Value | None] = dict(zip(body.inputs, inputs, strict=True))

    def here(v: Value | None) -> Value | None:
        if v is not None and v not in env:
            env[v] = graph.const(v.const, v.name)
        return None if v is None else env[v]

    for node in body.nodes:
        read = [here(v) for v in node.inputs]
        names = [v.name for v in node.outputs]
        copy = graph.add(
            node.op, *read, name=node.name, origin=node.origin, outputs=names, before=root,
            **node.attrs,
        )  # fmt: skip
        env.update(zip(node.outputs, copy.outputs, strict=True))
    found = tuple(here(v) for v in body.outputs)
    return tuple(v for v in found if v is not None)


def take_place(graph: Graph, old: Value, new: Value) -> None:
    """Let all readers of `old` read `new`, which gets the name of `old`."""
    name = old.name
    graph.replace(old, new)
    if new.name != name:
        old.name, new.name = new.name, old.name


# ---- groups that stay


def keep(graph: Graph, groups: Iterable[Iterable[Node]], owner: str) -> None:
    """Enclose each group of nodes in one Part node for the backend `owner`, so that passes leave
    the nodes as they are until `release`. Skipped are groups that read only constants, or with a
    path from one node to another through nodes outside."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for group in groups:
        region = sorted(group, key=order.__getitem__)
        read = [v for n in region for v in n.inputs if v is not None and v.producer not in region]
        if all(v.const is not None for v in read) or depend(read, set(region), set()):
            continue
        enclose(graph, "Part", region, region[-1], None, backend=owner)


def release(graph: Graph, owner: str) -> None:
    """Undo `keep`: replace each Part of the backend `owner` by its nodes."""
    for part in graph.nodes:
        if part.op is not OPS["Part"] or part.attrs["backend"] != owner:
            continue
        before = set(graph.nodes)
        new = inlined(graph, part, part.attrs["body"], part.inputs)
        for old, value in zip(part.outputs, new, strict=True):
            take_place(graph, old, value)
        for heir in [n for n in graph.nodes if n not in before and n.origin is part.origin][-1:]:
            heir.name, part.name = part.name, heir.name
        graph.sweep([part])
