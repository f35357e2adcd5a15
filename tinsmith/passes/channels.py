"""Joins, shuffles and cuts of channels that no memory plan makes free become single copies."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, ClassVar

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._apart import axes_apart
from tinsmith.ops._move import moves_of
from tinsmith.ops._weights import is_convolution
from tinsmith.passes.facts import i64, shape_of
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER

Lane = tuple[Value, int]  # a value that no move makes, and its channel
Picks = list[list[tuple[int, Any]]]  # the origins of a move's channels (`_picked`)
CONVOLVED = {"Conv", "ConvTranspose", "BatchNorm", "MaxPool", "AveragePool", "GlobalPool"}


@register("machine")
@dataclass(frozen=True)
class GatherChannels:
    """Chains of Concat, ChannelShuffle, Split and Slice on axis 1 become one ChannelGather each.

    Only beside convolutions or pools, where a boundary is no multiple of `aligned` channels or
    channels are shuffled: else parts consist of whole blocks of channels, which lie inside the
    larger tensor without a copy. If all readers of a result lead to convolutions with constant
    weights, its channels come in the order of their origins, and the weights are permuted instead.

    aligned: the most channels of a block on any machine.
    """

    aligned: int = 16

    def run(self, graph: Graph, context: Context) -> int:
        outputs = set(graph.outputs)
        moves = self._moves(graph, outputs)
        lanes: dict[Value, list[Lane]] = {}
        for node, picks in moves.items():
            for v, picked in zip(node.outputs, picks, strict=True):
                origins = [(node.inputs[i], int(c)) for i, places in picked for c in places]
                lanes[v] = [lanes[x][c] if x in lanes else (x, c) for x, c in origins if x]
        convolved = _convolved(graph) if moves else set()
        beside = [n for n, p in moves.items() if _between_convolutions(n, p, convolved)]
        wanted = _connected(beside, moves)
        changes = 0
        made: dict[tuple[Lane, ...], Value] = {}
        for node in moves:
            if node not in wanted:
                continue
            for v in node.outputs:
                if v in outputs or any(u not in moves for u in v.uses):
                    self._emit(graph, node, v, lanes[v], moves, outputs, made)
                    changes += 1
        graph.sweep(list(moves))
        return changes

    def _moves(self, graph: Graph, outputs: set[Value]) -> dict[Node, Picks]:
        """The moves of channels that are to be replaced, in graph order, with what they pick: those
        that need a copy (`_needs_copy`), those whose results only other nodes to be replaced read,
        and those whose only input such a node makes."""
        made = OPS["ChannelGather"]
        able = {n: p for n in graph.nodes if n.op is not made and (p := _picked(n))}
        costly = {n for n, p in able.items() if self._needs_copy(n, p)}
        for node in reversed(able):
            users = [u for v in node.outputs for u in v.uses]
            read = any(v in outputs for v in node.outputs)
            if users and not read and all(u in costly for u in users):
                costly.add(node)
        for node, picks in able.items():
            sources = _data(node, picks)
            if len(sources) == 1 and sources[0].producer in costly:
                costly.add(node)
        return {n: p for n, p in able.items() if n in costly}

    def _needs_copy(self, node: Node, picks: Picks) -> bool:
        """Whether a node that moves channels needs a copy: an output takes channels that are not
        consecutive, or a run of channels that begins within a block of `aligned` channels, of the
        output or the input, or ends within one of the input, before the input's end."""
        for picked in picks:
            at = 0
            for i, places in picked:
                if not isinstance(places, range) or (len(places) > 1 and places.step != 1):
                    return True
                size, stop = _channels(node.inputs[i]), places.stop  # type: ignore[arg-type]
                if at % self.aligned or places.start % self.aligned:
                    return True
                if stop % self.aligned and stop != size:
                    return True
                at += len(places)
        return False

    def _emit(
        self, graph: Graph, node: Node, value: Value, lanes: list[Lane], moves: Container[Node],
        outputs: set[Value], made: dict[tuple[Lane, ...], Value],
    ) -> None:  # fmt: skip
        """Let the readers of `value`, a result of the move `node`, read one copy, made directly
        from the values that its channels come from: `lanes` has (value, index of the channel there)
        for each channel. If all readers can take the channels in another order, they come in the
        order of their origins. `moves` are all nodes that are replaced, `outputs` the graph's,
        `made` the copies so far, by their lanes."""
        origins = list(dict.fromkeys(v for v, _ in lanes))
        readers = list(dict.fromkeys(u for u in value.uses if u not in moves))
        behind: set[Node] = set()
        if _absorbs(value, outputs, behind, moves):
            rank = {v: i for i, v in enumerate(origins)}
            order = sorted(range(len(lanes)), key=lambda k: (rank[lanes[k][0]], lanes[k][1]))
            if order != list(range(len(lanes))):
                lanes = [lanes[k] for k in order]
                for reader in behind:
                    _permute(graph, reader, np.array(order))
        key = tuple(lanes)
        if key not in made:
            made[key] = self._made(node, lanes, origins, value in outputs)
        new = made[key]
        for reader in readers:
            for i, v in enumerate(reader.inputs):
                if v is value:
                    graph.set_input(reader, i, new)
        if value in outputs:
            graph.replace(value, new)

    def _made(self, node: Node, lanes: list[Lane], origins: list[Value], keep: bool) -> Value:
        """A value with the channels `lanes`, (value, index of the channel there), where `origins`
        are those values: if they are all channels of one origin, in order, that origin; a Slice or
        a Concat where that needs no copy; else a ChannelGather. `keep`: the value becomes a graph
        output, whose name must stay, so always the result of a new node."""
        runs = _runs(lanes, origins)
        whole = [lo == 0 and n == _channels(origins[i]) for i, lo, n in runs]
        names = {"name": f"{node.name}.gathered", "origin": node.origin, "before": node}
        if len(runs) == 1 and whole[0] and not keep:
            return origins[0]
        if len(runs) == 1 and runs[0][1] % self.aligned == 0 and not whole[0]:
            _, lo, n = runs[0]
            return OPS["Slice"](origins[0], *map(i64, (lo, lo + n, 1)), **names)
        cuts = np.cumsum([n for _, _, n in runs])[:-1]
        distinct = all(whole) and len(set(runs)) == len(runs) > 1
        if distinct and not np.any(cuts % self.aligned):
            return OPS["Concat"](*(origins[i] for i, _, _ in runs), axis=1, **names)
        return OPS["ChannelGather"](*origins, sources=tuple(runs), **names)


def _connected(nodes: list[Node], moves: dict[Node, Picks]) -> set[Node]:
    """The nodes, and all `moves` that read a result of one of them or make what one reads, directly
    or through others of these."""
    found, work = set(nodes), list(nodes)
    while work:
        node = work.pop()
        near = [v.producer for v in _data(node, moves[node])]
        near += [u for v in node.outputs for u in v.uses]
        fresh = {n for n in near if n is not None and n in moves} - found
        found |= fresh
        work += fresh
    return found


def _channels(value: Value) -> int:
    size = shape_of(value)[1]
    assert isinstance(size, NUMBER)
    return size


def _data(node: Node, picks: Picks) -> list[Value]:
    """The inputs whose channels a move picks."""
    places = dict.fromkeys(i for picked in picks for i, _ in picked)
    return [v for i in places if (v := node.inputs[i]) is not None]


def _picked(node: Node) -> Picks:
    """For each output of a node that moves channels, the origins of its channels, in order: pairs
    (index of an input, the channels taken from it, as a range or an array). [] for a node that
    does anything else, or whose values are not float32 images with a known number of channels."""
    found: Picks = []
    for y, move in zip(node.outputs, moves_of(node), strict=True):
        if move is None or move.fill is not None or not _has_channels(y):
            return []
        lanes = []
        for part in move.parts:
            x = node.inputs[part.source]
            cut = part.cut(x.shape) if x is not None and _has_channels(x) else None
            joined = len(move.parts) > 1 and move.axis == 1
            if cut is None or x is None or (cut[0] != 1 if cut[1] is not None else not joined):
                return []
            if len(move.dims) != x.rank or not (joined or len(move.parts) == 1):
                return []
            lanes.append((part.source, range(_channels(x)) if cut[1] is None else cut[1]))
        found.append(lanes)
    return found


def _has_channels(v: Value) -> bool:
    sized = v.dtype == np.float32 and v.shape is not None and len(v.shape) in (4, 5)
    return sized and isinstance(v.shape[1], int) and v.shape[1] > 0  # type: ignore[index]


def _convolved(graph: Graph) -> set[Node | None]:
    """The nodes of CONVOLVED (convolutions, pools), and elementwise nodes after them, directly or
    through such nodes."""
    found: set[Node | None] = set()
    for node in graph.nodes:
        above = next((v.producer for v in node.inputs if v is not None and v.producer), None)
        elementwise = "elementwise" in node.op.traits
        if _is_convolved(node) or (elementwise and above in found):
            found.add(node)
    return found


def _is_convolved(node: Node) -> bool:
    return node.op.name in CONVOLVED


def _between_convolutions(node: Node, picks: Picks, convolved: set[Node | None]) -> bool:
    """Whether a convolution or a pool reads a result of the node, or makes a value that the node
    reads, directly or through elementwise nodes (its producer is in `convolved`)."""
    if any(v.producer in convolved for v in _data(node, picks)):
        return True
    return any(_is_convolved(u) for v in node.outputs for u in v.uses)


def _absorbs(value: Value, outputs: set[Value], seen: set[Node], last: Container[Node]) -> bool:
    """Whether the channels of a value may come in another order: each reader, but for those in
    `last`, leads to convolutions whose constant weights can be permuted, through nodes that compute
    each channel by itself. The convolutions and these nodes are added to `seen`."""
    work = [value]
    while work:
        v = work.pop()
        if v in outputs:
            return False
        for reader in dict.fromkeys(v.uses):
            if v is value and reader in last:
                continue
            if not _keeps_channels(reader, v):
                return False
            seen.add(reader)
            if not is_convolution(reader) or reader.group != 1:
                work.append(reader.output)
    return True


def _keeps_channels(reader: Node, value: Value) -> bool:
    """Whether the node `reader` can take the channels of `value` in another order. It must read it
    as its first input only, and be a convolution with constant weights (depthwise or of one group)
    or a node of one output that computes each channel by itself, with no other input by channel."""
    if reader.inputs.count(value) != 1 or reader.inputs[0] is not value:
        return False
    if not is_convolution(reader):
        first, *others = axes_apart(reader).get(1, (None,))
        return len(reader.outputs) == 1 and first == 1 and all(axis is None for axis in others)
    if any(v is None or v.const is None for v in reader.inputs[1:]):
        return False
    size = value.shape[1] if value.shape else None
    return reader.group == 1 or reader.group == size == shape_of(reader.operand(1))[0]


def _permute(graph: Graph, node: Node, order: np.ndarray) -> None:
    """Let a convolution take its input channels in the order `order`: new channel i is the old
    channel order[i]. With one group its weights are permuted, and its output stays. A depthwise one
    gets weights and bias permuted, and gives its output in the new order. Other nodes stay."""
    if not is_convolution(node):
        return
    for i, v in enumerate(node.inputs[1:], start=1):
        assert v is not None and v.const is not None
        if node.group != 1:
            array = v.const[order]
        elif i == 1:
            array = v.const[:, order]
        else:
            continue
        graph.set_input(node, i, graph.const(np.ascontiguousarray(array), v.name))


def _runs(lanes: list[Lane], origins: list[Value]) -> list[tuple[int, int, int]]:
    """`lanes`, (value, index of the channel there), as runs of neighbouring channels of one of
    `origins`: (its index in `origins`, first channel, count)."""
    rank = {v: i for i, v in enumerate(origins)}
    runs: list[tuple[int, int, int]] = []
    for v, c in lanes:
        if runs and runs[-1][0] == rank[v] and sum(runs[-1][1:]) == c:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((rank[v], c, 1))
    return runs


# ---- joins of joins


@register("machine")
@dataclass(frozen=True)
class NestConcats:
    """concat(a, b, c) -> concat(concat(a, b), c), where concat(a, b) is computed anyway.

    DenseNets concatenate all earlier results before every layer: nested, each result is stored
    once, and nothing is copied.
    """

    operators: ClassVar = frozenset(("Concat",))

    def run(self, graph: Graph, context: Context) -> int:
        made: dict[tuple[int, tuple[Value | None, ...]], Value] = {}
        counts: dict[tuple[int, tuple[Value | None, ...]], set[int]] = {}  # by the first two
        changes = 0
        for node in graph.nodes:
            if node.op.name != "Concat" or not node.output.shape:
                continue
            axis, inputs = node.axis % len(node.output.shape), node.inputs
            made.setdefault((axis, inputs), node.output)
            like = counts.setdefault((axis, inputs[:2]), set())
            like.add(len(inputs))
            for count in sorted((n for n in like if 1 < n < len(inputs)), reverse=True):
                first = made.get((axis, inputs[:count]))
                if first is None:
                    continue
                new = OPS["Concat"](
                    first, *inputs[count:], axis=axis, before=node, origin=node.origin,
                    name=f"{node.name}.nested",
                )  # fmt: skip
                new.type = node.output.type
                graph.replace(node.output, new)
                made[axis, inputs] = new
                changes += 1
                break
        graph.sweep()
        return changes
