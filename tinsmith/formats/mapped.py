"""Files that arrays are mapped from: which they are, and letting go of what was read of them."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


class MappedFile(mmap.mmap):
    """A file's bytes, mapped read-only, with its path."""

    path: Path


def map_file(path: Path) -> MappedFile | bytes:
    """The bytes of a file; an empty one cannot be mapped. Raises OSError."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.path = path
    return mapped


def mappings(arrays: Iterable[np.ndarray[Any, Any]]) -> set[MappedFile]:
    """The files from which arrays are mapped."""
    found: set[MappedFile] = set()
    for array in arrays:
        base: Any = array
        while base is not None and not isinstance(base, MappedFile):
            base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
        if base is not None:
            found.add(base)
    return found


def release(arrays: Iterable[np.ndarray[Any, Any]]) -> None:
    """Let the system take back the memory that the arrays' files take: it is read again if
    anybody looks."""
    for mapped in mappings(arrays):
        if hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                mapped.madvise(mmap.MADV_DONTNEED)
