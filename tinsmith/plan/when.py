"""When a batch is computed in turns: which runs of nodes, by the cost model.

In turns, what lies between the nodes stays in cache, and each thread works on its own; at once,
weights are read one time for all images. So early layers mostly pay in turns, late ones at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from tinsmith.codegen.target import Target
from tinsmith.errors import NoKernel
from tinsmith.graph import Graph, Node
from tinsmith.plan.place import place_node
from tinsmith.plan.placed import Placed
from tinsmith.plan.placement import Placement
from tinsmith.plan.tensors import Tensor
from tinsmith.plan.turns import Turn, one_turn, runs

WRITTEN = 2.0
"""How often what is written moves: a line is read before it is written back."""
KEPT = 1 / 2
"""Of the second-level cache: weights, and what comes next, take the rest."""
PART = 1 / 16
"""Of the last-level cache: other cores, and other machines on this one, use the rest."""
SHARED = 0.03
"""Of a step's time, which threads that share it lose: they do not end together."""
WORTH, LEAST = 0.01, 0.004
"""A region must save at least these parts: of its own time, and of the program's."""


def forced_turns(graph: Graph, turns: int) -> list[Turn]:
    """In so many turns wherever it can be."""
    return [one_turn(graph, run, turns) for run in runs(graph, turns)] if turns > 1 else []


def choose_turns(graph: Graph, fresh: Callable[[int], Placement], threads: int) -> list[Turn]:
    """The regions that the cost model wants. `fresh` makes placements for so many threads."""
    turns = batch_of(graph)
    if turns < max(2, threads):
        return []
    placement = fresh(threads)
    if not any(_leaves_cache(node, placement.target) for node in graph.nodes):
        return []
    candidates = list(runs(graph, turns))
    if not candidates:
        return []
    whole = prices(placement, graph)
    program = sum(filter(None, whole.values())) / threads
    found: list[Turn] = []
    for run in candidates:
        turn = one_turn(graph, run, turns)
        try:
            parts = prices(fresh(1), turn.body)
        except NoKernel:  # a kernel that is asked for by name takes whole batches only
            continue
        rounds = -(-turns // threads)
        gains: list[float | None] = []
        for node in run:
            at_once, part = whole[node], parts[turn.inner[node]]
            if at_once is None or part is None:
                gains.append(None)
                continue
            shared = at_once / threads * (1 + (SHARED if threads > 1 else 0.0))
            gains.append(shared - rounds * part)
        costs = [(whole[node] or 0.0) / threads for node in run]
        for first, last in intervals(gains, costs, LEAST * program):
            found.append(one_turn(graph, run[first:last], turns))
    return found


def _leaves_cache(node: Node, target: Target) -> bool:
    """Whether what the node reads and writes is more than a second-level cache keeps."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.const is None]
    return sum(v.type.nbytes for v in values if v.type.is_static) > target.l2 * KEPT


def batch_of(graph: Graph) -> int:
    """The extent of the first axis of the first input; 1 where it has none."""
    x = graph.inputs[0].type if graph.inputs else None
    return x.dims[0] if x is not None and x.is_static and x.dims else 1


def intervals(
    gains: Sequence[float | None], costs: Sequence[float], least: float = 0.0
) -> list[tuple[int, int]]:
    """The disjoint intervals [first, last) of the largest sums of gains that are worth it, and at
    least `least`; nodes whose gain is None are in none."""
    found: list[tuple[int, int]] = []
    work = [(0, len(gains))]
    while work:
        begin, end = work.pop()
        best, first, last = _best(gains, begin, end)
        if first == last:
            continue
        if last - first > 1 and best >= max(least, WORTH * sum(costs[first:last])):
            found.append((first, last))
        work += [(begin, first), (last, end)]
    return sorted(found)


def _best(gains: Sequence[float | None], begin: int, end: int) -> tuple[float, int, int]:
    best, first, last = 0.0, begin, begin
    total, start = 0.0, begin
    for i in range(begin, end):
        gain = gains[i]
        if gain is None or total + gain <= 0:
            total, start = 0.0, i + 1
            continue
        total += gain
        if total > best:
            best, first, last = total, start, i + 1
    return best, first, last


def prices(placement: Placement, graph: Graph) -> dict[Node, float | None]:
    """Seconds of each node on one core, the conversions before it included; None where it has no
    kernel that may run in turns."""
    rows: dict[Node, list[Placed]] = {}
    placement.begin(graph)
    for node in graph.nodes:
        first = len(placement.steps)
        place_node(placement, node, set())
        rows[node] = placement.steps[first:]
    traffic = _Traffic(placement.target, placement.threads)
    found: dict[Node, float | None] = {}
    for node, steps in rows.items():
        able = all(s.kind != "reference" and not (s.choice and s.choice.fault) for s in steps)
        found[node] = sum(s.cost + traffic.seconds(s) for s in steps) if able else None
    return found


class _Traffic:
    """What costs of kernels do not tell: where the tensors come from that steps read and write.

    A step finds what the one before has left: in the second-level cache, in this core's part of the
    last-level one, or in memory, which all threads share.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self._l2, self._l3 = target.l2 * KEPT, max(target.l2, int(target.l3 * PART))
        self._near = target.l3_bandwidth
        self._far = target.dram_bandwidth / target.crowding(threads)

    def seconds(self, step: Placed) -> float:
        """Seconds that a step waits for its tensors."""
        nbytes = _moved(step)
        far = max(0.0, nbytes - self._l3)
        return far / self._far + max(0.0, nbytes - far - self._l2) / self._near


def _moved(step: Placed) -> float:
    """Bytes that a step moves, but for weights; the costs of kernels tell those, and the costs of
    elementwise kernels all."""
    if step.choice is None or (step.site is not None and step.site.anchor is None):
        return 0.0
    return _nbytes(step.reads) + WRITTEN * _nbytes(step.writes)


def _nbytes(tensors: Iterable[Tensor | None]) -> int:
    found = (t for t in tensors if t is not None and t.space != "weights")
    return sum(t.dtype.itemsize * prod(t.dims) for t in found)
