"""Sizes of free dimensions: parses --dim and --input-shape, and makes messages about sizes that the
user has not chosen, which count as 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from tinsmith.compiler.hints import free_dimensions, typical
from tinsmith.errors import DataError, InputShapeError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Type

UNFIT = (TypeRuleError, ReferenceFailed, DataError)
"""Errors for sizes or values of inputs that do not fit the model."""
LARGEST = 2**31 - 1
"""The largest size that --dim takes."""


def sizes(dims: tuple[str, ...], types: Mapping[str, Type]) -> dict[str, int]:
    """The sizes of --dim for a model with inputs of these types: ("N=4", "T=1..64") gives {"N": 4,
    "T": 8}, for a range its typical size. Raises click errors."""
    return {**{n: typical(r) for n, r in ranges(dims).items()}, **exact(dims, types)}


def exact(dims: tuple[str, ...], types: Mapping[str, Type]) -> dict[str, int]:
    """Only the sizes, without ranges: ("N=4", "T=1..64") gives {"N": 4}."""
    within = ranges(dims, free_dimensions(types))
    found: dict[str, int] = {}
    for name, text in _named(dims, free_dimensions(types)):
        if ".." in text:
            continue
        size = _size(name, text)
        if name in found:
            _refuse(f"{name} is given twice: {found[name]} and {size}")
        least, most = within.get(name, (0, LARGEST))
        if not least <= size <= most:
            _refuse(f"{name}={size} is outside its range {least}..{most}")
        found[name] = size
    return found


def ranges(dims: tuple[str, ...], free: Sequence[str] | None = None) -> dict[str, tuple[int, int]]:
    """Only the ranges: ("N=4", "T=1..64") gives {"T": (1, 64)}. `free`: the allowed names (None:
    any)."""
    found: dict[str, tuple[int, int]] = {}
    for name, text in _named(dims, free):
        if ".." not in text:
            continue
        first, _, last = text.partition("..")
        least, most = _size(name, first), _size(name, last)
        if least > most:
            _refuse(f"the range {least}..{most} of {name} is empty")
        if name in found:
            _refuse(f"{name} is given two ranges")
        found[name] = least, most
    return found


def _named(dims: tuple[str, ...], free: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Yield (name, text of a size or range) of each --dim. Raises click errors for a text of
    another form than NAME=SIZE or NAME=LEAST..LARGEST, or a name not in `free` (None: any)."""
    for text in dims:
        name, equals, number = text.rpartition("=")
        digits = number.replace("..", "", 1)
        if not equals or not (digits.isascii() and digits.isdecimal()):
            _refuse(f"{text!r} is not NAME=SIZE or NAME=LEAST..LARGEST")
        if free is not None and name not in free:
            known = ", ".join(free) or "none"
            _refuse(f"no free dimension is named {name!r}; there are: {known}")
        yield name, number


def _size(name: str, digits: str) -> int:
    if not digits:
        _refuse(f"{name} has a range with one end: both are said, as in {name}=1..64")
    if len(digits.lstrip("0")) > 10 or int(digits) > LARGEST:
        _refuse(f"{name} would be greater than {LARGEST}, the largest dimension")
    return int(digits)


def _refuse(why: str) -> NoReturn:
    raise click.BadParameter(why, param_hint="--dim")


def input_shapes(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]] | None:
    """Parse the values of --input-shape: ("x=1,3,h", "y=") gives {"x": (1, 3, "h"), "y": ()}; None
    for no texts. Raises click.BadParameter for a text without NAME=, and for a name given twice. A
    size that is no number is a name, even "-1": `load` checks sizes."""
    found: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not (equals and name) or name in found:
            raise click.BadParameter(
                f"{text!r} is not NAME=SIZE,SIZE,..., once for each input",
                param_hint="--input-shape",
            )
        words = [word.strip() for word in sizes.split(",")] if sizes else []
        found[name] = tuple(int(w) if w.isdecimal() and len(w) < 20 else w for w in words)
    return found or None


def assumed(types: Mapping[str, Type], chosen: Mapping[str, int]) -> dict[str, int]:
    """Free dimensions without a chosen size -> the size that they count as, 1."""
    return {d: 1 for d in free_dimensions(types) if d not in chosen}


def assumption(sizes: Mapping[str, int]) -> str:
    """A message about assumed sizes: "N = 1; --dim N=SIZE chooses"."""
    shown = ", ".join(f"{d} = {n}" for d, n in sizes.items())
    return f"{shown}; {dim_options(sizes)} chooses"


def dim_options(names: Iterable[str]) -> str:
    """The options that would choose sizes: "--dim N=SIZE --dim T=SIZE"."""
    return " ".join(f"--dim {name}=SIZE" for name in names)


def signature_of(
    name: str, types: Mapping[str, Type], chosen: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """The input shapes of the model `name`; a free dimension has the size that `chosen` has for its
    name, else 1. Raises InputShapeError for an input of unknown rank."""
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
    """A context in which an error about sizes gets a note that says which sizes were not chosen."""
    try:
        yield
    except UNFIT as error:
        free = list(assumed(types, chosen))
        if free:
            error.add_note(f"{', '.join(free)} counted as 1, which {dim_options(free)} changes")
        raise
