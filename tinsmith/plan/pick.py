"""Which candidate of a site wins: by the cost model, by what was measured, by what it weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tinsmith.hashing import blake2b
from tinsmith.kernels._kernel import Choice, Site, Tier
from tinsmith.kernels.memo import site_key
from tinsmith.kernels.select import Candidate
from tinsmith.records import dataclass

GROWTH, ALLOWANCE = 1.25, 64 << 10
"""With `memory="small"`, packed constants take at most GROWTH times their size, plus ALLOWANCE
bytes for padding of few channels. Estimated."""


@dataclass(frozen=True)
class Preference:
    """The measured winner of a site: a kernel, the detail of its choice, and the measurement."""

    kernel: str
    detail: str
    note: str = ""


Preferences = Mapping[str, Preference]


def site_signature(site: Site) -> str:
    """A key for sites whose choices are equally fast: operator, attributes, shapes, epilogue,
    layouts of operands, threads, precision. Stable between processes; the machine is not part of
    it."""
    layouts = tuple(
        str(site.layout(v)) if v is not None and v.const is None else "" for v in site.operands
    )
    key = (site_key(site, small=1), layouts, site.threads, site.precision)
    return blake2b(repr(key).encode(), digest_size=16).hexdigest()


def preferred(ranking: Sequence[Candidate], wanted: Preference | None) -> Candidate | None:
    """The candidate that a preference names, as one of the tier MEASURED; None if there is none."""
    if wanted is None:
        return None
    for c in ranking:
        if c.choice is not None and (c.kernel, c.choice.detail) == (wanted.kernel, wanted.detail):
            return replace(c, tier=Tier.MEASURED)
    return None


def lightest(site: Site, ranking: Sequence[Candidate]) -> Candidate | None:
    """For memory="small": the first candidate whose packed arrays are no larger than the constants
    that they replace; if there is none, the candidate with the smallest packed arrays."""
    own = sum(v.const.nbytes for v in site.operands if v is not None and v.const is not None)
    sizes: list[tuple[int, int]] = []
    for i, c in enumerate(ranking):
        assert c.choice is not None
        size = packed_bytes(c.choice)
        if size <= GROWTH * own + ALLOWANCE:
            return c
        sizes.append((size, i))
    return ranking[min(sizes)[1]] if sizes else None


def packed_bytes(choice: Choice) -> int:
    """Bytes of the packed arrays of a choice."""
    return sum(p.nbytes or np.asarray(p.make()).nbytes for p in choice.packed)
