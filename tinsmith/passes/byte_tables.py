"""Functions of one quantised value become tables of 256 bytes.

Between quantised numbers x * sigmoid(x) is

    a = dequantise(x);  s = dequantise(quantise(sigmoid(a)));  y = quantise(a * s)

However that is computed and rounded, y follows from the byte x alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Type, Value
from tinsmith.graph.types import name_of
from tinsmith.ops import OPS
from tinsmith.passes.facts import BYTES
from tinsmith.passes.integers import float32
from tinsmith.passes.lower_quant import FLOAT32
from tinsmith.passes.manager import has_bytes, register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p

rules = RuleSet(
    "byte-tables", "Functions of one quantised value become tables of 256 bytes.", backwards=True
)
register("machine", when=has_bytes)(rules)

DEEPEST = 64  # nodes between two bytes that are looked at


def _sample(graph: Graph, _: Any) -> Value:
    x = OPS["Relu"](graph.input("x", Type(FLOAT32, (2, 3, 4))))
    zero = np.array(7, np.uint8)
    x = OPS["QuantizeLinear"](x, np.float32(0.017), zero)
    return OPS["Sigmoid"](OPS["DequantizeLinear"](x, np.float32(0.017), zero))


@rules.rule(
    p.QuantizeLinear("y", const("scale"), opt(const("zero"))).named("q"),
    y=_sample,
    scale=float32(0.004),
    zero=np.array([3], np.uint8),
)
def tabulated(q: Node) -> Value:
    """quantise(f(dequantise(x)), s, z) -> table[x], for any function f of one element, but not
    one made of roundings and of functions with f(t x) = t f(x) for t > 0 (Relu) alone."""
    if name_of(q.output.dtype) not in BYTES:
        raise Skip(f"the result is {q.output.dtype}, not bytes")
    source = _source(q.output, {})
    if source is None or source is q.output:
        raise Skip("it is no function of one byte")
    nodes = _between(source, q)
    if all(n.op.traits & {"steps", "homogeneous"} for n in nodes):
        raise Skip("what is computed is part of the rounding")
    return OPS["ByteTable"](source, _table(source, nodes, q.output))


def _source(v: Value, found: dict[Value, Value | None]) -> Value | None:
    """The earliest value of bytes, perhaps `v` itself, from which `v` is computed element by
    element: v[i] follows from its element i alone. None if there is none. `found` caches results.
    """
    if v in found:
        return found[v]
    found[v] = own = v if name_of(v.dtype) in BYTES and v.const is None else None
    node = v.producer
    if node is None or len(found) > DEEPEST or not _is_function(node):
        return own
    sources = {_source(x, found) for x in node.inputs if x is not None and not _is_known(x)}
    one = sources.pop() if len(sources) == 1 else None
    found[v] = one if one is not None and one.shape == v.shape else own
    return found[v]


def _is_function(node: Node) -> bool:
    """Whether each element of a node's result follows from the elements of its inputs at the same
    index, at least one of which is not constant. Constant inputs must be single numbers
    (`_is_number`), except the table of a ByteTable."""
    if "table" in node.op.traits:
        return True
    if not node.op.traits & {"elementwise", "steps"} or len(node.outputs) != 1:
        return False
    known = [v for v in node.inputs if v is not None and _is_known(v)]
    return all(map(_is_number, known)) and len(known) < len(node.inputs)


def _is_known(v: Value) -> bool:
    return v.const is not None or _is_number(v)


def _is_number(v: Value) -> bool:
    """Whether a value is one known number: a constant of one element, or the result of a
    QuantizeLinear or DequantizeLinear that reads only such constants."""
    if v.const is not None:
        return v.const.size == 1
    node = v.producer
    return node is not None and "steps" in node.op.traits and all(
        x is None or (x.const is not None and x.const.size == 1) for x in node.inputs
    )  # fmt: skip


def _between(source: Value, last: Node) -> list[Node]:
    """The nodes that compute the result of `last` from `source` and constants, `last` and those
    that read constants alone included, each after those that it reads."""
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for v in node.inputs:
            if v is not None and v is not source and v.producer and v.producer not in order:
                visit(v.producer)
        order[node] = None

    visit(last)
    return list(order)


def _table(source: Value, nodes: list[Node], result: Value) -> Array:
    """The 256 values of `result`, computed by the references of `nodes` (as of `_between`): entry i
    is for the byte of `source` with the bits of i."""
    known = {source: np.arange(256, dtype=np.uint8).view(source.dtype)}
    for node in nodes:
        arrays = []
        for v in node.inputs:
            array = None if v is None else known.get(v, v.const)
            arrays.append(array.reshape(()) if array is not None and array.size == 1 else array)
        with np.errstate(all="ignore"):
            made = OPS[node.op.name].evaluate(tuple(arrays), node.attrs)
        known[node.output] = np.asarray(made[0])
    return known[result]
