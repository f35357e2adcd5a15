"""Where the elements of a value come from, through nodes that only move them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._arithmetic import adds
from tinsmith.ops._move import moves_of
from tinsmith.ops._weights import is_matrix_product
from tinsmith.passes.contents import is_known
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Source:
    """Where the elements of a value come from: element i of the value is element at[i] of the
    earlier value `base`, taken as a flat array. `at` has the value's shape."""

    base: Value
    at: Array


class Once:
    """A cache of function calls: `once(make, *args)` is `make(*args)`, computed at the first call
    with these arguments (arrays compare by identity, others by value). So equal layers share
    arrays, which nobody may change."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, make: Callable[..., Any], *args: Any) -> Any:
        key = (make, *[id(a) if isinstance(a, np.ndarray) else a for a in args])
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make(*args), args  # which keeps what the key names
        return found[0]


def is_permutation(numbers: Array, size: int) -> bool:
    """Whether the numbers, which must all lie from 0 to size - 1, are these in some order."""
    if numbers.size != size:
        return False
    seen = np.zeros(size, bool)
    seen[numbers.reshape(-1)] = True
    return bool(seen.all())


@dataclass
class Positions:
    """Finds for values the earlier value from which moves (transposes, slices, ...) make them, and
    where each element lies there (`source`). Results are cached, so the graph must not change
    meanwhile."""

    once: Once
    known: dict[Value, Source] = field(default_factory=dict)

    def source(self, value: Value) -> Source:
        """The earliest value from which moves of static shapes alone make `value`, and the index of
        each element there. A value that no such move makes, or whose elements come from several
        such values, is its own source."""
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._find(value)
        return found

    def _find(self, value: Value) -> Source:
        node = value.producer
        if node is None or not is_move(node):
            return self.own(value)
        move = moves_of(node)[value.index]
        assert move is not None
        parts = {p.source: self.source(node.inputs[p.source]) for p in move.parts}  # type: ignore[arg-type]
        if len({p.base for p in parts.values()}) != 1:
            return self.own(value)
        arrays = [parts[i].at if i in parts else v and v.const for i, v in enumerate(node.inputs)]
        at = self.once(_moved, node.op.name, tuple(node.attrs.items()), *arrays)
        return Source(parts[move.parts[0].source].base, at[value.index])

    def own(self, value: Value) -> Source:
        """A value as its own source."""
        return Source(value, self.once(counted, value.dims))

    def is_whole(self, source: Source) -> bool:
        """Whether the value with this source holds every element of its base exactly once."""
        return self.once(is_permutation, source.at, source.base.type.size)

    def row_order(self, source: Source, value: Value) -> Array | None:
        """`order`, where row r of the value is row order[r] of the base of its `source`, a row
        being all elements along the last axis. None unless the value holds every row of the base
        once, as a whole."""
        if source.base.dims[-1] != value.dims[-1]:
            return None
        return self.once(_row_order, source.at, value.dims[-1], source.base.type.size)


def _moved(op: str, attrs: tuple[tuple[str, Any], ...], *arrays: Array) -> tuple[Array, ...]:
    return OPS[op].evaluate(arrays, dict(attrs))


def counted(dims: tuple[int, ...]) -> Array:
    """For each element of a row-major array of shape `dims` its offset there."""
    return np.arange(prod(dims), dtype=np.int32).reshape(dims)


def own_rows(dims: tuple[int, ...], lead: tuple[int, ...]) -> Array:
    """The table of row offsets (`rows_at`) of an operand that is a row-major array of shape
    `dims` (..., rows, width). `lead`: the shape of the items, as for `rows_at`."""
    return rows_at(counted(dims), lead)


def rows_at(at: Array, lead: tuple[int, ...]) -> Array:
    """The table [items, rows] of an operand of RowAttention: the offset in a flat array at which
    each row begins. `at` [..., rows, width], int32 as the table, has the offset of each element;
    that a row's elements follow each other is not checked here. The leading axes of `at` are
    broadcast to `lead`, the shape of the items (batch and heads)."""
    rows = at.shape[-2]
    return np.ascontiguousarray(np.broadcast_to(at[..., 0], (*lead, rows)).reshape(-1, rows))


def is_move(node: Node) -> bool:
    """Whether a node only moves elements: its outputs hold elements of its inputs, from known
    indices, and no fill values. Shapes must be numbers, and nothing empty."""
    moves = moves_of(node)
    if any(m is None or m.fill is not None for m in moves):
        return False
    values = [*node.outputs, *(node.inputs[p.source] for m in moves if m for p in m.parts)]
    return all(v is not None and is_known(v.type) and v.type.size for v in values)


def after_moves(value: Value, outputs: set[Value], positions: Positions) -> list[Value]:
    """`value` and the values that moves make of it one after the other, nearest first; each holds
    exactly the elements of `value`, in another order. The list ends with a graph output, or with a
    value whose readers are neither one move nor several whose results one move joins."""
    found = [value]
    while value not in outputs:
        following = _joined(list(dict.fromkeys(value.uses)), outputs)
        if following is None:
            break
        source = positions.source(following)
        if source.base is not found[0] or not positions.is_whole(source):
            break
        found.append(following)
        value = following
    return found


def _joined(users: list[Node], outputs: set[Value]) -> Value | None:
    """The one value that `users`, all readers of a value, lead to: the only output of one move
    (`is_move`), or the output of a move that joins all outputs of several. None if a reader is no
    move, or if one of several outputs is a graph output (`outputs`) or has another reader."""
    if not users or not all(map(is_move, users)):
        return None
    results = [v for n in users for v in n.outputs]
    if len(results) == 1:
        return results[0]
    joins = {u for v in results for u in v.uses}
    if len(joins) != 1 or any(v in outputs for v in results):
        return None
    (join,) = joins
    return join.output if is_move(join) and len(join.outputs) == 1 else None


@dataclass(frozen=True)
class Dense:
    """A dense layer, x @ w + bias. Constants: w [inputs, outputs]; bias [outputs] or one number,
    perhaps with axes of 1 before, or None. `first` is the node of the product, `last` the result,
    bias included."""

    x: Value
    w: Value
    bias: Value | None
    first: Node
    last: Value


def dense_before(value: Value, outputs: set[Value]) -> Dense | None:
    """The dense layer whose result is `value`; None if there is none, or if the product before the
    bias is read elsewhere."""
    node, bias = value.producer, None
    if node is not None and adds(node):
        a, b = node.operands
        product, bias = (a, b) if a.const is None else (b, a)
        if bias.const is None or not _along_last(bias, value):
            return None
        if product in outputs or len(product.uses) != 1:
            return None
        node = product.producer
    return _dense(node, bias, value) if node is not None and is_matrix_product(node) else None


def dense_after(value: Value, outputs: set[Value]) -> Dense | None:
    """The dense layer that alone reads `value`, as its x; None if there is none."""
    if value in outputs or len(value.uses) != 1:
        return None
    node = value.uses[0]
    if not is_matrix_product(node) or node.inputs[0] is not value:
        return None
    y = node.output
    sums = [u.output for u in y.uses if adds(u)]
    layers = (dense_before(end, outputs) for end in (*sums, y))
    return next((layer for layer in layers if layer is not None and layer.first is node), None)


def _dense(node: Node, bias: Value | None, last: Value) -> Dense | None:
    x, w = node.inputs
    if x is None or w is None or w.const is None or w.rank != 2 or x.const is not None:
        return None
    if not (x.type.is_static and (x.rank or 0) >= 2 and last.shape == node.output.shape):
        return None
    return Dense(x, w, bias, node, last)


def _along_last(bias: Value, value: Value) -> bool:
    return bias.type.size in (1, value.dims[-1]) and all(d == 1 for d in bias.dims[:-1])


def _row_order(at: Array, width: int, size: int) -> Array | None:
    at = at.reshape(-1, width)
    first = at[:, 0]
    if np.any(first % width) or not np.array_equal(at, first[:, None] + np.arange(width)):
        return None
    order = first // width
    return order if is_permutation(order, size // width) else None
