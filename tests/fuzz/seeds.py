"""How much is fuzzed: a little with the other tests, as much as TINSMITH_FUZZ says alone.

TINSMITH_FUZZ=2000 python -m pytest tests/fuzz          seeds 0 to 1,999 of every theme
TINSMITH_FUZZ=2000:500 python -m pytest tests/fuzz      500 seeds from 2,000
"""

from __future__ import annotations

import os

CHUNK = 50


def chunks(alone: int, size: int = CHUNK) -> list[range]:
    """The seeds, in parts that are one test each; `alone` of them without TINSMITH_FUZZ."""
    first, _, count = os.environ.get("TINSMITH_FUZZ", "").partition(":")
    start, end = (int(first), int(first) + int(count)) if count else (0, int(first or alone))
    return [range(at, min(at + size, end)) for at in range(start, end, size)]
