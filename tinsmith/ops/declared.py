"""Checks that only a run can make: of sizes that a model declares and nothing proves, and of nodes
that do not fit their inputs, in branches that may never be taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinsmith.errors import DataError, TypeRuleError
from tinsmith.graph import Dim, Graph, Holder, Node, Origin, Type, Value, dtype_of, shapes_agree
from tinsmith.graph.types import element_name
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import OPS, Op, need, op
from tinsmith.ops._rules import need_data
from tinsmith.sizes import NUMBER

Claim = tuple[int | None, ...]
"""A shape in which None stands for a dim that may be any."""


@op("check")
def Declared(x, *, shape):
    """y = x, if it has this shape (None: any size), as the model declares; else DataError"""
    need_data(
        shapes_agree(shape, x.shape),
        f"it gives {x.dtype}{list(x.shape)}, where the model declares {_shown(shape)}: "
        "a size that the model declares is not so",
    )
    return x


@Declared.type
def _(x: Value, *, shape: Claim) -> Type:
    need(all(d is None or d >= 0 for d in shape), f"a size in {_shown(shape)} is negative")
    known: tuple[Dim | None, ...] = (None,) * len(shape) if x.shape is None else x.shape
    need(shapes_agree(known, shape), f"the model declares {_shown(shape)}, but it is {x.type}")
    dims = [k if d is None else d for k, d in zip(known, shape, strict=True)]
    return Type(x.dtype, tuple(fresh() if d is None else d for d in dims))


def _shown(shape: Claim) -> str:
    return f"[{','.join('?' if d is None else str(d) for d in shape)}]"


def claim(known: Type, declared: Type, numbers: bool = True) -> Claim | None:
    """The shape that a `Declared` node has to check for a value of type `known` that the model
    declares to be of type `declared`, which fits: the rank, and, with `numbers`, declared sizes
    where `known` has symbols. None if there is nothing to check, and for values that are no tensor.

    A declared size of 0 is ignored: exporters write it for sizes that they do not know.
    """
    if isinstance(known, Holder) or declared.shape is None:
        return None
    unknown = (None,) * len(declared.shape)
    said = [
        b if numbers and isinstance(b, NUMBER) and b and not isinstance(a, NUMBER) else None
        for a, b in zip(known.shape or unknown, declared.shape, strict=True)
    ]
    return tuple(said) if known.shape is None or any(d is not None for d in said) else None


def declare(value: Value, shape: Claim, origin: Origin) -> Value:
    """Add a `Declared` node that checks the shape of `value`, and return its output. What reads
    `value` already goes on to read it. If `value` is the output of a node, it exchanges its name
    with the new output, so that whoever looks up the name later finds the checked value."""
    made = value.graph.add(
        OPS["Declared"], value, shape=shape, name=f"{value.name}/Declared", origin=origin
    )
    if value.producer is not None:
        value.name, made.output.name = made.output.name, value.name
    return made.output


def undeclare(node: Node) -> None:
    """Undo `declare`: remove a `Declared` node. Its readers read its input instead, which gets back
    its name."""
    x, y, name = node.inputs[0], node.output, node.output.name
    assert x is not None
    node.graph.replace(y, x)
    node.graph.remove(node)
    if x.name != name and x.producer is not None:
        x.name, y.name = name, x.name


def drop_idle(graph: Graph) -> None:
    """Remove the `Declared` nodes on which no output of the graph depends."""
    needed: set[Node] = set()
    left = [v.producer for v in graph.outputs]
    while left:
        node = left.pop()
        if node is not None and node not in needed:
            needed.add(node)
            left += [v.producer for v in node.inputs if v is not None]
    for node in graph.nodes:
        if node.op is Declared and node not in needed:
            undeclare(node)


# ---- branches that cannot run


@op("check")
def Required(condition, *, value=True, message):
    """y = condition, whose elements must be `value`; otherwise DataError with `message`"""
    need_data(np.all(np.equal(condition, value)), message)
    return condition


@Required.type
def _(condition: Value, *, value: bool, message: str) -> Type:
    need(condition.dtype == np.bool_, f"the condition must be bool, it is {condition.type}")
    return condition.type


@op("impure")
def Refused(*xs, message, dtypes):
    """Raises DataError: `message`, for a node whose inputs do not fit; its outputs have `dtypes`"""
    raise DataError(message)


@Refused.type
def _(*xs: Value | None, message: str, dtypes: tuple[str, ...]) -> tuple[Type, ...]:
    return tuple(Type(dtype_of(d), None) for d in dtypes)


def refuse(
    graph: Graph, operator: Op, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any],
    error: TypeRuleError, name: str, origin: Origin,
) -> Node:  # fmt: skip
    """Add a `Refused` node in place of one of `operator` whose type rule has raised `error`: in a
    branch that may never be taken, only a run that reaches it is an error. Raises `error` itself if
    the element types of the outputs cannot be found, or one is no tensor."""
    types = None
    for keeps in (True, False):
        try:
            types = operator.infer(
                tuple([_shapeless(v, keeps) for v in inputs]), operator.bind(inputs, attrs)
            )
            break
        except TypeRuleError:
            continue
    if types is None or any(isinstance(t, Holder) for t in types):
        raise error
    names = tuple(element_name(t.dtype) for t in types)
    message = str(error).removeprefix(f"{origin}: ")
    return graph.add(
        OPS["Refused"], *inputs, message=message, dtypes=names, name=name, origin=origin
    )


def _shapeless(v: Value | None, keeps: bool) -> Value | None:
    """A copy of a value without its shape. None, sequences and optionals, and, with `keeps`,
    constants are returned as they are."""
    if v is None or isinstance(v.type, Holder) or (keeps and v.const is not None):
        return v
    return Value(v.graph, v.type.like(shape=None), v.name)
