"""Compiled programs on disk, so that a second start needs neither LLVM nor the model's parser.

An entry is a container file with the plan (JSON), packed weights (mapped), machine code and
explanations, in `programs/` of the code cache, under the cache's rules of ownership: what lies
there is run. Its key covers the model's bytes, every option, the machine, and Tinsmith's own
sources. Programs with steps that hold graphs (If, Loop) or text are not kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from functools import cache, partial
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakValueDictionary

import numpy as np

from tinsmith.backends.library import team_address
from tinsmith.codegen.cache import STALE, Cache, compiler_version, read_note, write_note
from tinsmith.codegen.library import SharedLibrary, uses_elf
from tinsmith.codegen.sync import MAX_THREADS
from tinsmith.codegen.target import Target
from tinsmith.codegen.workers import begin
from tinsmith.errors import ModelFileError, TinsmithError, size_text
from tinsmith.formats.container import Container, Draft, write_container
from tinsmith.formats.mapped import map_file
from tinsmith.graph import Holder, Type
from tinsmith.graph.types import HOLDERS, dtype_named
from tinsmith.hashing import blake2b
from tinsmith.plain import decode
from tinsmith.plan.plan import Plan
from tinsmith.plan.shelf import Blob
from tinsmith.runtime.program import Program

NOTES = ("tuned", "idle")  # sections with what a net notes

LIMIT_FACTOR = 8
"""Packed models may take this many times what the cache allows for code."""

RECENT = 2.0  # seconds within which a file's times do not tell two versions apart
DAY = 86400.0

TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")
"""The names that notes and containers have while they are written."""


@cache
def source_fingerprint() -> str:
    """Tells this state of the package's sources from another."""
    h = blake2b(compiler_version().encode(), digest_size=16)
    root = os.path.dirname(os.path.dirname(__file__))
    for name, size, written in sorted(sources(root)):
        h.update(f"{name}:{size}:{written}".encode())
    return h.hexdigest()


def sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """(path, bytes, time) of each file of Python below a folder, in no order."""
    with os.scandir(folder) as rows:
        for row in rows:
            if row.name.endswith(".py"):
                info = row.stat()
                yield row.path, info.st_size, info.st_mtime_ns
            elif "." not in row.name and row.name != "__pycache__" and row.is_dir():
                yield from sources(row.path)


def fingerprint(path: Path) -> list[int]:
    """What changes whenever a file is written."""
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev]


def _sha256(path: Path) -> str:
    """The hash of a file's content, in one call: other threads run meanwhile. Raises OSError."""
    import hashlib

    return hashlib.sha256(map_file(path)).hexdigest()


class Store:
    """Programs by key, in a directory of the code cache. Safe between threads and processes."""

    def __init__(self, code_cache: Cache) -> None:
        self._folder = code_cache.path / "programs"
        self._limit = code_cache.limit * LIMIT_FACTOR
        self._blobs: WeakValueDictionary[str, Blob] = WeakValueDictionary()
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            self._limit = 0

    # ---- keys

    def digest(self, path: Path) -> str:
        """The hash of a file's content, remembered by its times and size."""
        name = blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()
        note = self._folder / f"{name}.digest"
        now = fingerprint(path)
        try:
            then, digest = json.loads(read_note(note) or "")
            if then == now:
                _used(note)
                return str(digest)
        except (OSError, ValueError, TypeError):
            pass
        hashing = begin(_sha256, path)
        import tinsmith.compiler.build  # noqa: F401 - what is new here will be compiled
        from tinsmith.kernels._kernel import KERNELS

        KERNELS.load()
        digest = hashing.result()
        if time.time() - now[2] / 1e9 > RECENT and fingerprint(path) == now:
            write_note(note, json.dumps([now, digest]))
        return digest

    def key(self, digest: str, name: str, target: Target, *options: Any) -> str:
        """The key of a model with a digest and a file name, compiled with options for a target."""
        h = blake2b(digest_size=20)
        for part in (digest, name, source_fingerprint(), repr(astuple(target)), repr(options)):
            h.update(f"{len(part)}:{part}".encode())
        return h.hexdigest()

    # ---- interfaces: names and types, known before any shape is

    def interface(self, key: str, path: Path) -> dict[str, Any] | None:
        """The stored names and types of a model, if its further files are as they were. Those of an
        equal file in another folder are others."""
        note = self._folder / f"{key}.json"
        try:
            found = json.loads(read_note(note) or "")
            if found["files"] and found["folder"] != str(path.parent.resolve()):
                return None
            for name, then in found["files"].items():
                if fingerprint(Path(name)) != then:
                    return None
            found["inputs"] = {n: type_from(row) for n, row in found["inputs"].items()}
            _used(note)
            return dict(found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def put_interface(
        self,
        key: str,
        path: Path,
        name: str,
        inputs: Mapping[str, Type],
        outputs: list[str],
        files: set[str],
    ) -> dict[str, list[int]]:
        """Store them; the state of the further files that programs depend on."""
        shown = {n: type_row(t) for n, t in inputs.items()}
        try:
            notes = {f: fingerprint(Path(f)) for f in sorted(files)}
        except OSError:
            return {}
        record = {
            "name": name,
            "inputs": shown,
            "outputs": outputs,
            "files": notes,
            "folder": str(path.parent.resolve()),
        }
        write_note(self._folder / f"{key}.json", json.dumps(record))
        return notes

    def key_with(self, key: str, files: Mapping[str, list[int]]) -> str:
        """The key of programs that depend on further files in a state."""
        if not files:
            return key
        text = key + json.dumps(sorted(files.items()))
        return blake2b(text.encode(), digest_size=20).hexdigest()

    # ---- programs

    def _file(self, key: str, signature: Any) -> Path:
        tail = blake2b(repr(signature).encode(), digest_size=8).hexdigest()
        return self._folder / f"{key}-{tail}.tin"

    def get(self, key: str, signature: Any, target: Target) -> tuple[Program, Container] | None:
        """A stored program and the file that it maps; None where there is none that is whole."""
        file = self._file(key, signature)
        if not file.exists():
            return None
        try:
            found = Container(file)
            program = program_of(found, target, partial(self._blob, found))
            for name in ("placed", "explain", *NOTES):
                if name in found:
                    found.array(name, check=True)
            for blob in program.blobs:
                with contextlib.suppress(OSError):  # a read-only disk
                    os.utime(self._folder / blob.file)
            return program, found
        except (TinsmithError, OSError, ValueError, KeyError, TypeError) as error:
            if not isinstance(error.__cause__ or error, OSError):  # such as too many open files
                _drop(file)  # a damaged entry counts as absent
            return None

    def _blob(self, own: Container, name: str, tag: str) -> Blob:
        """The weights in a stored program's file, or in its `own`. Raises ModelFileError where it
        is another."""
        blob = self._blobs.get(tag)
        if blob is None:
            found = own if name == own.path.name else Container(self._folder / name)
            if found.text("tag") != tag:
                raise ModelFileError(f"{found.path} was written anew")
            rows = tuple((int(offset), int(nbytes)) for offset, nbytes in found.json("rows"))
            blob = self._blobs[tag] = Blob(found.array("weights", check=True), rows, name, tag)
        return blob

    def _named(self, key: str, signature: Any, blob: Blob) -> None:
        """Note that a blob is stored."""
        blob.file = self._file(key, signature).name
        self._blobs[blob.tag] = blob

    def refusal(self, sections: Mapping[str, Any]) -> str:
        """Why a program is too large to be kept; '' where it is not."""
        total = sum(memoryview(s).nbytes for s in sections.values())
        if total <= self._limit // 2 or not self._limit:
            return ""
        wanted = int(2 * total / LIMIT_FACTOR / 2**20) + 1
        return (
            f"the compiled program takes {size_text(total)} and is not kept on disk: the next "
            f"start compiles it again. TINSMITH_CACHE_SIZE={wanted}M would let it be kept"
        )

    def put(self, key: str, signature: Any, sections: Mapping[str, Any], blob: Blob) -> None:
        """Store a program's sections, among them the weights of a blob; a full or read-only disk
        only means that it is not kept."""
        if self.refusal(sections):
            return
        try:
            self._trim()
            write_container(self._file(key, signature), sections)
        except OSError:
            return
        self._named(key, signature, blob)

    def draft(self, key: str, signature: Any) -> Draft | None:
        """A program's file, to be written while it is made; None where none can be."""
        if self._limit <= 0:
            return None
        try:
            self._trim()
            return Draft(self._file(key, signature), "weights")
        except OSError:
            return None

    def commit(
        self, key: str, signature: Any, draft: Draft, sections: Mapping[str, Any] | None, blob: Blob
    ) -> None:
        """Keep a draft, which holds the weights of a blob, with the other sections; or drop it."""
        try:
            if sections is not None and not self.refusal(sections):
                draft.commit({n: s for n, s in sections.items() if n != draft.first})
                self._named(key, signature, blob)
        except OSError:
            pass
        draft.discard()

    def _trim(self) -> None:
        """Make room, and drop what processes that were killed have left unfinished."""
        rows, now = [], time.time()
        for row in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):  # another process drops them, too
                info = row.stat(follow_symlinks=False)
                if now - info.st_mtime > STALE and TEMPORARY.fullmatch(row.name):
                    _drop(Path(row.path))
                else:
                    rows.append((info.st_mtime, info.st_size, row.path))
        excess = sum(size for _, size, _ in rows) - self._limit // 2
        for _, size, path in sorted(rows):
            if excess <= 0:
                return
            _drop(Path(path))
            excess -= size


def _used(note: Path) -> None:
    """Let `_trim` know, to the day, that a note was used."""
    with contextlib.suppress(OSError):  # a read-only disk
        if time.time() - note.stat().st_mtime > DAY:
            os.utime(note)


def _drop(path: Path) -> None:
    """Remove a file, if it is one and can be removed."""
    with contextlib.suppress(OSError):
        path.unlink()


def type_row(type: Type) -> list[Any]:
    """A type as plain data for `type_from`."""
    if isinstance(type, Holder):
        return [type.word, type_row(type.item)]
    return [type.dtype.name, type.shape]


def type_from(row: list[Any]) -> Type:
    """The type of a `type_row`. Raises ValueError where it is none."""
    name, rest = decode(tuple[str, Any], row)
    if name in HOLDERS:
        return HOLDERS[name](type_from(rest))
    return Type(dtype_named(name), decode(tuple[int | str, ...] | None, rest))  # type: ignore[arg-type]


# ---- programs as sections


class Head(TypedDict):
    """The section "program"."""

    target: str
    plan: Plan
    nodes: dict[str, tuple[str, dict[str, Any]]]
    constants: dict[str, tuple[str, tuple[int, ...]]]
    shared: list[tuple[str, str]]


def sections_of(program: Program, code: bytes, target: Target) -> dict[str, Any] | None:
    """A program and its code as container sections; None where it holds what cannot be written as
    data, or reads weights of a program that is not stored."""
    own, *others = program.blobs
    if not uses_elf(target) or not all(b.file for b in others):
        return None
    try:
        reference = {
            name: [op.name, json.loads(json.dumps(dict(attrs)))]
            for name, (op, attrs) in program.nodes.items()
        }
    except TypeError:
        return None
    arrays = {}
    for name, array in program.constants.items():
        if array.dtype == object:
            return None
        arrays[name] = [array.dtype.name, list(array.shape)]
    head = {
        "target": target.key,
        "plan": program.plan.to_json(),
        "nodes": reference,
        "constants": arrays,
        "shared": [[b.file, b.tag] for b in others],
    }
    arrays_as_bytes = {
        f"constant:{n}": np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        for n, a in program.constants.items()
    }
    # Weights come first: what follows them is readable slack for wide loads at their end.
    return {
        "weights": own.data,
        "tag": own.tag.encode(),
        "rows": json.dumps(own.rows).encode(),
        **arrays_as_bytes,
        "code": code,
        "program": json.dumps(head).encode(),
    }


def program_of(
    found: Container, target: Target, blob: Callable[[str, str], Blob] | None = None
) -> Program:
    """The program of a container's sections. Its code is loaded: the caller trusts the file.
    `blob` gives the weights of stored programs by file name and tag.

    Every section that is used is checked.
    """
    head = found.data("program", Head)
    if head["target"] != target.key:
        raise ModelFileError(f"{found.path} holds code for {head['target']}, not for {target.key}")
    plan = head["plan"]
    _check(plan, head["nodes"], found.path)
    own = (found.path.name, found.text("tag"))
    if blob is None:
        if head["shared"]:
            raise ModelFileError(f"{found.path} lacks weights that its program shares with others")
        blobs = [Blob(found.array("weights", check=True))]
    else:
        blobs = [blob(name, tag) for name, tag in (own, *head["shared"])]
    code = found.array("code", check=True).tobytes()
    try:
        constants = {
            n: found.array(f"constant:{n}", check=True).view(dtype_named(d)).reshape(s)
            for n, (d, s) in head["constants"].items()
        }
    except (TypeError, ValueError) as error:  # numpy's, of bytes that have no such type or shape
        raise ModelFileError(f"{found.path} has a corrupt constant: {error}") from error
    team = team_address(target, True, plan.threads)
    return Program(
        plan,
        SharedLibrary(code),
        blobs,
        _nodes(head["nodes"]),
        constants,
        team,
        stored=True,
    )


def _check(plan: Plan, nodes: Mapping[str, object], path: Path) -> None:
    """Raises ModelFileError where a stored plan is none that could run."""
    operands = [o for s in plan.steps for o in (*s.reads, *s.writes) if o is not None]
    try:
        for dtype in {o.dtype for o in (*plan.inputs, *plan.outputs, *operands)}:
            dtype_named(dtype)
    except ValueError as error:
        raise ModelFileError(f"{path} has a corrupt program: {error}") from error
    lacking = {s.name for s in plan.steps if s.kind == "reference"} - nodes.keys()
    if lacking or min(plan.memory) < 0 or not 1 <= plan.threads <= MAX_THREADS:
        raise ModelFileError(f"{path} has a corrupt program")


def _nodes(stored: Mapping[str, Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    if not stored:
        return {}
    from tinsmith.ops import OPS

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {
        n: (OPS[op], {k: frozen(v) for k, v in attrs.items()}) for n, (op, attrs) in stored.items()
    }
