"""What a Net keeps of programs, and of sessions, for the shapes that it was called with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program

PLANS, PLAN_BYTES = 16, 1 << 30
"""How many programs for different input shapes a Net keeps, and how many bytes of them.
Estimated."""


def evict(
    kept: OrderedDict[Signature, Any], program: Callable[[Any], Program], own: Callable[[Any], int]
) -> None:
    """Drop the oldest things until the bounds hold, and those of sized programs first, which are
    made again by arithmetic, and share their memory; the last one always stays. What counts are the
    bytes that each has of its `own`, and the weights of all their programs, shared ones once."""
    last = next(reversed(kept))
    if program(kept[last]).is_sized:  # it has nothing of its own
        if len(kept) > PLANS:
            cheap = next(k for k in kept if program(kept[k]).is_sized)
            del kept[cheap if cheap != last else next(iter(kept))]
        return

    def nbytes() -> int:
        blobs = {b: b.nbytes for k in kept.values() for b in program(k).blobs}
        return sum(blobs.values()) + sum(map(own, kept.values()))

    while len(kept) > 1 and (len(kept) > PLANS or nbytes() > PLAN_BYTES):
        kept.popitem(last=False)
