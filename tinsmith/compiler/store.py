"""Compiled programs on disk, so that a second start needs neither LLVM nor the model's parser.

An entry is a container file with the plan (JSON), packed weights (mapped), machine code and
explanations, in `programs/` of the code cache. As the code is run, the cache's checks of the
folder's owner apply. Its key covers the model's bytes, every option, the machine, and Tinsmith's
own sources. Programs with steps that hold graphs (If, Loop) or text are not kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tinsmith import extensions
from tinsmith.codegen.cache import (
    PROGRAMS,
    Cache,
    compiler_version,
    drop,
    key_of,
    read_note,
    remake,
    tell_full,
    trim,
    write_note,
)  # fmt: skip
from tinsmith.compiler.sections import (
    NOTES,
    TOLD,
    Interface,
    interface_from,
    program_in,
    program_of,
    sections_of,
    told_in,
)
from tinsmith.errors import ModelFileError, TinsmithError, size_text
from tinsmith.formats.container import Container, Draft, write_container
from tinsmith.formats.mapped import Files, state_of
from tinsmith.hashing import blake2b
from tinsmith.plan.shared_weights import Blob
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.compiler.sections import Told
    from tinsmith.runtime.free import FreeProgram

LIMIT_FACTOR = 8
"""Stored programs may take this many times the bytes that the cache allows for code."""

RECENT = 2.0  # seconds within which two versions of a file may have the same time of change
DAY = 86400.0


@cache
def source_fingerprint() -> str:
    """Return a hash, in hex, of the package's .py files (paths, sizes, times of change), the
    installed extensions, and the versions of Tinsmith and LLVM. As part of all keys, it keeps
    programs of another version from being used. Raises OSError if the files cannot be listed."""
    h = blake2b(compiler_version().encode(), digest_size=16)
    root = os.path.dirname(os.path.dirname(__file__))
    for name, size, written in sorted(sources(root)):
        h.update(f"{name}:{size}:{written}".encode())
    h.update(extensions.fingerprint().encode())
    return h.hexdigest()


def sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield (path, size in bytes, time of change in ns) of each .py file below a folder, unsorted;
    paths begin with `folder`. Leaves out subfolders whose name has a dot, and __pycache__. Raises
    OSError."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # names below it are found faster so
    try:
        for name in os.listdir(here):
            path = f"{folder}/{name}"
            if name.endswith(".py"):
                info = os.stat(name, dir_fd=here)
                yield path, info.st_size, info.st_mtime_ns
            elif "." not in name and name != "__pycache__":
                with contextlib.suppress(NotADirectoryError):
                    yield from sources(path)
    finally:
        os.close(here)


def _sha256(path: Path) -> str:
    """Return the hash of a file's content. It is one call that releases the interpreter's lock, so
    that other threads run meanwhile. Raises OSError."""
    import hashlib

    return hashlib.sha256(Files().map(path)).hexdigest()


class Store:
    """Programs and interfaces of models, by key, in a directory of the code cache. Safe between
    threads and processes. Where nothing can be written, nothing is stored."""

    def __init__(self, code_cache: Cache) -> None:
        self._folder = code_cache.path / PROGRAMS
        self._limit = code_cache.limit * LIMIT_FACTOR
        self._blobs: WeakValueDictionary[str, Blob] = WeakValueDictionary()
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            self._limit = 0

    # ---- keys

    def digest(self, path: Path, check: Callable[[Path], None] = lambda path: None) -> str:
        """Return the hash of a file's content, remembered as long as the file's size and times stay
        the same. Before a new one is computed, `check` is called with the path, which may raise an
        error. Raises OSError."""
        name = blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()
        note = self._folder / f"{name}.digest"
        now = state_of(path)
        try:
            then, digest = json.loads(read_note(note) or "")
            if tuple(then) == now:
                _used(note)
                return str(digest)
        except (OSError, ValueError, TypeError):
            pass
        check(path)
        from tinsmith.codegen.workers import begin

        hashing = begin(_sha256, path)
        import tinsmith.compiler.build  # noqa: F401 - meanwhile: a new file will be compiled
        from tinsmith.kernels._kernel import KERNELS

        KERNELS.load()
        digest = hashing.result()
        if time.time() - now[2] / 1e9 > RECENT and state_of(path) == now:
            write_note(note, json.dumps([now, digest]))
        return digest

    def key(self, digest: str, name: str, machine: str, *options: Any) -> str:
        """Return the key of a model file (`digest`: hash of its content) that is compiled with
        `options` for a `machine` (text). It covers Tinsmith's own sources, too."""
        return key_of("program", machine, digest, name, source_fingerprint(), repr(options))

    # ---- interfaces: names and types, known before any shape is

    def interface(self, key: str) -> Interface | None:
        """Return the stored interface of a model; None if there is none."""
        note = self._folder / f"{key}.json"
        try:
            found = json.loads(read_note(note) or "")
            _used(note)
            return interface_from(found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def put_interface(self, key: str, found: Interface) -> None:
        write_note(self._folder / f"{key}.json", json.dumps(found.row()))

    def key_with(self, key: str, digests: Mapping[str, str]) -> str:
        """Return `key` extended by the hashes of further files, by name; without any, `key`."""
        if not digests:
            return key
        text = key + json.dumps(sorted(digests.items()))
        return blake2b(text.encode(), digest_size=20).hexdigest()

    # ---- programs

    def _file(self, key: str, signature: Any) -> Path:
        tail = blake2b(repr(signature).encode(), digest_size=8).hexdigest()
        return self._folder / f"{key}-{tail}.tin"

    def has(self, key: str, signature: Any) -> bool:
        """Whether there is a file for a program. `signature`: its name within the model (see
        `kept.Place`)."""
        return self._file(key, signature).exists()

    def get(self, key: str, signature: Any) -> tuple[Program | FreeProgram, Told] | None:
        """Read a stored program, with the texts about it; None where there is none, or a damaged
        one, which is removed."""
        file = self._file(key, signature)
        if not file.exists():
            return None
        try:
            found = Container(file)
            program = program_of(found, partial(self._blob, found))
            for name in (*TOLD, *(n for n in NOTES if n in found)):
                found.array(name, check=True)
            for blob in program_in(program).blobs:
                with contextlib.suppress(OSError):  # a read-only disk
                    os.utime(self._folder / blob.file)
            return program, told_in(found)
        except (TinsmithError, OSError, ValueError, KeyError, TypeError) as error:
            if not isinstance(error.__cause__ or error, OSError):  # such as too many open files
                drop(file)  # a damaged entry counts as absent
            return None

    def _blob(self, own: Container, name: str, tag: str) -> Blob:
        """Load packed weights of a stored program from the store's file `name`; "": from its own,
        `own`. `tag` identifies their content: weights of one tag are loaded once. Raises
        ModelFileError where the file has weights of another tag."""
        blob = self._blobs.get(tag)
        if blob is None:
            found = Container(self._folder / name) if name else own
            if found.text("tag") != tag:
                raise ModelFileError(f"{found.path} was written anew")
            rows = tuple(found.data("rows", list[tuple[int, int]]))
            weights, file = found.array("weights", check=True), found.path.name
            blob = self._blobs[tag] = Blob(weights, rows, file, tag)
        return blob

    def refusal(self, sections: Mapping[str, Any]) -> str:
        """Return a text for the user if a program with these sections takes more than half of the
        store's limit, and is not kept; "" if it does not, or nothing can be stored."""
        total = sum(memoryview(s).nbytes for s in sections.values())
        if total <= self._limit // 2 or not self._limit:
            return ""
        wanted = int(2 * total / LIMIT_FACTOR / 2**20) + 1
        return (
            f"the compiled program takes {size_text(total)} and is not kept on disk: the next "
            f"start compiles it again. TINSMITH_CACHE_SIZE={wanted}M would let it be kept"
        )

    def draft(self, key: str, signature: Any) -> Draft | None:
        """Open a file for a program, to be written while the program is compiled; None where
        nothing can be stored."""
        if self._limit <= 0:
            return None
        try:
            self._trim()
            return Draft(self._file(key, signature), "weights")
        except OSError as error:
            tell_full(self._folder, error)
            return None

    def put(
        self, key: str, signature: Any, target: Target, program: Program | FreeProgram, told: Told,
        draft: Draft | None = None,
    ) -> str:  # fmt: skip
        """Store a program, and name the file in its own `Blob`, whose weights `draft` may have
        already. Return a text for the user if it is too large, else "". It is silently not stored
        if it cannot be written as data, if it shares weights that are not stored, or if the disk is
        full or read-only."""
        own, *others = program_in(program).blobs
        refs = [("", own.tag), *((b.file, b.tag) for b in others)]
        rest = sections_of(program, target, refs, told) if all(b.file for b in others) else None
        why = ""
        if rest is not None:
            # Weights come first: wide loads at their end may read the sections after them.
            about = {"tag": own.tag.encode(), "rows": json.dumps(own.rows).encode()}
            sections = {"weights": own.data, **about, **rest}
            why = self.refusal(sections)
            if not why:
                self._write(key, signature, sections, own, draft)
        if draft is not None:
            draft.discard()
        return why

    def _write(
        self, key: str, signature: Any, sections: dict[str, Any], own: Blob, draft: Draft | None
    ) -> None:
        file = self._file(key, signature)
        try:
            if draft is not None:
                draft.commit({n: s for n, s in sections.items() if n != draft.first})
            else:
                self._trim()
                write_container(file, sections)
        except OSError as error:
            tell_full(self._folder, error)
            return
        own.file = file.name
        self._blobs[own.tag] = own

    def _trim(self) -> None:
        """Delete the files unused for longest until those left take at most half of the limit; also
        the unfinished files of processes that were killed."""
        remake(self._folder)
        trim(self._folder, self._limit // 2, ".*")


def _used(note: Path) -> None:
    """Record for `_trim`, at most once a day, that a note was used."""
    with contextlib.suppress(OSError):  # a read-only disk
        if time.time() - note.stat().st_mtime > DAY:
            os.utime(note)
