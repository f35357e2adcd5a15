"""The readers of a value, the outputs of a graph, what a value depends on, and the topological
order of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from tinsmith.errors import GraphError

if TYPE_CHECKING:
    from tinsmith.graph.core import Node
    from tinsmith.graph.value import Value


class Uses:
    """The nodes that read a value, as a list in the order in which each first did; a node that
    reads it twice is there twice in a row. To find, add or drop a node takes constant time."""

    __slots__ = ("_counts", "_more")

    def __init__(self) -> None:
        self._counts: dict[Node, int] = {}
        self._more = 0  # uses beyond the first of each node

    def append(self, node: Node, count: int = 1) -> None:
        known = self._counts.get(node, 0)
        self._counts[node] = known + count
        self._more += count if known else count - 1

    def remove(self, node: Node) -> None:
        """Drop one use by a node. Raises KeyError where there is none."""
        left = self._counts[node] - 1
        if left:
            self._counts[node] = left
            self._more -= 1
        else:
            del self._counts[node]

    def pop(self, node: Node) -> int:
        """Drop all uses by a node, and return how many. Raises KeyError where there is none."""
        count = self._counts.pop(node)
        self._more -= count - 1
        return count

    def __contains__(self, node: object) -> bool:
        return node in self._counts

    def __iter__(self) -> Iterator[Node]:
        if not self._more:
            return iter(self._counts)
        return chain.from_iterable(repeat(n, count) for n, count in self._counts.items())

    def __getitem__(self, index: int) -> Node:
        return next(iter(self)) if index == 0 else list(self)[index]

    def __len__(self) -> int:
        return len(self._counts) + self._more

    def __bool__(self) -> bool:
        return bool(self._counts)


class Outputs(MutableSequence["Value"]):
    """The values that leave a graph: a list in which membership and replacement take constant
    time."""

    def __init__(self, values: Iterable[Value] = ()) -> None:
        self._values = list(values)
        self._places: dict[Value, list[int]] | None = None

    def _known(self) -> dict[Value, list[int]]:
        """Value -> its indexes in the list; computed when it is first needed after an edit."""
        if self._places is None:
            self._places = {}
            for i, v in enumerate(self._values):
                self._places.setdefault(v, []).append(i)
        return self._places

    def replace(self, old: Value, new: Value) -> None:
        """Replace `old` by `new` at all its places in the list. Raises KeyError if it has none."""
        places = self._known().pop(old)
        for i in places:
            self._values[i] = new
        self._known().setdefault(new, []).extend(places)

    def insert(self, index: int, value: Value) -> None:
        self._values.insert(index, value)
        self._places = None

    def __setitem__(self, index: Any, value: Any) -> None:
        self._values[index] = value
        self._places = None

    def __delitem__(self, index: int | slice) -> None:
        del self._values[index]
        self._places = None

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values)

    def __contains__(self, value: object) -> bool:
        return value in (self._known() if self._places is None else self._places)

    def __eq__(self, other: object) -> bool:
        return self._values == (other._values if isinstance(other, Outputs) else other)

    def __repr__(self) -> str:
        return repr(self._values)


def sources_of(
    values: Iterable[Value | None], through: Callable[[Node], bool] = lambda _: True
) -> list[Value]:
    """The graph inputs that are among `values`, or on which these depend. The inputs of a node for
    which `through` is False are not followed (`ancestors`)."""
    found = ancestors(values, through)
    return [v for v in found if v.producer is None and v.const is None]


def ancestors(
    values: Iterable[Value | None], through: Callable[[Node], bool] = lambda _: True
) -> Iterator[Value]:
    """Yield the values (but None), and all on which they depend, each once, in no set order. The
    inputs of a node for which `through` is False are not followed; its outputs may be yielded."""
    work = [v for v in values if v is not None]
    seen: set[Value] = set()
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        yield v
        if v.producer is not None and through(v.producer):
            work += [x for x in v.producer.inputs if x is not None]


def depend(values: Iterable[Value], nodes: set[Node], seen: set[Node]) -> bool:
    """Whether one of the values is a result of one of the `nodes`, or depends on one. `seen`: nodes
    known not to depend on `nodes`, which are not searched again. Searched nodes are added to it, so
    it may be used again only after the answer False."""
    work = [v.producer for v in values if v.producer is not None]
    while work:
        node = work.pop()
        if node in nodes:
            return True
        if node not in seen:
            seen.add(node)
            work += [v.producer for v in node.inputs if v is not None and v.producer is not None]
    return False


# ---- the order of nodes


def in_order(nodes: Iterable[Node], name: str) -> list[Node]:
    """The nodes in topological order: each after the producers of its inputs. Of several nodes that
    may come next, the one with the lowest sequence number is taken, then the first in `nodes`.
    Raises GraphError, with the graph's `name`, if there is a cycle, or a producer is missing."""
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
    readers: dict[Node, list[Node]] = {n: [] for n in nodes}
    waiting, rank = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    ready: list[tuple[float, int, Node]] = []
    for i, n in enumerate(nodes):
        rank[n] = i
        for v in n.inputs:
            if v is not None and v.producer is not None:
                if v.producer not in readers:
                    raise GraphError(
                        f"graph {name!r}: {n.name!r} reads {v.name!r} of a node that is not in it"
                    )
                waiting[n] += 1
                readers[v.producer].append(n)
        if not waiting[n]:
            ready.append((n.seq, i, n))
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = heapq.heappop(ready)[2]
        order.append(node)
        for user in readers[node]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.seq, rank[user], user))
    if len(order) != len(nodes):
        stuck = [n.name for n in nodes if waiting[n] > 0][:5]
        raise GraphError(f"graph {name!r} has a cycle through {', '.join(map(repr, stuck))}")
    return order
