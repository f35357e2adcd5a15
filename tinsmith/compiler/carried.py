"""Compiled programs that .tin files carry: who made them, how, and whether they may run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from weakref import WeakValueDictionary

from tinsmith.codegen.target import ISAS, Target, level, runnable
from tinsmith.compiler.options import Options
from tinsmith.compiler.sections import (
    Interface,
    Told,
    interface_from,
    laters_of,
    program_in,
    program_of,
    sections_of,
    told_in,
)
from tinsmith.compiler.store import sources
from tinsmith.errors import ModelFileError, OptionError, UntrustedCode
from tinsmith.formats.container import Container, is_container
from tinsmith.graph import Graph
from tinsmith.hashing import blake2b
from tinsmith.plan.shared_weights import Blob
from tinsmith.records import NamedTuple
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.runtime.free import FreeProgram


class Maker(TypedDict):
    """The field of the section "made" that every release writes: `by`, the `release()` that
    compiled the programs."""

    by: str


class Made(Maker):
    """The section "made": what a .tin file says about its programs (fields as in `Carried`;
    `target`: the machine's key)."""

    target: str
    options: Options
    interface: Any
    signatures: tuple[tuple[tuple[int, ...] | None, ...], ...]
    last: tuple[tuple[int, ...] | None, ...]
    takes: list[str]


class Carried:
    """The programs that a trusted .tin file carries, numbered: first those of `signatures`, then
    those for free sizes, then parts that are run later.

    machine, options  with which the programs were compiled
    interface         names and types of the model's inputs and outputs
    signatures        input shapes that have a program of their own
    last              the input shapes that were used last when the file was saved
    takes             for each program for free sizes, the sizes that it takes, as text
    free              the number of programs for free sizes
    """

    def __init__(self, file: Container, machine: Target, made: Made) -> None:
        """Raises ModelFileError where the fields of `made` contradict each other."""
        self._file, self.machine, self.options = file, machine, made["options"]
        try:
            self.interface = interface_from(made["interface"])
        except ValueError as error:
            raise ModelFileError(f"{file.path} has corrupt programs: {error}") from error
        self.signatures: tuple[Signature, ...] = made["signatures"]
        self.last: Signature = made["last"]
        self.takes, self.free = made["takes"], len(made["takes"])
        if not self.signatures and not self.takes:
            raise ModelFileError(f"{file.path} has corrupt programs: there are none")
        if {len(s) for s in (*self.signatures, self.last)} != {len(self.interface.inputs)}:
            raise ModelFileError(
                f"{file.path} has corrupt programs: their shapes are not those of its inputs"
            )
        self._blobs: WeakValueDictionary[str, Blob] = WeakValueDictionary()

    def program(self, signature: Signature) -> tuple[Program, Told]:
        """Return (program, the texts about it, by name: `Told`) for one of `signatures`. Raises
        ModelFileError if the program is damaged, is one for free sizes or another machine, or has
        not as many inputs and outputs as `interface`."""
        program, told = self._at(self.signatures.index(signature))
        if not isinstance(program, Program):
            raise ModelFileError(f"{self._file.path} has a program of free sizes for certain ones")
        self._check(program)
        return program, told

    def free_program(self, number: int) -> tuple[FreeProgram, Told]:
        """Return (program, the texts about it, by name: `Told`) for program `number` among those
        for free sizes. Raises ModelFileError if the file's does not fit."""
        free, told = self._free_at(len(self.signatures) + number)
        self._check(free.program)
        return free, told

    def _free_at(self, index: int) -> tuple[FreeProgram, Told]:
        """As `free_program`, by the number among all programs."""
        free, told = self._at(index)
        if isinstance(free, Program):
            raise ModelFileError(f"{self._file.path} has a program of certain sizes for free ones")
        return free, told

    def _at(self, index: int) -> tuple[Program | FreeProgram, Told]:
        found = self._file.within(_prefix(index))
        made = program_of(found, self._blob, self.machine)
        for later in laters_of(made):
            later.offer(partial(self._free_at, k) for k in later.stored)
        return made, told_in(found)

    def _check(self, program: Program) -> None:
        ports = len(program.plan.inputs), len(program.plan.outputs)
        if ports != (len(self.interface.inputs), len(self.interface.outputs)):
            raise ModelFileError(f"{self._file.path} has a program that is not for this model")

    def _blob(self, _: str, tag: str) -> Blob:
        blob = self._blobs.get(tag)
        if blob is None:
            blob = self._blobs[tag] = Blob(self._file.array(_weights(tag), check=True))
        return blob


def _prefix(index: int) -> str:
    return f"{index}:"


def _weights(tag: str) -> str:
    return f"weights:{tag}"


@cache
def release() -> str:
    """Return a hash of the package's sources, the same wherever this release is installed."""
    h = blake2b(digest_size=16)
    root = os.path.dirname(os.path.dirname(__file__))
    for path, size, _ in sorted(sources(root)):
        name = path[len(root) :].replace(os.sep, "/")
        h.update(f"{name}:{size}:".encode())
        with open(path, "rb", 0) as file:
            h.update(file.read())
    return h.hexdigest()


def bundle(
    graph: Graph, target: Target, options: Options,
    programs: Mapping[Signature, tuple[Program, Told]], free: Mapping[FreeProgram, Told],
    last: Signature,
) -> dict[str, Any] | None:  # fmt: skip
    """Return the sections of a .tin file, by name, for programs of a graph, compiled with `options`
    for `target`; shared weights are there once. `last`: the input shapes used last. None if a
    program cannot be written."""
    every: list[tuple[Program | FreeProgram, Told]] = [*programs.values(), *free.items()]
    stored: list[dict[str, range]] = []
    for program, _ in every:  # grows meanwhile, by parts that are run later
        stored.append({})
        for later in laters_of(program):
            first = len(every)
            every += later.every()
            stored[-1][later.step] = range(first, len(every))
    blobs = {b: None for program, _ in every for b in program_in(program).blobs}
    tags = {b: str(i) for i, b in enumerate(blobs)}
    # The bytes after weights can be read, as wide loads at their end do.
    sections: dict[str, Any] = {_weights(tag): b.data for b, tag in tags.items()}
    for i, (program, told) in enumerate(every):
        refs = [("", tags[b]) for b in program_in(program).blobs]
        found = sections_of(program, target, refs, told, stored[i])
        if found is None:
            return None
        sections |= {_prefix(i) + name: section for name, section in found.items()}
    known = asdict(options)
    if isinstance(options.kernels, Mapping):
        known["kernels"] = dict(options.kernels)
    inputs = {v.name: v.type for v in graph.inputs}
    made = {
        "by": release(),
        "target": target.key,
        "options": known,
        "interface": Interface(graph.name, inputs, [v.name for v in graph.outputs]).row(),
        "signatures": list(programs),
        "last": last,
        "takes": [str(one) for one in free],
    }
    return sections | {"made": json.dumps(made).encode()}


def carrier(path: Path) -> Container | None:
    """Open the .tin file at a path; None if it is no .tin file or carries no programs. Raises
    ModelFileError."""
    found = Container(path) if is_container(path) else None
    return found if found is not None and "made" in found else None


class Carries(NamedTuple):
    """The programs that a .tin file claims to carry, unverified: the key of their target, whether
    this release made them (`ours`), the signatures, and as text the sizes that programs for free
    sizes take. If another release made them, all fields but `ours` are empty."""

    target: str
    ours: bool
    signatures: tuple[Signature, ...]
    takes: tuple[str, ...] = ()


def carries(path: Path) -> Carries | None:
    """Read which programs a file claims to carry, without trusting or loading them. None where it
    has none, or is no .tin file. Raises ModelFileError."""
    found = carrier(path)
    if found is None:
        return None
    if found.data("made", Maker)["by"] != release():
        return Carries("", False, ())
    made = found.data("made", Made)
    return Carries(made["target"], True, made["signatures"], tuple(made["takes"]))


def carried(found: Container, asked: Target | None, given: Mapping[str, Any]) -> Carried:
    """Open the programs of a trusted file (from `carrier`). `asked` is the target that the caller
    named (None: any that this machine can run), `given` the options that the caller gave.

    Raises UntrustedCode for code of another release or machine, OptionError if the programs were
    made with other options than those given, ModelFileError.
    """
    file = found.path
    if found.data("made", Maker)["by"] != release():
        raise UntrustedCode(
            f"{file} carries code made by another version of Tinsmith; compile it "
            "without trust=True, and save it anew"
        )
    for name in ("graph", "table"):  # needed when another shape is compiled; find damage now
        found.text(name)
    made = found.data("made", Made)
    key = made["target"]
    machine = asked or _machine(key)
    if machine is None or machine.key != key:
        here = f"this machine is {level('host').key}" if asked is None else f"not for {asked.key}"
        raise UntrustedCode(
            f"{file} carries code for {key}, {here}; "
            "compile it without trust=True to make code anew"
        )
    options = made["options"]
    programs = Carried(found, machine, made)
    if differing := _differing(options, given):
        raise OptionError(
            f"{file} carries programs that were made with {', '.join(differing)}; leave these "
            "options out to run them, or do not trust it (no trust=True, no --trust) to compile "
            "the model anew with them"
        )
    return programs


def _machine(key: str) -> Target | None:
    """Return the target for the instruction set that ends `key` (a `Target.key`); None if the set
    is unknown or this machine cannot run it."""
    isa = key.rpartition("|")[2]
    machine = level(isa) if isa in ISAS else None
    return machine if machine is not None and runnable(machine) else None


def _differing(options: Options, given: Mapping[str, Any]) -> list[str]:
    """Return those `options` of a program that are not as given, as text: ["threads=1, not 4"]."""
    rows = []
    for name, wanted in given.items():
        known = getattr(options, name) if name != "tune" else "what was known then"
        if known != wanted and (name != "kernels" or _overrides(known) != _overrides(wanted)):
            rows.append(f"{name}={known!r}, not {wanted!r}")
    return rows


def _overrides(kernels: str | Mapping[str, str] | None) -> dict[str, str]:
    from tinsmith.kernels.select import parse_overrides

    return parse_overrides(kernels)
