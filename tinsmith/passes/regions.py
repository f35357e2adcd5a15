"""Several nodes as one, which holds them as a graph, and the nodes of such a graph as before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS


def enclose(
    graph: Graph, op: str, region: list[Node], named: Node, inner: int | None, **attrs: Any
) -> Node:
    """Move the nodes of a region into the body of a new node of the operator `op` (Fused, Block,
    Part), which has the attributes `attrs` too. The region is in graph order; its results are those
    values that are read outside, and the new node takes the place of its last node, with the name
    of `named`. Constants of at most `inner` elements (None: all) lie in the body, whatever else the
    nodes read are its inputs."""
    last, inside = region[-1], set(region)
    body = Graph(last.output.name, graph.file)
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
    made = graph.add(OPS[op], *outer, name=named.name, origin=named.origin, body=body, **attrs)
    made.seq = last.seq
    for old, new in zip(results, made.outputs, strict=True):
        new.type = old.type
        _take_place(graph, old, new)
    graph.sweep(region)
    made.name, named.name = named.name, made.name
    return made


def inlined(
    graph: Graph, root: Node, body: Graph, inputs: Sequence[Value | None]
) -> tuple[Value, ...]:
    """Copy the nodes of `body`, which the node `root` holds, into the graph, before the root;
    `inputs` are those of the body. Returns the copies of the body's outputs."""
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


def _take_place(graph: Graph, old: Value, new: Value) -> None:
    """Let all read `new`, which has the name of `old` from now on, instead of that."""
    name = old.name
    graph.replace(old, new)
    if new.name != name:
        old.name, new.name = new.name, old.name


# ---- groups that stay


def keep(graph: Graph, groups: Iterable[Iterable[Node]], owner: str) -> None:
    """Make each group of nodes one node, a Part of `owner`, so that passes leave it as it is, until
    `release`. Groups of constants alone are passed over, as are those between whose nodes others
    lie."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for group in groups:
        region = sorted(group, key=order.__getitem__)
        read = [v for n in region for v in n.inputs if v is not None and v.producer not in region]
        if all(v.const is not None for v in read) or _is_around_others(region):
            continue
        enclose(graph, "Part", region, region[-1], None, backend=owner)


def _is_around_others(region: list[Node]) -> bool:
    """Whether a node outside of a region reads its results, and leads back to it."""
    inside = set(region)
    waiting = [u for n in region for v in n.outputs for u in v.uses if u not in inside]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in inside:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [u for v in node.outputs for u in v.uses]
    return False


def release(graph: Graph, owner: str) -> None:
    """Put the nodes that `keep` has kept back where they were."""
    for part in graph.nodes:
        if part.op is not OPS["Part"] or part.attrs["backend"] != owner:
            continue
        before = set(graph.nodes)
        new = inlined(graph, part, part.attrs["body"], part.inputs)
        for old, value in zip(part.outputs, new, strict=True):
            _take_place(graph, old, value)
        for heir in [n for n in graph.nodes if n not in before and n.origin is part.origin][-1:]:
            heir.name, part.name = part.name, heir.name
        graph.sweep([part])
