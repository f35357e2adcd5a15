"""How threads share a kernel's work: in how many parts, and whether those are positions of every
channel, or channels."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Val
from tinsmith.codegen.target import foreign_time
from tinsmith.graph import Value
from tinsmith.kernels._kernel import Emit, Phase, Site, one_phase

PARTS = 16
"""Parallel parts that work is cut into, where it has so many (estimated)."""
ALONE = 10e-6
"""Seconds of work up to which one thread does all of it (estimated)."""
AGAIN = 0.1
"""Part of the time that weights take which arithmetic does not hide (estimated)."""
BEYOND = 20 * 64
"""Bytes that are prefetched beyond the end of what a thread touches of a plane (estimated)."""


def parts_for(count: int, seconds: float, most: int = PARTS) -> int:
    """Into how many tiles, at most `most`, to cut `count` equal units of work that take so many
    seconds together."""
    return max(1, min(count, most if seconds > ALONE else 1))


def each_unit(units: int, seconds: float, body: Callable[[Emit, Val], None]) -> tuple[Phase, ...]:
    """`body(em, unit)` for each of `units` equal units of work, which take so many seconds
    together, as one parallel loop."""
    tiles = parts_for(units, seconds)

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin * units // tiles, em.end * units // tiles) as unit:
            body(em, unit)

    return one_phase(tiles, emit)


def by_positions(
    site: Site,
    source: Value,
    read: float,
    flops: float,
    units: int,
    panels: int,
    *,
    planes: int = 0,
    weights: float | None = None,
) -> bool:
    """Whether threads should share the positions of each panel of channels, `units` of them, and
    all read its `weights`, rather than share the `panels`, and read all channels of `source`;
    without weights, a channel depends on itself only. `planes` are those of channels, read and
    written, that lie apart; `read` and `weights` are in bytes."""
    threads, target = site.threads, site.target
    if threads == 1:
        return False
    others = (threads - 1) / threads
    turned = others * read / threads  # that a thread needs of what was shared the other way
    channels = source in site.by_channels
    near = BEYOND * planes + (turned if channels else 0.0)
    far = others * read if weights is not None else 0.0 if channels else turned
    again = AGAIN * others * (weights or 0.0) / target.l3_bandwidth
    busy = target.time(flops, 0) / threads
    return foreign_time(target, far) + uneven(panels, threads) * busy > (
        foreign_time(target, near) + uneven(units, threads) * busy + again
    )


def whole_shares(parts: int, threads: int) -> int:
    """At least so many parts, of which all threads get equally many."""
    return -(-parts // threads) * threads


def uneven(parts: int, threads: int) -> float:
    """How many times as long as an equal share the busiest thread's of so many parts takes."""
    return whole_shares(parts, threads) / max(1, parts)
