"""The most operations per second that a core of this machine reaches by a row of the table of
products: the 100 % of profiles.

Measured when a report asks for it, with a generated loop, in some milliseconds; kept in the code
cache (`limits-*.json`; delete these files to measure again). No kernel is chosen by it.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from math import inf
from pathlib import Path

from tinsmith.codegen.cache import open_cache, read_note, write_note
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.products import FLOAT32, PRODUCTS
from tinsmith.codegen.target import Target
from tinsmith.hashing import blake2b
from tinsmith.runtime.forks import working

_measuring = threading.RLock()


def peak(target: Target, threads: int = 1, row: str = FLOAT32.name) -> float:
    """Return the operations per second of `threads` cores, or all that there are, with a target's
    instruction set, by a row of the table of products, two for each product. Those of one are
    measured at most once, by one thread at a time: two would disturb each other."""
    with working(), _measuring:
        return _peak(target, row) * min(threads, usable_cores())


@cache
def _peak(target: Target, row: str) -> float:
    store = open_cache()
    name = blake2b(f"{target.key}|{target.model}".encode(), digest_size=8).hexdigest()
    file = None if store is None else store.path / f"limits-{name}.json"
    kept = {} if file is None else _kept(file)
    if row not in kept:
        from tinsmith.runtime.gauge import peak_of

        kept[row] = float(f"{peak_of(target, row=PRODUCTS[row]):.2g}")
        if file is not None:
            write_note(file, json.dumps(kept))
    return kept[row]


def _kept(file: Path) -> dict[str, float]:
    """Return the peaks that a file holds, by row."""
    try:
        found = json.loads(read_note(file) or "{}")
        return {n: float(p) for n, p in found.items() if n in PRODUCTS and 0 < p < inf}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
