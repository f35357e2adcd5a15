"""Shared by the writers of all formats: the table of functions that write nodes, questions about
nodes, and the error for a node that a format cannot express."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tinsmith.errors import TinsmithError
from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.registry import Registry

T = TypeVar("T")


class Inexpressible(TinsmithError):
    """A format cannot express a node; the message says why. Writers collect these errors in
    `Problems`; users never see one."""


class Rows(Registry[Callable[..., Any]]):
    """The table of a format's functions that write nodes, by operator. Calling it gives a decorator
    that registers a function for some operators; keywords are passed to the function:

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
    """Raise Inexpressible unless the condition is true."""
    if not condition:
        raise Inexpressible(why)


def present(thing: T | None, why: str) -> T:
    """Return `thing`. Raises Inexpressible if it is None."""
    if thing is None:
        raise Inexpressible(why)
    return thing


def inputs_of(node: Node) -> tuple[Any, ...]:
    """Return the inputs of a node, with None for each optional one that is not given."""
    return OPS[node.op.name].arguments(node.inputs)


def constant(value: Value | None, what: str) -> Array:
    """Return the array of a constant. Raises Inexpressible, which calls the value `what`, for any
    other value."""
    return present(value and value.const, f"{what} must be constant")


def numbers(value: Value | None, what: str) -> tuple[int, ...]:
    """Return the elements of a constant of any rank as a flat tuple of integers. Raises
    Inexpressible, which calls the value `what`, if it is not constant."""
    return tuple(int(n) for n in constant(value, what).reshape(-1))


def need_defaults(node: Node, *others: str) -> None:
    """Raise Inexpressible if an attribute of a node, but those named `others`, differs from its
    operator's default."""
    for name, default in OPS[node.op.name].attrs.items():
        if name not in others:
            need(node.attrs[name] == default, f"its {name} is {node.attrs[name]!r}")


def unused(name: str, taken: set[str], separator: str = "_") -> str:
    """Return `name`, or the first of name_1, name_2, ... that is not in `taken`; add what is
    returned to `taken`."""
    found, i = name, 0
    while found in taken:
        i += 1
        found = f"{name}{separator}{i}"
    taken.add(found)
    return found
