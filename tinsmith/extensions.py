"""Rows that installed packages bring: operators, rules, passes, kernels, importers, backends.

A package says in its `pyproject.toml` which of its modules registers them:

    [project.entry-points."tinsmith.extensions"]
    my-kernels = "my_package.kernels"

The modules are imported when a table is first looked at. `TINSMITH_EXTENSIONS` chooses: `off` for
none, `-NAME,-NAME` for all but these.

This module searches the folders of `sys.path` itself: `importlib.metadata` would take a tenth of a
warm start. Packages in zip archives are not found.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from tinsmith.errors import ExtensionError, UnknownName
from tinsmith.hashing import blake2b
from tinsmith.records import NamedTuple

GROUP = "tinsmith.extensions"
VARIABLE = "TINSMITH_EXTENSIONS"
MOST_BYTES = 1 << 14
"""Bytes of an `entry_points.txt` that are read at most: the largest have some thousand."""


class Extension(NamedTuple):
    """One entry point of an installed package: its name, the module to import, and `package`, the
    folder of the package's metadata, such as `my_package-1.0.dist-info`."""

    name: str
    module: str
    package: str

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    @property
    def label(self) -> str:
        """The package and its version as text for messages, such as "my_package 1.0"."""
        return self.package.rpartition(".")[0].replace("-", " ")


@cache
def installed() -> tuple[Extension, ...]:
    """Return the extensions of installed packages, sorted by name. Of two with one name, or two
    versions of a package, the first on `sys.path` counts."""
    found: dict[str, Extension] = {}
    for one in _entries():
        found.setdefault(one.name, one)
    return tuple(found[name] for name in sorted(found))


def chosen() -> tuple[Extension, ...]:
    """The installed extensions without those that `TINSMITH_EXTENSIONS` leaves out. Raises
    UnknownName, ExtensionError."""
    return _chosen(os.environ.get(VARIABLE, ""))


@cache
def _chosen(said: str) -> tuple[Extension, ...]:
    if said.strip() == "off":
        return ()
    names = [part.strip() for part in said.split(",") if part.strip()]
    known = {one.name for one in installed()}
    for name in names:
        if not name.startswith("-"):
            raise ExtensionError(
                f"{VARIABLE}={said!r} must be 'off', or '-NAME' for each to leave out"
            )
        if name[1:] not in known:
            raise UnknownName(f"extension in {VARIABLE}", name[1:], known)
    return tuple(one for one in installed() if f"-{one.name}" not in names)


_loading = RLock()
_begun: set[Extension] = set()


def load() -> None:
    """Import the modules of the chosen extensions, each once in a process. Raises ExtensionError,
    which names the package, for one that fails; the next call tries it again."""
    with _loading:
        for one in chosen():
            if one in _begun:  # also while it is imported: it may look up rows itself
                continue
            _begun.add(one)
            try:
                import_module(one.module)
            except Exception as error:
                _begun.discard(one)
                raise ExtensionError(
                    f"the extension {one.name!r} of {one.label} cannot be imported: "
                    f"{type(error).__name__}: {error}; mend or remove the package, or leave it out "
                    f"by {VARIABLE}=-{one.name}"
                ) from error


def bring(root: str) -> str:
    """Return the label of the chosen extension whose top-level package is `root`; "" if none is."""
    return next((one.label for one in chosen() if one.root == root), "")


def fingerprint() -> str:
    """Return a hash of the chosen extensions and of the paths, sizes and times of their files, by
    which stored programs are found; "" without extensions."""
    rows = chosen()
    if not rows:
        return ""
    h = blake2b(digest_size=16)
    for one in rows:
        h.update(f"{one.name}={one.module} of {one.package}".encode())
        for file in sorted(_sources(one.root)):
            info = os.stat(file)
            h.update(f"{file}:{info.st_size}:{info.st_mtime_ns}".encode())
    return h.hexdigest()


def _sources(root: str) -> Iterator[str]:
    """Yield the paths of a top-level package's or module's files."""
    from importlib.util import find_spec

    spec = find_spec(root)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path, _, names in os.walk(folder):
            yield from (os.path.join(path, n) for n in names if not n.endswith(".pyc"))
    if spec is not None and spec.origin and not spec.submodule_search_locations:
        yield spec.origin


def _entries() -> Iterator[Extension]:
    seen: set[str] = set()
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in sorted([n for n in names if n.endswith((".dist-info", ".egg-info"))]):
            project = name.partition("-")[0]
            if project in seen:
                continue
            seen.add(project)
            text = _text(os.path.join(folder, name, "entry_points.txt"))
            if f"[{GROUP}]".encode() in text:
                yield from (Extension(n, m, name) for n, m in _of_group(text))


def _text(path: str) -> bytes:
    """Return the first MOST_BYTES bytes of a file; b"" if it cannot be read. Uses system calls: a
    file object would double the time of the search."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return b""
    try:
        return os.read(file, MOST_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)


def _of_group(text: bytes) -> Iterator[tuple[str, str]]:
    """Yield (name, module) of each entry point of our group in the bytes of an `entry_points.txt`,
    which has the group; nothing if they cannot be parsed."""
    from configparser import ConfigParser
    from configparser import Error as ParserError

    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(text.decode("utf-8"))
    except (ParserError, UnicodeDecodeError):
        return
    yield from ((n, m.partition(":")[0].strip()) for n, m in parser[GROUP].items())
