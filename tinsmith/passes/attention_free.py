"""Attention of free sizes, found among primitives, as one node: its rows are where formulas say."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.strides import (
    Strided,
    aligned,
    dense,
    following,
    formula,
    items_over,
    own,
    rebased,
    rows_formula,
    strided,
)
from tinsmith.rewrite import Skip


def free_attention(
    graph: Graph, nodes: tuple[Node, Node], operands: tuple[Value, Value, Value],
    how: dict[str, Any], terms: tuple[tuple[Value, Array], ...], lead: tuple[Any, ...],
) -> Node:  # fmt: skip
    """Replace an attention of free sizes by one RowAttention, and return that node. Its tables of
    row offsets are formulas (`strides.formula`), it reads operands as they are before moves, and
    its result is the value after later moves, as far as rows stay contiguous.

    nodes     the softmax, and the product that reads it
    operands  left and right operand of the product before the softmax (the keys as [..., width,
              keys]), and the values
    how       further attributes of the new node
    terms     as of `attention.term_of`
    lead      the dimensions of the items, as of the scores' product

    Raises Skip if the width of rows is a free size.
    """
    softmax, y = nodes[0], nodes[1].output
    left, right, v = operands
    outer = y.dims[:-2]
    if not all(isinstance(value.dims[k], int) for value, k in ((left, -1), (right, -2), (v, -1))):
        raise Skip("the rows are of a size that only the call tells")
    k_dims = (*right.dims[:-2], right.dims[-1], right.dims[-2])
    swapped = _swapped(strided(right), right.dims)
    bases, rows = [], []
    for value, source, dims, at in (
        (left, strided(left), left.dims, lead),
        (None, swapped, k_dims, lead),
        (v, strided(v), v.dims, outer),
    ):
        table = None if source is None else rows_formula(source, dims, at)
        if source is None or table is None:
            source = own(value or turned(right, softmax))
            table = rows_formula(source, dims, at)
        bases.append(source.base)
        rows.append(table)
    ends = following(y, set(graph.outputs))
    end, table = next(
        (s.base, t) for s in reversed(ends) if (t := rows_formula(s, y.dims, outer)) is not None
    )
    new = OPS["RowAttention"](
        *bases, *rows, table, *[part for term in terms for part in term],
        width=left.dims[-1], value_width=v.dims[-1], shape=end.dims, even=True, **how,
        name=softmax.name, origin=softmax.origin, before=softmax,
    )  # fmt: skip
    last = end.producer
    graph.replace(end, new)
    graph.sweep([n for n in (last,) if n is not None])
    return new.producer


def turned(right: Value, softmax: Node) -> Value:
    """The right operand of the product before a softmax, transposed to rows of keys."""
    rank = len(right.dims)
    return OPS["Transpose"](right, perm=(*range(rank - 2), rank - 1, rank - 2), before=softmax)


def _swapped(source: Strided, dims: tuple[Any, ...]) -> Strided | None:
    """`source`, which tells where the elements of a value of shape `dims` lie, for that value with
    its last two dimensions transposed. None if formulas cannot tell which axes these are."""
    groups = aligned(source.axes, dims)
    if groups is None:
        return None
    *outer, a, b = groups
    axes = [axis for group in (*outer, b, a) for axis in group]
    return Strided(source.base, source.first, tuple(axes))


def take_in_strides(graph: Graph, node: Node) -> bool:
    """Let a RowAttention whose tables are formulas (`even`) read the rows of its operands where
    they lie before moves. Returns whether anything changed."""
    bases, tables, moved = list(node.inputs[:3]), list(node.inputs[3:6]), False
    for i, width in enumerate((node.width, node.width, node.value_width)):
        base, table = bases[i], tables[i]
        assert base is not None and table is not None and table.const is not None
        source = strided(base)
        if source.base is base:
            continue
        found = rebased(table.const, width, source)
        if found is not None:
            bases[i], tables[i], moved = source.base, graph.const(found, table.name), True
    if moved:
        y = OPS["RowAttention"](
            *bases, *tables, *node.inputs[6:], **node.attrs, name=node.name, origin=node.origin,
            before=node,
        )  # fmt: skip
        graph.replace(node.output, y)
        graph.sweep([node])
    return moved


def free_term(
    term: Value, array: Array | None, dims: tuple[Any, ...], shape: tuple[Any, ...]
) -> tuple[Value, Array]:
    """`attention.term_of` for free sizes. `array` is the scaled term, if that is constant, `dims`
    are the term's, with ones before them up to the rank of `shape`. The table is a formula; the
    value keeps the term's axes instead of slabs."""
    groups = [[axis] for axis in dense(dims[:-2])]
    table = formula(0, 1, (), items_over(dims[:-2], groups, shape[:-2]))
    if array is not None:
        return term.graph.const(np.ascontiguousarray(array.reshape(dims)), term.name), table
    if len(term.dims) >= 2:
        return term, table
    return OPS["Unsqueeze"](term, np.array([0], np.int64)), table
