"""The files from which models are read: mapping them, recording them, and noticing changes."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from tinsmith.errors import ModelFileError

NONBLOCK = getattr(os, "O_NONBLOCK", 0)
State: TypeAlias = tuple[int, ...]
"""Size, times of writing and of change, inode and device of a file: differs after any change."""


def state_of(path: Path) -> State:
    """Return the state (size, times, ...) of a file, by which changes are noticed. Raises
    OSError."""
    return _state(os.stat(path))


def _state(info: os.stat_result) -> State:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev


class MappedFile(mmap.mmap):
    """The bytes of a file, mapped read-only, with its path and its state at that time.

    `checks` are functions that raise ModelFileError if a part of the mapping is damaged. As they
    read all of the part, only `check_unchanged` calls them, before the part is used.
    """

    checks: tuple[Callable[[MappedFile], object], ...] = ()
    path: Path
    state: State

    def changed(self) -> str:
        """Return how the file was changed in place since it was mapped ("was truncated"); "" if it
        was not. A file that was removed or replaced by a rename counts as unchanged: the mapping
        keeps its bytes."""
        if self.size() < len(self):
            return "was truncated"
        try:
            now = state_of(self.path)
        except OSError:
            return ""
        return "was written to" if now[3:] == self.state[3:] and now[1] != self.state[1] else ""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for pipes, sockets and devices, on
    which reading might block or never end."""
    file = open(path, "rb", opener=lambda p, flags: os.open(p, flags | NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


class Files(dict[Path, State]):
    """The files from which one model is read: path -> state when it was opened. Importers open a
    model's files only by these methods, so `Graph.files` has all of them."""

    def map(self, path: Path) -> MappedFile | bytes:
        """Map the file at `path` and record it; b"" for an empty one, which cannot be mapped.
        Raises OSError."""
        with open_file(path) as file:
            return self.map_open(file, path)

    def map_open(self, file: BinaryIO, path: Path) -> MappedFile | bytes:
        """As `map`, for a file that is open. Raises OSError, ValueError."""
        state = self[path.absolute()] = _state(os.fstat(file.fileno()))
        if not state[0]:
            return b""
        mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.path, mapped.state = path, state
        return mapped


def opened(source: Any) -> tuple[str, memoryview, Files]:
    """Open a model given by its path or as bytes. Return (file name, "" for bytes; its bytes; the
    files opened). Raises ModelFileError for a path without a file, or one that cannot be read."""
    files = Files()
    if isinstance(source, bytes | bytearray | memoryview):
        return "", memoryview(source).cast("B"), files
    path = Path(source)
    if not path.exists():
        raise ModelFileError(f"there is no file {str(path)!r}")
    if not path.is_file():
        raise ModelFileError(f"{str(path)!r} is not a file")
    try:
        return path.name, memoryview(files.map(path)), files
    except OSError as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {error}") from error


def mappings(arrays: Iterable[np.ndarray[Any, Any]]) -> set[MappedFile]:
    """Return the mapped files whose bytes these arrays are, directly or as views."""
    found: set[MappedFile] = set()
    for array in arrays:
        base: Any = array
        while base is not None and not isinstance(base, MappedFile):
            base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
        if base is not None:
            found.add(base)
    return found


def check_unchanged(arrays: Iterable[np.ndarray[Any, Any]]) -> None:
    """Raise ModelFileError if a file that these arrays map was changed in place, or one of its
    `checks` finds it damaged. The arrays would have other values, or, beyond the end of a truncated
    file, reading them would end the process."""
    for mapped in mappings(arrays):
        if how := mapped.changed():
            raise ModelFileError(
                f"{mapped.path} {how} while its weights were in use; load the model again, and "
                "replace such files by a rename"
            )
        for check in mapped.checks:
            check(mapped)
        mapped.checks = ()


def release(arrays: Iterable[np.ndarray[Any, Any]]) -> None:
    """Let the system free the memory in which the files of these arrays are cached; they are read
    again at the next access."""
    for mapped in mappings(arrays):
        if hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                mapped.madvise(mmap.MADV_DONTNEED)
