"""How much a model may ask for: a file of a few hundred bytes can describe a graph of a billion
nodes, or constants of a terabyte. What goes beyond a limit is refused by BudgetExceeded, or, where
a constant can as well be computed in each run, left to the run.

    nodes      nodes that the importer makes, functions expanded; bodies of loops may count twice
    constants  bytes of constants that a file does not hold as such: sparse tensors made dense and
               attributes of nodes, in all; and by how much folding may make those of a graph larger
    array      bytes of one array, or text, that an operator's reference makes of a size that it is
               given; half of the machine's memory
    states     states of the automaton of one regular expression

TINSMITH_BUDGET sets other limits: "nodes=2000000,constants=8G,array=16G".
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

from tinsmith.errors import BudgetExceeded, OptionError, OutOfMemory, size_text, suggest

VARIABLE = "TINSMITH_BUDGET"

LIMITS: dict[str, int] = {
    "nodes": 200_000,
    "constants": 4 << 30,
    "array": 0,
    "states": 20_000,
}
"""By name; 0 stands for half of the machine's memory."""

SHOWN = {
    "nodes": lambda n: f"{n} nodes",
    "constants": lambda n: f"{size_text(n)} of constants",
    "array": lambda n: f"{size_text(n)} for one array",
    "states": lambda n: f"{n} states",
}

MOST_DIMS = 64
"""Dims of an array: numpy's own limit, which nobody can raise."""


def number(text: str) -> int:
    """A number of bytes or of other things: "512M" is 512 * 1024^2; K, M, G and T are powers of
    1024. Raises ValueError."""
    digits = text.strip().upper().removesuffix("B")
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(digits[-1:], 0)
    try:
        size = int(float(digits[:-1] if unit else digits) * (1 << unit))
    except OverflowError as error:  # inf
        raise ValueError(f"{text!r} is no size") from error
    if size < 0:
        raise ValueError(f"{text!r} is negative")
    return size


def limit(name: str) -> int:
    """The limit of that name (see `LIMITS`), or what TINSMITH_BUDGET sets in its place. Raises
    OptionError where that cannot be understood."""
    return _limits(os.environ.get(VARIABLE, ""))[name]


def check_setting() -> None:
    """Raises OptionError where TINSMITH_BUDGET cannot be understood."""
    _limits(os.environ.get(VARIABLE, ""))


def check(name: str, asked: int, what: str) -> None:
    """Raise BudgetExceeded if `asked` is above the limit `name`; `what` says who asks, as in "the
    functions of net.onnx"."""
    most = limit(name)
    if asked > most:
        wanted = f"{-(-asked >> 19)}M" if asked >> 20 else str(2 * asked)
        raise BudgetExceeded(
            f"{what}: {SHOWN[name](asked)}, where {SHOWN[name](most)} are allowed; if the model is "
            f"to be trusted, {VARIABLE}={name}={wanted} allows more"
        )


@contextmanager
def told(what: str) -> Generator[None]:
    """A context in which MemoryError becomes OutOfMemory, whose message names `what` was being
    done, such as "loading net.onnx"."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, OutOfMemory):
            raise
        why = f": {error}" if str(error) else ""
        raise OutOfMemory(f"{what} needs more memory than the system gives{why}") from error


def machine_memory() -> int | None:
    """Bytes of the machine's memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


@cache
def _limits(text: str) -> dict[str, int]:
    found = LIMITS | {"array": (machine_memory() or 1 << 40) // 2}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, given = part.partition("=")
        name = name.strip()
        if name not in LIMITS:
            hint = suggest(name, LIMITS) or f" They are {', '.join(LIMITS)}."
            raise OptionError(f"{VARIABLE} has no limit named {name!r}.{hint}")
        try:
            found[name] = number(given)
        except ValueError:
            raise OptionError(
                f"{VARIABLE} sets {name} to {given!r}; give a number, such as 100000000 or 512M"
            ) from None
    return found
