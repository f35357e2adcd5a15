"""Hints of sizes: `compile(model, sizes={"seq": (1, 2048), "batch": 4})`.

A range (least, largest) limits the sizes of calls: others are refused, and the memory of programs
for free sizes is bounded by the upper ends. Kernels and layouts of these programs are chosen for
the `typical` size of the range, or for the hint itself if it is one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isqrt
from operator import index
from typing import TYPE_CHECKING, Any

from tinsmith.errors import (
    OptionError,
    PassError,
    PlanError,
    ReferenceFailed,
    TypeRuleError,
    UnknownName,
)

if TYPE_CHECKING:
    from tinsmith.graph import Type
    from tinsmith.runtime.inputs import Signature
    from tinsmith.runtime.net import Net

Hint = int | tuple[int, int]
"""A typical size, or a range (least, largest)."""
Hints = Mapping[str, Hint]
"""Name of a free dimension -> hint, in alphabetical order."""

LARGEST = 2**62 - 1
"""The largest size of a hint."""
ROUND = 32
"""Typical sizes are rounded to a multiple of this, or of a smaller power of two: models that halve
sizes several times take these. Estimated."""


def hints_of(sizes: Any) -> dict[str, Hint] | None:
    """Check the option `sizes` of `compile`, and return it as name -> hint, sorted by name; None if
    it is None or empty. Raises OptionError."""
    if sizes is None:
        return None
    if not isinstance(sizes, Mapping):
        raise OptionError(
            "sizes must be a dict of ranges (least, largest) or typical sizes by the names of free "
            f"dimensions, not {sizes!r}"
        )
    if unnamed := [name for name in sizes if not isinstance(name, str)]:
        raise OptionError(f"sizes has names of free dimensions, and {unnamed[0]!r} is none")
    return {name: _hint(name, sizes[name]) for name in sorted(sizes)} or None


def _hint(name: str, given: Any) -> Hint:
    try:
        if isinstance(given, bool | str):
            raise TypeError
        if not isinstance(given, tuple | list):
            return _checked(name, index(given))
        if any(isinstance(n, bool) for n in given):
            raise TypeError
        least, most = (_checked(name, index(n)) for n in given)
    except (TypeError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"sizes: {name!r} must be a range such as (1, 2048), or a typical size, not {given!r}"
        ) from None
    if least > most:
        raise OptionError(f"sizes: the range {least} to {most} of {name!r} is empty")
    return least, most


def _checked(name: str, size: int) -> int:
    if not 0 <= size <= LARGEST:
        raise OptionError(f"sizes: {name!r} must be from 0 to {LARGEST}, not {size}")
    return size


def check_names(hints: Hints | None, types: Mapping[str, Type]) -> None:
    """Raise UnknownName for a hint whose name is no free dimension of the inputs."""
    free = free_dimensions(types)
    for name in hints or ():
        if name not in free:
            raise UnknownName("free dimension", name, free)


def free_dimensions(types: Mapping[str, Type]) -> list[str]:
    """Return the names of the inputs' free dimensions, each once, in order."""
    dims = (d for t in types.values() for d in t.shape or ())
    return list(dict.fromkeys(d for d in dims if isinstance(d, str)))


def sized(type: Type, sizes: Mapping[str, int]) -> Type:
    """Return a type in which the free dimensions named in `sizes` have these sizes; others stay
    free."""
    if type.shape is None:
        return type
    return type.like(shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in type.shape))


def ranges_of(hints: Hints | None) -> dict[str, tuple[int, int]]:
    """Return the hints that are ranges, by name."""
    return {name: hint for name, hint in (hints or {}).items() if isinstance(hint, tuple)}


def typical(hint: Hint) -> int:
    """Return the size for which kernels are chosen: the hint, if it is a number; for a range its
    geometric mean (but not 1 if the range has 2), rounded to a multiple of a power of two: of the
    largest, from ROUND down, that is at most the mean and keeps the result in the range. (1, 2048)
    gives 32, (1, 64) gives 8."""
    if isinstance(hint, int):
        return hint
    least, most = hint
    middle = max(isqrt(max(least, 1) * most), least, min(most, 2))  # 1 has a program of its own
    step = ROUND
    while step > 1:
        found = (middle + step // 2) // step * step
        if step <= middle and least <= found <= most:
            return found
        step //= 2
    return middle


def typical_shapes(hints: Hints, types: Mapping[str, Type]) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of inputs of typical sizes; None where a free dimension has no hint, or a
    rank is unknown."""
    shapes = [t.shape for t in types.values()]
    if any(own is None for own in shapes) or any(n not in hints for n in free_dimensions(types)):
        return None
    return tuple(
        tuple(d if isinstance(d, int) else typical(hints[d]) for d in own or ()) for own in shapes
    )


def make_typical(net: Net, hints: Hints, others: Callable[[], Signature | None]) -> None:
    """Compile a program for the hints' typical sizes, if all free dimensions have hints. If the
    model refuses these sizes, compile for the signature that `others()` returns (None: none), of
    sizes that are equal where the model requires it; if it refuses these too, add a note to the
    net. Raises OptionError for contradictory hints."""
    shapes = typical_shapes(hints, net.inputs)
    if shapes is None:
        return
    unfit = (TypeRuleError, ReferenceFailed, PassError, PlanError)
    try:
        net.program(shapes)
    except unfit as error:
        equal, why = others(), error
        if equal is not None and equal != shapes:
            try:
                net.program(equal)
                return
            except unfit as other:
                why = other
        shown = ", ".join(f"{name} {typical(hint)}" for name, hint in hints.items())
        net.notes.append(f"sizes: nothing was compiled for {shown}, which the model refuses: {why}")


def common(hints: Hints, names: Iterable[str]) -> Hint | None:
    """Return one hint for dimensions that must be equal: the intersection of their ranges, or else
    the first typical size; None if none of them has a hint. Raises OptionError if the intersection
    is empty."""
    named = [name for name in names if name in hints]
    ranges = {name: hint for name in named if isinstance(hint := hints[name], tuple)}
    if not ranges:
        return hints[named[0]] if named else None
    least, most = max(a for a, _ in ranges.values()), min(b for _, b in ranges.values())
    if least > most:
        shown = ", ".join(f"{n} {a} to {b}" for n, (a, b) in ranges.items())
        raise OptionError(
            f"sizes: the model holds these to one size, and none is in all ranges: {shown}"
        )
    return least, most
