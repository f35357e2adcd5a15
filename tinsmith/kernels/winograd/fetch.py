"""Prefetching tensors that come from memory, spread evenly over the products of a block.

While a block is multiplied, the input of the next one and the places of its own results are asked
for. Addresses that turn out to lie outside the tensors do no harm: prefetches never fault.
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.winograd.plan import Plan

Prefetch = Callable[[Val], None]
"""prefetch(i) asks for what register tile number i of a block is to ask for."""
INTO_L1, INTO_L2 = 3, 2  # localities of prefetches


def is_far(target: Target, nbytes: int) -> bool:
    """Whether tensors of so many bytes together are asked for: caches may not hold them."""
    return nbytes >= target.l2 // 2


def tensors(em: Emit, plan: Plan, source: View, start: Val, count: Val | int) -> Prefetch | None:
    """What register tile number i of a block asks for, or None where nothing is far away, or tiles
    do not lie side by side.

    The block has `count` tiles from tile `start`.
    """
    out = em.outs[0]
    apart = max(plan.geo.dilation) > 1 or plan.frames is not None
    if apart or not is_far(em.target, source.spec.nbytes + out.spec.nbytes):
        return None
    first = _corner(plan, source, start + count, plan.rows.stride, plan.cols.stride, True)
    here = _corner(plan, out, start, 1, 1, False)
    rows, cols = plan.rows, plan.cols
    asks = [
        _ask(em, plan, source, first, plan.channels.count, rows.reach, cols.m * cols.stride, False),
        _ask(em, plan, out, here, plan.outputs, rows.m, cols.m, True),
    ]

    def prefetch(i: Val) -> None:
        for ask in asks:
            ask(i)

    return prefetch


def _corner(plan: Plan, view: View, tile: Val, down: int, right: int, padded: bool) -> Ptr:
    """The first place of a tile."""
    n, i, j = plan.coordinates(tile)
    batch, _, (_, row, pixel) = steps(view.spec, plan.geo.rank)
    at = view.pointer + n * batch + i * (plan.rows.m * down * row)
    at = at + j * (plan.cols.m * right * pixel)
    if padded:
        at = at + -(plan.geo.begin[1] * row + plan.geo.begin[2] * pixel)
    return at.fixed()


def _ask(
    em: Emit, plan: Plan, view: View, at: Ptr, planes: int, rows: int, wide: int, write: bool
) -> Prefetch:
    """Share `rows` lines of `wide` places a tile, in every plane, among the register tiles."""
    b, line = em.b, LINE
    _, plane, (_, row, pixel) = steps(view.spec, plan.geo.rank)
    length = -(-plan.tiles * wide * pixel // line)
    segments = planes * rows
    takers = plan.positions * plan.panels * plan.micro.count
    pieces = -(-length // -(-segments * length // takers))
    share = -(-length // pieces)

    def ask(i: Val) -> None:
        segment, piece = i // pieces, i % pieces
        with b.when(segment < segments):
            near = at + (segment // rows) * plane + (segment % rows) * row
            near = (near + piece * (share * line)).fixed()
            for k in range(share):
                (near + k * line).prefetch(write, INTO_L1 if write else INTO_L2)

    return ask
