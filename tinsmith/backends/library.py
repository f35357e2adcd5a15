"""Machine code of a program, loaded into this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

from tinsmith.codegen.jit import Loaded, compile_object
from tinsmith.codegen.sync import team_text
from tinsmith.codegen.target import Target


class Library(Protocol):
    """Loaded machine code; keep it alive while code may run."""

    def address(self, symbol: str) -> int: ...


def load_code(codes: Mapping[str, str], target: Target, cache: bool) -> tuple[Library, bytes]:
    """Compile (or find in the cache) and load all functions; the library and its bytes."""
    objects = [compile_object(text, target) for text in codes.values()]
    return Loaded(objects, target), b"".join(objects)


@lru_cache
def _team(target: Target, cache: bool) -> Library:
    return load_code({"team": team_text(target)}, target, cache)[0]


def team_address(target: Target, cache: bool, threads: int) -> Callable[[str], int] | None:
    """Addresses of the thread team's functions; None where one thread needs no team."""
    return _team(target, cache).address if threads > 1 else None
