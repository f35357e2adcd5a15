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
    """The measured winner of a site: a kernel, the detail of its choice, and as text (`note`) what
    was measured, for `explain`."""

    kernel: str
    detail: str
    note: str = ""


Preferences = Mapping[str, Preference]


def site_signature(site: Site) -> str:
    """The key under which measurements of a site are kept (32 hexadecimal digits). It is equal for
    sites of the same operator, attributes, shapes, epilogue, layouts of operands, threads and
    precision, and stable between processes; the machine is not part of it."""
    layouts = tuple(
        str(site.layout(v)) if v is not None and v.const is None else "" for v in site.operands
    )
    key = (site_key(site, small=1), layouts, site.threads, site.precision)
    return blake2b(repr(key).encode(), digest_size=16).hexdigest()


def preferred(ranking: Sequence[Candidate], wanted: Preference | None) -> Candidate | None:
    """The candidate of `ranking` with the kernel and detail that the preference `wanted` names, as
    a copy of tier MEASURED; None if there is no preference or no such candidate."""
    if wanted is None:
        return None
    for c in ranking:
        if c.choice is not None and (c.kernel, c.choice.detail) == (wanted.kernel, wanted.detail):
            return replace(c, tier=Tier.MEASURED)
    return None


def lightest(site: Site, ranking: Sequence[Candidate]) -> Candidate | None:
    """For `memory="small"`: the first candidate of `ranking` (best first; all have a choice) whose
    packed arrays take at most GROWTH times the bytes of the site's constants, plus ALLOWANCE. If
    there is none, the candidate with the smallest packed arrays; None for an empty ranking."""
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
    """Bytes of all packed arrays of a choice; an array that does not tell its size is made."""
    return sum(p.nbytes or np.asarray(p.make()).nbytes for p in choice.packed)
