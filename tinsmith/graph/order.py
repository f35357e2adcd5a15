"""The order of a graph's nodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tinsmith.errors import GraphError

if TYPE_CHECKING:
    from tinsmith.graph.core import Node


def in_order(nodes: Iterable[Node], name: str) -> list[Node]:
    """The nodes, each after those whose outputs it reads. Of several that may come next the one
    with the lowest sequence number comes first, then the one that is first in `nodes`. `name` is
    the graph's, for the GraphError that is raised if there is a cycle."""
    order = sorted(nodes, key=lambda n: n.seq)
    done: set[Node] = set()
    for node in order:
        for v in node.inputs:
            if v is not None and v.producer is not None and v.producer not in done:
                return _by_need(list(nodes), name)
        done.add(node)
    return order


def _by_need(nodes: list[Node], name: str) -> list[Node]:
    """`in_order` where the order of sequence numbers is not topological."""
    waiting = {
        n: len({id(v.producer) for v in n.inputs if v is not None and v.producer is not None})
        for n in nodes
    }
    rank = {n: i for i, n in enumerate(nodes)}
    ready = [(n.seq, rank[n], n) for n, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = heapq.heappop(ready)[2]
        order.append(node)
        for user in dict.fromkeys(u for v in node.outputs for u in v.uses):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.seq, rank[user], user))
    if len(order) != len(nodes):
        stuck = [n.name for n in nodes if waiting[n] > 0][:5]
        raise GraphError(f"graph {name!r} has a cycle through {', '.join(map(repr, stuck))}")
    return order
