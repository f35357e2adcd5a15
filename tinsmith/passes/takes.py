"""Gathers of neighbouring constant places are slices, which need no copy."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import Array, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, p

rules = RuleSet("slice-gathers", "Gathers of neighbouring constant places become slices.")
register("machine")(rules)


@rules.rule(
    p.Gather("x", const("places")).named("g"),
    x=(1, 3, 4),
    places=np.array(-2),
    g={"axis": 1},
)
def gather_neighbours(x: Value, places: Array, g: Node) -> Value:
    """gather(x, i) -> squeeze(x[i : i + 1]); gather(x, [i, i + 1, ...]) -> x[i : i + n]."""
    shape = shape_of(x)
    axis = g.axis % len(shape)
    size = shape[axis]
    if any(d != 1 for d in shape[:axis]):
        raise Skip("the slice would lie in pieces")
    if not isinstance(size, int) or places.ndim > 1 or not places.size:
        raise Skip("the places or the size are not known, or have a shape of their own")
    found = [int(i) % size for i in places.reshape(-1)]
    first, last = found[0], found[-1] + 1
    if found != list(range(first, last)):
        raise Skip("the places are not neighbours")
    bounds = [np.array([k], np.int64) for k in (first, last, axis)]
    part = OPS["Slice"](x, *bounds)
    return part if places.ndim else OPS["Squeeze"](part, bounds[2])
