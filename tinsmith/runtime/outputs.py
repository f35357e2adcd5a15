"""Checks of the outputs that a caller asks for, and of the caller's arrays for results (`out`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.errors import OutputError, suggest
from tinsmith.graph import Array

EFFORT = 1000  # numpy's `max_work` for deciding whether strided views overlap; estimated


def check_names(model: str, names: Any) -> list[str]:
    """Return the names of outputs that a caller asks for, as a list. Raises OutputError unless they
    are a list or tuple of strings, not empty, none twice. `model` need not have them."""
    listed = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
    if not listed or not names:
        hint = f"; [{names!r}] is one" if isinstance(names, str) else ""
        raise OutputError(
            f"the outputs wanted of {model} must be a list of names, or None for its own, not "
            f"{names!r}{hint}"
        )
    if repeated := [n for n in names if names.count(n) > 1]:
        raise OutputError(f"the outputs wanted of {model} have {repeated[0]!r} twice")
    return list(names)


def arranged(model: str, names: Sequence[str], out: Any) -> list[Array | None]:
    """Return the caller's arrays for the results `names`, in order, None for results that get new
    arrays. `out` is an array for a single result, a dict by name, or a list with one for each.
    Raises OutputError."""
    if isinstance(out, np.ndarray) and len(names) == 1:
        found: list[Any] = [out]
    elif isinstance(out, Mapping):
        for name in out:
            if name not in names:
                raise OutputError(
                    f"out has an array for {name!r}, which is no result of this call of {model}."
                    f"{suggest(str(name), names)} They are {', '.join(names)}."
                )
        found = [out.get(n) for n in names]
    elif isinstance(out, list | tuple) and len(out) == len(names):
        found = list(out)
    else:
        kind = f"{len(out)} arrays" if isinstance(out, list | tuple) else type(out).__name__
        one = "an array" if len(names) == 1 else "a dict of arrays by name"
        raise OutputError(
            f"out must be {one} or a list of {len(names)}, for {', '.join(names)} of {model}, not "
            f"{kind}"
        )
    for name, array in zip(names, found, strict=True):
        if array is not None and not isinstance(array, np.ndarray):
            raise OutputError(
                f"out for {name!r} of {model} must be a numpy array, not {type(array).__name__}"
            )
    return found


def check(name: str, array: Array, dtype: np.dtype[Any], dims: Sequence[int] | None) -> None:
    """Raise OutputError if a result of this dtype and dims cannot be written into an array. `dims`
    is None if unknown, and has negative numbers for unknown sizes."""
    if array.dtype != dtype:
        raise OutputError(f"out for {name!r} must be of {dtype.name}, not {array.dtype.name}")
    if dims is not None and (
        len(dims) != array.ndim or any(0 <= d != n for d, n in zip(dims, array.shape, strict=True))
    ):
        shown = ", ".join("?" if d < 0 else str(d) for d in dims)
        raise OutputError(f"out for {name!r} must have shape [{shown}], not {list(array.shape)}")
    if not array.flags.writeable:
        raise OutputError(f"out for {name!r} is read-only")


def check_apart(names: Sequence[str], out: Sequence[Array | None]) -> None:
    """Raise OutputError if two arrays share memory: one result would overwrite the other."""
    given = [(n, a) for n, a in zip(names, out, strict=True) if a is not None]
    for i, (name, array) in enumerate(given):
        for other, earlier in given[:i]:
            if np.may_share_memory(array, earlier, max_work=EFFORT):  # pyright: ignore[reportArgumentType]
                raise OutputError(f"out for {other!r} and for {name!r} share memory")


def direct(array: Array | None, inputs: Sequence[Any]) -> bool:
    """Whether code may write a result directly into a caller's array: it is contiguous, writeable
    and overlaps no input. If not, the result is copied into it after the run."""
    return (
        array is not None
        and array.flags.carray
        and not any(isinstance(x, np.ndarray) and np.may_share_memory(array, x) for x in inputs)
    )


def copy_into(name: str, array: Array, found: Any) -> Array:
    """Copy a result into a caller's array, and return the array. Raises OutputError as `check`, and
    for a result that is no array."""
    if not isinstance(found, np.ndarray):
        raise OutputError(f"{name!r} is no tensor, and cannot be written into an array")
    if found is not array:
        check(name, array, found.dtype, found.shape)
        array[...] = found
    return array
