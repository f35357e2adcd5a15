"""Which operators are sums or products of their inputs: passes ask here, and compare no names."""

from __future__ import annotations

from tinsmith.graph import Node


def signs_of(node: Node) -> tuple[int, ...] | None:
    """The sign with which each input enters the sum that a node computes: (1, -1) for x - y. None
    where the node is no sum."""
    return getattr(node.op, "signs", None)


def powers_of(node: Node) -> tuple[int, ...] | None:
    """The power with which each input enters the elementwise product that a node computes: (1, -1)
    for x / y. None where the node is no such product."""
    return getattr(node.op, "powers", None)


def adds(node: Node | None) -> bool:
    """Whether a node is x + y."""
    return node is not None and signs_of(node) == (1, 1)


def subtracts(node: Node | None) -> bool:
    """Whether a node is x - y."""
    return node is not None and signs_of(node) == (1, -1)


def multiplies(node: Node | None) -> bool:
    """Whether a node is x * y, element by element."""
    return node is not None and powers_of(node) == (1, 1)
