"""How threads share a kernel's work: into how many parts it is cut, and whether the parts are
positions (of all channels) or channels (at all positions)."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Val
from tinsmith.codegen.target import foreign_time
from tinsmith.graph import Value
from tinsmith.kernels._kernel import Emit, Phase, Site, one_phase
from tinsmith.sizes import estimate

PARTS = 16
"""How many parallel parts work is cut into, if it has that many. Estimated."""
ALONE = 10e-6
"""Seconds of work up to which one thread does all of it. Estimated."""
AGAIN = 0.1
"""The share of the time of reading weights that arithmetic does not hide. Estimated."""
BEYOND = 20 * 64
"""Bytes that hardware prefetches behind the end of what a thread reads of a plane. Estimated."""


@estimate
def parts_for(count: int, seconds: float, most: int = PARTS) -> int:
    """Into how many tiles to cut `count` equal units of work, which take `seconds` together on one
    core: at most `most`, and one if `seconds` is at most ALONE."""
    return max(1, min(count, most if seconds > ALONE else 1))


def each_unit(units: int, seconds: float, body: Callable[[Emit, Val], None]) -> tuple[Phase, ...]:
    """The phases (one) of a kernel whose work is `units` equal units, which take `seconds` together
    on one core: `body(em, unit)` emits a unit, and a tile is several neighbouring ones."""
    tiles = parts_for(units, seconds)

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin * units // tiles, em.end * units // tiles) as unit:
            body(em, unit)

    return one_phase(tiles, emit)


@estimate
def by_positions(
    site: Site, source: Value, read: float, flops: float, parts: tuple[int, int], *,
    planes: int = 0, weights: float | None = None,
) -> bool:  # fmt: skip
    """Whether threads should share positions rather than channels; not if there is one thread.

    `parts`: (positions, panels of output channels) that there are to share. By positions: each
    thread computes some positions of every panel; all threads read all `weights` (bytes). By
    channels: each computes some panels, and all read all `read` bytes of `source`. Without
    `weights` an output channel depends on its own input channel alone (depthwise).

    The cheaper way wins: the busiest thread's time, of `flops` in all, plus that of reading what
    other threads have written: most of what it reads of `source`, if the producer shared the other
    way or all threads read all; else the edges of `planes`, the number of channel planes that are
    read or written apart from each other.
    """
    threads, target, (units, panels) = site.threads, site.target, parts
    if threads == 1:
        return False
    others = (threads - 1) / threads
    turned = others * read / threads  # what a thread reads if its producer shared the other way
    channels = source in site.by_channels
    near = BEYOND * planes + (turned if channels else 0.0)
    far = others * read if weights is not None else 0.0 if channels else turned
    again = AGAIN * others * (weights or 0.0) / target.l3_bandwidth
    busy = target.time(flops, 0) / threads
    return foreign_time(target, far) + uneven(panels, threads) * busy > (
        foreign_time(target, near) + uneven(units, threads) * busy + again
    )


def whole_shares(parts: int, threads: int) -> int:
    """The least multiple of `threads` that is at least `parts`: all threads get equally many."""
    return -(-parts // threads) * threads


@estimate
def uneven(parts: int, threads: int) -> float:
    """The busiest thread's time divided by an equal share, for `parts` equal parts of work."""
    return whole_shares(parts, threads) / max(1, parts)
