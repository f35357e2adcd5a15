"""Where the elements of a value of free sizes come from: strides, where `positions` has tables.

No table can list the elements. But after transposes, reshapes, even slices and repeats, they lie,
in row-major order, on a box in an earlier value (`Strided`). Sizes are compared by their formulas.
A value that is no such box, or not known to be, is its own source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.conditions import meet, trial
from tinsmith.graph import Node, Value
from tinsmith.ops._move import EVEN, count_of, moves_of
from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, same

Axis = tuple[Number, Number]
"""Extent and stride."""


@dataclass(frozen=True)
class Strided:
    """Where the elements of a value lie in an earlier value, `base`, taken as a flat array: on a
    box, element (i, j, ...) of which is element first + i * stride_i + j * stride_j + ... there.
    `axes` are (extent, stride), the outermost first. In row-major order, the elements of the box
    are those of the value; its axes need not be the value's dimensions (a value [6, 4] may lie on a
    box of 2 by 3 by 4)."""

    base: Value
    first: Number
    axes: tuple[Axis, ...]


def own(value: Value) -> Strided:
    """A value as its own source: its elements in a row-major array."""
    return Strided(value, 0, tuple(dense(value.dims)))


def dense(dims: Sequence[Number]) -> list[Axis]:
    """The axes (extent, stride) of a row-major array of these dimensions without gaps."""
    axes: list[Axis] = []
    stride: Number = 1
    for d in reversed(dims):
        axes.insert(0, (d, stride))
        stride = stride * d
    return axes


def strided(value: Value) -> Strided:
    """The earliest value in which the elements of `value` lie as a box, and that box. Moves are
    followed upwards as long as formulas tell where elements lie. Inequalities of sizes on which a
    move rests are recorded as conditions; a move that rests on an equality is not followed."""
    node = value.producer
    if node is None or not all(
        v is None or (v.type.is_static and not v.type.is_empty) for v in (*node.inputs, value)
    ):
        return own(value)
    with trial() as found:
        move = moves_of(node)[value.index]
    if move is None or move.fill is not None or len(move.parts) != 1:
        return own(value)
    if any(relation == "==" for _, relation in found):
        return own(value)  # its places are known for the example alone
    (part,) = move.parts
    x = node.operand(part.source)
    source = strided(x)
    groups = aligned(source.axes, part.dims)
    if groups is None:
        return own(value)
    first, axes = source.first, list[Axis]()
    for along, extent in zip(part.axes, part.box, strict=True):
        if along.axis is None:
            axes.append((extent, 0))
            continue
        group = groups[along.axis]
        if along.places is None:
            axes += group
            continue
        if not isinstance(along.places, EVEN) or len(group) != 1:
            return own(value)
        stride = group[0][1]
        first = first + along.places.start * stride
        axes.append((count_of(along.places), along.places.step * stride))
    meet(found)
    return Strided(source.base, first, tuple(axes))


def aligned(axes: Sequence[Axis], dims: Sequence[Number]) -> list[list[Axis]] | None:
    """Group the axes of a box by the dimensions `dims` of the array that its elements form: for
    each dimension a list of the axes that make it. An axis that spans several dimensions is split,
    one of extent 1 left out. None where formulas cannot tell. Axes (6, 4) and (4, 1) for [2, 12]:
    [(2, 12)], [(3, 4), (4, 1)]."""
    left = [a for a in axes if not same(a[0], 1)]
    groups: list[list[Axis]] = []
    for dim in dims:
        group: list[Axis] = []
        while not same(dim, 1):
            if not left:
                return None
            extent, stride = left.pop(0)
            if same(extent, dim):
                group.append((extent, stride))
                break
            if same(extent, 0) or same(dim, 0):
                return None
            outer, inner = dim // extent, extent // dim
            if same(outer * extent, dim):
                group.append((extent, stride))
                dim = outer
            elif same(inner * dim, extent):
                group.append((dim, stride * inner))
                left.insert(0, (inner, stride))
                break
            else:
                return None
        groups.append(group)
    return None if left else groups


def merged(group: Sequence[Axis]) -> list[Axis]:
    """The same axes, with neighbours joined to one axis where the outer stride is the inner extent
    times the inner stride."""
    axes: list[Axis] = []
    for extent, stride in group:
        if axes and same(axes[-1][1], stride * extent):
            axes[-1] = axes[-1][0] * extent, stride
        else:
            axes.append((extent, stride))
    return axes


def rows_formula(
    source: Strided, dims: Sequence[Number], lead: Sequence[Number]
) -> np.ndarray[Any, Any] | None:
    """The table of an operand of RowAttention as a `formula`: where in the base of `source` each
    row begins. `dims` [..., rows, width] are the operand's; `source` tells where its elements lie.
    Its outer dims are broadcast to `lead`, the dimensions of the items. None where a row is not
    contiguous, or the rows have no common stride."""
    groups = aligned(source.axes, dims)
    if groups is None:
        return None
    row, width = (merged(group) for group in groups[-2:])
    if len(row) > 1 or len(width) > 1 or (width and not same(width[0][1], 1)):
        return None
    return formula(source.first, dims[-2], row, items_over(dims[:-2], groups[:-2], lead))


def rebased(
    table: np.ndarray[Any, Any], width: int, source: Strided
) -> np.ndarray[Any, Any] | None:
    """Translate `table`, the formula of rows of `width` elements in a value, to the formula of the
    same rows in the base of the value's `source`. None where the first row does not begin at
    element 0 of the value, a row is not contiguous there, or formulas cannot tell."""
    axes = [a for a in source.axes if not same(a[0], 1)] or [(1, 1)]
    steps = [step for _, step in dense([extent for extent, _ in axes])]
    last, stride = axes[-1]
    whole = isinstance(last, int) and last % width == 0 and same(stride, 1)
    first, rows, step, *items = table.tolist()
    if not whole or not same(first, 0):
        return None
    pairs = [(rows, step), *zip(items[::2], items[1::2], strict=True)]
    row, *others = (_through(pair, axes, steps) for pair in pairs)
    if row is None or len(row) > 1 or None in others:
        return None
    found = [axis for other in others for axis in other or ()]
    return formula(source.first, rows, row, merged(found))


def _through(axis: Axis, axes: Sequence[Axis], steps: Sequence[Number]) -> list[Axis] | None:
    """Translate an axis (extent, step) over the elements of a box, in row-major order, to axes over
    the box's base. The box has `axes`; steps[k] is how far apart in that order neighbours on axis k
    are. None where formulas cannot tell."""
    extent, step = axis
    if same(extent, 1) or same(step, 0):
        return [(extent, 0)]
    found: list[Axis] = []
    at = next((k for k, s in enumerate(steps) if same(s, step)), None)
    if at is None:  # inside one of them
        for (inner, stride), s in zip(axes, steps, strict=True):
            numbers = inner, s, extent, step
            if all(isinstance(n, int) for n in numbers) and step % s == 0 < inner - step // s * (
                extent - 1
            ):
                return [(extent, step // s * stride)]
        return None
    for inner, stride in reversed(axes[: at + 1]):
        fewer = isinstance(inner, int) and isinstance(extent, int) and extent <= inner
        if fewer or same(inner, extent):
            return merged([(extent, stride), *found])
        found.insert(0, (inner, stride))
        outer = extent // inner
        if not same(outer * inner, extent):
            return None
        extent = outer
    return None


def items_over(
    dims: Sequence[Number], groups: Sequence[Sequence[Axis]], lead: Sequence[Number]
) -> list[Axis]:
    """The axes by which an attention's operand is read for each item in turn: those of its outer
    dimensions `dims` (groups[k] make dims[k]), broadcast to the dimensions `lead` of the items with
    stride 0, neighbours `merged`. dims (B, 1), lead (B, H): [(B, stride), (H, 0)]."""
    items: list[Axis] = []
    missing = len(lead) - len(dims)
    for k, extent in enumerate(lead):
        alone = k < missing or (same(dims[k - missing], 1) and not same(extent, 1))
        items += [(extent, 0)] if alone else groups[k - missing]
    return merged(items)


def formula(
    first: Number, rows: Number, row: Sequence[Axis], items: Sequence[Axis]
) -> np.ndarray[Any, Any]:
    """The formula by which RowAttention computes where rows begin: [first, rows, stride from row to
    row, then extent and stride of each axis over the items]. int64, or objects if one is free."""
    step = row[0][1] if row else 0
    numbers = [first, rows, step, *(n for axis in items for n in axis)]
    free = any(isinstance(n, Size) for n in numbers)
    return np.array(numbers, object if free else np.int64)


def following(value: Value, outputs: set[Value]) -> list[Strided]:
    """`value`, and the values that moves make of it one after the other, each with exactly its
    elements, in another order. Each is given as a Strided: where in that value (`base`) the
    elements of `value` lie. The list ends with a graph output, or a value with other readers than
    one such move."""
    found, last = [own(value)], value
    while last not in outputs and len(set(last.uses)) == 1:
        node: Node = last.uses[0]
        if len(node.outputs) != 1 or node.inputs.count(last) != 1:
            break
        last = node.output
        source = strided(last)
        inverse = _inverse(source, value, last)
        if inverse is None:
            break
        found.append(inverse)
    return found


def _inverse(source: Strided, value: Value, held: Value) -> Strided | None:
    """Where the elements of `value` lie in `held`, if `source` tells where the elements of `held`
    lie in `value`. None unless `held` holds every element of `value` once."""
    if source.base is not value or not same(source.first, 0):
        return None
    extents = [extent for extent, _ in source.axes]
    left = [
        (stride, place)
        for (extent, stride), place in zip(source.axes, dense(extents), strict=True)
        if not same(extent, 1)
    ]
    axes: list[Axis] = []
    wanted: Number = 1
    while left:
        at = next((k for k, (stride, _) in enumerate(left) if same(stride, wanted)), None)
        if at is None:
            return None
        _, place = left.pop(at)
        axes.insert(0, place)
        wanted = wanted * place[0]
    return Strided(held, 0, tuple(axes)) if same(wanted, value.type.size) else None
