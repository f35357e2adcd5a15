"""Which nodes compute equal parts of their first axis independently: what one part needs.

A batch may be run in turns where every node's result, cut into equal parts along axis 0, depends
on the same part of what it reads. `part_of` says so for one node: it knows each operator's axes,
and gives the constants and attributes under which the node computes one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Part:
    """A node's constants (by input) and attributes that differ for one of the turns."""

    consts: dict[int, Array] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


Rule = Callable[[Node, Sequence[bool], int], Part | None]


def part_of(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """What turns the node into one that computes the i-th of `turns` parts of all its outputs from
    the i-th parts of the inputs that are `cut`; None where there is no such node."""
    values = [v for v, c in zip(node.inputs, cut, strict=True) if c and v is not None]
    if not values or not all(v.type.is_static for v in (*values, *node.outputs)):
        return None
    if not all(divides(v, turns) for v in (*values, *node.outputs)):
        return None
    if "elementwise" in node.op.traits:
        return _elementwise(node, cut, turns)
    if "view" in node.op.traits and node.op.name != "Reshape":
        return Part() if not any(cut[1:]) else None
    rule = RULES.get(node.op.name)
    return None if rule is None else rule(node, cut, turns)


def divides(v: Value, turns: int) -> bool:
    """Whether a value's first axis has `turns` equal parts."""
    return v.type.is_static and bool(v.dims) and v.dims[0] % turns == 0 and v.dims[0] > 0


def one_part(array: Array, turns: int) -> Array | None:
    """The part that an array repeats `turns` times along its first axis, or None."""
    if not array.ndim or array.shape[0] % turns:
        return None
    parts = array.reshape(turns, array.shape[0] // turns, *array.shape[1:])
    return parts[0] if all(np.array_equal(parts[0], p) for p in parts[1:]) else None


def _aligned(node: Node, cut: Sequence[bool], turns: int, rank: int) -> Part | None:
    """All inputs are cut, or repeat along axis 0."""
    consts: dict[int, Array] = {}
    for i, v in enumerate(node.inputs):
        if v is None or (cut[i] and v.rank == rank):
            continue
        if cut[i] or v.const is None:
            return None
        part = one_part(v.const, turns) if v.rank == rank else None
        if part is None:
            return None
        consts[i] = part
    return Part(consts)


def _elementwise(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    rank, rows = len(node.output.dims), node.output.dims[0]
    consts: dict[int, Array] = {}
    for i, v in enumerate(node.inputs):
        if v is None:
            continue
        whole = v.rank == rank and v.type.is_static and v.dims[0] == rows
        if cut[i]:
            if not whole:
                return None
        elif v.rank == rank and v.type.is_static and v.dims[0] != 1:
            part = one_part(v.const, turns) if v.const is not None and whole else None
            if part is None:
                return None
            consts[i] = part
        elif not v.type.is_static:
            return None
    return Part(consts)


def _first(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """Images in the first input, whatever else is read by all of them alike."""
    return Part() if cut[0] and not any(cut[1:]) else None


def _kept(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """As `_first`, where axis 0 keeps its extent."""
    x = node.inputs[0]
    same = x is not None and x.dims[0] == node.output.dims[0]
    return _first(node, cut, turns) if same else None


def _max_pool(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    return None if len(node.outputs) > 1 else _first(node, cut, turns)  # indices tell the image


def _along(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """Operators that work along one axis, which must not be the first."""
    x = node.inputs[0]
    assert x is not None and x.rank is not None
    return _first(node, cut, turns) if node.attrs["axis"] % x.rank else None


def _joined(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    rank = len(node.output.dims)
    axis = 1 if "axis" not in node.attrs else node.attrs["axis"] % rank
    return _aligned(node, cut, turns, rank) if axis else None


def _transpose(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    perm = node.attrs["perm"]
    return Part() if perm is not None and perm[0] == 0 else None


def _numbers(node: Node, index: int) -> list[int] | None:
    v = node.inputs[index] if index < len(node.inputs) else None
    return None if v is None or v.const is None else [int(e) for e in v.const.reshape(-1)]


def _axes_at(index: int) -> Rule:
    """Operators along the axes that an input names, the first not among them."""

    def rule(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
        x, axes = node.inputs[0], _numbers(node, index)
        if x is None or not axes or any(a % len(x.dims) == 0 for a in axes):
            return None
        return _first(node, cut, turns)

    return rule


def _pad(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    x, pads = node.inputs[0], _numbers(node, 1)
    if x is None or pads is None or (len(node.inputs) > 3 and node.inputs[3] is not None):
        return None
    if pads[0] or pads[len(x.dims)]:
        return None
    return _first(node, cut, turns)


def _gather(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    indices = node.inputs[1]
    if indices is None or indices.const is None:
        return None
    return _along(node, cut, turns)


def _shaped(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """Operators whose second input is the shape of the output."""
    if not cut[0] or any(cut[1:]):
        return None
    first, *rest = node.output.dims
    return Part({1: np.array([first // turns, *rest], np.int64)})


def _reshape(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """A part of the elements in order, whatever the shapes are."""
    part = _shaped(node, cut, turns)
    return part and replace(part, attrs={"allowzero": False})


def _expand(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    x = node.inputs[0]
    if x is None or x.rank != len(node.output.dims) or x.dims[0] != node.output.dims[0]:
        return None
    return _shaped(node, cut, turns)


def _matmul(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None or not b.type.is_static or not a.type.is_static:
        return None
    rank = len(node.output.dims)
    if all(cut):
        same = a.rank == b.rank == rank >= 3 and a.dims[0] == b.dims[0] == node.output.dims[0]
        return Part() if same else None
    if not cut[0]:
        return None
    shared = len(b.dims) <= 2 or len(b.dims) < rank or b.dims[0] == 1
    return Part() if a.rank == rank >= 2 and shared and b.rank is not None else None


def _row_attention(node: Node, cut: Sequence[bool], turns: int) -> Part | None:
    """Items that come image by image, each reading and writing the image's own rows."""
    if not all(cut[:3]) or any(cut[3:]):
        return None
    consts: dict[int, Array] = {}
    sizes = [v.type.size // turns if v is not None else 0 for v in node.inputs[:3]]
    steps = {3: sizes[0], 4: sizes[1], 5: sizes[2], 6: node.output.type.size // turns, 8: 0, 10: 0}
    for i, step in steps.items():
        v = node.inputs[i] if i < len(node.inputs) else None
        if v is None:
            continue
        if v.const is None or v.const.shape[0] % turns:
            return None
        parts = v.const.reshape(turns, v.const.shape[0] // turns, *v.const.shape[1:])
        if not all(np.array_equal(parts[0] + k * step, p) for k, p in enumerate(parts)):
            return None
        consts[i] = parts[0]
    first, *rest = node.attrs["shape"]
    return Part(consts, {"shape": (first // turns, *rest)})


IMAGES = (
    "Conv",
    "ConvTranspose",
    "AveragePool",
    "LpPool",
    "GlobalPool",
    "LRN",
    "InstanceNorm",
    "GroupNorm",
    "DepthToSpace",
    "SpaceToDepth",
)
ALONG = ("Softmax", "LogSoftmax", "LayerNorm", "RMSNorm", "LpNorm", "Split")
RULES: dict[str, Rule] = {
    **dict.fromkeys(IMAGES, _first),
    **dict.fromkeys(ALONG, _along),
    "Reshape": _reshape,
    "Expand": _expand,
    "MatMul": _matmul,
    "RowAttention": _row_attention,
    "Transpose": _transpose,
    "Reduce": _axes_at(1),
    "Slice": _axes_at(3),
    "Pad": _pad,
    "Gather": _gather,
    "MaxPool": _max_pool,
    "Resize": _kept,
    "Concat": _joined,
    "ChannelGather": _joined,
}
"""By operator name; those without an entry run on the whole batch."""
