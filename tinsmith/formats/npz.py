"""Arrays in .npy and .npz files: written under any names, read without trusting the file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import FileNameError, ModelFileError
from tinsmith.formats import HEAD, describe
from tinsmith.formats.mapped import open_file

ARRAY_MAGICS = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
"""How .npy files begin, and .npz files with and without arrays."""


def npz_path(path: str | os.PathLike[str]) -> Path:
    """The file that `write_npz` writes: .npz is added to a name without a suffix. Raises
    FileNameError for the suffix of something else."""
    file = Path(path)
    if file.suffix not in ("", ".npz"):
        raise FileNameError(
            f"arrays are written as .npz, not as {str(file)!r} says; "
            f"name the file {str(file.with_suffix('.npz'))!r}"
        )
    return file if file.suffix else file.with_name(f"{file.name}.npz")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> Path:
    """Write arrays by name, whatever the names are (`numpy.savez` has one of its own), as
    `numpy.load` reads them; the file, by `npz_path`. Raises ModelFileError."""
    file = npz_path(path)
    try:
        with zipfile.ZipFile(file, "w", allowZip64=True) as out:
            for name, array in arrays.items():
                with out.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{str(file)!r} cannot be written: {why}") from error
    return file


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file by name, or that of an .npy file by the file's name; never
    unpickles. Raises ModelFileError."""
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
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{file} cannot be read as .npy or .npz: {why}") from error
    except ModelFileError:
        raise
    except Exception as error:  # numpy evaluates headers, and zip files can be broken in any way
        raise ModelFileError(f"{file} cannot be read as .npy or .npz: {error}") from error
