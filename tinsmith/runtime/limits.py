"""The highest flop/s that a core of this machine reaches: the 100 % of profiles.

Measured when a report asks for it, with a generated loop, in some milliseconds; kept in the code
cache (`limits-*.json`; delete these files to measure again). No kernel is chosen by it.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from math import isfinite
from pathlib import Path

from tinsmith.codegen.cache import open_cache, read_note, write_note
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.target import Target
from tinsmith.hashing import blake2b
from tinsmith.runtime.forks import working

_measuring = threading.RLock()


def peak(target: Target, threads: int = 1) -> float:
    """Return the float32 flop/s of `threads` cores, or all that there are, with a target's
    instruction set. That of one is measured at most once, by one thread at a time: two would
    disturb each other."""
    with working(), _measuring:
        return _peak(target) * min(threads, usable_cores())


@cache
def _peak(target: Target) -> float:
    store = open_cache()
    name = blake2b(f"{target.key}|{target.model}".encode(), digest_size=8).hexdigest()
    file = None if store is None else store.path / f"limits-{name}.json"
    if file is not None and (kept := _kept(file)) is not None:
        return kept
    from tinsmith.runtime.gauge import peak_of

    found = float(f"{peak_of(target, target.lanes):.2g}")
    if file is not None:
        write_note(file, json.dumps({"peak": found}))
    return found


def _kept(file: Path) -> float | None:
    """Return the peak that a file holds; None if it has none."""
    try:
        found = float(json.loads(read_note(file) or "{}")["peak"])
        return found if isfinite(found) and found > 0 else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
