"""Residual sums stay in the order of the products that end in them, so that these can finish them.

Blocks that transpose images to channels-last, multiply, and transpose them back before they add the
input (ConvNeXt's) keep the running sum channels-last: the transposes back cancel, and the additions
fuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, p

rules = RuleSet(
    "sink-transposes", "Sums of a transposed product are computed before the transpose."
)
register("machine", devices=("cpu",))(rules)

_REACH = 8  # nodes above, at most, that are looked at; estimated


def _ends_product(y: Value) -> None:
    """Raise Skip unless y is the result of an anchor, or of elementwise nodes after one, and each
    result on the way is read once."""
    for _ in range(_REACH):
        node = y.producer
        if node is None or len(y.uses) != 1:
            break
        if "anchor" in node.op.traits:
            return
        inner = [v for v in node.inputs if v is not None and v.const is None and v.shape == y.shape]
        if "elementwise" not in node.op.traits or not inner:
            break
        y = inner[0]
    raise Skip(f"no anchor finishes {y.name!r}")


def _product(graph: Graph, dtype: Any) -> Value:
    """For the sample of a rule: adds an anchor to the test's graph, and gives its result."""
    a = graph.input("a", Type(dtype, (2, 3, 5, 4)))
    return OPS["MatMul"](a, np.ones((4, 6), dtype))


@rules.rule(
    p.Add("x", p.Transpose("y").named("t")),
    x=(2, 6, 3, 5),
    y=_product,
    t={"perm": (0, 3, 1, 2)},
)
def add_before_transpose(root: Node, x: Value, y: Value, t: Node) -> Value:
    """x + transpose(y) -> transpose(transpose(x) + y), where an anchor makes y."""
    if t.perm is None or x.const is not None:
        raise Skip("x is a constant, or the permutation is not given")
    if not shape_of(x) == shape_of(t.output) == shape_of(root.output):
        raise Skip("the operands have different shapes")
    _ends_product(y)
    maker = x.producer
    if maker is not None and maker.op.name == "Transpose" and maker.perm == t.perm:
        inner = maker.inputs[0]
        assert inner is not None
    elif len(x.uses) == 1 and maker is not None and "anchor" in maker.op.traits:
        raise Skip(f"{maker.name!r} can finish the sum itself")
    else:
        inner = OPS["Transpose"](x, perm=tuple(int(i) for i in np.argsort(t.perm)))
    return OPS["Transpose"](OPS["Add"](inner, y), perm=t.perm)


@rules.rule(
    p.Transpose(p.Transpose("x").named("first").shared()).named("second"),
    x=(2, 3, 4, 5),
    first={"perm": (0, 3, 1, 2)},
    second={"perm": (0, 2, 3, 1)},
)
def cancel_transposes(x: Value, first: Node, second: Node) -> Value:
    """transpose(transpose(x)) -> x, where they are inverse."""
    if first.perm is None or second.perm is None:
        raise Skip("a permutation is not given")
    if tuple(first.perm[i] for i in second.perm) != tuple(range(len(first.perm))):
        raise Skip("together they move axes")
    return x
