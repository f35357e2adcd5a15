"""Arrays in .npy and .npz files: written under any names, read without trusting the file.

A sequence, map or optional is stored as several arrays: `parts` splits a value into named arrays,
`whole` puts it together again.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import FileNameError, MissingFile, ModelFileError
from tinsmith.formats import HEAD, describe
from tinsmith.formats.mapped import open_file
from tinsmith.formats.whole import whole_file

KEYS = ".keys"
UNNAMED = "arr_0"
"""The name that `numpy.savez` gives to an array without a name."""

ARRAY_MAGICS = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of .npy files, and of .npz files with and without arrays."""


def npz_path(path: str | os.PathLike[str]) -> Path:
    """The path of the file that `write_npz` writes: .npz is added to a name without a suffix.
    Raises FileNameError for any other suffix."""
    file = Path(path)
    if file.suffix not in ("", ".npz"):
        raise FileNameError(
            f"arrays are written as .npz, not as {str(file)!r} says; "
            f"name the file {str(file.with_suffix('.npz'))!r}"
        )
    return file if file.suffix else file.with_name(f"{file.name}.npz")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> Path:
    """Write values as an .npz file that `numpy.load` reads, under any names (`numpy.savez` reserves
    some); each value as its `parts`, text as numpy's strings. The file is written under another
    name, then renamed. Return its path, `npz_path`. Raises FileNameError, and ModelFileError if it
    cannot be written."""
    file = npz_path(path)
    try:
        with whole_file(file) as whole, zipfile.ZipFile(whole, "w", allowZip64=True) as out:
            for name, array in (p for n, v in arrays.items() for p in parts(n, v).items()):
                with out.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    plain = array.astype(str) if array.dtype == object else array
                    np.lib.format.write_array(entry, plain, allow_pickle=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{str(file)!r} cannot be written: {why}") from error
    return file


def parts(name: str, value: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays, by name, that a file holds for a value called NAME:

    array          NAME
    None           nothing; also an empty list
    map            NAME: the values; NAME.keys: the keys
    list of maps   the same, with a row of values for each map, if all have the same keys
    other lists    NAME[0], NAME[1], ...: the parts of each element"""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        table = {key: value[key] for key in sorted(value)}
        return {name: np.array([*table.values()]), name + KEYS: np.array([*table])}
    if not isinstance(value, list | tuple):
        return {name: np.asanyarray(value)}
    if value and all(isinstance(m, Mapping) and m.keys() == value[0].keys() for m in value):
        keys = sorted(value[0])
        rows = np.array([[m[key] for key in keys] for m in value])
        return {name: rows, name + KEYS: np.array(keys)}
    return {n: a for i, v in enumerate(value) for n, a in parts(f"{name}[{i}]", v).items()}


def whole(name: str, arrays: Mapping[str, Any]) -> Any:
    """The value whose `parts` are in `arrays` under `name`; None where there are none. Raises
    ModelFileError if the numbers of keys and values of a map differ."""
    if name not in arrays:
        items: list[Any] = []
        while any(n.startswith(f"{name}[{len(items)}]") for n in arrays):
            items.append(whole(f"{name}[{len(items)}]", arrays))
        return items or None
    if (keys := arrays.get(name + KEYS)) is None:
        return arrays[name]
    numbers = np.asarray(arrays[name])
    if numbers.ndim not in (1, 2) or np.shape(keys) != numbers.shape[-1:]:
        raise ModelFileError(
            f"{name!r} holds {list(numbers.shape)} numbers, {name + KEYS!r} {np.size(keys)} keys"
        )
    rows = numbers.reshape(-1, np.size(keys)).tolist()
    maps = [dict(zip(np.asarray(keys).tolist(), row, strict=True)) for row in rows]
    return maps if numbers.ndim == 2 else maps[0]


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of an .npz file by name, or that of an .npy file under the file's name
    without its suffix. Nothing is unpickled. Raises ModelFileError."""
    file = Path(path)
    try:
        with open_file(file) as opened:
            head = opened.read(HEAD)
        if not head.startswith(ARRAY_MAGICS):
            raise ModelFileError(
                f"{file} cannot be read: it is neither .npy, .npz nor a picture named as one, but "
                f"{describe(head)}"
            )
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {file.stem: loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError as error:
        raise MissingFile(f"there is no file {str(file)!r}") from error
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{file} cannot be read as .npy or .npz: {why}") from error
    except ModelFileError:
        raise
    except Exception as error:  # numpy evaluates headers, and zip files can be broken in any way
        raise ModelFileError(f"{file} cannot be read as .npy or .npz: {error}") from error
