"""Concat and split without copies: parts that lie inside the whole.

A part is possible where its bytes are contiguous in the whole: along the first axis of extent above
1 of a plain tensor; in each image of a blocked one, along whole blocks of channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod

from tinsmith.graph import Node, Value
from tinsmith.kernels.layout import Layout
from tinsmith.ops._move import EVEN, Span, moves_of
from tinsmith.plan.tensors import Tensor
from tinsmith.records import dataclass
from tinsmith.sizes import same


@dataclass
class Parts:
    """How a node that joins or cuts (Concat, Split, Slice) is placed.

    whole    the tensor that contains all parts: the output of a Concat, the input of a cut
    aliases  (value, its tensor) for each part that lies inside `whole`, so that nothing is copied
    pending  (value, start) for each input of a Concat that must still be copied into `whole`, from
             channel (blocked) or element (plain) `start` on
    """

    whole: Tensor
    aliases: list[tuple[Value, Tensor]] = field(default_factory=list)
    pending: list[tuple[Value, int]] = field(default_factory=list)


def free_concat(node: Node, homes: Mapping[Value, Tensor]) -> Parts | None:
    """Let the inputs of a Concat lie inside its output, so that their producers write into it:
    sets `parent` and `part` of their tensors in `homes`. Inputs that cannot, such as constants, are
    `pending`. None, with nothing changed, if the node is no Concat or no input can."""
    move = moves_of(node)[0]
    values = [v for v in node.inputs if v is not None]
    if move is None or len(values) < 2 or [p.source for p in move.parts] != [*range(len(values))]:
        return None
    if not all(p.is_whole(v.dims) for p, v in zip(move.parts, values, strict=True)):
        return None
    y, axis = node.output, move.axis
    if len(set(values)) != len(values) or any(
        v.const is None and not homes[v].is_static for v in values
    ):
        return None
    block = _common_block(values, homes)
    if not _cuts_cleanly([v.dims for v in values], axis, block):
        return None
    whole = Tensor(y.name, y.dtype, y.dims, block)
    parts = Parts(whole)
    starts = _starts(values, axis, block)
    for v in values:
        home = homes.get(v)
        own = home is not None and home.parent is None and home.space == "arena"
        if own and home is not None and home.block == block and not home.is_pinned:
            parts.aliases.append((v, home))
        else:
            parts.pending.append((v, starts[v]))
    if not parts.aliases:
        return None
    for v, home in parts.aliases:
        home.parent, home.part = whole, starts[v]
        whole.widen(Layout(block, home.halo))
    return parts


def free_split(node: Node, homes: Mapping[Value, Tensor]) -> Parts | None:
    """Let the outputs of a cut along one axis (Split, Slice) lie inside its input, whose tensor is
    in `homes`: the result has new tensors for them. None if the node is no such cut, an output is
    not contiguous in the input, or that has no place in memory (`Tensor.is_static`)."""
    cut = _cut_of(node)
    if cut is None:
        return None
    x, axis, ranges = cut
    home = homes.get(x)
    if home is None or not home.is_static or home.dims != x.dims:
        return None
    shapes = [v.dims for v in node.outputs]
    starts = [places.start for places in ranges]
    if not _cuts_cleanly(shapes, axis, home.block, x.dims[axis], starts):
        return None
    parts = Parts(home)
    for v, lo in zip(node.outputs, starts, strict=True):
        start = lo if home.block else lo * prod(x.dims[axis + 1 :])
        part = Tensor(
            v.name, v.dtype, v.dims, home.block, parent=home, part=start, space=home.space
        )
        parts.aliases.append((v, part))
    return parts


def _common_block(values: list[Value], homes: Mapping[Value, Tensor]) -> int:
    """The block (0: plain) of the layout in which most bytes of these values but constants lie."""
    weight: dict[int, int] = {}
    for v in values:
        if v.const is None:
            weight[homes[v].block] = weight.get(homes[v].block, 0) + v.type.nbytes
    return max(weight, key=lambda b: (weight[b], b)) if weight else 0


def _cuts_cleanly(
    shapes: list[tuple[int, ...]], axis: int, block: int, total: int | None = None,
    starts: list[int] | None = None,
) -> bool:  # fmt: skip
    """Whether parts of these shapes along `axis` are contiguous in the whole: plain (`block` 0) if
    all axes before are known to have extent 1; blocked if `axis` is 1 and parts are whole blocks of
    channels, of which the last may be cut short by the end of the whole. `starts` and `total` are
    the parts' first channels and all channels of the whole; None: the parts follow each other."""
    if not block:
        return same(prod(shapes[0][:axis]), 1)
    if axis != 1:
        return False
    if starts is None:
        return all(s[1] % block == 0 for s in shapes[:-1])
    ends = [lo + s[1] for lo, s in zip(starts, shapes, strict=True)]
    return all(lo % block == 0 for lo in starts) and all(
        hi % block == 0 or hi == total for hi in ends
    )


def _starts(values: list[Value], axis: int, block: int) -> dict[Value, int]:
    """The channel (blocked) or element (plain) of the joined tensor at which each value begins."""
    starts, at = {}, 0
    for v in values:
        starts[v] = at
        at += v.dims[1] if block else prod(v.dims[axis:])
    return starts


def _cut_of(node: Node) -> tuple[Value, int, list[range | Span]] | None:
    """For a node that cuts its first input along one axis: (this input, the axis, for each output
    the range of its places there). None for any other node, and where an output takes places that
    are no neighbours, or lie outside of the input."""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.const is not None or not all(v.type.is_static for v in (x, *node.outputs)):
        return None
    cuts = []
    for move in moves_of(node):
        if move is None or len(move.parts) != 1:
            return None
        cut = move.parts[0].cut(x.dims)
        if cut is None or not isinstance(cut[1], EVEN) or cut[1].step != 1:
            return None
        if move.fill is not None and isinstance(cut[1], Span):  # padding, for all that is known
            return None
        if cut[1].start < 0 or cut[1].stop > x.dims[cut[0]]:  # what lies outside is filled
            return None
        cuts.append(cut)
    axes = {axis for axis, _ in cuts}
    return (x, axes.pop(), [places for _, places in cuts]) if len(axes) == 1 else None
