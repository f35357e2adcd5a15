"""Compiles and loads the machine code of a program, and that of the team of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache as memoised
from typing import TYPE_CHECKING

from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.library import Compiler, load_library
from tinsmith.codegen.target import Target

if TYPE_CHECKING:
    from tinsmith.runtime.program import Library


def load_code(
    codes: Mapping[str, str], target: Target, cache: bool, compiler: Compiler | None = None
) -> Library:
    """Compile the functions of `codes` (symbol -> LLVM text), or find them in the cache on disk if
    `cache`, and load them. `compiler`: one that has perhaps begun with some of them; None: a new
    one."""
    return load_library(codes, target, open_cache() if cache else None, compiler)


@memoised
def _team(target: Target, cache: bool) -> Library:
    from tinsmith.codegen.sync import team_text

    return load_code({"team": team_text(target)}, target, cache)


def team_address(target: Target, cache: bool, threads: int) -> Callable[[str], int] | None:
    """A function from the names of the thread team's functions (`codegen/sync.py`) to their
    addresses; None for one thread."""
    return _team(target, cache).address if threads > 1 else None
