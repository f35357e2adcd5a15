"""Hints of sizes: `compile(model, sizes={"seq": (1, 2048), "batch": 4})`.

A range says which sizes a call may have: another one is refused before anything runs, and the
memory of programs for free sizes never grows beyond what the upper ends need. Kernels and layouts
of these programs are chosen for the `typical` size of the hint, which is the number itself where
that is all it says.
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
"""A typical size, or the least and the largest size of a range."""
Hints = Mapping[str, Hint]
"""By the names of free dimensions, in alphabetical order."""

LARGEST = 2**62 - 1
"""The largest size of a hint."""
ROUND = 32
"""A typical size is a multiple of it, or of a smaller power of two: what halves sizes several times
over takes those. Estimated."""


def hints_of(sizes: Any) -> dict[str, Hint] | None:
    """What `compile` is given, in order. Raises OptionError."""
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
    """Raises UnknownName for a hint of what is no free dimension of these inputs."""
    free = free_dimensions(types)
    for name in hints or ():
        if name not in free:
            raise UnknownName("free dimension", name, free)


def free_dimensions(types: Mapping[str, Type]) -> list[str]:
    """The free dimensions of inputs, in order."""
    return list(
        dict.fromkeys(d for t in types.values() for d in t.shape or () if isinstance(d, str))
    )


def sized(type: Type, sizes: Mapping[str, int]) -> Type:
    """A type with sizes in the place of those of its free dimensions that `sizes` has."""
    if type.shape is None:
        return type
    return type.like(shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in type.shape))


def ranges_of(hints: Hints | None) -> dict[str, tuple[int, int]]:
    """The hints that are ranges."""
    return {name: hint for name, hint in (hints or {}).items() if isinstance(hint, tuple)}


def typical(hint: Hint) -> int:
    """The size for which kernels are chosen: a hint that is a number itself; of a range the
    geometric mean, rounded to the nearest multiple, in the range, of ROUND or a smaller power of
    two."""
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
    """The shapes of inputs of typical sizes; None where not all free dimensions have hints."""
    shapes = [t.shape for t in types.values()]
    if any(own is None for own in shapes) or any(n not in hints for n in free_dimensions(types)):
        return None
    return tuple(
        tuple(d if isinstance(d, int) else typical(hints[d]) for d in own or ()) for own in shapes
    )


def make_typical(net: Net, hints: Hints, others: Callable[[], Signature | None]) -> None:
    """Compile a program for the hints' typical sizes, if all free dimensions have hints. If the
    model refuses these, compile for the shapes that `others` gives, in which dimensions that the
    model holds equal are equal; if it refuses those too, add a note. Raises OptionError for hints
    that contradict each other."""
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
    """The one hint for dimensions that a model holds to one size: the intersection of their ranges,
    or else the first typical size; None without any hint. Raises OptionError if their ranges have
    no size in common."""
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
