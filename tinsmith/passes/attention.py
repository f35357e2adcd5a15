"""Attention written in primitives becomes one node that reads and writes rows where they lie.

The moves around attention (heads split off and joined, windows cut and put back, rolls) turn into
tables of row offsets. Dense layers before and after take their rows in any order, so that moves on
their far sides go the same way.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.manager import Context, register
from tinsmith.passes.positions import (
    Array,
    Dense,
    Once,
    Positions,
    after_moves,
    dense_after,
    dense_before,
    is_move,
)
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip

MOST_TERMS = 2


@dataclass(frozen=True)
class Core:
    """softmax(scale * left @ right + terms) @ v, over `lead` dimensions."""

    softmax: Node
    left: Value
    right: Value
    v: Value
    y: Value
    scale: float
    terms: tuple[tuple[Value, Array], ...]  # [slabs, queries or 1, keys or 1], slab of each item
    lead: tuple[int, ...]


@register("machine", devices=("cpu",))
@dataclass(frozen=True)
class LowerAttention:
    """softmax(q k^T * scale + bias) v, with the moves around it, becomes one node.

    max_keys: attention over more keys than this stays as it is.
    """

    max_keys: int = 8192

    def run(self, graph: Graph, context: Context) -> int:
        changes, once = 0, Once()
        for node in list(graph.nodes):
            if node.op.name != "Softmax" or node not in graph:
                continue
            try:
                core = _core(graph, node, self.max_keys, once)
                _lower(graph, core, Positions(once))
                changes += 1
            except Skip as why:
                context.refuse("lower-attention", node.name, str(why))
        return changes


# ---- finding


def _core(graph: Graph, softmax: Node, max_keys: int, once: Once) -> Core:
    """The attention around a softmax, or Skip."""
    outputs = set(graph.outputs)
    x, weights = softmax.inputs[0], softmax.output
    assert x is not None
    if x.dtype != np.float32:
        raise Skip(f"it is {x.dtype}")
    if not x.type.is_static or not x.type.size or (x.rank or 0) < 2:
        raise Skip("its shape is not known")
    if softmax.axis % len(x.dims) != len(x.dims) - 1:
        raise Skip(f"it is along axis {softmax.axis}, not the last one")
    if x.dims[-1] > max_keys:
        raise Skip(f"there are {x.dims[-1]} keys")
    users = weights.uses
    if weights in outputs or len(users) != 1 or users[0].op.name != "MatMul":
        raise Skip("its result is not read by one product alone")
    product = users[0]
    v = product.inputs[1]
    if product.inputs[0] is not weights or v is None or v is weights or (v.rank or 0) < 2:
        raise Skip("the product takes it as its right operand")
    left, right, scale, terms = _scores(x, outputs, once)
    lead = _lead(left, right, x)
    if not v.type.is_static or product.output.dims[:-2] != x.dims[:-2]:
        raise Skip("the values have further batch dimensions")
    return Core(softmax, left, right, v, product.output, scale, terms, lead)


def _lead(left: Value, right: Value, scores: Value) -> tuple[int, ...]:
    for operand in (left, right):
        if not operand.type.is_static or (operand.rank or 0) < 2:
            raise Skip("the scores are not a product of matrices")
    lead = np.broadcast_shapes(left.dims[:-2], right.dims[:-2])
    if prod(lead) != prod(scores.dims[:-2]):
        raise Skip("the scores are stretched after the product")
    return tuple(lead)


def _scores(
    value: Value, outputs: set[Value], once: Once
) -> tuple[Value, Value, float, tuple[tuple[Value, Array], ...]]:
    """Walk up from what softmax reads to the product: its operands, the factor, the terms."""
    scale = 1.0
    terms: list[tuple[Value, Array]] = []
    shape = value.dims
    while True:
        node = value.producer
        if node is None or value in outputs or len(value.uses) != 1:
            raise Skip(f"{value.name!r} is read elsewhere")
        if not all(v is None or v.type.is_static for v in node.inputs):
            raise Skip("a shape is not known")
        name = node.op.name
        a, b = (*node.inputs, None)[:2]
        assert a is not None
        if name == "MatMul":
            assert b is not None
            return a, b, scale, _few(terms)
        if name == "Reshape" and a.dims[-2:] == shape[-2:] and len(a.dims) >= 2:
            value = a
        elif name in ("Mul", "Div") and b is not None:
            value, factor = _factor(node, a, b)
            scale *= factor
        elif name == "Add" and b is not None:
            value, term = _inner(node, a, b)
            terms.append(once(_term, term, value.dims, scale))
        else:
            raise Skip(f"{name} stands between the product and the softmax")


def _factor(node: Node, a: Value, b: Value) -> tuple[Value, float]:
    if node.op.name == "Mul" and b.const is None:
        a, b = b, a
    if b.const is None or b.const.size != 1 or a.shape != node.output.shape:
        raise Skip(f"{node.name!r} scales by more than one constant")
    number = float(b.const.reshape(-1)[0])
    if number == 0 or not np.isfinite(number):
        raise Skip(f"the factor is {number}")
    return a, number if node.op.name == "Mul" else 1 / number


def _inner(node: Node, a: Value, b: Value) -> tuple[Value, Value]:
    """Which operand of an Add leads to the product, and which is the term."""
    for inner, term in ((a, b), (b, a)):
        if inner.const is not None or inner.shape != node.output.shape or inner is term:
            continue
        if term.const is not None or _leads_to_product(inner):
            return inner, term
    raise Skip(f"neither operand of {node.name!r} is a product of the same shape")


def _leads_to_product(value: Value) -> bool:
    for _ in range(8):
        node = value.producer
        if node is None:
            return False
        if node.op.name == "MatMul":
            return len(value.uses) == 1
        if node.op.name not in ("Reshape", "Mul", "Div", "Add") or node.inputs[0] is None:
            return False
        nexts = [v for v in node.inputs[:2] if v is not None and v.const is None]
        if node.op.name == "Reshape":
            nexts = nexts[:1]
        if len(nexts) != 1:
            return False
        value = nexts[0]
    return False


def _term(term: Value, shape: tuple[int, ...], scale: float) -> tuple[Value, Array]:
    """A term as [slabs, queries or 1, keys or 1], and the slab of each item."""
    dims = (1,) * (len(shape) - len(term.dims)) + term.dims
    slabs = np.arange(prod(dims[:-2]), dtype=np.int32).reshape(dims[:-2])
    table = np.broadcast_to(slabs, shape[:-2]).reshape(-1)
    wanted = (-1, *dims[-2:])
    if term.const is not None:
        array = np.ascontiguousarray((term.const * np.float32(scale)).reshape(wanted))
        return term.graph.const(array, term.name), table
    if scale != 1:
        raise Skip(f"the factor {scale} is applied after {term.name!r} is added")
    return OPS["Reshape"](term, np.array((prod(dims[:-2]), *dims[-2:]), np.int64)), table


def _few(terms: list[tuple[Value, Array]]) -> tuple[tuple[Value, Array], ...]:
    """At most as many terms as the operator takes; constants are added up where there are more."""
    constants = [t for t in terms if t[0].const is not None]
    while len(terms) > MOST_TERMS and len(constants) >= 2:
        (a, a_at), (b, b_at) = constants[:2]
        assert a.const is not None and b.const is not None
        total = a.const[a_at] + b.const[b_at]
        merged = a.graph.const(total, a.name), np.arange(len(total), dtype=np.int32)
        terms = [t for t in terms if t not in constants[:2]] + [merged]
        constants = [merged, *constants[2:]]
    if len(terms) > MOST_TERMS:
        raise Skip(f"{len(terms)} terms are added to the scores")
    return tuple(reversed(terms))


# ---- rewriting


@dataclass
class _Rows:
    """The rows of an operand: [items, rows] offsets into `base`."""

    base: Value
    table: Array
    width: int


def _lower(graph: Graph, core: Core, positions: Positions) -> None:
    outputs = set(graph.outputs)
    readers = {core.y.producer, _reader_of(core)}
    swapped = _swapped(core.right)
    rows = [
        _rows(positions, core.left, core.lead, False),
        _rows(positions, core.right, core.lead, True),
        _rows(positions, core.v, core.lead, False),
    ]
    if rows[1] is None:
        rows[1] = _rows(positions, swapped(), core.lead, False)
    found = [r for r in rows if r is not None]
    rebased = {r.base: _before_dense(r.base, outputs, readers, positions) for r in found}
    for r in found:
        move = rebased[r.base]
        if move is not None:
            width = move[0].dims[-1]
            r.base, r.table = move[0], positions.once(_reordered, r.table, move[1], width)
    _finish(graph, core, found, outputs, positions)


def _reader_of(core: Core) -> Node:
    pair = (core.left, core.right)
    return next(n for n in core.left.uses if n.op.name == "MatMul" and n.inputs == pair)


def _swapped(right: Value) -> Any:
    order = (*range(len(right.dims) - 2), len(right.dims) - 1, len(right.dims) - 2)
    return lambda: OPS["Transpose"](right, perm=order)


def _rows(positions: Positions, value: Value, lead: tuple[int, ...], turned: bool) -> _Rows | None:
    """The rows of an operand of a product (`turned`: its columns); None where columns are not
    contiguous anywhere."""
    for source in (positions.source(value), positions.own(value)):
        table = positions.once(_row_table, source.at, lead, turned)
        if table is not None:
            return _Rows(source.base, table, value.dims[-2 if turned else -1])
    return None


def _row_table(at: Array, lead: tuple[int, ...], turned: bool) -> Array | None:
    if turned:
        at = at.swapaxes(-1, -2)
    return _contiguous(np.broadcast_to(at, (*lead, *at.shape[-2:])).reshape(-1, *at.shape[-2:]))


def _contiguous(at: Array) -> Array | None:
    """The first position of each row, where a row's positions follow each other."""
    if not np.array_equal(at[..., 1:], at[..., :-1] + 1):
        return None
    return np.ascontiguousarray(at[..., 0], np.int32)


def _reordered(table: Array, place: Array, width: int) -> Array:
    """Offsets after row r (of `width` elements) has become row place[r]."""
    return (place[table // width] * width + table % width).astype(np.int32)


def _before_dense(
    base: Value, outputs: set[Value], readers: set[Any], positions: Positions
) -> tuple[Value, Array] | None:
    """The dense layer that makes `base`, on rows in the order before the moves that feed it: its
    result, and the place of each row there. None where nothing would be gained."""
    layer = dense_before(base, outputs)
    if layer is None or not _only_read_by(base, readers, outputs):
        return None
    source = positions.source(layer.x)
    order = positions.row_order(source, layer.x)
    if source.base is layer.x or order is None or source.base.const is not None:
        return None
    return _dense_again(layer, source.base), order


def _only_read_by(value: Value, readers: set[Any], outputs: set[Value]) -> bool:
    """Whether, past moves, only these nodes read the value."""
    if value in outputs:
        return False
    for user in dict.fromkeys(value.uses):
        if user in readers:
            continue
        if not is_move(user) or not all(_only_read_by(v, readers, outputs) for v in user.outputs):
            return False
    return True


def _dense_again(layer: Dense, x: Value) -> Value:
    """The layer over another x."""
    node = layer.first
    precise = node.attrs["precise"]
    y = OPS["MatMul"](x, layer.w, precise=precise, name=node.name, origin=node.origin, before=node)
    if layer.bias is None:
        return y
    return OPS["Add"](y, _flat(layer.bias), before=node)


def _flat(bias: Value) -> Any:
    assert bias.const is not None
    return bias if bias.rank == 1 else bias.const.reshape(-1)


def _finish(
    graph: Graph, core: Core, rows: list[_Rows], outputs: set[Value], positions: Positions
) -> None:
    """Add the node, whose result takes the place of the farthest value that it can."""
    q, k, v = rows
    old, table = _result_rows(core, outputs, positions)
    dims = old.dims
    layer = dense_after(old, outputs)
    end = old
    if layer is not None:
        moved = after_moves(layer.last, outputs, positions)
        for candidate in reversed(moved[1:]):
            order = positions.row_order(positions.source(candidate), candidate)
            if order is not None:
                width = dims[-1]
                table = positions.once(_reordered, table, positions.once(np.argsort, order), width)
                dims, end = (*candidate.dims[:-1], width), candidate
                break
    terms: list[Any] = []
    for value, slab in core.terms:
        terms += [value, slab]
    last = core.softmax
    y = OPS["RowAttention"](
        q.base, k.base, v.base, q.table, k.table, v.table, table, *terms,
        width=q.width, value_width=v.width, shape=dims, scale=core.scale,
        name=last.name, origin=last.origin, before=last,
    )  # fmt: skip
    if end is not old:
        assert layer is not None
        y = _dense_again(layer, y)
    graph.replace(end, y)
    graph.sweep([n for n in (end.producer,) if n is not None])


def _result_rows(core: Core, outputs: set[Value], positions: Positions) -> tuple[Value, Array]:
    """The farthest value that holds the result, with contiguous rows, and where they begin."""
    for value in reversed(after_moves(core.y, outputs, positions)):
        table = positions.once(_places, positions.source(value).at, core.y.dims)
        if table is not None:
            return value, table
    raise AssertionError("a value holds its own rows")


def _places(at: Array, dims: tuple[int, ...]) -> Array | None:
    """Where the rows of what has these dims are, if they are rows where element i is the element
    `at[i]` of it."""
    place = np.empty(at.size, np.int32)
    place[at.reshape(-1)] = np.arange(at.size, dtype=np.int32)
    return _contiguous(place.reshape(-1, *dims[-2:]))
