"""The products in the transform domain: one matrix product M = V U for each position.

A unit of work is one position and one panel of output channels. All register tiles of the block are
multiplied by the unit's weights. Meanwhile the weights of the next unit are prefetched, as they
often come from memory.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.formulas import balanced
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.contract import Contraction, Fetch, Level, contract
from tinsmith.kernels.winograd.fetch import Prefetch
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.sizes import typical

LARGE_TILE = 8
"""Register tiles of fewer tiles than so many hardly take less time. Estimated."""


def product_stage(
    em: Emit, plan: WinogradPlan, space: Ptr, u0: Val, u1: Val, count: Val | int,
    prefetch: Prefetch | None,
) -> None:  # fmt: skip
    """Emit M = V U for the units [u0, u1) of a block of `count` tiles. Unit u is position u //
    panels and panel u % panels. `space`: the address of V; `prefetch(i)` is emitted in register
    tile i of the block, counted through all units."""
    b, width = em.b, plan.width
    row = plan.vectors * width
    runs = _runs(b, plan, count)
    ahead = 4 * plan.positions * plan.panel_rows * plan.outputs * width > em.target.l2 // 4
    with b.loop(u0, u1) as u:
        position, panel = u // plan.panels, u % plan.panels
        x = (space + position * plan.v_step).fixed()
        w = em.packed[0] + position * (plan.panel_rows * plan.outputs * width)
        w = (w + panel * (plan.panel_rows * row)).fixed()
        to = space + plan.m_start + position * plan.m_step
        to = (to + panel * (plan.tiles * row)).fixed()

        def unit(vectors: int) -> None:
            for first, stop, size, before in runs:
                with b.loop(first, stop) as i:
                    t = i * size + before
                    if plan.is_free:
                        t = t.min(b.index(count) - size).max(0)
                    if prefetch is not None:
                        prefetch(u * plan.micro.count + i)
                    following = _following(plan, vectors, i) if ahead else None
                    x_at, to_at = (x + t * width).fixed(), (to + t * width).fixed()
                    done = _sums(b, plan, x_at, w, size, vectors, following)
                    for p in range(size):
                        for o in range(vectors):
                            at = to_at + (o * plan.tiles + p) * width
                            at.store(done[p * vectors + o])

        by_width(b, plan, b.index(panel), unit)


Run = tuple[Val | int, Val | int, int, Val | int]
"""(first, stop, size, before): the register tiles [first, stop) have `size` tiles each; number i
begins at tile i * size + before."""


def _runs(b: Builder, plan: WinogradPlan, count: Val | int) -> list[Run]:
    """How the `count` tiles of a block are cut into register tiles: of two neighbouring sizes, the
    larger first.

    With free sizes there is a run for each of `_sizes`, and a call leaves most of them empty. If
    two neighbouring sizes cut the block without a rest, these are used; otherwise one size, whose
    last register tile overlaps the one before, or extends beyond the block, where V and M have
    space for it."""
    if not plan.is_free:
        larger, size = plan.micro.larger(count), plan.micro.size  # type: ignore[arg-type]
        runs: list[Run] = [(0, larger, size, 0), (larger, plan.micro.count, size - 1, larger)]
        return [r for r in runs if r[2] and not (isinstance(larger, int) and r[0] == r[1])]
    sizes, most, none = _sizes(plan), plan.micro.size, b.index(0)
    length = b.index(count)
    pieces = (length + (most - 1)) // most
    least = length // b.maximum(pieces, 1)
    larger = length - least * pieces
    needed = (larger > 0).select(least + 1, least)
    alone = [least.eq(s) if s + 1 in sizes else least.eq(s) & larger.eq(0) for s in sizes]
    fits = functools.reduce(operator.or_, alone)
    runs = []
    for size, below in zip(sizes, (*sizes[1:], 0), strict=True):
        whole = fits.select(none, ((needed <= size) & (needed > below)).select(pieces, none))
        first = least.eq(size).select(larger, none)
        stop = least.eq(size).select(pieces, least.eq(size - 1).select(larger, none))
        runs.append((fits.select(first, none), fits.select(stop, whole), size, first))
    return runs


def _sizes(plan: WinogradPlan) -> tuple[int, ...]:
    """The sizes of register tiles for which code is emitted if only a call tells how many tiles a
    block has, the largest first: the two largest, those that the blocks of the example call are cut
    into, and the largest halved again and again, down to LARGE_TILE or less."""
    most = plan.micro.size
    total, blocks = typical(plan.total), typical(plan.blocks)
    found = {most, most - 1}
    for tiles in {total // blocks, -(-total // blocks)}:
        found.update(size for size, _ in balanced(tiles, most))
    while most > LARGE_TILE:
        most //= 2
        found.add(most)
    return tuple(sorted(found - {0}, reverse=True))


def by_width(b: Builder, plan: WinogradPlan, panel: Val, unit: Callable[[int], None]) -> None:
    """Emit `unit(vectors)` for the number of vectors that panel number `panel` has: all have
    `plan.vectors`, but the last perhaps fewer; with a branch where it could be either."""
    if plan.last_vectors == plan.vectors:
        unit(plan.vectors)
    elif plan.panels == 1:
        unit(plan.last_vectors)
    else:
        b.choose(
            panel < plan.panels - 1, lambda: unit(plan.vectors), lambda: unit(plan.last_vectors)
        )


def _following(plan: WinogradPlan, vectors: int, i: Val) -> Fetch:
    """What each loop body of register tile i of a unit prefetches: of the weights that this loop
    body will read in the next unit, the share of tile i. `vectors`: those of the unit's panel."""
    row = vectors * plan.width
    lines = -(-narrow.rows_of(plan.channels.step, plan.words) * row // LINE)
    share = -(-lines // plan.micro.count)
    return Fetch(i * share % lines * LINE + plan.panel_rows * row, share)


def _sums(
    b: Builder, plan: WinogradPlan, x: Ptr, w: Ptr, size: int, vectors: int, fetch: Fetch | None
) -> list[Val]:
    """Emit and return the sums over all channels of one register tile: `size` tiles by `vectors`
    output blocks (innermost). `x` is at its first transformed data, `w` at the panel's weights."""
    channels, lanes = plan.channels, (plan.width,) * vectors
    rows = narrow.rows_of(channels.stored, plan.words)
    levels = [Level(channels.count, plan.tiles * plan.width, rows * sum(lanes))]
    start = [b.zero(F32.x(plan.width))] * (size * vectors)
    pixels = [p * plan.width for p in range(size)]
    it = Contraction(lanes, channels, levels, words=plan.words)
    sums = contract(b, it, x, w, start, pixels, fetch)
    if not plan.words:
        return sums
    powers = narrow.powers(w, plan.depth, sum(lanes), lanes)
    return [value * powers[i % vectors] for i, value in enumerate(sums)]
