"""Tinsmith's own file format: named sections of bytes after a JSON index, page-aligned so that they
can be mapped into memory.

    bytes 0..7    "TINSMITH"
    bytes 8..15   length of the index, little-endian
    index         JSON {"version": 1, "sections": {name: [offset, length, check]}, ...}
    sections      each from a multiple of 4096

A check is the section's blake2b in hex, or, for a section of `LARGE` bytes or more, "sums:" and the
blake2b of the 64-bit sums of its pages (as fast as reading memory).

Reading executes and unpickles nothing.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.formats.mapped import Files, MappedFile, open_file
from tinsmith.formats.whole import whole_file
from tinsmith.hashing import blake2b
from tinsmith.plain import decode

T = TypeVar("T")
Hook = Callable[[dict[str, Any]], Any]

MAGIC = b"TINSMITH"
VERSION = 1
PAGE = 4096
MAX_INDEX = 64 << 20
LARGE = 1 << 20
Table = dict[str, tuple[int, int, str]]
"""Name of a section -> (offset, length, check)."""


def digest(data: Any) -> str:
    """Return the check of a section's bytes."""
    view = np.frombuffer(data, np.uint8)
    if view.size < LARGE:
        return blake2b(view.data, digest_size=16).hexdigest()
    whole = view.size // PAGE * PAGE
    sums = np.add.reduce(view[:whole].view(np.uint64).reshape(-1, PAGE // 8), axis=1)
    return "sums:" + blake2b(sums.tobytes() + view[whole:].tobytes(), digest_size=16).hexdigest()


def write_container(path: Path, sections: Mapping[str, Any], **index: Any) -> None:
    """Write a container of `sections` (name -> bytes-like), with `index` as further entries of its
    JSON index. The file is written under another name beside `path`, then renamed.

    Raises OSError if it cannot be written.
    """
    longest: Table = {name: (1 << 62, 1 << 62, "sums:" + "0" * 32) for name in sections}
    with whole_file(path) as file:
        _put(file, sections, _pages(16 + len(_index(longest, index))), {}, index)


def _pages(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of PAGE."""
    return -(-nbytes // PAGE) * PAGE


def _index(table: Table, index: Mapping[str, Any]) -> bytes:
    document = {"version": VERSION, "sections": table, **index}
    return json.dumps(document, separators=(",", ":")).encode()


def _put(
    file: BinaryIO, sections: Mapping[str, Any], at: int, table: Table, index: Mapping[str, Any]
) -> None:
    """Write sections from the offset `at` on, add them to `table`, and write the index of all in
    `table` at the beginning. Raises OSError if the index does not fit before the sections."""
    for name, data in sections.items():
        view = memoryview(data).cast("B")
        file.seek(at)
        file.write(view)
        table[name] = (at, view.nbytes, digest(view))
        at = _pages(at + view.nbytes)
    file.truncate(max(at, 1))
    head = _index(table, index)
    if 16 + len(head) > min((offset for offset, _, _ in table.values()), default=at):
        raise OSError(f"the index of the file has {len(head)} bytes, which is too large")
    file.seek(0)
    file.write(MAGIC + struct.pack("<Q", len(head)) + head)


class Draft:
    """A container whose first section is written in parts, before the others are known: `put`
    writes a part, `finish` maps the section, `commit` adds the others and gives the file its name,
    `discard` deletes the file unless it has its name. The mapping stays valid after either.

    All but `discard` raise OSError if the file cannot be written.
    """

    START = 1 << 20  # space for the index; unwritten parts take no space on disk

    def __init__(self, path: Path, first: str) -> None:
        self.path, self.first = path, first
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        self._file = open(self._temporary, "x+b")  # noqa: SIM115 - closed by commit or discard
        self._size = 0
        self._check = ""

    def put(self, offset: int, array: np.ndarray[Any, Any]) -> None:
        """Write the bytes of an array at an offset, in bytes, in the first section."""
        self._file.seek(self.START + offset)
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def finish(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the first section as a read-only array of bytes that maps the file: `nbytes`
        bytes, followed by a page of zeros."""
        self._size = nbytes + PAGE
        # Written, not left as a hole: on a full disk in memory, reading a hole ends the process.
        self._file.seek(self.START + nbytes)
        self._file.write(bytes(PAGE))
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        section = np.frombuffer(mapped, np.uint8, self._size, self.START)
        self._check = digest(section)
        return section

    def commit(self, sections: Mapping[str, Any]) -> None:
        """Write the other sections and the index, and rename the file to its path."""
        table: Table = {self.first: (self.START, self._size, self._check)}
        _put(self._file, sections, _pages(self.START + self._size), table, {})
        self._file.close()
        os.replace(self._temporary, self.path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def is_container(path: Path) -> bool:
    """Whether a file begins as containers do; False for one that cannot be read."""
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


class Container:
    """A container file, mapped read-only: `index` is its JSON; `array`, `text` and `data` read
    sections. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError where the file is not a whole, well-formed container."""
        self.path, self.files = path, Files()
        try:
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(16)
                if head[:8] != MAGIC or len(head) < 16:
                    raise ModelFileError(f"{path} is not a Tinsmith file")
                (length,) = struct.unpack("<Q", head[8:])
                if length > min(MAX_INDEX, size):
                    raise ModelFileError(f"{path} is truncated or corrupt: its index does not fit")
                self.index = json.loads(file.read(length))
                self._sections = self._checked(size)
                mapped = self.files.map_open(file, path)
                assert isinstance(mapped, MappedFile)  # it is not empty
                self._map = mapped
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} has a corrupt index: {error}") from error

    def _checked(self, size: int) -> Table:
        """Return the table of sections from the index. Raises ModelFileError where the format's
        version is unknown or a section is not inside the file of `size` bytes, ValueError where the
        index is malformed."""
        if not isinstance(self.index, dict) or self.index.get("version") != VERSION:
            raise ModelFileError(f"{self.path} has an unknown version of the format; write it anew")
        found = decode(Table, self.index.get("sections"))
        for name, (offset, length, _) in found.items():
            if min(offset, length) < 0 or offset + length > size:
                raise ModelFileError(
                    f"{self.path} is truncated or corrupt: section {name!r} does not fit"
                )
        return found

    def within(self, prefix: str) -> Container:
        """Return a view of the container with only the sections whose names begin with `prefix`,
        under names without it."""
        part = copy(self)
        cut = len(prefix)
        rows = self._sections.items()
        part._sections = {n[cut:]: row for n, row in rows if n.startswith(prefix)}
        return part

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def array(self, name: str, *, check: bool = False) -> np.ndarray[Any, Any]:
        """Return the bytes of a section as a read-only array that maps the file. Raises
        ModelFileError for a section that does not exist, and, with `check`, for a damaged one."""
        if name not in self._sections:
            raise ModelFileError(
                f"{self.path} has no section {name!r}; it has {', '.join(self._sections)}"
            )
        return _section(self._map, name, self._sections[name], check)

    def array_checked_later(self, name: str) -> np.ndarray[Any, Any]:
        """As `array`, for a large section that loading must not read: it is checked when
        `mapped.check_unchanged` is called, before its bytes are used."""
        data = self.array(name)
        later = partial(_section, name=name, row=self._sections[name], check=True)
        self._map.checks = (*self._map.checks, later)
        return data

    def text(self, name: str) -> str:
        try:
            return self.array(name, check=True).tobytes().decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: section {name!r} is not text") from error

    def data(self, name: str, hint: type[T], hook: Hook | None = None) -> T:
        """Read the JSON of a section as a value of the type `hint` (`plain.decode`). `hook` may
        replace JSON objects, as json's `object_hook`. Raises ModelFileError if it does not fit."""
        try:
            return decode(hint, json.loads(self.text(name), object_hook=hook))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{self.path}: section {name!r} is corrupt: {error}") from error


def _section(
    mapped: MappedFile, name: str, row: tuple[int, int, str], check: bool
) -> np.ndarray[Any, Any]:
    offset, length, wanted = row
    data = np.frombuffer(mapped, np.uint8, length, offset)
    if check and digest(data) != wanted:
        raise ModelFileError(f"{mapped.path} is corrupt: section {name!r} does not have its hash")
    return data
