"""Sizes of free dimensions: those that --dim gives, and what is said of those that count as 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import click

from tinsmith.errors import DataError, InputShapeError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Type

UNFIT = (TypeRuleError, ReferenceFailed, DataError)
"""Errors that sizes or values of inputs cause."""
LARGEST = 2**31 - 1
"""The largest size that --dim takes."""


def free_dimensions(types: Mapping[str, Type]) -> list[str]:
    dims = dict.fromkeys(d for t in types.values() for d in t.shape or ())
    return [d for d in dims if not isinstance(d, int)]


def sizes(dims: tuple[str, ...], types: Mapping[str, Type]) -> dict[str, int]:
    """`("N=4",)` as {"N": 4}, for a model with inputs of these types."""
    free = free_dimensions(types)
    found: dict[str, int] = {}
    for text in dims:
        name, equals, number = text.rpartition("=")
        if not equals or not (number.isascii() and number.isdecimal()):
            raise click.BadParameter(f"{text!r} is not NAME=SIZE", param_hint="--dim")
        if name not in free:
            known = ", ".join(free) or "none"
            raise click.BadParameter(
                f"no free dimension is named {name!r}; there are: {known}", param_hint="--dim"
            )
        if len(number.lstrip("0")) > 10 or int(number) > LARGEST:
            raise click.BadParameter(
                f"{name} would be greater than {LARGEST}, the largest dimension",
                param_hint="--dim",
            )
        if name in found:
            raise click.BadParameter(
                f"{name} is given twice: {found[name]} and {int(number)}", param_hint="--dim"
            )
        found[name] = int(number)
    return found


def assumed(types: Mapping[str, Type], chosen: Mapping[str, int]) -> dict[str, int]:
    """The free dimensions that nobody has chosen a size for, and the size that they count as."""
    return {d: 1 for d in free_dimensions(types) if d not in chosen}


def assumption(sizes: Mapping[str, int]) -> str:
    """What is said of sizes that were assumed."""
    shown = ", ".join(f"{d} = {n}" for d, n in sizes.items())
    return f"{shown}; {dim_options(sizes)} chooses"


def dim_options(names: Iterable[str]) -> str:
    """The options that give all these free dimensions sizes."""
    return " ".join(f"--dim {name}=SIZE" for name in names)


def signature_of(
    name: str, types: Mapping[str, Type], chosen: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """The input shapes of a model; a free dimension that is not chosen is 1."""
    shapes = []
    for input_name, type_ in types.items():
        if type_.shape is None:
            raise InputShapeError(
                f"the input {input_name!r} of {name} may have any rank; a kernel is chosen when "
                "the model is run"
            )
        shapes.append(tuple(d if isinstance(d, int) else chosen.get(d, 1) for d in type_.shape))
    return tuple(shapes)


@contextmanager
def assuming(types: Mapping[str, Type], chosen: Mapping[str, int]) -> Iterator[None]:
    """Shapes that do not fit together are an error that says which sizes nobody has chosen."""
    try:
        yield
    except UNFIT as error:
        free = list(assumed(types, chosen))
        if free:
            error.add_note(f"{', '.join(free)} counted as 1, which {dim_options(free)} changes")
        raise
