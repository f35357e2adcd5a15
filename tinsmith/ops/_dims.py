"""Dims of results: shapes that broadcast together, and symbols for dims that are not known."""

from __future__ import annotations

from tinsmith.errors import TypeRuleError
from tinsmith.graph import Dim
from tinsmith.sizes import same


def broadcast(*shapes: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """The shape that numpy broadcasts `shapes` to; None where one is unknown. A symbol and a number
    other than 1 give the number; two different symbols give a new one, as either may turn out to be
    1. Raises TypeRuleError where two numbers differ and neither is 1."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    if (numbers := _of_numbers(known)) is not None:
        return numbers
    rank = max((len(s) for s in known), default=0)
    out: list[Dim] = []
    for dims in zip(*((1,) * (rank - len(s)) + tuple(s) for s in known), strict=True):
        rest = [d for d in dict.fromkeys(dims) if not same(d, 1)]
        if len(rest) > 1:
            rest = [d for d in rest if d != 1]
        numbers = [d for d in rest if not isinstance(d, str)]
        if any(d != numbers[0] for d in numbers[1:]):
            raise TypeRuleError(
                f"the shapes {', '.join(map(_show, known))} do not broadcast together"
            )
        if len(rest) > 1 and not numbers:
            out.append(fresh())  # either symbol may turn out to be 1
        else:
            out.append(numbers[0] if numbers else (rest[0] if rest else 1))
    return tuple(out)


def _of_numbers(shapes: list[tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
    """`broadcast` of shapes whose dims are all ints; None for others, and if they do not fit."""
    longest: tuple[Dim, ...] = ()
    for shape in shapes:
        for d in shape:
            if type(d) is not int:
                return None
        if len(shape) > len(longest):
            longest = shape
    out = longest
    for shape in shapes:
        if shape is out or shape == out:
            continue
        start = len(out) - len(shape)
        for i, d in enumerate(shape, start):
            if d == 1 or d == out[i]:
                continue
            if out[i] != 1:
                return None
            out = (*out[:i], d, *out[i + 1 :])
    return out


def _show(shape: tuple[Dim, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


_counter = 0


def fresh(prefix: str = "?") -> str:
    """A new symbol, for a dim that is not known before the run: `prefix` and a number that no other
    call returns, such as "?7"."""
    global _counter
    _counter += 1
    return f"{prefix}{_counter}"


def reserve(symbol: str) -> None:
    """Keep `fresh` from returning `symbol`, which a graph read from text has already."""
    global _counter
    if symbol.startswith("?") and symbol[1:].isdecimal():
        _counter = max(_counter, int(symbol[1:]))
