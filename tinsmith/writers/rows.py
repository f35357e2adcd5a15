"""What the writers of all formats share: the table of functions that write nodes, by operator, what
these ask of a node, and the error that says what a format has no words for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tinsmith.errors import TinsmithError
from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.registry import Registry

Array = np.ndarray[Any, Any]


class Inexpressible(TinsmithError):
    """A format cannot say this of a node; the message tells what. Writers collect these errors in
    `Problems`; users never see one."""


class Rows(Registry[Callable[..., Any]]):
    """The table of a format's functions that write nodes, by operator. Called, a decorator that
    registers a function for some operators; keywords are handed on to it as what differs between
    these:

        @writes("MaxPool", mean=False)
        @writes("AveragePool", mean=True)
        def pool(w, node, mean): ...
    """

    def __call__(self, *ops: str, **given: Any) -> Callable[[Callable], Callable]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            for op in ops:
                self.register(op, partial(function, **given) if given else function)
            return function

        return register


def need(condition: Any, why: str) -> None:
    """Raises Inexpressible unless the condition holds."""
    if not condition:
        raise Inexpressible(why)


def inputs_of(node: Node) -> tuple[Any, ...]:
    """The inputs of a node, with None in place of each optional one that is not given."""
    return OPS[node.op.name].arguments(node.inputs)


def constant(value: Value | None, what: str) -> Array:
    """The array of a constant. Raises Inexpressible, which calls the value `what`, for any
    other."""
    need(value is not None and value.const is not None, f"{what} must be constant")
    assert value is not None and value.const is not None
    return value.const


def numbers(value: Value | None, what: str) -> tuple[int, ...]:
    """The elements of a constant of any rank as a tuple of whole numbers. Raises Inexpressible,
    which calls the value `what`, if it is not constant."""
    return tuple(int(n) for n in constant(value, what).reshape(-1))


def need_defaults(node: Node, *others: str) -> None:
    """Raise Inexpressible if an attribute of a node, but those named `others`, differs from its
    operator's default."""
    for name, default in OPS[node.op.name].attrs.items():
        if name not in others:
            need(node.attrs[name] == default, f"its {name} is {node.attrs[name]!r}")


def unused(name: str, taken: set[str], separator: str = "_") -> str:
    """`name`, or the first of name_1, name_2, ... that is not in `taken`, to which it is added."""
    found, i = name, 0
    while found in taken:
        i += 1
        found = f"{name}{separator}{i}"
    taken.add(found)
    return found
