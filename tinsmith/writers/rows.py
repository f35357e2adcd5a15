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
    """What a format cannot say of a node; its message says why. Collected, never seen by users."""


class Rows(Registry[Callable[..., Any]]):
    """The functions that write nodes, by operator; called, a decorator that registers one for some
    operators. Keywords are handed on to the function: what differs between its operators.

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
    """All inputs that a node may have, None for each that is not given."""
    return OPS[node.op.name].arguments(node.inputs)


def constant(value: Value | None, what: str) -> Array:
    """The array of a value that must be constant."""
    need(value is not None and value.const is not None, f"{what} must be constant")
    assert value is not None and value.const is not None
    return value.const


def numbers(value: Value | None, what: str) -> tuple[int, ...]:
    """The whole numbers of a value that must be constant, without its axes."""
    return tuple(int(n) for n in constant(value, what).reshape(-1))


def need_defaults(node: Node, *others: str) -> None:
    """Raises Inexpressible where an attribute that is none of the `others` has not its default."""
    for name, default in OPS[node.op.name].attrs.items():
        if name not in others:
            need(node.attrs[name] == default, f"its {name} is {node.attrs[name]!r}")


def unused(name: str, taken: set[str], separator: str = "_") -> str:
    """The name, or with a number behind it the first that is not taken; it then is."""
    found, i = name, 0
    while found in taken:
        i += 1
        found = f"{name}{separator}{i}"
    taken.add(found)
    return found
