"""Shuffles get their name back; numbers pass moves and products to where they cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import Array, number, reshaped, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_

rules = RuleSet(
    "recognise-moves", "Channel and pixel shuffles by name; factors pass moves.", halves=False
)
register("portable")(rules)


def _between() -> Any:
    return p.Reshape(p.Transpose(p.Reshape("x", ...).named("split")).named("move"), ...).named("y")


@rules.rule(
    _between(),
    x=(2, 6, 3, 5),
    split={"#1": np.array([2, 2, 3, 3, 5])},
    move={"perm": (0, 2, 1, 3, 4)},
    y={"#1": np.array([2, 6, 3, 5])},
)
def channel_shuffle(x: Value, split: Node, move: Node, y: Node) -> Value:
    """reshape(swap(reshape(x, [N, g, C/g, ...]))) -> channel_shuffle(x, g)."""
    shape, inner = shape_of(x), shape_of(split.output)
    # the spatial axes may be joined while the channels are exchanged
    if len(inner) < 3 or len(shape) < 2 or move.perm[:3] != (0, 2, 1):
        raise Skip("the channel groups are not exchanged")
    if move.perm != (0, 2, 1, *range(3, len(inner))) or inner[0] != shape[0]:
        raise Skip("other axes move too")
    groups, each = inner[1], inner[2]
    if not isinstance(groups, int) or not isinstance(each, int) or groups * each != shape[1]:
        raise Skip("the groups do not divide the channels")
    return reshaped(OPS["ChannelShuffle"](x, groups=groups), shape_of(y.output))


@rules.rule(
    _between(),
    x=(2, 8, 3, 5),
    split={"#1": np.array([2, 2, 2, 2, 3, 5])},
    move={"perm": (0, 1, 4, 2, 5, 3)},
    y={"#1": np.array([2, 2, 6, 10])},
)
def depth_to_space(x: Value, split: Node, move: Node, y: Node) -> Value:
    """reshape(transpose(reshape(x, [N, C, r, r, H, W]))) -> depth_to_space(x); also DCR."""
    inner, out = shape_of(split.output), shape_of(y.output)
    if len(shape_of(x)) != 4 or len(inner) != 6 or len(out) < 2:
        raise Skip("it is not from an image")
    modes = {(0, 1, 4, 2, 5, 3): ("CRD", 2), (0, 3, 4, 1, 5, 2): ("DCR", 1)}
    if move.perm not in modes:
        raise Skip(f"the permutation is {move.perm}")
    mode, place = modes[move.perm]
    r, again = inner[place : place + 2]
    depth = inner[1] if mode == "CRD" else inner[3]
    if r != again or not isinstance(r, int) or inner[0] != shape_of(x)[0]:
        raise Skip("the block is not a square")
    if inner[4:] != shape_of(x)[2:] or shape_of(x)[1] != depth * r * r:
        raise Skip("the spatial axes are divided in another way")
    return reshaped(OPS["DepthToSpace"](x, blocksize=r, mode=mode), out)


_product = p.MatMul("a", const("w"))
_dense = _product | p.Add(_product, const("b")) | p.Conv("a", const("v"), opt(const("d")))


@rules.rule(
    p.Mul(p.Transpose(_dense).named("t"), const("c"))
    | p.Add(p.Transpose(_dense).named("t"), const("c")),
    tolerance=1e-5,
    a=(2, 3, 4),
    w=(4, 4),
    v=(3, 3, 1),
    d=(3,),
    b=(4,),
    t={"perm": (0, 2, 1)},
    c=(4, 1),
)
def constant_before_transpose(root: Node, t: Node, c: Array) -> Value:
    """transpose(x) * c -> transpose(x * c'), and the same for +, where weights can take c'."""
    x = t.inputs[0]
    assert x is not None
    rank = len(shape_of(x))
    if t.perm is None or c.ndim > rank or shape_of(root.output) != shape_of(t.output):
        raise Skip("the constant makes the result larger")
    padded = c.reshape((1,) * (rank - c.ndim) + c.shape)
    moved = padded.transpose(np.argsort(t.perm))
    while moved.ndim and moved.shape[0] == 1:
        moved = moved[0]
    return OPS["Transpose"](OPS[root.op.name](x, np.ascontiguousarray(moved)), perm=t.perm)


@rules.rule(
    p.MatMul(p.Mul("a", const("c")), "b").named("product")
    | p.MatMul("a", p.Mul("b", const("c"))).named("product"),
    tolerance=1e-5,
    a=(2, 3, 4),
    b=(2, 4, 5),
    c=np.float32(0.3),
)
def factor_after_product(product: Node, a: Value, b: Value, c: Array) -> Value:
    """(a * c) @ b, a @ (b * c) -> (a @ b) * c, for one number c: it is free behind the product."""
    if a.dtype.itemsize < 4 or a.dtype.kind != "f":
        raise Skip(f"a product of {a.dtype} may overflow without the factor")
    number(c)
    if c.ndim > 1:
        raise Skip("the factor has a rank of its own")
    return OPS["Mul"](with_(product, a=a, b=b), c.reshape(()))


@rules.rule(
    p.Div(p.MatMul("a", "b").named("mm"), const("c")),
    tolerance=1e-5,
    a=(3, 4),
    b=(4, 5),
    c=np.float32(3.0),
)
def factor_of_product(mm: Node, c: Array) -> Value:
    """(a @ b) / c -> (a @ b) * (1 / c), for one number c."""
    wide = number(c)
    if wide == 0 or not np.isfinite(wide):
        raise Skip(f"the divisor is {wide}")
    return OPS["Mul"](mm.output, np.asarray(1 / wide, c.dtype).reshape(c.shape))
