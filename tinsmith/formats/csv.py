"""Arrays in .csv files: a row of numbers for each line, read without trusting the file.

Numbers are separated by commas, or semicolons, or blanks where a file has neither. A file does not
tell types and axes, so its reader does: `read_csv` returns [rows, columns] of the wanted type,
`fit_csv` reshapes them in row-major order, as other engines write their tensors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.errors import FileNameError, InputShapeError, ModelFileError, counted
from tinsmith.formats.mapped import open_file
from tinsmith.formats.whole import whole_file
from tinsmith.graph import Array

SUFFIX = ".csv"
ENCODING = "utf-8-sig"
"""UTF-8 with or without a byte order mark."""
DENSEST = 4
"""Bytes of memory for each byte of a file, at most: two characters are a number of eight bytes."""
DIGITS = {2: 5, 4: 9, 8: 17}
"""Bytes of a float -> decimal digits that distinguish it from all others (IEEE 754)."""
NUMBERS = "biufV"
"""The kinds of numpy's dtypes that are numbers; V are those of ml_dtypes."""
EXACT = 2**53
"""Whole numbers below it are exact as float64."""


def is_csv(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() == SUFFIX


def read_csv(path: str | os.PathLike[str], dtype: Any) -> Array:
    """Read a .csv file as an array [rows, columns] of `dtype`. Raises ModelFileError for rows of
    different lengths, text that is no number, numbers that the type does not hold, and a file that
    cannot be read; BudgetExceeded for one that is too large."""
    file, wanted = Path(path), np.dtype(dtype)
    if wanted.kind not in NUMBERS:
        raise ModelFileError(f"{file} cannot be read: .csv files hold numbers, not {wanted}")
    try:
        with open_file(file) as opened:
            size = os.fstat(opened.fileno()).st_size
        budget.check("array", DENSEST * size, f"the numbers of {file}")
        found = _whole(file, wanted) if wanted.kind in "iu" else None
        found = _parsed(file, np.dtype(np.float64)) if found is None else found
        with np.errstate(over="ignore", invalid="ignore"):
            cast = found.astype(wanted)
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{file} cannot be read as .csv: {why}") from error
    if wanted.kind in "biu" and (off := np.argwhere(cast != found)).size:
        row, column = off[0].tolist()
        raise ModelFileError(
            f"{file} cannot be read: number {column + 1} of row {row + 1} is "
            f"{found[row, column]}, and {wanted} is wanted"
        )
    return cast


def fit_csv(
    array: Array, shape: Sequence[int | str] | None, what: str, source: str | os.PathLike[str]
) -> Array:
    """Reshape an array [rows, columns] of `read_csv` to a wanted shape, in row-major order.

    `shape` may have one free dimension, whose size follows from the number of elements, or be two
    free ones, rows and columns; None: any. `what` ("the input 'x'") and `source` are for messages.
    Raises InputShapeError if the numbers do not fit.
    """
    if shape is None:
        return array
    free = [d for d in shape if not isinstance(d, int)]
    if len(free) == len(shape) == 2:
        return array
    if len(free) > 1:
        raise InputShapeError(
            f"{source} holds {array.size} numbers, which do not say how large {what}, "
            f"{list(shape)}, is: give --dim {free[0]}=SIZE"
        )
    known = prod(d for d in shape if isinstance(d, int))
    if free and known and array.size % known == 0:
        return array.reshape([d if isinstance(d, int) else array.size // known for d in shape])
    if free or known != array.size:
        raise InputShapeError(
            f"{source} holds {array.size} numbers in {counted(len(array), 'row')}, and {what}, "
            f"{list(shape)}, has {'a multiple of ' * bool(free)}{known}"
        )
    return array.reshape([int(d) for d in shape])


def write_csv(path: str | os.PathLike[str], name: str, array: Any) -> None:
    """Write an array as a .csv file: a line for each row of its last axis, floats with enough
    digits to read the same values. The file is written under another name, then renamed.

    `name` is the array's in messages. Raises FileNameError for a value that is no array of numbers,
    ModelFileError if the file cannot be written.
    """
    file = Path(path)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in NUMBERS:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise FileNameError(
            f"{name!r} is {kind}, and a .csv holds an array of numbers; name the file "
            f"{str(file.with_suffix('.npz'))!r}"
        )
    plain = {"b": np.uint8, "V": np.float32}.get(array.dtype.kind)
    numbers = array if plain is None else array.astype(plain)
    digits = f"%.{DIGITS.get(numbers.itemsize, 17)}g" if numbers.dtype.kind == "f" else "%d"
    columns = numbers.shape[-1] if numbers.ndim else 1
    try:
        with whole_file(file) as whole:
            np.savetxt(whole, numbers.reshape(numbers.size // (columns or 1), columns), digits, ",")
    except OSError as error:
        raise ModelFileError(f"{str(file)!r} cannot be written: {error.strerror}") from error


def _whole(file: Path, wanted: np.dtype[Any]) -> Array | None:
    """Read a file of integers as int64 or uint64, exactly. None where some are written as floats
    ("1e3"), but all are small enough to be exact as float64, in which the caller then reads them.
    Raises ModelFileError for other files."""
    try:
        return _parsed(file, np.dtype(np.uint64 if wanted.kind == "u" else np.int64))
    except ModelFileError:
        found = _parsed(file, np.dtype(np.float64))
    if (np.abs(found) < EXACT).all():
        return None
    raise ModelFileError(f"{file} cannot be read: its numbers are not all of {wanted}")


def _parsed(file: Path, dtype: np.dtype[Any]) -> Array:
    """Read the numbers of a file as [rows, columns] of `dtype`. Raises ModelFileError, with line
    and field, for text that is no such number."""
    separator = _separator(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of no data
            return np.loadtxt(
                file, dtype, comments=None, delimiter=separator, ndmin=2, encoding=ENCODING
            )
    except ValueError as error:
        raise ModelFileError(
            f"{file} cannot be read as .csv: {_fault(file, separator) or error}"
        ) from error


def _separator(file: Path) -> str | None:
    """Return the separator of the numbers in the first row: "," or ";"; None: blanks."""
    with open(file, "rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    return next((s for s in ",;" if s.encode() in first), None)


def _fault(file: Path, separator: str | None) -> str:
    """Describe, for a message, the first line with text that is no number, or with another number
    of fields than the lines before it; "" if there is none."""
    columns = -1
    try:
        with open(file, encoding=ENCODING) as lines:
            for number, line in enumerate(lines, 1):
                fields = line.strip("\n\r").split(separator)
                if not line.strip():
                    continue
                for k, field in enumerate(fields, 1):
                    if not _is_number(field):
                        shown = field.strip()[:20]
                        hint = "; names have no place in it" * (number == 1 and shown != "")
                        return f"line {number}, field {k}: {shown!r} is no number{hint}"
                if columns not in (-1, len(fields)):
                    held = counted(len(fields), "number")
                    return f"line {number} holds {held}, those before it {columns}"
                columns = len(fields)
    except UnicodeDecodeError:
        return "it is no text"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
