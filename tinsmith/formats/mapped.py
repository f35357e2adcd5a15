"""Files that arrays are mapped from: which they are, and letting go of what was read of them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tinsmith.errors import ModelFileError

NONBLOCK = getattr(os, "O_NONBLOCK", 0)


class MappedFile(mmap.mmap):
    """A file's bytes, mapped read-only, with its path and what told it from others. `checks`, of
    the mapping, raise ModelFileError where parts of it are damaged; they read those, so they wait
    until others do."""

    checks: tuple[Callable[[MappedFile], object], ...] = ()
    path: Path
    identity: tuple[int, int]
    written: int

    def changed(self) -> str:
        """What was done to the file since it was mapped, or ''. One that was removed or replaced is
        not changed: its bytes stay."""
        if self.size() < len(self):
            return "was truncated"
        try:
            now = os.stat(self.path)
        except OSError:
            return ""
        same = (now.st_dev, now.st_ino) == self.identity
        return "was written to" if same and now.st_mtime_ns != self.written else ""


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened to read. Raises OSError, also for what would let its reader wait, or
    has no end: pipes, sockets, devices."""
    file = open(path, "rb", opener=lambda p, flags: os.open(p, flags | NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def map_file(path: Path) -> MappedFile | bytes:
    """The bytes of a file; an empty one cannot be mapped. Raises OSError."""
    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return map_open(file, path)


def map_open(file: BinaryIO, path: Path) -> MappedFile:
    """The bytes of an open file that is not empty. Raises OSError, ValueError."""
    mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    info = os.fstat(file.fileno())
    mapped.path, mapped.identity = path, (info.st_dev, info.st_ino)
    mapped.written = info.st_mtime_ns
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
