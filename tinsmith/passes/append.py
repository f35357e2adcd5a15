"""Appending to a cache writes only the new rows: those that it holds stay where they are."""

from __future__ import annotations

from typing import Any, ClassVar

from tinsmith.conditions import by_formula
from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._move import EVEN, moves_of
from tinsmith.passes.facts import i64
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip
from tinsmith.sizes import same

NAME = "append-in-place"


@register("machine", name=NAME, devices=("cpu",))
@dataclass(frozen=True)
class AppendInPlace:
    """scatter(room, concat(room[:n], new)) -> scatter(room, new) from row n on.

    A room is an input with space for more rows than it holds, such as a state that grows (a cache
    of keys); a scatter (TensorScatter) writes rows into it. Readers of the concatenation then read
    the same rows of the scatter's result. A second scatter that replaces rows of the concatenation
    before they are written then follows the first. If the written rows x are no such concatenation,
    scatter(room, x)[: rows of x] -> x.
    """

    operators: ClassVar = frozenset(("TensorScatter",))

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            if node.op.name not in self.operators or node not in graph:
                continue
            if not node.is_static:
                continue
            try:
                changes += _shortened(graph, node)
            except Skip as why:
                context.refuse(NAME, node.name, str(why))
                changes += _without(graph, node)
        return changes


def _shortened(graph: Graph, node: Node) -> int:
    """Let a TensorScatter write only the rows that its room does not hold yet; readers of the
    concatenation read a Slice of the result. Returns 1 if done; 0 where all rows count as new: it
    writes at a computed place, from another row than 0, or round the end (mode "circular"), or
    nothing else reads the room. Raises Skip unless the written rows are a concatenation of the
    room's first rows and new ones.
    """
    room, rows, places = node.operand(0), node.operand(1), (*node.inputs, None)[2]
    if places is not None or node.start or node.mode != "linear" or len(room.uses) == 1:
        return 0  # all that it writes is new
    axis, whole = node.axis % len(room.dims), rows
    later = _later(rows, axis)
    if later is not None:
        whole = later.operand(0)
    join = whole.producer
    move = None if join is None else moves_of(join)[whole.index]
    if join is None or move is None or [p.source for p in move.parts] != [0, 1]:
        raise Skip("the rows are no join of two values")
    past, new = join.operands
    pairs = zip(move.parts, (past, new), strict=True)
    with by_formula():
        if move.axis != axis or not all(p.is_whole(v.dims) for p, v in pairs):
            raise Skip("the rows are not joined along the axis of the room")
    if not _begins(past, room, axis):
        raise Skip("the first rows are not those of the room")
    before = past.dims[axis]
    count = before + new.dims[axis]
    place = join if later is None else later
    y = OPS["TensorScatter"](
        room, new, axis=axis, start=before, name=node.name, origin=node.origin, before=place
    )
    if later is not None:
        y = OPS["TensorScatter"](
            y, *later.inputs[1:], **later.attrs, name=later.name, origin=later.origin, before=place
        )  # fmt: skip
    seen = OPS["Slice"](y, i64(0), i64(count), i64(axis), i64(1), before=place)
    graph.replace(node.output, y)
    graph.replace(rows, seen, keep_name=False)
    graph.sweep([node, place, join])
    return 1


def _later(rows: Value, axis: int) -> Node | None:
    """The TensorScatter along `axis` that makes `rows` by replacing some rows of another value;
    None if anything else does."""
    node = rows.producer
    if node is None or node.op is not OPS["TensorScatter"] or node.mode != "linear":
        return None
    return node if node.axis % len(rows.dims) == axis and rows is node.output else None


def _begins(value: Value, room: Value, axis: int) -> bool:
    """Whether a value is the slice room[:n] along `axis`, n being its own extent."""
    node = value.producer
    move = None if node is None else moves_of(node)[value.index]
    if node is None or move is None or len(move.parts) != 1 or node.inputs[0] is not room:
        return False
    cut: Any = move.parts[0].cut(room.dims)
    if cut is None or cut[0] != axis or not isinstance(cut[1], EVEN):
        return False
    return cut[1].start == 0 and cut[1].step == 1 and same(cut[1].stop, value.dims[axis])


def _without(graph: Graph, node: Node) -> int:
    """Let readers of the slice y[: rows of x] read x itself, where y is the result of the
    TensorScatter `node`, which writes x from row 0 on. Returns how many slices were replaced."""
    rows, y, axis = node.operand(1), node.output, node.axis % len(node.output.dims)
    changes = 0
    for use in dict.fromkeys(y.uses):
        if use.inputs[0] is y and _begins(use.output, y, axis) and use.output.shape == rows.shape:
            graph.replace(use.output, rows)
            changes += 1
    graph.sweep()
    return changes
