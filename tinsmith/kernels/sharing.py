"""What of a kernel's work each of several threads should do."""

from __future__ import annotations

from tinsmith.codegen.target import foreign_time
from tinsmith.kernels._kernel import Site

AGAIN = 0.1  # of the time that weights take, which most of the arithmetic hides


def by_positions(site: Site, read: float, weights: float, units: int, flops: float) -> bool:
    """Whether threads should share the positions of each panel of channels, `units` of them, and
    all read its weights, rather than share the panels, and read what another thread wrote. `read`
    and `weights` are in bytes."""
    threads = site.threads
    if threads == 1:
        return False
    others = (threads - 1) / threads
    again = AGAIN * others * weights / site.target.l3_bandwidth
    uneven = -(-units // threads) * threads / units - 1
    busy = site.target.time(flops, 0) / threads
    return foreign_time(site.target, others * read) > again + uneven * busy
