"""What the machine can do at most: multiply-adds a second, and bytes a second from each level.

Measured once with generated loops, in some hundred milliseconds, and kept in the code cache; the
cost model chooses kernels by it and profiles are told as shares of it. Delete `limits-*.json`
there to measure anew.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tinsmith.codegen.cache import open_cache, read_note, write_note
from tinsmith.codegen.target import Target
from tinsmith.hashing import blake2b
from tinsmith.runtime.forks import working


class Limits(NamedTuple):
    """Of one core: fp32 flop/s, and bytes/s read from L2, L3 and memory; `dram_together` of all
    cores at once, not less. `wait`: seconds in which
    two threads tell each other that a phase is done (assumed where there is one core). `wide`: how
    much more arithmetic vectors of 16 do than vectors of 8 (1 where the target has none)."""

    peak: float
    l2_bandwidth: float
    l3_bandwidth: float
    dram_bandwidth: float
    dram_together: float
    wait: float
    wide: float


_measuring = threading.RLock()


def limits(target: Target) -> Limits:
    """The limits of this machine for a target's instruction set, measured at most once, by one
    thread at a time: two would disturb each other."""
    with working(), _measuring:
        return _limits(target)


@cache
def _limits(target: Target) -> Limits:
    store = open_cache()
    name = blake2b(f"{target.key}|{target.model}".encode(), digest_size=8).hexdigest()
    file = None if store is None else store.path / f"limits-{name}.json"
    if file is not None and (kept := _kept(file)) is not None:
        return kept
    from tinsmith.runtime.gauge import measure

    found = Limits(*measure(target))
    if file is None:
        return found
    # Programs are kept by the limits that they were made for: of processes that measure at once,
    # all take what the first has found.
    if (kept := _kept(file)) is not None:
        return kept
    write_note(file, json.dumps(found._asdict()))
    return found


def _kept(file: Path) -> Limits | None:
    """The limits in a file; None where there are none that are whole."""
    try:
        kept = {k: float(v) for k, v in json.loads(read_note(file) or "{}").items()}
        return Limits(**kept) if min(kept.values()) > 0 else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def calibrated(target: Target) -> Target:
    """The target with this machine's measured limits in its cost model."""
    return replace(target, **limits(target)._asdict())
