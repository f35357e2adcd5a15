"""Limits on what a model may ask for: a file of a few hundred bytes can describe a graph of a
billion nodes, or constants of a terabyte. A model that goes beyond a limit is refused by
BudgetExceeded; a constant that each run can compute as well is just not folded.

    nodes      nodes that the importer makes, functions expanded; bodies of loops may count twice
    constants  total bytes of constants that are larger than in the file: sparse tensors made dense,
               and attributes of nodes. Also the bytes by which folding may enlarge all constants
    array      bytes of one array or text whose size the model's data say, in an operator's
               reference; by default half of the machine's memory
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
    """Parse a number: "512M" is 512 * 1024^2; K, M, G and T are powers of 1024, a B after them is
    ignored. Raises ValueError."""
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
    """The limit `name` of `LIMITS`, or the value that TINSMITH_BUDGET sets in its place. Raises
    OptionError where the variable cannot be understood."""
    return _limits(os.environ.get(VARIABLE, ""))[name]


def check_setting() -> None:
    """Raise OptionError where TINSMITH_BUDGET cannot be understood."""
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
    """A context in which MemoryError becomes OutOfMemory. `what` is the work that the message
    names, such as "loading net.onnx"."""
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
