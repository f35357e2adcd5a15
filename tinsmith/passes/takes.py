"""Gathers of neighbouring constant places are slices, which need no copy."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._move import moves_of
from tinsmith.passes.facts import shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, p
from tinsmith.sizes import NUMBER

rules = RuleSet("slice-gathers", "Gathers of neighbouring constant places become slices.")
register("machine")(rules)


@rules.rule(
    p.Gather("x", const("places")).named("g"), x=(1, 3, 4), places=np.array(-2), g={"axis": 1}
)
def gather_neighbours(x: Value, g: Node) -> Value:
    """gather(x, i) -> squeeze(x[i : i + 1]); gather(x, [i, i + 1, ...]) -> x[i : i + n]."""
    shape = shape_of(x)
    move = moves_of(g)[0]
    cut = None if move is None else move.parts[0].cut(shape)
    if move is None or cut is None or len(move.dims) > len(shape) or not np.size(cut[1]):
        raise Skip("the places are not known, or have a shape of their own")
    axis, places = cut
    if any(d != 1 for d in shape[:axis]) or not isinstance(shape[axis], NUMBER):
        raise Skip("the slice would lie in pieces, or the size is not known")
    first, last = int(places[0]), int(places[-1]) + 1
    if list(places) != list(range(first, last)):
        raise Skip("the places are not neighbours")
    bounds = [np.array([k], np.int64) for k in (first, last, axis)]
    part = OPS["Slice"](x, *bounds)
    return part if len(move.dims) == len(shape) else OPS["Squeeze"](part, bounds[2])
