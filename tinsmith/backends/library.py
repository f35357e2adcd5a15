"""Machine code of a program, loaded into this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache as memoised
from typing import Protocol

from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.library import Compiler, load_library
from tinsmith.codegen.target import Target


class Library(Protocol):
    """Loaded machine code and its bytes; keep it alive while code may run."""

    data: bytes

    def address(self, symbol: str) -> int: ...


def load_code(
    codes: Mapping[str, str], target: Target, cache: bool, compiler: Compiler | None = None
) -> Library:
    """Compile (or find in the cache) and load all functions."""
    return load_library(codes, target, open_cache() if cache else None, compiler)


@memoised
def _team(target: Target, cache: bool) -> Library:
    from tinsmith.codegen.sync import team_text

    return load_code({"team": team_text(target)}, target, cache)


def team_address(target: Target, cache: bool, threads: int) -> Callable[[str], int] | None:
    """A function that gives the addresses of the thread team's functions by name; None for one
    thread."""
    return _team(target, cache).address if threads > 1 else None
