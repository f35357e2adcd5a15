"""Attention written in primitives becomes one node that reads and writes rows where they lie.

The moves around attention (transposes that split and join heads, windows, rolls) become tables of
row offsets. Dense layers before and after compute each row by itself, so that moves beyond them are
taken in too. An item of a RowAttention is one head of one element of the batch: its queries, keys
and values are rows of `width` elements.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.conditions import by_formula
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._arithmetic import adds, multiplies, powers_of
from tinsmith.ops._dims import broadcast
from tinsmith.ops._weights import is_matrix_product
from tinsmith.passes.attention_free import free_attention, free_term, take_in_strides, turned
from tinsmith.passes.manager import Context, register
from tinsmith.passes.positions import (
    Dense,
    Once,
    Positions,
    after_moves,
    counted,
    dense_after,
    dense_before,
    is_move,
    own_rows,
)
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip
from tinsmith.sizes import Size, same, typical

MOST_TERMS = 2  # biases and masks that RowAttention takes


@register("machine", devices=("cpu",))
@dataclass(frozen=True)
class LowerAttention:
    """softmax(q k^T * scale + bias) v becomes a RowAttention, which takes in the moves around it.

    max_keys: attention over more keys than this stays as it is.
    """

    max_keys: int = 8192

    def run(self, graph: Graph, context: Context) -> int:
        changes, once = 0, Once()
        for node in list(graph.nodes):
            if node.op.name == "Softmax" and node in graph:
                try:
                    node = _found(graph, node, self.max_keys, once)
                    changes += 1
                except Skip as why:
                    context.refuse("lower-attention", node.name, str(why))
            if node.op.name == "RowAttention":
                if node.even:
                    changes += take_in_strides(graph, node)
                else:
                    changes += _take_in_moves(graph, node, Positions(once))
        return changes


# ---- finding


def _found(graph: Graph, softmax: Node, max_keys: int, once: Once) -> Node:
    """Replace the attention around a Softmax by one RowAttention, and return that node. Raises Skip
    if there is none in float32, of known shapes and at most `max_keys` keys. `once` makes each
    table of rows' offsets once for the graph."""
    outputs = set(graph.outputs)
    x, weights = softmax.operand(0), softmax.output
    if x.dtype != np.float32:
        raise Skip(f"it is {x.dtype}")
    if not x.type.is_static or not x.type.size or (x.rank or 0) < 2:
        raise Skip("its shape is not known")
    if softmax.axis % len(x.dims) != len(x.dims) - 1:
        raise Skip(f"it is along axis {softmax.axis}, not the last one")
    if typical(x.dims[-1]) > max_keys:
        raise Skip(f"there are {x.dims[-1]} keys")
    weights, nans = _cleared(weights, outputs)
    users = weights.uses
    if weights in outputs or len(users) != 1 or not is_matrix_product(users[0]):
        raise Skip("its result is not read by one product alone")
    product = users[0]
    v = product.inputs[1]
    if product.inputs[0] is not weights or v is None or v is weights or (v.rank or 0) < 2:
        raise Skip("the product takes it as its right operand")
    left, right, scale, terms = _scores(x, outputs, once)
    lead = _lead(left, right, x)
    if not v.type.is_static or not same(product.output.dims[:-2], x.dims[:-2]):
        raise Skip("the values have further batch dimensions")
    how = {"scale": scale, "nans": nans}
    if any(value.type.is_free for value in (left, right, x, v)):
        return free_attention(graph, (softmax, product), (left, right, v), how, terms, lead)
    k = turned(right, softmax)
    tables = [once(own_rows, x.dims, lead) for x in (left, k)]
    tables += [once(own_rows, y.dims, x.dims[:-2]) for y in (v, product.output)]
    y = OPS["RowAttention"](
        left, k, v, *tables, *[part for term in terms for part in term],
        width=left.dims[-1], value_width=v.dims[-1], shape=product.output.dims, **how,
        name=softmax.name, origin=softmax.origin, before=softmax,
    )  # fmt: skip
    graph.replace(product.output, y)
    graph.sweep([product])
    return y.producer


def _cleared(weights: Value, outputs: set[Value]) -> tuple[Value, bool]:
    """(value, nans): the softmax's result `weights` and False; or the result of where(isnan(
    weights), 0, weights) and True, if that alone reads `weights`. By this exporters let a query
    that sees no key give 0."""
    tests = [n for n in weights.uses if n.op is OPS["IsNaN"]]
    reads = [n for n in weights.uses if n.op is OPS["Where"] and n.inputs[2] is weights]
    if weights in outputs or len(weights.uses) != 2 or len(tests) != 1 or len(reads) != 1:
        return weights, False
    condition, zero, _ = reads[0].inputs
    known = zero is not None and zero.const is not None and not zero.const.any()
    told, cleared = tests[0].output, reads[0].output
    is_it = known and condition is told and len(told.uses) == 1 and told not in outputs
    if not is_it or not same(cleared.shape, weights.shape):
        return weights, False
    return cleared, True


def _lead(left: Value, right: Value, scores: Value) -> tuple[int, ...]:
    for operand in (left, right):
        if not operand.type.is_static or (operand.rank or 0) < 2:
            raise Skip("the scores are not a product of matrices")
    try:
        with by_formula():
            lead = broadcast(left.dims[:-2], right.dims[:-2])
    except TypeRuleError as why:
        raise Skip(str(why)) from None
    numbers: Any = lead
    if not same(prod(numbers), prod(scores.dims[:-2])):
        raise Skip("the scores are stretched after the product")
    return tuple(numbers)


def _scores(
    value: Value, outputs: set[Value], once: Once
) -> tuple[Value, Value, float, tuple[tuple[Value, Array], ...]]:
    """(left, right, scale, terms) such that `value`, which a softmax reads, is left @ right * scale
    + terms; `terms` are pairs as of `term_of`, scaled too. Raises Skip where it is anything else,
    or a value in between is in `outputs` or read elsewhere. `once`: caches results of `term_of`."""
    scale = 1.0
    terms: list[tuple[Value, Array]] = []
    shape = value.dims
    while True:
        node = value.producer
        if node is None or value in outputs or len(value.uses) != 1:
            raise Skip(f"{value.name!r} is read elsewhere")
        if not all(v is None or v.type.is_static for v in node.inputs):
            raise Skip("a shape is not known")
        if is_matrix_product(node):
            return node.operand(0), node.operand(1), scale, _few(terms)
        a, b = node.operand(0), (*node.inputs, None)[1]
        if _is_reshape(node) and same(a.dims[-2:], shape[-2:]) and len(a.dims) >= 2:
            value = a
        elif powers_of(node) and b is not None:
            value, factor = _factor(node, a, b)
            scale *= factor
        elif adds(node) and b is not None:
            value, term = _inner(node, a, b)
            if term.const is None or term.const.any():  # 0 changes no weight
                terms.append(once(term_of, term, value.dims, scale))
        else:
            raise Skip(f"{node.op.name} stands between the product and the softmax")


def _is_reshape(node: Node) -> bool:
    """Whether a node is a Reshape or another view with a second input (Squeeze, Unsqueeze)."""
    return "view" in node.op.traits and len(node.inputs) == 2


def _factor(node: Node, a: Value, b: Value) -> tuple[Value, float]:
    if multiplies(node) and b.const is None:
        a, b = b, a
    if b.const is None or b.const.size != 1 or not same(a.shape, node.output.shape):
        raise Skip(f"{node.name!r} scales by more than one constant")
    number = float(b.const.reshape(-1)[0])
    if number == 0 or not np.isfinite(number):
        raise Skip(f"the factor is {number}")
    return a, number if multiplies(node) else 1 / number


def _inner(node: Node, a: Value, b: Value) -> tuple[Value, Value]:
    """(inner, term): which of a and b, the operands of an Add of scores, comes from the product of
    queries and keys (`inner`); the other is a bias or mask. Raises Skip if neither does."""
    for inner, term in ((a, b), (b, a)):
        if inner.const is not None or not same(inner.shape, node.output.shape) or inner is term:
            continue
        if term.const is not None or _leads_to_product(inner):
            return inner, term
    raise Skip(f"neither operand of {node.name!r} is a product of the same shape")


def _leads_to_product(value: Value) -> bool:
    for _ in range(8):
        node = value.producer
        if node is None:
            return False
        if is_matrix_product(node):
            return len(value.uses) == 1
        arithmetic = powers_of(node) or adds(node)
        if not (arithmetic or _is_reshape(node)) or node.inputs[0] is None:
            return False
        nexts = [v for v in node.inputs[:2] if v is not None and v.const is None]
        if not arithmetic:
            nexts = nexts[:1]
        if len(nexts) != 1:
            return False
        value = nexts[0]
    return False


def term_of(term: Value, shape: tuple[int, ...], scale: float) -> tuple[Value, Array]:
    """`term` * `scale`, as RowAttention adds it to scores of `shape` [..., queries, keys], to which
    `term` must broadcast: a value [slabs, queries or 1, keys or 1] of several matrices (slabs), and
    a vector that tells for each item the index of the slab that is added to its scores; for free
    sizes as `free_term`. Raises Skip if the scale is not 1 and `term` no constant."""
    array = term.const
    if scale != 1:
        if array is None:
            raise Skip(f"the factor {scale} is applied after {term.name!r} is added")
        array = array * np.float32(scale)
    dims = (1,) * (len(shape) - len(term.dims)) + term.dims
    if term.type.is_free or any(isinstance(d, Size) for d in shape):
        return free_term(term, array, dims, shape)
    table = np.broadcast_to(counted(dims[:-2]), shape[:-2]).reshape(-1)  # of slabs
    if array is not None:
        array = np.ascontiguousarray(array.reshape(-1, *dims[-2:]))
        return term.graph.const(array, term.name), table
    return OPS["Reshape"](term, np.array((prod(dims[:-2]), *dims[-2:]), np.int64)), table


def _few(terms: list[tuple[Value, Array]]) -> tuple[tuple[Value, Array], ...]:
    """The `terms` in reverse order, at most MOST_TERMS: if there are more, constants are added up.
    Raises Skip if too many are left."""
    constants = [t for t in terms if t[0].const is not None and t[1].dtype != object]
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


def _take_in_moves(graph: Graph, node: Node, positions: Positions) -> bool:
    """Let a RowAttention read rows where they lie before moves, and write them where later moves
    would put them. Returns whether anything changed."""
    outputs = set(graph.outputs)
    widths = [node.width, node.width, node.value_width]
    rows = [_moved(positions, node, i, width) for i, width in enumerate(widths)]
    rebased = {base: _before_dense(base, outputs, {node}, positions) for base, _ in rows}
    for i, (base, table) in enumerate(rows):
        move = rebased[base]
        if move is not None:
            rows[i] = move[0], positions.once(_reordered, table, move[1], move[0].dims[-1])
    return _finish(graph, node, rows, outputs, positions)


def _moved(positions: Positions, node: Node, index: int, width: int) -> tuple[Value, Array]:
    """(base, table): the earlier value from which moves make operand `index` of a RowAttention, and
    the offsets of the operand's rows in it. The operand and its own table if a row of `width`
    elements is not contiguous there."""
    own, table = node.operand(index), node.operand(3 + index)
    assert table.const is not None
    source = positions.source(own)
    moved = positions.once(_moved_rows, source.at, table.const, width)
    return (own, table.const) if moved is None else (source.base, moved)


def _moved_rows(at: Array, table: Array, width: int) -> Array | None:
    """Translate `table`, offsets of rows of `width` elements in an array A, to the rows' offsets in
    an array B, of which moves make A, or which they make of A. `at`: for each element of A, its
    offset in B. None if a row is not contiguous in B."""
    at = at.reshape(-1)[table[..., None] + np.arange(width, dtype=np.int32)]
    return np.ascontiguousarray(at[..., 0]) if (np.diff(at) == 1).all() else None


def _reordered(table: Array, place: Array, width: int) -> Array:
    """The offsets `table` of rows of `width` elements, after row r has become row place[r]."""
    return (place[table // width] * width + table % width).astype(np.int32)


def _before_dense(
    base: Value, outputs: set[Value], readers: set[Any], positions: Positions
) -> tuple[Value, Array] | None:
    """Repeat the dense layer that makes `base` on its input before moves. Returns (new result,
    whose rows come in the order before the moves; for each row of `base` its index there). None if
    there is no such layer, no moves of whole rows precede it, or other nodes than `readers` read
    `base`, or it is in `outputs`, the graph's."""
    layer = dense_before(base, outputs)
    if layer is None or not _only_read_by(base, readers, outputs):
        return None
    source = positions.source(layer.x)
    order = positions.row_order(source, layer.x)
    if source.base is layer.x or order is None or source.base.const is not None:
        return None
    return _dense_again(layer, source.base), order


def _only_read_by(value: Value, readers: set[Any], outputs: set[Value]) -> bool:
    """Whether only `readers` read a value, directly or through moves, and it is no graph output."""
    if value in outputs:
        return False
    for user in dict.fromkeys(value.uses):
        if user in readers:
            continue
        if not is_move(user) or not all(_only_read_by(v, readers, outputs) for v in user.outputs):
            return False
    return True


def _dense_again(layer: Dense, x: Value) -> Value:
    """Add a copy of a dense layer that reads x: other rows, or its rows in another order. Returns
    the result."""
    node = layer.first
    precise = node.attrs["precise"]
    y = OPS["MatMul"](x, layer.w, precise=precise, name=node.name, origin=node.origin, before=node)
    bias: Any = layer.bias
    if bias is None:
        return y
    return OPS["Add"](y, bias if bias.rank == 1 else bias.const.reshape(-1), before=node)


def _finish(
    graph: Graph, node: Node, rows: list[tuple[Value, Array]], outputs: set[Value],
    positions: Positions,
) -> bool:  # fmt: skip
    """Replace a RowAttention by one that reads `rows`, a (value, table) for each of q, k and v, and
    whose result is the farthest value that later moves make of the old one, also beyond a dense
    layer. Returns False, with nothing done, where the new node would be the same."""
    old, table = _result_rows(node, outputs, positions)
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
    q, k, v = (base for base, _ in rows)
    if end is node.output and (q, k, v) == node.inputs[:3]:
        return False
    y = OPS["RowAttention"](
        q, k, v, *(at for _, at in rows), table, *node.inputs[7:], **{**node.attrs, "shape": dims},
        name=node.name, origin=node.origin, before=node,
    )  # fmt: skip
    if end is not old:
        assert layer is not None
        y = _dense_again(layer, y)
    graph.replace(end, y)
    graph.sweep([n for n in (end.producer, node) if n is not None])
    return True


def _result_rows(node: Node, outputs: set[Value], positions: Positions) -> tuple[Value, Array]:
    """(value, table): the farthest value that later moves make of a RowAttention's result in which
    each row is still contiguous, and the offsets of the rows in it."""
    table = node.operand(6)
    assert table.const is not None
    for value in reversed(after_moves(node.output, outputs, positions)):
        place = positions.once(_inverse, positions.source(value).at)
        moved = positions.once(_moved_rows, place, table.const, node.value_width)
        if moved is not None:
            return value, moved
    raise AssertionError("a value holds its own rows")


def _inverse(at: Array) -> Array:
    """The inverse of a permutation: entry n is the index at which `at` has the number n."""
    place = np.empty(at.size, np.int32)
    place[at.reshape(-1)] = np.arange(at.size, dtype=np.int32)
    return place
