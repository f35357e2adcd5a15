"""Planes are merged and cut on the channels-last side of a transposition, where that is free.

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
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, p

rules = RuleSet("transpose-planes", "Planes are merged and cut channels-last.")
register("machine", devices=("cpu",))(rules)

TO_ROWS = (0, 2, 1)


def _planes(image: Value, flat: Value, transpose: Node) -> tuple[Any, ...]:
    """The shape of `image` [N, C, ...], if `flat` is it with its spatial axes merged, [N, C, P],
    and `transpose` is from [N, C, P] to [N, P, C]. Raises Skip if not, or a size is not known."""
    whole, merged = shape_of(image), shape_of(flat)
    if transpose.perm != TO_ROWS or len(whole) < 4:
        raise Skip("it does not transpose the planes of an image")
    if any(isinstance(d, str) for d in (*whole, *merged)):
        raise Skip("a size is not known")
    if whole[:2] != merged[:2] or prod(whole[2:]) != merged[2]:  # type: ignore[arg-type]
        raise Skip("the reshape merges or cuts more than planes")
    return whole


@rules.rule(
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


@rules.rule(
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
