"""Quantisation moves: it is computed early, only once, and what is moved are bytes.

Where operators compute in floats, `dequantise(quantise(x))` rounds x: elementwise arithmetic that
can be the epilogue of the operator that makes x. So both nodes move up to it, before nodes that
only move data; and floats already rounded to the same steps are not rounded again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.ops.quant import divided_in
from tinsmith.passes.facts import bounds
from tinsmith.passes.integers import (
    TO_BYTES,
    dequantised,
    float32,
    joined,
    need_bytes,
    need_float32,
    need_one,
)
from tinsmith.passes.lower_quant import FLOAT32
from tinsmith.passes.manager import Context, has_fast_bytes, register
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, const, copy_with, opt, p, with_

early = RuleSet("quantise-early", "Quantising moves up, before nodes that only move data.")
register("machine", when=lambda context: not has_fast_bytes(context))(early)


def _moved(of: Any, x: Any = "x") -> Any:
    """The pattern `of(move)`, where `move` is a Reshape, Transpose, Squeeze or Unsqueeze of x."""
    return (
        of(p.Reshape(x, "shape").named("move"))
        | of(p.Transpose(x).named("move"))
        | of(p.Squeeze(x, opt("axes")).named("move"))
        | of(p.Unsqueeze(x, "axes").named("move"))
    )


_moves: dict[str, Any] = {"shape": np.array([6, 4]), "axes": np.array([1])}


def _before(x: Value, move: Node, scale: Array, change: Node) -> Value:
    need_one(scale)
    if x.producer is None:
        raise Skip("nothing is computed with it")
    return with_(move, x=with_(change, x=x))


@early.rule(
    _moved(lambda of: p.QuantizeLinear(of, const("scale"), opt("zero")).named("q")),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(FLOAT32, (2, 1, 3, 4)))),
    **_moves,
    **TO_BYTES,
)
def quantised_before(x: Value, move: Node, scale: Array, q: Node) -> Value:
    """quantise(move(x)) -> move(quantise(x)), with one scale, if a node makes x."""
    return _before(x, move, scale, q)


@early.rule(
    _moved(lambda of: p.DequantizeLinear(of, const("scale"), opt("zero")).named("d")),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 1, 3, 4)))),
    **_moves,
    **TO_BYTES,
)
def dequantised_before(x: Value, move: Node, scale: Array, d: Node) -> Value:
    """dequantise(move(x)) -> move(dequantise(x)), with one scale, if a node makes x."""
    return _before(x, move, scale, d)


@early.rule(
    p.QuantizeLinear(p.Concat("x", "y", ...).named("join"), const("scale"), opt("zero")).named("q"),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(FLOAT32, (1, 3, 4)))),
    y=lambda graph, _: OPS["Relu"](graph.input("y", Type(FLOAT32, (1, 2, 4)))),
    scale=float32(0.017),
    zero=np.array([7], np.uint8),
    join={"axis": 1},
)
def joined_before(join: Node, scale: Array, q: Node) -> Value:
    """quantise(concat(x, ...)) -> concat(quantise(x), ...), of one scale, if nodes make all x, and
    only the concat reads them: else each reader would round them again."""
    outputs = join.output.graph.outputs
    for v in join.inputs:
        if v is None or v.producer is None or len(v.uses) > 1 or v in outputs:
            raise Skip("nothing is computed with a part, or it is read elsewhere")
    return joined.build(join, scale, q)


@early.rule(
    p.DequantizeLinear(
        p.Concat(p.QuantizeLinear("x", const("s"), opt("z")), "y", ...).named("join"),
        const("scale"),
        opt("zero"),
    ).named("d"),
    x=(1, 3, 4),
    y=lambda graph, _: OPS["QuantizeLinear"](graph.input("y", Type(FLOAT32, (1, 2, 4))),
                                             np.float32(0.017), np.array(7, np.uint8)),
    s=float32(0.017),
    z=np.array(7, np.uint8),
    **TO_BYTES,
    join={"axis": 1},
)  # fmt: skip
def dequantised_parts(join: Node, scale: Array, d: Node) -> Value:
    """dequantise(concat(x, ...)) -> concat(dequantise(x), ...) with one scale, where a
    QuantizeLinear makes each part."""
    need_one(scale)
    parts = [v for v in join.inputs if v is not None]
    if any(v.producer is None or "quantise" not in v.producer.op.traits for v in parts):
        raise Skip("a part is not quantised here")
    return OPS["Concat"](*(with_(d, x=v) for v in parts), axis=join.axis)


undo = RuleSet("undo-quantised", "Bytes that are dequantised, and quantised again alike, stay.")
register("machine")(undo)


_again = p.DequantizeLinear("x", const("s"), opt(const("z"))).shared().named("before")
_alike: dict[str, Any] = {
    "s": float32(0.017),
    "t": float32(0.017),
    "z": np.zeros(1, np.uint8),
    "u": np.zeros(1, np.uint8),
}


@undo.rule(
    p.QuantizeLinear(_again, const("t"), opt(const("u"))).named("q"),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 3)))),
    **_alike,
)
def undone(before: Node, q: Node) -> Value:
    """quantise(deq(x, s, z), s, z) -> x, with one positive scale, if the byte type stays."""
    (x, s, z), (_, t, u) = dequantised(before), dequantised(q)
    need_bytes(x, s)
    zeros = [0 if v is None or v.const is None else int(v.const.reshape(-1)[0]) for v in (z, u)]
    if s.size != 1 or t.size != 1 or s.item() != t.item() or zeros[0] != zeros[1]:
        raise Skip("the scales or the zero points differ")
    need_float32(q)
    if x.dtype != q.output.dtype or before.output.dtype != FLOAT32:
        raise Skip("the element types differ")
    return x


def _saturates(bound: float | None, q: Node, top: bool) -> bool:
    """Whether the quantisation q, of one positive scale, gives the largest (`top`) or smallest
    number of its type from a bound on, as it does without the bound; True if the bound is None."""
    if bound is None:
        return True
    _, scale, zero = dequantised(q)
    need_bytes(q.output, scale)
    need_one(scale)
    ends = np.iinfo(q.output.dtype)
    numbers = [np.asarray(bound, q.operand(0).dtype).reshape(1), scale.reshape(1)]
    if zero is not None:
        numbers.append(np.asarray(zero.const).reshape(1))
    op: Any = q.op
    return bool(op.reference(*numbers, **q.attrs)[0] == (ends.max if top else ends.min))


@undo.rule(
    p.QuantizeLinear(
        p.Relu("x").named("act") | p.Clip("x").named("act"), const("scale"), opt(const("zero"))
    ).named("q"),
    scale=float32(0.017),
    zero=np.zeros(1, np.uint8),
)
def unbounded(x: Value, act: Node, q: Node) -> Value:
    """quantise(Relu(x)) -> quantise(x), if what the bound cuts off saturates anyway; the same for
    both bounds of a Clip."""
    low, high = bounds(act)
    if not (_saturates(low, q, top=False) and _saturates(high, q, top=True)):
        raise Skip("bytes have numbers beyond the bounds")
    return with_(q, x=x)


move = RuleSet("move-bytes", "Bytes are moved as they are, not as floats.")
register("machine")(move)


@move.rule(
    _moved(lambda of: p.QuantizeLinear(of, const("t"), opt(const("u"))).named("q"), _again),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 1, 3, 4)))),
    **_moves,
    **_alike,
)
def moved_alike(before: Node, move: Node, q: Node) -> Value:
    """quantise(move(deq(x, s, z)), s, z) -> move(x), on the conditions of `undone`: one positive
    scale, and results of the type of x."""
    return with_(move, x=undone.build(before, q))


@move.rule(
    p.Split(p.DequantizeLinear("x", const("s"), opt("z")).shared().named("left"), ...).named(
        "split"
    ),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 6, 4)))),
    s=float32(0.017),
    z=np.array(7, np.uint8),
    split={"axis": 1, "num_outputs": 3},
)
def parted(x: Value, s: Array, left: Node, split: Node) -> tuple[Value, ...]:
    """split(deq(x)) -> deq of each part of split(x), where x has one scale."""
    need_one(s)
    return tuple([with_(left, x=part) for part in copy_with(split, x=x).outputs])


Steps = tuple[float, int, np.dtype[Any]]
"""The numbers that bytes stand for, (byte - zero point) * scale: (scale, zero point, dtype of the
bytes)."""


@register("machine")
@dataclass(frozen=True)
class DropRounded:
    """Floats that were rounded to the same steps before, and only moved since, are not rounded.

    A QuantizeLinear and the DequantizeLinear after it are dropped if a DequantizeLinear of the same
    scale, zero point and type made what they read, and only moves, views and MaxPool lie between;
    but not where the machine multiplies bytes much faster than floats.
    """

    def run(self, graph: Graph, context: Context) -> int:
        if has_fast_bytes(context):
            return 0
        found = 0
        for node in list(graph.nodes):
            q = node.operand(0).producer if "dequantise" in node.op.traits else None
            if q is None or "quantise" not in q.op.traits:
                continue
            steps = _steps(node)
            if steps is None or steps != _steps(q) or node.output in graph.outputs:
                continue
            x = q.operand(0)
            if x.dtype == FLOAT32 and _is_on(x, steps):
                graph.replace(node.output, x)
                found += 1
        if found:
            graph.sweep()
        return found


def _steps(node: Node) -> Steps | None:
    """The `Steps` of a QuantizeLinear or DequantizeLinear; None if they are not one pair of numbers
    that is known: one constant scale, positive and float32, and one constant zero point or none.
    None also for a QuantizeLinear whose `precision` is not float32."""
    source, scale, zero, *_ = (*node.inputs, None, None, None)
    low = node.output if "quantise" in node.op.traits else source
    if scale is None or low is None or scale.const is None or scale.const.size != 1:
        return None
    places = np.zeros(1) if zero is None else zero.const
    real = FLOAT32 if source is low else divided_in(scale, node.precision)
    if scale.dtype != FLOAT32 or real != FLOAT32 or places is None or places.size != 1:
        return None
    step, place = float(scale.const.item()), int(places.item())
    return (step, place, low.dtype) if step > 0 and np.isfinite(step) else None


def _is_on(x: Value, steps: Steps) -> bool:
    """Whether x holds only numbers that bytes of these steps stand for: a DequantizeLinear of the
    same steps made them, and only moves, views and MaxPool lie between."""
    node = x.producer
    if node is None:
        return False
    if "dequantise" in node.op.traits:
        return _steps(node) == steps
    if not node.op.traits & {"view", "move"} and node.op.name != "MaxPool":
        return False
    sources = [v for v in node.inputs if v is not None and v.dtype == FLOAT32]
    return bool(sources) and all(_is_on(v, steps) for v in sources)
