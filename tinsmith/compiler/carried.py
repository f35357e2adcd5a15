"""Compiled programs that .tin files carry: who made them, how, and whether they may run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from tinsmith.codegen.target import ISAS, Target, level, runnable
from tinsmith.compiler.options import Options
from tinsmith.compiler.store import Head, sources, type_from, type_row
from tinsmith.errors import ModelFileError, OptionError, UntrustedCode
from tinsmith.formats.container import MAGIC, Container
from tinsmith.formats.mapped import open_file
from tinsmith.graph import Graph
from tinsmith.hashing import blake2b
from tinsmith.runtime.net import Signature


class Maker(TypedDict):
    """Of the section "made" what every release has written."""

    by: str


class Kept(TypedDict):
    """`Options`."""

    threads: int
    kernels: str | dict[str, str] | None
    passes: str
    precision: str
    memory: str


class Faces(TypedDict):
    name: str
    inputs: dict[str, list[Any]]
    outputs: list[str]


class Made(Maker):
    options: Kept
    interface: Faces
    signature: tuple[tuple[int, ...] | None, ...]


class Carried(NamedTuple):
    """A carried program: its file, the machine (without measured limits) and the options that it
    was made for, the model's names and types as `Store.interface` gives them, and the shapes of its
    inputs that it is for."""

    file: Container
    machine: Target
    options: Options
    interface: dict[str, Any]
    signature: Signature


@cache
def release() -> str:
    """The digest of the package's sources: equal wherever the same release is installed."""
    h = blake2b(digest_size=16)
    root = os.path.dirname(os.path.dirname(__file__))
    for path, size, _ in sorted(sources(root)):
        name = path[len(root) :].replace(os.sep, "/")
        h.update(f"{name}:{size}:".encode())
        with open(path, "rb", 0) as file:
            h.update(file.read())
    return h.hexdigest()


def origin(graph: Graph, options: Options, signature: Signature) -> bytes:
    """The section "made" of a program of a graph with options, for inputs of these shapes."""
    known = asdict(options)
    if isinstance(options.kernels, Mapping):
        known["kernels"] = dict(options.kernels)
    interface = {
        "name": graph.name,
        "inputs": {v.name: type_row(v.type) for v in graph.inputs},
        "outputs": [v.name for v in graph.outputs],
    }
    made = {"by": release(), "options": known, "interface": interface, "signature": signature}
    return json.dumps(made).encode()


def program_in(path: Path) -> Container | None:
    """The .tin file at a path, if it is one and carries a program. Raises ModelFileError."""
    try:
        with open_file(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
    except (OSError, ValueError):
        return None
    found = Container(path)
    return found if "program" in found else None


def carried(found: Container, asked: Target | None, given: Mapping[str, Any]) -> Carried:
    """The program in a trusted file. `asked` is the machine, if the caller named one, `given` the
    options that the caller gave.

    Raises UntrustedCode for code of another release or another machine, OptionError where the
    program was made with other options than those given.
    """
    file = found.path
    if "made" not in found or found.data("made", Maker)["by"] != release():
        raise UntrustedCode(
            f"{file} carries code made by another version of Tinsmith; compile it "
            "without trust=True, and save it anew"
        )
    for name in ("graph", "table"):  # read when another shape is compiled; damage is told now
        found.text(name)
    made, head = found.data("made", Made), found.data("program", Head)
    key, plan = head["target"], head["plan"]
    options, signature = Options(**made["options"]), made["signature"]
    rows = made["interface"]["inputs"].items()
    try:
        inputs = {n: type_from(r) for n, r in rows}
    except ValueError as error:
        raise ModelFileError(f"{file} has a corrupt program: {error}") from error
    outputs = made["interface"]["outputs"]
    if not len(signature) == len(inputs) == len(plan.inputs) or len(outputs) != len(plan.outputs):
        raise ModelFileError(f"{file} has a corrupt program: it is not for this model's inputs")
    interface = {**made["interface"], "inputs": inputs, "files": {}}
    machine = asked or _machine(key)
    if machine is None or machine.key != key:
        here = f"this machine is {level('host').key}" if asked is None else f"not for {asked.key}"
        raise UntrustedCode(
            f"{file} carries code for {key}, {here}; "
            "compile it without trust=True to make code anew"
        )
    if differing := _differing(options, given):
        raise OptionError(
            f"{file} carries a program that was made with {', '.join(differing)}; leave these "
            "options out to run it, or do not trust it (no trust=True, no --trust) to compile the "
            "model anew with them"
        )
    return Carried(found, machine, options, interface, signature)


def _machine(key: str) -> Target | None:
    """This machine as far as code of a target's key uses it; None where it cannot run that."""
    isa = key.rpartition("|")[2]
    machine = level(isa) if isa in ISAS else None
    return machine if machine is not None and runnable(machine) else None


def _differing(options: Options, given: Mapping[str, Any]) -> list[str]:
    """What of a program's options differs from those given, in words."""
    rows = []
    for name, wanted in given.items():
        known = getattr(options, name) if name != "tune" else "what was known then"
        if known != wanted and (name != "kernels" or _overrides(known) != _overrides(wanted)):
            rows.append(f"{name}={known!r}, not {wanted!r}")
    return rows


def _overrides(kernels: str | Mapping[str, str] | None) -> dict[str, str]:
    from tinsmith.kernels.select import parse_overrides

    return parse_overrides(kernels)
