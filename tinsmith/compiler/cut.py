"""Cuts nodes whose sizes depend on data out of a graph; they get programs of their own in the run.

Some results' sizes depend on data: those of NonZero on its input's elements, those of a Reshape on
a computed target. Nodes that read such results cannot be compiled with the rest of the graph. So
they are moved into Part nodes, steps that `later.Later` runs: a part is compiled when its step is
reached, as its inputs have been computed and its sizes are numbers then.

Nodes belong to one part if they share an unknown size, directly or through others of the part, or
if they compute small tensors, mostly sizes, from its results. A part ends at the numbers from which
further sizes are computed: the next part reads these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from tinsmith.backends import DEFAULT
from tinsmith.compiler.split import groups_of, make_part
from tinsmith.conditions import estimating
from tinsmith.graph import Graph, Holder, Node, Value
from tinsmith.ops import OPS
from tinsmith.plan.gate import checked_alone
from tinsmith.sizes import Size, has_sizes

SMALL = 64
"""Elements at most of a tensor that is taken for arithmetic of sizes. Estimated."""
MOST_NUMBERS = 16
"""Elements at most of a list that may hold sizes, such as a Reshape's target or a Pad's paddings
(two for each axis)."""


def cut(graph: Graph) -> int:
    """Move nodes whose sizes depend on data into Part nodes, in place, and return the number of
    parts. Groups of nodes that are all views stay. Nothing is cut if a tensor input of the graph
    has free sizes."""
    if not all(v.type.is_static or _is_strange(v) for v in graph.inputs):
        return 0
    owners = _Owners(graph).found()
    if not owners:
        return 0
    _free_constants(graph, owners)
    whole = {n: owners.get(n, "") for n in graph.nodes}
    made = 0
    for nodes in joined(graph, groups_of(whole)):
        if any("view" not in n.op.traits for n in nodes):
            make_part(graph, nodes, DEFAULT, f"{nodes[0].name}.later")
            made += 1
    return made


def joined(graph: Graph, groups: Mapping[tuple[str, int], list[Node]]) -> list[list[Node]]:
    """Join groups of nodes, so that fewer steps run them: each with the next group of its owner,
    unless a path leads from one to the other through nodes of neither. `groups`: (owner, level) ->
    nodes, from `groups_of`. Return lists of nodes in the graph's order."""
    of = {n: key for key, nodes in groups.items() for n in nodes}
    nodes = {key: list(own) for key, own in groups.items()}

    def after(group: Any) -> set[Any]:
        """Return the readers of a group's (or single node's) results: groups by key, or nodes that
        are in no group."""
        own: list[Any] = nodes.get(group, [group])
        return {of.get(u, u) for n in own for v in n.outputs for u in v.uses} - {group}

    for first in sorted(groups, key=lambda key: key[1]):
        later = sorted(k for k in nodes if k[0] == first[0] and k[1] > first[1])
        if not later or _reaches(after(first) - {later[0]}, later[0], after):
            continue
        moved = nodes.pop(first)
        nodes[later[0]] = [*moved, *nodes[later[0]]]
        of.update((n, later[0]) for n in moved)
    order = {n: i for i, n in enumerate(graph.nodes)}
    return [sorted(own, key=order.__getitem__) for own in nodes.values()]


def _reaches(starts: set[Any], end: Any, after: Callable[[Any], set[Any]]) -> bool:
    """Whether `end` can be reached from any of `starts`; `after` gives the successors."""
    seen, work = set(starts), list(starts)
    while work:
        here = work.pop()
        if here == end:
            return True
        new = after(here) - seen
        seen |= new
        work += new
    return False


def numbers_read(node: Node) -> list[int]:
    """Return the indices of a node's inputs whose elements its type rule reads, such as a Reshape's
    target; without constants, and tensors that `counts` refuses. Found by calling the rule on
    values that record reads (`_Probe`)."""
    if node.op.traits & {"control", "region", "holder", "check"}:
        return []
    asked: set[int] = set()
    probes = tuple(
        _Probe(v, i, asked) if v is not None and v.const is None and counts(v) else v
        for i, v in enumerate(node.inputs)
    )
    if any(isinstance(p, _Probe) for p in probes):
        with estimating():
            node.op.infer(probes, node.attrs)
    return sorted(asked)


class _Probe(Value):
    """An input that adds its index `number` to `asked` when its elements are read (`const`)."""

    def __init__(self, value: Value, number: int, asked: set[int]) -> None:
        self._number, self._asked = number, asked
        super().__init__(value.graph, value.type, value.name)

    @property
    def const(self) -> Any:  # type: ignore[override]
        self._asked.add(self._number)

    @const.setter
    def const(self, value: Any) -> None:
        pass


def counts(value: Value) -> bool:
    """Whether a tensor's elements may be sizes: a scalar or list of 1 to MOST_NUMBERS integers, of
    static shape."""
    t = value.type
    if not t.is_static or t.dtype.kind not in "iu" or len(t.dims) > 1:
        return False
    return not isinstance(t.size, Size) and 0 < t.size <= MOST_NUMBERS


class _Owners:
    """Assigns nodes to parts. Each node has keys: the unknown sizes, and the values of unknown
    rank, that it reads or makes. Nodes connected by common keys belong to one part (union-find)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._above: dict[Hashable, Hashable] = {}
        self._keys: dict[Node, Hashable] = {}

    def found(self) -> dict[Node, str]:
        """Return node -> name of its part ("later0"), for the nodes that belong to one."""
        for node in self._graph.nodes:
            keys = self._keys_of(node)
            if keys:
                first, *others = keys
                for key in others:
                    self._above[self._top(key)] = self._top(first)
                self._keys[node] = first
        tops = [self._top(k) for k in self._keys.values()]
        names = {top: f"later{i}" for i, top in enumerate(dict.fromkeys(tops))}
        return {n: names[top] for n, top in zip(self._keys, tops, strict=True)}

    def _top(self, key: Hashable) -> Hashable:
        while (above := self._above.get(key, key)) != key:
            key = above
        return key

    def _keys_of(self, node: Node) -> list[Hashable]:
        """Return the keys that put a node into a part; empty if it stays outside of parts."""
        given = [v for v in node.inputs if v is not None]
        # An If may be known by the sizes: exporters ask whether there are any boxes.
        control = "control" in node.op.traits and "branch" not in node.op.traits
        if control or any(map(_is_strange, (*given, *node.outputs))):
            return []
        read, made = _unknown(given), _unknown(node.outputs)
        if read:
            x = checked_alone(node, self._graph)
            stays = x is not None and x.producer not in self._keys
            return [] if stays else [*read, *made]
        if made:
            wanted = [node.inputs[k] for k in numbers_read(node)]
            users = (n for v in node.outputs for n in v.uses)
            if not wanted or any(checked_alone(n, self._graph) for n in users):
                return []
            before = [v.producer for v in wanted if v is not None]
            return [*made, *(self._keys[p] for p in before if p in self._keys)]
        return self._of_sizes(node, given)

    def _of_sizes(self, node: Node, given: Sequence[Value]) -> list[Hashable]:
        """Return the keys of the parts whose results a node reads, so that it joins them, if it
        only does arithmetic of sizes: all else that it reads is constant, and its results are
        small. Empty otherwise."""
        before = [v.producer for v in given if v.const is None]
        if not before or not all(p is not None and p in self._keys for p in before):
            return []
        if node.op.traits & {"impure", "check"}:
            return []
        if any(v.type.is_free or v.type.size > SMALL for v in node.outputs):
            return []
        return [self._keys[p] for p in before if p is not None]


def _is_strange(value: Value) -> bool:
    """Whether a value is no tensor of numbers: text, or a sequence, optional or map."""
    return isinstance(value.type, Holder) or value.type.dtype == object


def _unknown(values: Iterable[Value]) -> list[Hashable]:
    """Return what only a run tells of values, as keys of parts: names of unknown sizes, and values
    of unknown rank. Each once."""
    found: dict[Hashable, None] = {}
    for v in values:
        dims: Sequence[Any] = (v,) if v.type.shape is None else v.type.shape
        found.update((d, None) for d in dims if isinstance(d, str | Value))
    return list(found)


def _free_constants(graph: Graph, owners: dict[Node, str]) -> None:
    """Let nodes of parts read, instead of a constant that holds Sizes, an Identity of it at the
    graph's beginning. So its elements become an input of the part: inside a part, the program's
    symbols are unknown."""
    made: dict[Value, Value] = {}
    for node in owners:
        for i, v in enumerate(node.inputs):
            if v is None or v.const is None or not has_sizes(v.const):
                continue
            if v not in made:
                made[v] = graph.add(
                    OPS["Identity"], v, name=f"{v.name}.read", origin=node.origin,
                    before=graph.nodes[0],
                ).output  # fmt: skip
            graph.set_input(node, i, made[v])
