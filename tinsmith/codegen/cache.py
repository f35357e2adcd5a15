"""Machine code on disk: a directory that the user can see, bound and clear.

The directory is made with mode 0700, and refused if somebody else owns it or may write to it; an
entry is used only after its hash was checked. Any number of processes may share it: entries appear
by rename, and a damaged entry is removed and counts as absent. If the disk is full or read-only,
nothing is cached.

TINSMITH_CACHE names another directory, or is "off". TINSMITH_CACHE_SIZE bounds it (bytes, or with
K, M, G; default 512M): the entries not used for the longest time go first.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

from tinsmith.budget import number
from tinsmith.errors import CacheError, warn
from tinsmith.hashing import blake2b
from tinsmith.version import __version__

_MARK = b"tinsmith"
_TRAILER = 32 + len(_MARK)
_DEFAULT_SIZE = 512 << 20  # bytes; estimated

PROGRAMS = "programs"  # the folder of compiled programs, in the cache's

_FULL: set[Path] = set()  # folders whose user has been told

UNFINISHED = r"\..+\.\d+\.[0-9a-f]{8}"
"""Pattern of the names of files while they are written."""

STALE = 3600.0
"""Seconds after which an unfinished entry is taken to belong to a process that was killed.
Estimated."""


class Cache:
    """Compiled code on disk: entries by key in the directory `path`, of at most about `limit` bytes
    (`trim`); None: as the environment says. Safe to share between threads and processes.

    Raises CacheError where the directory cannot be made, or others could write code into it.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, limit: int | None = None
    ) -> None:
        try:
            # Absolute: what was found safe must not become another folder with the next chdir.
            self.path = (Path(path) if path is not None else default_path()).absolute()
        except (RuntimeError, OSError) as error:  # no home directory, or no working directory
            raise CacheError(f"the code cache cannot be used: {error}") from error
        self.limit = limit if limit is not None else _limit()
        _make(self.path)
        self._added = 0

    # ---- entries

    def file(self, key: str) -> Path:
        """The file of an entry. It ends in a trailer that loaders of shared libraries do not look
        at."""
        return self.path / f"{key}.so"

    def get(self, key: str) -> bytes | None:
        """The data of an entry. None if there is none, or if it is damaged: then it is removed."""
        file = self.file(key)
        try:
            raw = file.read_bytes()
        except OSError:
            return None
        data, trailer = raw[:-_TRAILER], raw[-_TRAILER:]
        if trailer != _digest(key, data) + _MARK:
            drop(file)
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return data

    def put(self, key: str, data: bytes) -> bool:
        """Store `data` as the entry `key`, in place of an earlier one. Returns False if it cannot
        be written. After each 16th of `limit` bytes that this object has stored it calls `trim`."""
        if not _store(self.file(key), data + _digest(key, data) + _MARK):
            return False
        self._added += len(data)
        if self._added > self.limit // 16:
            self._added = 0
            self.trim()
        return True

    # ---- the directory

    def trim(self) -> None:
        """Drop the entries not used for the longest time until `limit` holds, and unfinished
        entries of killed processes."""
        trim(self.path, self.limit, r".*\.so")


def trim(folder: Path, limit: int, entries: str) -> None:
    """Delete the files of a folder that were not used for the longest time until those left take at
    most `limit` bytes; before, UNFINISHED files that killed processes have left. `entries` is a
    pattern of names: other files stay, and do not count."""
    rows, stale = [], time.time() - STALE
    with contextlib.suppress(OSError):
        for row in os.scandir(folder):
            with contextlib.suppress(OSError):  # another process drops them, too
                info = row.stat(follow_symlinks=False)
                if info.st_mtime < stale and re.fullmatch(UNFINISHED, row.name):
                    drop(row.path)
                elif re.fullmatch(entries, row.name):
                    rows.append((info.st_mtime, info.st_size, row.path))
    excess = sum(size for _, size, _ in rows) - limit
    for _, size, path in sorted(rows):
        if excess <= 0:
            return
        drop(path)
        excess -= size


def drop(path: str | os.PathLike[str]) -> None:
    """Remove a file, if it is one and can be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _digest(key: str, data: bytes) -> bytes:
    return blake2b(data, key=key.encode()[:64], digest_size=32).digest()


def default_path() -> Path:
    """The user's cache directory, or what TINSMITH_CACHE says."""
    if named := os.environ.get("TINSMITH_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "linux":  # what platformdirs says, without its 10 ms
        home = os.environ.get("XDG_CACHE_HOME", "").strip()
        return Path(home or "~/.cache").expanduser() / "tinsmith"
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tinsmith", appauthor=False))


def _limit() -> int:
    given = os.environ.get("TINSMITH_CACHE_SIZE", "")
    try:
        return number(given) if given.strip() else _DEFAULT_SIZE
    except ValueError:
        raise CacheError(
            f"TINSMITH_CACHE_SIZE is {given!r}; give a number of bytes, such as 100000000 or 512M"
        ) from None


def _make(path: Path) -> None:
    """Make the directory `path`, if it is not there. Raises CacheError if that fails, and for a
    directory that belongs to, or may be written by, somebody else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        info = path.stat()
    except OSError as error:
        raise CacheError(
            f"the code cache {path} cannot be used: {error.strerror or error}"
        ) from error
    if not stat.S_ISDIR(info.st_mode):
        raise CacheError(f"the code cache {path} is not a directory")
    if not hasattr(os, "getuid"):
        return
    if info.st_uid != os.getuid():
        raise CacheError(
            f"the code cache {path} belongs to another user (id {info.st_uid}), who could put code "
            "into it; set TINSMITH_CACHE to a directory of your own"
        )
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"others may write to the code cache {path} (mode {stat.S_IMODE(info.st_mode):o}); "
            f"run: chmod go-w {path}"
        )


def remake(folder: Path) -> None:
    """Make a folder of the cache (its own or PROGRAMS) anew if it is gone. Raises OSError if that
    cannot be done safely (`_make`)."""
    if folder.is_dir():
        return
    try:
        if folder.name == PROGRAMS:
            _make(folder.parent)
        _make(folder)
    except CacheError as error:
        raise OSError(str(error)) from error


def tell_full(folder: Path, error: OSError) -> None:
    """Warn, once for each folder, if a write failed with `error` as there is no space; other errors
    are passed over."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and folder not in _FULL:
        _FULL.add(folder)
        warn(
            f"the cache {folder} cannot be written: {error.strerror}. What is compiled is not "
            "kept; make room there, or set TINSMITH_CACHE to another directory"
        )


def open_cache() -> Cache | None:
    """The user's cache. None if TINSMITH_CACHE is "off", or if the directory cannot be used: then
    there is a warning, once."""
    named = os.environ.get("TINSMITH_CACHE", "")
    if named.lower() in ("off", "none", "0"):
        return None
    return _open(named, os.environ.get("TINSMITH_CACHE_SIZE", ""))


@functools.cache
def _open(named: str, size: str) -> Cache | None:
    try:
        return Cache()
    except CacheError as error:
        warn(f"{error}. Code is compiled anew by each process.")
        return None


# ---- notes: small texts in files of their own, beside the code


def read_note(path: Path) -> str | None:
    """The text that `write_note` stored in the file; None if there is none, or if its checksum is
    wrong."""
    try:
        seal, _, text = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return text.decode() if seal == _seal(text) else None


def write_note(path: Path, text: str) -> None:
    """Store a text with a checksum in a file, which is replaced as a whole. If the disk is full or
    read-only, nothing is stored."""
    data = text.encode()
    _store(path, _seal(data) + b"\n" + data)


def _store(path: Path, data: bytes) -> bool:
    """Write a file of the cache's folders, of mode 0600, which is replaced as a whole. Returns
    False if that cannot be done; `tell_full` then tells of a full disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        remake(path.parent)
        with open(temporary, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        tell_full(path.parent, error)
        drop(temporary)
        return False
    return True


def _seal(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).hexdigest().encode()


# ---- keys


@functools.cache
def compiler_version() -> str:
    """A text that changes with the versions of Tinsmith and LLVM, as a part of keys.

    Importing llvmlite would take long: its version is read from its file, its library recognised by
    size and date.
    """
    spec = PathFinder.find_spec("llvmlite")
    if spec is None:  # perhaps others find it; importlib.util takes a millisecond to import
        from importlib.util import find_spec

        spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return f"{__version__}|"
    home = Path(spec.origin).parent
    parts = [__version__]
    with contextlib.suppress(OSError):
        parts.append(blake2b((home / "_version.py").read_bytes(), digest_size=8).hexdigest())
    with contextlib.suppress(OSError):
        for name in sorted(n for n in os.listdir(home / "binding") if "llvmlite." in n):
            info = os.stat(home / "binding" / name)
            parts.append(f"{name}:{info.st_size}:{info.st_mtime_ns}")
    return "|".join(parts)


def key_of(kind: str, target_key: str, *texts: str) -> str:
    """The key of an entry: a hash of its `kind` ("object", "library"), the target's key, the texts
    from which it is made, and `compiler_version`."""
    h = blake2b(digest_size=20)
    for part in (kind, compiler_version(), target_key, *texts):
        h.update(f"{len(part)}:".encode() + part.encode())
    return h.hexdigest()
