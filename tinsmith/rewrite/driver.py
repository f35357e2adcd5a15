"""Applies rules to a graph until none fires: a worklist in graph order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from itertools import islice
from typing import Any

from tinsmith.errors import PassError, RewriteLimit
from tinsmith.graph import Graph, Node, Value
from tinsmith.records import NamedTuple, dataclass
from tinsmith.rewrite.rule import Refusal, Rule, RuleSet, Trace, meet


@dataclass
class Rewritten:
    """What `rewrite` did.

    counts    how often each rule fired, by its name
    refusals  the near misses: where a rule matched, or nearly, and did not fire
    absorbed  nodes of the source model that were merged into another: name in the model -> (name of
              the rule, name of the other)
    """

    counts: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    absorbed: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        return sum(self.counts.values())


class Start(NamedTuple):
    """Where `rewrite` tries rules first, instead of at all nodes: at `nodes`, at the nodes in
    `changed`, which were edited, and at the nodes below changed ones, as far as a pattern with its
    top there may reach a changed one. Nodes no longer in the graph are passed over."""

    nodes: list[Node]
    changed: list[Node]


def rewrite(
    graph: Graph, rules: Iterable[Rule], *, limit: int | None = None, start: Start | None = None,
) -> Rewritten:  # fmt: skip
    """Apply rules, in their order, at every node until none fires. Edits the graph in place.

    `start`: where patterns may match, if that is known (as from `matching`); other nodes are tried
    only once a rewrite changes nodes near them. Raises RewriteLimit after more than `limit`
    rewrites (default: 1,000, and 10 for each node), and PassError if a rule raises anything but
    `Skip`.
    """
    if not isinstance(rules, RuleSet):
        rules = RuleSet("rules", rules=list(rules))
    return _Driver(graph, rules, limit).run(start)


def matching(graph: Graph, rules: RuleSet) -> tuple[list[Node], list[Refusal]]:
    """The nodes at which the pattern of a rule matches, whether or not the rule would fire; and the
    near misses: patterns of which some nodes matched, and then one did not. Patterns see no shapes,
    so both hold for all shapes of the graph's inputs."""
    nodes: list[Node] = []
    misses: list[Refusal] = []
    for node in graph.nodes:
        for rule in rules.rules_for(node):
            trace = Trace()
            if rule.promising(node) and rule.matches(node, trace):
                nodes.append(node)
                break
            refusal = trace.refusal(rule.name, node)
            if refusal is not None:
                misses.append(refusal)
    return nodes, misses


FEW = 64
"""When a value loses a reader, rules are tried again at its other readers only if these are at most
so many. With more no pattern can match there: none has so many nodes, and values inside a match
must not be read from outside."""
MOVES = frozenset(("move", "view"))
"""Traits of nodes through which functions of rules may look, beyond their patterns, as far as the
deepest pattern of their set reaches."""


class _Driver:
    """One run of `rewrite`.

    queue  a heap of (priority, count, node): nodes at which to try rules, the smallest priority
           first. A node's priority is its index in the graph's order, or that of the node whose
           change made it worth trying; `count` orders equal ones
    reach  how many nodes deep the deepest pattern is: how far downstream a change may matter
    near   (name of a rule, node) -> why the rule did not fire there the last time it was tried
    roots  name of an operator -> the alternatives of patterns that may have it at their top
    inside names of the operators and traits that patterns have below their tops, and MOVES
    """

    def __init__(self, graph: Graph, rules: RuleSet, limit: int | None) -> None:
        self.graph, self.rules_for, self.backwards = graph, rules.rules_for, rules.backwards
        self.limit = 1000 + 10 * len(graph) if limit is None else limit
        self.reach = max((r.depth for r in rules), default=0)
        self.inside = MOVES.union(*(r.inside for r in rules))
        self.queue: list[tuple[float, int, Node]] = []
        self.queued: set[Node] = set()
        self.count = 0
        self.result = Rewritten()
        self.near: dict[tuple[str, Node], Trace] = {}
        self.roots: dict[str, list[Any]] = {}

    def push(self, node: Node, priority: float) -> None:
        roots = self.roots.get(node.op.name)
        if roots is None:
            rules = self.rules_for(node)
            roots = self.roots[node.op.name] = [root for r in rules for root in r.roots]
        if not roots or node in self.queued:
            return
        for root in roots:
            if root.promising(node):
                self.queued.add(node)
                self.count += 1
                heapq.heappush(self.queue, (priority, self.count, node))
                return

    def run(self, start: Start | None) -> Rewritten:
        if start is None:
            for node in self.graph._nodes:
                self.push(node, 0.0)
        else:
            for node in filter(self.graph.__contains__, start.nodes):
                self.push(node, 0.0)
            self.push_downstream([n for n in dict.fromkeys(start.changed) if n in self.graph], 0.0)
        if self.queue:  # else nobody needs to know the order, which takes long
            nodes = self.graph.nodes
            place = {n: float(i) for i, n in enumerate(nodes[::-1] if self.backwards else nodes)}
            self.queue = [(place[n], i, n) for _, i, n in self.queue]
            heapq.heapify(self.queue)
        while self.queue:
            priority, _, node = heapq.heappop(self.queue)
            self.queued.discard(node)
            if node in self.graph:
                self.visit(node, priority)
        for (name, node), trace in self.near.items():
            refusal = trace.refusal(name, node) if node in self.graph else None
            if refusal is not None:
                self.result.refusals.append(refusal)
        return self.result

    def visit(self, node: Node, priority: float) -> None:
        for rule in self.rules_for(node):
            if not rule.promising(node):
                continue
            trace = Trace()
            size = len(self.graph)
            try:
                new = rule.apply(self.graph, node, trace)
            except Exception as error:
                raise PassError(
                    f"rule {rule.name} failed at {node.op.name} {node.name!r} "
                    f"({node.origin}): {type(error).__name__}: {error}"
                ) from error
            made = list(islice(reversed(self.graph._nodes), len(self.graph) - size))
            dropped = None if new is None else self.substitute(node, new, made, priority)
            if new is not None and dropped is not None:
                self.near.pop((rule.name, node), None)
                self.absorb(rule, new, made, dropped)
                self.fired(rule)
                return
            if made:
                self.graph.sweep(made)
            if trace.found is not None:
                self.near[rule.name, node] = trace

    def absorb(
        self, rule: Rule, new: tuple[Value, ...], made: list[Node], dropped: list[Node]
    ) -> None:
        heir = next((v.producer for v in new if v.producer is not None), None)
        if heir is None:
            return
        left = {heir.origin.name, *(n.origin.name for n in made)}
        for name in (n.origin.name for n in dropped):
            if name and name not in left:
                self.result.absorbed[name] = rule.name, heir.name

    def fired(self, rule: Rule) -> None:
        self.result.counts[rule.name] += 1
        if self.result.changes > self.limit:
            busy = ", ".join(f"{n} ({c} times)" for n, c in self.result.counts.most_common(5))
            raise RewriteLimit(
                f"graph {self.graph.name!r}: no fixed point after {self.limit} rewrites; "
                f"the rules that kept firing: {busy}"
            )

    def substitute(
        self, root: Node, new: tuple[Value, ...], made: list[Node], priority: float
    ) -> list[Node] | None:
        """Replace the outputs of `root` by the values `new`, and queue the nodes at which rules may
        match now. `made` are the nodes that the rule added, the newest first. Returns the nodes
        dropped as dead; None, with nothing done, if the outputs cannot be replaced."""
        moved = [
            u for old, v in zip(root.outputs, new, strict=True) if old is not v for u in old.uses
        ]
        if not replace_outputs(self.graph, root, new):
            return None
        dropped = self.graph.sweep([root])
        inherit(root, new, made, dropped)
        for node in reversed(made):
            node.seq = root.seq
            self.push(node, priority)
        self.graph._order = None
        read = [v.producer for n in (*dropped, *made) for v in n.inputs if v is not None]
        read += [v.producer for v in new]
        touched = [n for n in dict.fromkeys(read) if n is not None and n in self.graph]
        self.push_downstream([*touched, *moved], priority, touched)
        return dropped

    def push_downstream(
        self, start: list[Node], priority: float, same: Iterable[Node] = ()
    ) -> None:
        """Queue the nodes `start`, which have changed, their readers, and, up to `reach` below
        them, what reads nodes that a pattern may have below its top (`is_inside`). Nodes that are
        also in `same` have lost or gained readers only: nodes below these are queued only if each
        output has at most FEW readers."""
        seen = dict.fromkeys(start)
        level = list(seen)
        many = {n for n in same if any([len(v.uses) > FEW for v in n.outputs])}
        for distance in range(self.reach + 1):
            below: list[Node] = []
            for n in level:
                self.push(n, priority + distance * 1e-6)
                if distance == self.reach or n in many or (distance and not self.is_inside(n.op)):
                    continue
                for v in n.outputs:
                    for u in v.uses:
                        if u not in seen:
                            seen[u] = None
                            below.append(u)
            level = below

    def is_inside(self, op: Any) -> bool:
        """Whether a pattern may have a node of the operator below its top, or a function of a rule
        look through it."""
        return not self.inside.isdisjoint((op.name, *op.traits))


def replace_outputs(graph: Graph, root: Node, new: tuple[Value, ...]) -> bool:
    """Let readers of the root's outputs read the values `new` instead, one for each output. Each
    new value gets the more exact of its own type and the type of the output.

    Returns whether it is done: not if every value is the root's own output, or if a graph output
    would lose its name, as an input, a constant or another graph output cannot take its place.
    """
    pairs = [(old, v) for old, v in zip(root.outputs, new, strict=True) if old is not v]
    for old, value in pairs:
        if old in graph.outputs and (value.producer is None or value in graph.outputs):
            return False
    for old, value in pairs:
        if value.const is None:
            value.type = meet(old.type, value.type)
        graph.replace(old, value)
    return bool(pairs)


def inherit(root: Node, new: tuple[Value, ...], made: list[Node], dropped: list[Node]) -> None:
    """Let the nodes `made` by a rule inherit names from the nodes that it `dropped`, so that names
    of the model survive. A made node takes the names of the dropped node with the same origin and
    of that node's constants; without an origin it gets that of `root`. The values `new` that the
    rule made take the names of the outputs of `root` that they replaced."""
    by_origin = {id(n.origin): n for n in reversed(dropped)}  # of one origin, the root first
    heirs: set[Node] = set()
    for node in made:
        heir_of = by_origin.pop(id(node.origin), None)
        if heir_of is not None:
            heirs.add(node)
            for was, now in zip(heir_of.inputs, node.inputs, strict=False):
                if was is None or now is None or was is now or was.uses:
                    continue
                if was.const is not None and now.const is not None:
                    was.name, now.name = now.name, was.name
            node.name, heir_of.name = heir_of.name, node.name
        elif node.origin.name == node.name:
            node.origin = root.origin
    named = set(made)
    for old, value in zip(root.outputs, new, strict=True):
        producer = value.producer
        if producer not in named or root not in dropped:
            continue
        if producer not in heirs and id(root.origin) in by_origin:
            by_origin.pop(id(root.origin))
            producer.name, root.name = root.name, producer.name
        if old.name != value.name and value not in value.graph.outputs:
            old.name, value.name = value.name, old.name
