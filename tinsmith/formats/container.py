"""Tinsmith's own file: named sections behind a JSON index, page-aligned so that they map.

    bytes 0..7    "TINSMITH"
    bytes 8..15   length of the index, little-endian
    index         JSON {"version": 1, "sections": {name: [offset, length, check]}, ...}
    sections      each from a multiple of 4096

A check is the section's blake2b in hex, or, of a section of `LARGE` bytes or more, "sums:" and the
blake2b of the 64-bit sums of its pages: as fast as memory, and good against damage.

Nothing in it is executed or unpickled by reading.
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
from typing import Any, TypeVar

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.formats.mapped import Files, MappedFile, open_file
from tinsmith.formats.whole import whole_file
from tinsmith.hashing import blake2b
from tinsmith.plain import Misfit, decode

T = TypeVar("T")
Hook = Callable[[dict[str, Any]], Any]

MAGIC = b"TINSMITH"
VERSION = 1
PAGE = 4096
MAX_INDEX = 64 << 20
LARGE = 1 << 20


def digest(data: Any) -> str:
    """What a section is checked by."""
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
    views = {name: memoryview(data).cast("B") for name, data in sections.items()}
    table: dict[str, tuple[int, int, str]] = {n: (0, v.nbytes, digest(v)) for n, v in views.items()}
    head = json.dumps({"version": VERSION, "sections": table, **index}, separators=(",", ":"))
    at = -(-(16 + len(head) + 24 * len(table) + 64) // PAGE) * PAGE
    for name, view in views.items():
        table[name] = (at, view.nbytes, table[name][2])
        at = -(-(at + view.nbytes) // PAGE) * PAGE
    head = json.dumps({"version": VERSION, "sections": table, **index}, separators=(",", ":"))
    with whole_file(path) as file:
        file.write(MAGIC + struct.pack("<Q", len(head.encode())) + head.encode())
        for name, view in views.items():
            file.seek(table[name][0])
            file.write(view)
        file.truncate(max(at, 1))


class Draft:
    """A container that is written while its first section is still being made: `put` writes parts
    of that section, `finish` maps it, `commit` adds the others and gives the file its name,
    `discard` drops it. The mapping stays valid whatever becomes of the file.

    All but `discard` raise OSError if the file cannot be written.
    """

    START = 1 << 20  # room for the index; what is not written takes no place on disk

    def __init__(self, path: Path, first: str) -> None:
        self.path, self.first = path, first
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        self._file = open(self._temporary, "x+b")  # noqa: SIM115 - closed by commit or discard
        self._size = 0
        self._check = ""

    def put(self, offset: int, array: np.ndarray[Any, Any]) -> None:
        """Write the bytes of an array at `offset`, in bytes, from the start of the first
        section."""
        self._file.seek(self.START + offset)
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def finish(self, nbytes: int) -> np.ndarray[Any, Any]:
        """The first section as a read-only array of bytes that maps the file: `nbytes`, and a page
        of zeros behind them."""
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
        """Write the other sections, and the index."""
        views = {name: memoryview(data).cast("B") for name, data in sections.items()}
        table: dict[str, tuple[int, int, str]] = {self.first: (self.START, self._size, self._check)}
        at = -(-(self.START + self._size) // PAGE) * PAGE
        for name, view in views.items():
            table[name] = (at, view.nbytes, digest(view))
            at = -(-(at + view.nbytes) // PAGE) * PAGE
        document = {"version": VERSION, "sections": table}
        head = json.dumps(document, separators=(",", ":")).encode()
        if 16 + len(head) > self.START:
            raise OSError(f"the index of {self.path} has {len(head)} bytes")
        for name, view in views.items():
            self._file.seek(table[name][0])
            self._file.write(view)
        self._file.truncate(max(at, 1))
        self._file.seek(0)
        self._file.write(MAGIC + struct.pack("<Q", len(head)) + head)
        self._file.close()
        os.replace(self._temporary, self.path)

    def discard(self) -> None:
        """Drop the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def is_container(path: Path) -> bool:
    """Whether a file begins as containers do."""
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


class Container:
    """A container file, mapped read-only: `index` is its JSON, `array` and `data` give its
    sections. Thread-safe; keep it alive while its arrays are used."""

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

    def _checked(self, size: int) -> dict[str, tuple[int, int, str]]:
        if not isinstance(self.index, dict) or self.index.get("version") != VERSION:
            raise ModelFileError(f"{self.path} has an unknown version of the format; write it anew")
        found = decode(dict[str, tuple[int, int, str]], self.index.get("sections"))
        for name, (offset, length, _) in found.items():
            if min(offset, length) < 0 or offset + length > size:
                raise ModelFileError(
                    f"{self.path} is truncated or corrupt: section {name!r} does not fit"
                )
        return found

    def within(self, prefix: str) -> Container:
        """A view of the container with only the sections whose names begin with `prefix`, under
        names without it."""
        part = copy(self)
        cut = len(prefix)
        rows = self._sections.items()
        part._sections = {n[cut:]: row for n, row in rows if n.startswith(prefix)}
        return part

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def array(self, name: str, *, check: bool = False) -> np.ndarray[Any, Any]:
        """The bytes of a section as a read-only array that maps the file.

        With `check`, raises ModelFileError unless they have the hash in the index; also for a
        section that does not exist.
        """
        if name not in self._sections:
            raise ModelFileError(
                f"{self.path} has no section {name!r}; it has {', '.join(self._sections)}"
            )
        return _section(self._map, name, self._sections[name], check)

    def array_checked_later(self, name: str) -> np.ndarray[Any, Any]:
        """The bytes of a section as `array` gives them, whose hash is not checked now, as loading a
        file must not read all of it, but by `mapped.check_unchanged`, which is called before they
        are read anyway. Raises ModelFileError for a section that does not exist."""
        data = self.array(name)
        later = partial(_section, name=name, row=self._sections[name], check=True)
        self._map.checks = (*self._map.checks, later)
        return data

    def text(self, name: str) -> str:
        try:
            return self.array(name, check=True).tobytes().decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: section {name!r} is not text") from error

    def json(self, name: str, hook: Hook | None = None) -> Any:
        try:
            return json.loads(self.text(name), object_hook=hook)
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{self.path}: section {name!r} is corrupt: {error}") from error

    def data(self, name: str, hint: type[T], hook: Hook | None = None) -> T:
        """The JSON of a section as a value of the type `hint` (`plain.decode`). `hook` turns JSON
        objects into what they stand for. Raises ModelFileError if the section does not fit the
        type."""
        try:
            return decode(hint, self.json(name, hook))
        except Misfit as error:
            raise ModelFileError(f"{self.path}: section {name!r} is corrupt: {error}") from error


def _section(
    mapped: MappedFile, name: str, row: tuple[int, int, str], check: bool
) -> np.ndarray[Any, Any]:
    offset, length, wanted = row
    data = np.frombuffer(mapped, np.uint8, length, offset)
    if check and digest(data) != wanted:
        raise ModelFileError(f"{mapped.path} is corrupt: section {name!r} does not have its hash")
    return data
