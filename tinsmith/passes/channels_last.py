"""Residual sums stay in the order of the products that end in them, so that these can finish them.

Blocks that transpose images to channels-last, multiply, and transpose them back before they add the
input (ConvNeXt's) keep the running sum channels-last: the transposes back cancel, and the additions
fuse.
"""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import shape_of
from tinsmith.passes.lift import need_anchor, of_anchor
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, p

rules = RuleSet(
    "sink-transposes", "Sums of a transposed product are computed before the transpose."
)
register("machine", devices=("cpu",))(rules)


@rules.rule(
    p.Add("x", p.Transpose("y").named("t")),
    x=(2, 6, 3, 4),
    y=of_anchor((2, 3, 4, 5)),
    t={"perm": (0, 3, 1, 2)},
)
def add_before_transpose(root: Node, x: Value, y: Value, t: Node) -> Value:
    """x + transpose(y) -> transpose(transpose(x) + y), where an anchor makes y."""
    if t.perm is None or x.const is not None:
        raise Skip("x is a constant, or the permutation is not given")
    if not shape_of(x) == shape_of(t.output) == shape_of(root.output):
        raise Skip("the operands have different shapes")
    need_anchor(y)
    maker = x.producer
    if maker is not None and maker.op.name == "Transpose" and maker.perm == t.perm:
        inner = maker.operand(0)
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
