"""Sums, and planes that are merged or cut, go to the channels-last side of transposes.

Blocks that transpose images to channels-last, multiply, and transpose them back before they add the
input (ConvNeXt's) keep the running sum channels-last: the transposes back cancel, and the products
finish the additions.

Transformers over images flatten planes and transpose them to rows of channels, or the other way.
Transposed first, a channel-blocked image becomes rows in one copy: its planes cannot be merged
where they lie.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import reshaped, shape_of
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
    """x + transpose(y) -> transpose(transpose'(x) + y), transpose' the inverse, where an anchor
    makes y and can add x. x is computed, of the result's shape, and not the result of an anchor
    that nothing else reads, which could add transpose(y) itself."""
    if t.perm is None or x.const is not None:
        raise Skip("x is a constant, or the permutation is not given")
    if not shape_of(x) == shape_of(t.output) == shape_of(root.output):
        raise Skip("the operands have different shapes")
    need_anchor(y)
    maker = x.producer
    if len(x.uses) == 1 and maker is not None and "anchor" in maker.op.traits:
        raise Skip(f"{maker.name!r} can finish the sum itself")
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


# ---- planes

flat_planes = RuleSet("transpose-planes", "Planes are merged and cut channels-last.")
register("machine", devices=("cpu",))(flat_planes)

TO_ROWS = (0, 2, 1)


def _planes(image: Value, flat: Value, transpose: Node) -> tuple[Any, ...]:
    """The shape of `image` [N, C, ...]. Raises Skip unless `flat` is the image with its spatial
    axes merged to one, [N, C, P], `transpose` exchanges C and P, and all sizes are known."""
    whole, merged = shape_of(image), shape_of(flat)
    if transpose.perm != TO_ROWS or len(whole) < 4:
        raise Skip("it does not transpose the planes of an image")
    if any(isinstance(d, str) for d in (*whole, *merged)):
        raise Skip("a size is not known")
    if whole[:2] != merged[:2] or prod(whole[2:]) != merged[2]:  # type: ignore[arg-type]
        raise Skip("the reshape merges or cuts more than planes")
    return whole


@flat_planes.rule(
    p.Transpose(p.Reshape("x", ...).named("flat")).named("transpose"),
    x=(2, 3, 4, 5),
    flat={"#1": np.array([2, 3, 20])},
    transpose={"perm": TO_ROWS},
)
def transpose_before_merging(x: Value, flat: Node, transpose: Node) -> Value:
    """transpose(reshape(x, [N, C, H*W])) -> reshape(transpose(x), [N, H*W, C])."""
    rank = len(_planes(x, flat.output, transpose))
    last = OPS["Transpose"](x, perm=(0, *range(2, rank), 1))
    return reshaped(last, shape_of(transpose.output))


@flat_planes.rule(
    p.Reshape(p.Transpose("x").named("transpose"), ...).named("cut"),
    x=(2, 20, 3),
    transpose={"perm": TO_ROWS},
    cut={"#1": np.array([2, 3, 4, 5])},
)
def cut_before_transposing(x: Value, transpose: Node, cut: Node) -> Value:
    """reshape(transpose(x), [N, C, H, W]) -> transpose(reshape(x, [N, H, W, C]))."""
    batch, channels, *planes = _planes(cut.output, transpose.output, transpose)
    rows = reshaped(x, (batch, *planes, channels))
    return OPS["Transpose"](rows, perm=(0, len(planes) + 1, *range(1, len(planes) + 1)))
