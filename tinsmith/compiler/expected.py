"""The expected outputs with which `verify` compares: arrays by name, or files that hold them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from tinsmith.errors import InputNameError, InputShapeError, InputTypeError, ModelFileError, suggest
from tinsmith.formats.csv import fit_csv, is_csv, read_csv
from tinsmith.formats.npz import read_arrays, whole

REFERENCE, ONNXRUNTIME = "reference", "onnxruntime"
ONLY = ""
"""The name of an array from a file without names (.npy, .csv), for the model's only output."""
PART = re.compile(r"(.+)\[(\d+(?: *, *\d+)*)\]")
"""'y[0,5]': a name, and the indices of its first axes."""


def expected_of(against: Any) -> tuple[dict[str, Any], str]:
    """Return (expected, source). `expected`: name (`ONLY` for a file without names) -> array, or
    path of a .csv file, which is read when the output's shape is known. `source`: its origin, for
    messages.

    against   a mapping of names to arrays or paths; a path of an .npz, .npy or .csv file; or
              "reference" or "onnxruntime", for which there are no arrays yet: ({}, against)

    Raises InputTypeError for another type, ModelFileError for another or unreadable file."""
    if isinstance(against, Mapping):
        return {n: _held(v) for n, v in against.items()}, "the given mapping"
    if not isinstance(against, (str, os.PathLike)):
        raise InputTypeError(
            f"cannot compare with {type(against).__name__}: give 'reference', 'onnxruntime', an "
            ".npz, .npy or .csv file, or a mapping of the outputs' names to arrays"
        )
    text = os.fspath(against)
    if text in (REFERENCE, ONNXRUNTIME):
        return {}, text
    if text.endswith(".npz"):
        return dict(read_arrays(text)), text
    if not text.endswith(".npy") and not is_csv(text):
        raise ModelFileError(
            f"cannot compare with {text!r}: give 'reference', 'onnxruntime' or an .npz, .npy or "
            f".csv file.{meant(text)}"
        )
    return {ONLY: _held(text)}, text


def meant(text: str) -> str:
    """Return " Did you mean ...?" for a word that is nearly "reference" or "onnxruntime"; else
    ""."""
    return suggest(ONNXRUNTIME if text.lower() == "ort" else text, (REFERENCE, ONNXRUNTIME))


def _held(value: Any) -> Any:
    """Return the only array in the file at a path; arrays, and paths of .csv files, as they are.
    Raises ModelFileError."""
    if not is_path(value) or is_csv(value):
        return value
    arrays = read_arrays(value)
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise ModelFileError(f"{value} holds {len(arrays)} arrays ({', '.join(arrays)}), not one")


def wanted_of(expected: Mapping[str, Any], source: str, got: Mapping[str, Any]) -> dict[str, Any]:
    """Return name -> expected value for those outputs, and parts of outputs ("y[0,5]"), that
    `expected` names; .csv files are read. `got`: the computed outputs. Arrays under other names are
    ignored. Raises InputNameError if no output is named, for a file under another name, and for
    `ONLY` if there are several outputs; InputShapeError for a part that an output does not have;
    InputTypeError, InputShapeError, ModelFileError for a .csv file that is bad or does not fit."""
    if list(expected) == [ONLY]:
        if len(got) != 1:
            names = ", ".join(got)
            raise InputNameError(
                f"{source} says of which output it is by no name; NAME={source} does, with a name "
                f"of {names}"
            )
        expected = {next(iter(got)): expected[ONLY]}
    named = {n: v for n in got if (v := _of(n, got[n], expected)) is not None}
    parts = {n: v for n, v in expected.items() if n not in named and _is_part(n, got)}
    lost = [n for n, v in expected.items() if n not in {**named, **parts} and is_path(v)]
    if lost or not (named or parts):
        held = ", ".join(lost or expected) or "nothing"
        raise InputNameError(f"{source} holds {held}, but no output of the model: {', '.join(got)}")
    ours = parts_of(got, parts)
    return {n: _shaped(n, v, ours[n]) for n, v in (named | parts).items()}


def is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _of(name: str, got: Any, expected: Mapping[str, Any]) -> Any:
    """Return the expected value of the output `name`; None if there is none. `expected` may have a
    sequence or map in pieces, as in an .npz ("y[0]", "y[1]": `formats.npz.whole`). If `got` is an
    array, and the first name means a part of one ("y[0,5]"), only the whole name counts."""
    if isinstance(got, np.ndarray) and PART.fullmatch(next(iter(expected), "")):
        return expected.get(name)
    return whole(name, expected)


def _is_part(name: str, got: Mapping[str, Any]) -> bool:
    found = PART.fullmatch(name)
    return found is not None and isinstance(got.get(found[1]), np.ndarray)


def parts_of(got: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return all outputs `got` and, for names such as "y[0,5]" in `names`, parts of outputs, here
    y[0, 5], by name. Raises InputShapeError for indices beyond an array."""
    found = dict(got)
    for name in names:
        if name in found or (match := PART.fullmatch(name)) is None:
            continue
        array, at = got[match[1]], tuple(int(i) for i in match[2].split(","))
        if len(at) > array.ndim or any(i >= n for i, n in zip(at, array.shape, strict=False)):
            raise InputShapeError(f"there is no part {name}: {match[1]} is {list(array.shape)}")
        found[name] = np.asarray(array[at])
    return found


def _shaped(name: str, value: Any, like: Any) -> Any:
    """Return an expected value; for the path of a .csv file, its numbers in the type and shape of
    the output `like`. Raises as `wanted_of`."""
    if not is_path(value):
        return value
    if not isinstance(like, np.ndarray):
        raise InputTypeError(f"{value} holds numbers, and the output {name!r} is no array")
    array = read_csv(value, like.dtype)
    if array.size != like.size:
        for axis in range(1, like.ndim):
            if array.size == prod(like.shape[axis:]):
                raise InputShapeError(
                    f"{value} holds {array.size} numbers, and the output {name!r}, "
                    f"{list(like.shape)}, has {like.size}; for a part of it, name the part: "
                    f"'{name}[{','.join('0' * axis)}]={value}' is the first"
                )
    return fit_csv(array, like.shape, f"the output {name!r}", value)
