"""Elementwise nodes move up over moves to the product or convolution that can finish them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import reshaped, shape_of, target_of
from tinsmith.passes.lower_quant import FLOAT32
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, p, with_
from tinsmith.sizes import same

rules = RuleSet("lift-over-moves", "Elementwise nodes go up over moves to their anchor.")
register("machine")(rules)

_REACH = 8  # nodes above, at most, that are looked at; estimated


def need_anchor(x: Value, moves: bool = False) -> None:
    """Raise Skip unless an anchor makes x, perhaps through elementwise nodes, with `moves` also
    moves (`_is_from_anchor`)."""
    if not _is_from_anchor(x, moves):
        raise Skip(f"no anchor finishes {x.name!r}")


def _is_from_anchor(x: Value, moves: bool) -> bool:
    """Whether an anchor makes x, directly or through fewer than _REACH elementwise nodes (with
    `moves` also Reshape and Transpose), and each value on the way, x included, is read once."""
    v = x
    for _ in range(_REACH):
        if len(v.uses) != 1 or v.producer is None:
            break
        if "anchor" in v.producer.op.traits:
            return True
        if moves and v.producer.op.name in ("Reshape", "Transpose"):
            v = v.producer.operand(0)
            continue
        if "elementwise" not in v.producer.op.traits:
            break
        alike = [i for i in v.producer.inputs if i and i.const is None and same(i.shape, v.shape)]
        if not alike:
            break
        v = alike[0]
    return False


def of_anchor(dims: tuple[int, ...]) -> Callable[[Graph, Any], Value]:
    """An entry for the sample of a rule: a value that an anchor makes, the product of an input of
    these dims [..., K] and a matrix [K, K + 1]."""
    width = dims[-1]
    return lambda graph, dtype: OPS["MatMul"](
        graph.input("a", Type(dtype, dims)), np.ones((width, width + 1), dtype)
    )


def _under(y: Value, dims: Sequence[Dim]) -> Any:
    """y reshaped to `dims`, as an input of a new node: an array if y is constant, else a value."""
    return reshaped(y, dims) if y.const is None else y.const.reshape(target_of(dims))


@rules.rule(
    p.trait("activation")(p.Reshape("x", ...).named("r") | p.Transpose("x").named("t")).named("f"),
    x=of_anchor((6, 4)),
    r={"#1": np.array([2, 3, 5])},
    t={"perm": (1, 0)},
)
def lift_activation(x: Value, f: Node) -> Value:
    """f(reshape(x)) -> reshape(f(x)), and the same for transpose, where an anchor makes x."""
    need_anchor(x, moves=True)
    return _lifted(x, f)


def _lifted(x: Value, f: Node) -> Value:
    """move(f(x, ...)) for f(move(x), ...), where a Reshape or Transpose makes the first input."""
    moved, *rest = f.inputs
    assert moved is not None and moved.producer is not None
    return with_(moved.producer, x=OPS[f.op.name](x, *rest, **f.attrs))


@rules.rule(
    p.trait("rescales")(p.Reshape("x", ...).named("r") | p.Transpose("x").named("t"), ...).named(
        "f"
    ),
    x=lambda graph, _: of_anchor((6, 4))(graph, FLOAT32),
    r={"#1": np.array([2, 3, 5])},
    t={"perm": (1, 0)},
    f={"#1": np.array(0.3, np.float32), "to": "uint8"},
)
def lift_rescaling(x: Value, f: Node) -> Value:
    """f(reshape(x), k, ...) -> reshape(f(x, k, ...)), and the same for transpose, where f rescales
    or requantises by single numbers, and an anchor makes x."""
    need_anchor(x, moves=True)
    if any(v is not None and (v.const is None or v.const.size > 1) for v in f.inputs[1:]):
        raise Skip("it has a factor or a term for each place")
    return _lifted(x, f)


@rules.rule(
    p.Add(p.Reshape("x", ...).named("r"), "y") | p.Mul(p.Reshape("x", ...).named("r"), "y"),
    x=of_anchor((6, 4)),
    y=(2, 3, 5),
    r={"#1": np.array([2, 3, 5])},
)
def lift_binary(root: Node, x: Value, y: Value, r: Node) -> Value:
    """reshape(x) + y -> reshape(x + reshape(y)), and the same for *, where an anchor makes x. y has
    the result's shape, or is one constant number, or a vector along a last axis that the reshape
    keeps; and no anchor makes y that could finish the sum instead."""
    need_anchor(x)
    shape, target = shape_of(x), shape_of(r.output)
    if root.output.shape != target or y.shape is None or y is x:
        raise Skip("y makes the result larger")
    if y.const is None and _is_from_anchor(y, moves=True):
        raise Skip(f"the anchor that makes {y.name!r} can finish the sum")
    other: Any
    if y.shape == target:
        other = _under(y, shape)
    elif y.const is not None and y.const.size == 1:
        other = y
    elif all(d == 1 for d in y.shape[:-1]) and y.shape[-1:] == shape[-1:] == target[-1:]:
        other = _under(y, y.shape[-1:])
    else:
        raise Skip(f"y of {y.type} does not follow the reshape")
    return reshaped(OPS[root.op.name](x, other), target)
