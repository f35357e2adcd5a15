"""Files that models are read from: which they are, what is mapped of them, and letting go of it."""

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
"""What changes whenever a file is written: its size, times of writing and of change, inode, device.
"""


def state_of(path: Path) -> State:
    """The state of the file at a path. Raises OSError."""
    return _state(os.stat(path))


def _state(info: os.stat_result) -> State:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev


class MappedFile(mmap.mmap):
    """A file's bytes, mapped read-only, with its path and its state then. `checks`, of the mapping,
    raise ModelFileError where parts of it are damaged; they read those, so they wait until others
    do."""

    checks: tuple[Callable[[MappedFile], object], ...] = ()
    path: Path
    state: State

    def changed(self) -> str:
        """What was done to the file since it was mapped, or ''. One that was removed or replaced is
        not changed: its bytes stay."""
        if self.size() < len(self):
            return "was truncated"
        try:
            now = state_of(self.path)
        except OSError:
            return ""
        return "was written to" if now[3:] == self.state[3:] and now[1] != self.state[1] else ""


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened to read. Raises OSError, also for what would let its reader wait, or
    has no end: pipes, sockets, devices."""
    file = open(path, "rb", opener=lambda p, flags: os.open(p, flags | NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


class Files(dict[Path, State]):
    """The files that one model is read from, each in its state when it was opened. Who reads a
    model opens all its files here: `Graph.files` names them, whatever becomes of their bytes."""

    def map(self, path: Path) -> MappedFile | bytes:
        """The bytes of a file; an empty one cannot be mapped. Raises OSError."""
        with open_file(path) as file:
            return self.map_open(file, path)

    def map_open(self, file: BinaryIO, path: Path) -> MappedFile | bytes:
        """The bytes of an open file; an empty one cannot be mapped. Raises OSError, ValueError."""
        state = self[path.absolute()] = _state(os.fstat(file.fileno()))
        if not state[0]:
            return b""
        mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.path, mapped.state = path, state
        return mapped


def opened(source: Any) -> tuple[str, memoryview, Files]:
    """The file name ("" for bytes), the bytes, and the files of a model that is given by its path
    or as bytes. Raises ModelFileError."""
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
    """The files from which arrays are mapped."""
    found: set[MappedFile] = set()
    for array in arrays:
        base: Any = array
        while base is not None and not isinstance(base, MappedFile):
            base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
        if base is not None:
            found.add(base)
    return found


def check_unchanged(arrays: Iterable[np.ndarray[Any, Any]]) -> None:
    """Raises ModelFileError where a file of the arrays is damaged or was changed in place: they
    would hold other numbers, or, past the end of a file, end the process by a signal."""
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
    """Let the system take back the memory that the arrays' files take: it is read again if
    anybody looks."""
    for mapped in mappings(arrays):
        if hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                mapped.madvise(mmap.MADV_DONTNEED)
