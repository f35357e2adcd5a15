"""Which runs of nodes compute the batch in micro-batches, by the cost model.

In micro-batches the tensors between the nodes stay in cache, and each thread works on its own. With
the whole batch at once, weights are read once for all images. So micro-batches mostly pay for early
layers, the whole batch for late ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from tinsmith.codegen.target import Target
from tinsmith.errors import NoKernel
from tinsmith.graph import Graph, Node
from tinsmith.plan.micro_batch import MicroBatch, one_micro_batch, runs
from tinsmith.plan.place import place_node
from tinsmith.plan.placed import Placed
from tinsmith.plan.placement import Placement
from tinsmith.plan.tensors import Tensor
from tinsmith.sizes import Size, estimate

WRITTEN = 2.0
"""How many times its bytes a written tensor moves: a cache line is read before it is written
back."""
KEPT = 1 / 2
"""The share of L2 in which a step finds what the one before left: weights, and what comes next,
take the rest. Estimated."""
PART = 1 / 16
"""The share of the last-level cache in which one core keeps tensors: other cores, and other
machines on the same host, use the rest. Estimated."""
SHARED = 0.03
"""The relative time that threads lose at the end of a step that they share. Estimated."""
WORTH, LEAST = 0.01, 0.004
"""A region must save at least the share WORTH of its own time, and LEAST of the program's.
Estimated."""


def forced_micro_batches(graph: Graph, micro_batches: int) -> list[MicroBatch]:
    """Every run of nodes that can be computed in `micro_batches` micro-batches; none for 1, the
    whole batch at once."""
    return (
        [one_micro_batch(graph, run, micro_batches) for run in runs(graph, micro_batches)]
        if micro_batches > 1
        else []
    )


def choose_micro_batches(
    graph: Graph, fresh: Callable[[int], Placement], threads: int
) -> list[MicroBatch]:
    """The runs of nodes that the cost model expects to be faster in micro-batches of one image.
    `fresh` makes an empty placement for a number of threads. The list is empty if the batch is a
    free size or has fewer images than there are threads (or than 2), or if no node's tensors are
    larger than L2's share KEPT."""
    micro_batches = batch_of(graph)
    if isinstance(micro_batches, Size):
        return []
    if micro_batches < max(2, threads):
        return []
    placement = fresh(threads)
    if not any(_leaves_cache(node, placement.target) for node in graph.nodes):
        return []
    candidates = list(runs(graph, micro_batches))
    if not candidates:
        return []
    whole = prices(placement, graph)
    program = sum(filter(None, whole.values())) / threads
    found: list[MicroBatch] = []
    for run in candidates:
        micro_batch = one_micro_batch(graph, run, micro_batches)
        try:
            parts = prices(fresh(1), micro_batch.body)
        except NoKernel:  # a kernel that is asked for by name takes whole batches only
            continue
        rounds = -(-micro_batches // threads)
        gains: list[float | None] = []
        for node in run:
            at_once, part = whole[node], parts[micro_batch.inner[node]]
            if at_once is None or part is None:
                gains.append(None)
                continue
            shared = at_once / threads * (1 + (SHARED if threads > 1 else 0.0))
            gains.append(shared - rounds * part)
        costs = [(whole[node] or 0.0) / threads for node in run]
        for first, last in intervals(gains, costs, LEAST * program):
            found.append(one_micro_batch(graph, run[first:last], micro_batches))
    return found


@estimate
def _leaves_cache(node: Node, target: Target) -> bool:
    """Whether the tensors that a node reads and writes are larger than L2's share KEPT."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.const is None]
    return sum(v.type.nbytes for v in values if v.type.is_static) > target.l2 * KEPT


def batch_of(graph: Graph) -> int:
    """How many images the batch has: the extent (perhaps a `Size`) of the first axis of the graph's
    first input; 1 if there is no input, or it is a scalar or of unknown shape."""
    x = graph.inputs[0].type if graph.inputs else None
    return x.dims[0] if x is not None and x.is_static and x.dims else 1


def intervals(
    gains: Sequence[float | None], costs: Sequence[float], least: float = 0.0
) -> list[tuple[int, int]]:
    """Disjoint intervals [first, last) of two or more nodes, in order, that are worth
    micro-batches. `gains` are the seconds that each node would save, `costs` those that it takes.
    Found greedily: the interval with the largest sum of gains, then in the same way before and
    after it. Those are left out whose sum is less than `least`, or than the share WORTH of the
    nodes' costs. Nodes whose gain is None are in none."""
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
    """The estimated seconds of each node of a graph on one core: its kernel, the conversions that
    its operands need, and the traffic of tensors. None for a node that cannot run in micro-batches,
    as a reference computes it or its kernel may report a fault. Adds the steps of the graph to
    `placement`, which is used up."""
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
    """Estimates how long a step waits for the tensors that it reads and writes, except weights: the
    costs of kernels with an anchor do not include this time. For other steps it is 0 (`_moved`).

    Of the bytes of a step, the first KEPT * L2 cost nothing; those from there to PART * L3 (to L2,
    if that is larger) come at the rate of L3, the rest at that of memory, which threads share.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self._l2, self._l3 = target.l2 * KEPT, max(target.l2, int(target.l3 * PART))
        self._near = target.l3_bandwidth
        self._far = target.dram_bandwidth / target.crowding(threads)

    def seconds(self, step: Placed) -> float:
        """Seconds that a step waits, on one core, for its tensors other than weights."""
        nbytes = _moved(step)
        far = max(0.0, nbytes - self._l3)
        return far / self._far + max(0.0, nbytes - far - self._l2) / self._near


@estimate
def _moved(step: Placed) -> float:
    """Bytes that a step moves for its tensors (not weights, whose time is in the kernels' costs):
    those it reads, and `WRITTEN` times those it writes. 0 for elementwise kernels, whose costs
    include everything, and for steps without a kernel."""
    if step.choice is None or (step.site is not None and step.site.anchor is None):
        return 0.0
    return _nbytes(step.reads) + WRITTEN * _nbytes(step.writes)


def _nbytes(tensors: Iterable[Tensor | None]) -> int:
    found = (t for t in tensors if t is not None and t.space != "weights")
    return sum(t.dtype.itemsize * prod(t.dims) for t in found)
