"""Which nodes compute equal parts of their first axis independently: what one part needs.

A batch may be run in micro-batches where every node's result, cut into equal parts along axis 0,
depends on the same part of what it reads. `part_of` tells, by the axes that operators declare to be
apart, whether a node's does, and under which constants and attributes the node computes one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops._apart import axes_apart
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Part:
    """What differs in the copy of a node that computes one micro-batch: `consts`, index of an input
    -> the constant array that it reads instead; `attrs`, attributes with new values."""

    consts: dict[int, Array] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


Rule = Callable[[Node, Sequence[bool], int, Part | None], Part | None]


def part_of(node: Node, cut: Sequence[bool], micro_batches: int) -> Part | None:
    """What to change in a node so that it computes part i of all its outputs from parts i of the
    inputs that are `cut` (one bool an input) and the whole of others, for any i of `micro_batches`
    equal parts along axis 0. None if the node cannot compute parts so, or no input is cut."""
    values = [v for v, c in zip(node.inputs, cut, strict=True) if c and v is not None]
    if not values or not all(v.type.is_static for v in (*values, *node.outputs)):
        return None
    if not all(divides(v, micro_batches) for v in (*values, *node.outputs)):
        return None
    if "view" in node.op.traits and not any(cut[1:]):
        part = Part()  # of the elements in order, whatever the shapes are
    else:
        part = _apart(node, cut, micro_batches)
    special = RULES.get(node.op.name)
    return special(node, cut, micro_batches, part) if special is not None else part


def divides(v: Value, micro_batches: int) -> bool:
    """Whether a value's first axis has `micro_batches` equal parts."""
    return v.type.is_static and bool(v.dims) and v.dims[0] % micro_batches == 0 and v.dims[0] > 0


def one_part(array: Array, micro_batches: int, step: int = 0) -> Array | None:
    """The first of `micro_batches` parts, of one size, of an array along its first axis, if each of
    the others is `step` more than the one before it; else None, and also if there are no such
    parts."""
    if not array.ndim or array.shape[0] % micro_batches:
        return None
    parts = array.reshape(micro_batches, array.shape[0] // micro_batches, *array.shape[1:])
    first, others = parts[0], enumerate(parts[1:], 1)
    alike = all(np.array_equal(first + k * step if step else first, p) for k, p in others)
    return first if alike else None


def _apart(node: Node, cut: Sequence[bool], micro_batches: int) -> Part | None:
    """`part_of` for operators of which each place on axis 0 of the output depends only on the same
    place of inputs (`axes_apart`). An input with that axis must be cut, or be a constant whose
    parts are equal; an input without it must not be cut. Else None."""
    axes = axes_apart(node).get(0)
    if axes is None:
        return None
    consts: dict[int, Array] = {}
    for i, (v, axis) in enumerate(zip_longest(node.inputs, axes)):
        if v is None or (cut[i] and axis == 0) or (not cut[i] and axis is None):
            continue
        part = one_part(v.const, micro_batches) if axis == 0 and v.const is not None else None
        if part is None:
            return None
        consts[i] = part
    return Part(consts)


def _shaped(node: Node, cut: Sequence[bool], micro_batches: int, part: Part | None) -> Part | None:
    """`part_of` for operators whose second input is the shape of the output, such as Reshape: a
    Part with the shape of one part of the output as that input, [1, 12] of [8, 12]. It replaces
    `part`, which `part_of` found without this rule. None if `part` is None, or the first input is
    not `cut`."""
    if part is None or not cut[0]:
        return None
    first, *rest = node.output.dims
    attrs = {"allowzero": 0 in rest} if "allowzero" in node.attrs else {}
    return Part({1: np.array([first // micro_batches, *rest], np.int64)}, attrs)


def _row_attention(
    node: Node, cut: Sequence[bool], micro_batches: int, part: Part | None
) -> Part | None:
    """`part_of` for RowAttention, if its tables of offsets list the items of one image after those
    of another, and each image's offsets are those of the first plus its elements. The tables of
    one part are then the first entries. None otherwise."""
    if not all(cut[:3]) or any(cut[3:]) or node.even:
        return None
    consts: dict[int, Array] = {}
    moved = (*node.inputs[:3], node.output)  # by the offsets of inputs 3 to 6
    sizes = [v.type.size // micro_batches if v is not None else 0 for v in moved]
    for i, step in zip((3, 4, 5, 6, 8, 10), (*sizes, 0, 0), strict=True):
        v = node.inputs[i] if i < len(node.inputs) else None
        if v is None:
            continue
        entries = None if v.const is None else one_part(v.const, micro_batches, step)
        if entries is None:
            return None
        consts[i] = entries
    first, *rest = node.attrs["shape"]
    return Part(consts, {"shape": (first // micro_batches, *rest)})


RULES: dict[str, Rule] = {"Reshape": _shaped, "Expand": _shaped, "RowAttention": _row_attention}
"""By operator name: those of which one part needs other operands or attributes."""
