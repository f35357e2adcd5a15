"""Loads the machine code of the team of threads, which all programs share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as memoised
from typing import TYPE_CHECKING

from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import Target

if TYPE_CHECKING:
    from tinsmith.runtime.program import Library


@memoised
def _team(target: Target, cache: bool) -> Library:
    from tinsmith.codegen.sync import team_text

    return load_library({"team": team_text(target)}, target, open_cache() if cache else None)


def team_address(target: Target, cache: bool, threads: int) -> Callable[[str], int] | None:
    """A function from the names of the thread team's functions (`codegen/sync.py`) to their
    addresses; None for one thread."""
    return _team(target, cache).address if threads > 1 else None
