"""Writes and reads programs, and the interfaces of models, as sections of container files: for the
store and for .tin files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from tinsmith.codegen.library import SharedLibrary
from tinsmith.codegen.sync_block import MAX_THREADS
from tinsmith.errors import ModelFileError
from tinsmith.formats.container import Container
from tinsmith.graph import Holder, Type
from tinsmith.graph.types import HOLDERS, dtype_named
from tinsmith.plain import Misfit, decode
from tinsmith.plan.plan import Plan
from tinsmith.plan.shared_weights import Blob
from tinsmith.records import NamedTuple
from tinsmith.runtime.later import LaterStep
from tinsmith.runtime.program import Brief, Program

if TYPE_CHECKING:
    from pathlib import Path

    from tinsmith.codegen.target import Target
    from tinsmith.compiler.later import Later
    from tinsmith.compiler.size_rows import SizesRead
    from tinsmith.runtime.free import FreeProgram

NOTES = ("tuned", "idle", "slow")  # texts about a program whose lines become notes of the net
TOLD = ("placed", "explain")  # the placed graph as text, and the explanations as JSON

Told = Callable[[str], str]
"""The texts about a program: a function from a name in TOLD or NOTES to the text, "" if there is
none."""


def note(notes: list[str], lines: Iterable[str]) -> None:
    """Add lines to the notes of a net, each of them once."""
    notes += [line for line in lines if line not in notes]


def tell(notes: list[str], told: Told) -> None:
    """Add those texts about a program that are for the user to the notes of a net."""
    note(notes, [line for name in NOTES for line in told(name).splitlines()])


Ref = tuple[str, str]
"""Where packed weights of a program are: the name of a file ("": its own), and their tag there."""


class Interface(NamedTuple):
    """What callers see of a model: its name, inputs by name, and names of outputs; stored so that a
    `Net` can be made without parsing the model. `files` are further files of the model (external
    weights), relative to the folder of its main file."""

    name: str
    inputs: Mapping[str, Type]
    outputs: list[str]
    files: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return the interface as plain data, which `interface_from` reads."""
        return self._asdict() | {"inputs": {n: type_row(t) for n, t in self.inputs.items()}}


class Faces(TypedDict):
    """The type of the plain data that `Interface.row` makes."""

    name: str
    inputs: dict[str, list[Any]]
    outputs: list[str]
    files: list[str]


def interface_from(row: Any) -> Interface:
    """Read an `Interface` from the data of `Interface.row`. Raises ValueError for other data."""
    found = decode(Faces, row)
    inputs = {n: type_from(r) for n, r in found["inputs"].items()}
    return Interface(found["name"], inputs, found["outputs"], tuple(found["files"]))


def type_row(type: Type) -> list[Any]:
    """Return a type as plain data, which `type_from` reads."""
    if isinstance(type, Holder):
        return [type.word, type_row(type.item)]
    return [type.dtype.name, type.shape]


def type_from(row: list[Any]) -> Type:
    """Read a type from the data of `type_row`. Raises ValueError for other data."""
    name, rest = decode(tuple[str, Any], row)
    if name in HOLDERS:
        return HOLDERS[name](type_from(rest))
    return Type(dtype_named(name), decode(tuple[int | str, ...] | None, rest))  # type: ignore[arg-type]


class LaterRow(TypedDict):
    """A `Later` step as plain data, without its name."""

    read: list[int]
    stored: list[int]


class Head(TypedDict):
    """The section "program": all of a program but its plan, weights and code, which are sections of
    their own.

    target     key of the machine that the code is for
    free       whether the program is one for free sizes
    brief      the facts of the plan that a session needs
    nodes      steps by reference: name -> (operator, attributes)
    later      `Later` steps, by name
    constants  name -> (dtype, shape); the elements are in sections of their own
    sized      constants that hold Sizes: name -> (shape, elements)
    weights    a `Ref` for each of the program's blobs
    """

    target: str
    free: bool
    brief: Brief
    nodes: dict[str, tuple[str, dict[str, Any]]]
    later: dict[str, LaterRow]
    constants: dict[str, tuple[str, tuple[int, ...]]]
    sized: dict[str, tuple[tuple[int, ...], list[int]]]
    weights: list[tuple[str, str]]


def told_in(found: Container) -> Told:
    """Return the texts about the program in a container."""
    return lambda name: found.text(name) if name in found else ""


def program_in(made: Program | FreeProgram) -> Program:
    """Return a program, or the `Program` inside one for free sizes."""
    return made if isinstance(made, Program) else made.program


def laters_of(made: Program | FreeProgram) -> list[Later]:
    """Return the `Later` steps of a program."""
    return [op for op, _ in program_in(made).nodes.values() if isinstance(op, LaterStep)]  # type: ignore[misc]


def sections_of(
    made: Program | FreeProgram, target: Target, refs: Sequence[Ref], told: Told,
    stored: Mapping[str, Sequence[int]] = {},
) -> dict[str, Any] | None:  # fmt: skip
    """Return the sections of a file for a program: name -> bytes or array; None if the program
    cannot be written as data. Its weights are not included: they lie at `refs`. `told`: the texts
    about it. `stored`: name of a `Later` step -> the numbers, in the file, of its programs."""
    from tinsmith.codegen.library import uses_elf
    from tinsmith.sizes import has_sizes

    program = program_in(made)
    if not uses_elf(target) or program.library is None:
        return None
    constants = program.constants.items()
    sized = {n: [a.shape, a.reshape(-1).tolist()] for n, a in constants if has_sizes(a)}
    plain = {n: a for n, a in constants if n not in sized}
    if any(a.dtype == object for a in plain.values()):
        return None
    plan = program.whole_plan()
    head = {
        "target": target.key,
        "free": plan.free,
        "brief": Brief.of(plan),
        "nodes": {
            name: [op.name, dict(attrs)]
            for name, (op, attrs) in program.nodes.items()
            if not isinstance(op, LaterStep)
        },
        "later": {
            one.step: {"read": sorted(one.read), "stored": list(stored.get(one.step, ()))}
            for one in laters_of(program)
        },
        "constants": {n: [a.dtype.name, a.shape] for n, a in plain.items()},
        "sized": sized,
        "weights": list(refs),
    }
    try:
        rows = {"program": head, "plan": plan}
        texts = _texts(rows, None if isinstance(made, Program) else made)
    except TypeError:
        return None
    arrays_as_bytes = {
        f"constant:{n}": np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        for n, a in plain.items()
    }
    texts |= {name: text.encode() for name in (*TOLD, *NOTES) if (text := told(name))}
    return {**arrays_as_bytes, "code": program.library.data, **texts}


def _texts(sections: Mapping[str, Any], free: FreeProgram | None) -> dict[str, bytes]:
    """Encode sections as JSON. For a program for free sizes, Sizes in them become references into a
    further section "sizes". Raises TypeError for values that cannot be written."""
    if free is None:
        return {name: json.dumps(data).encode() for name, data in sections.items()}
    from tinsmith.compiler.size_rows import SizeRows

    rows = SizeRows()
    texts = {n: json.dumps(data, default=rows.of).encode() for n, data in sections.items()}
    return {"sizes": json.dumps(rows.row(free)).encode(), **texts}


def program_of(
    found: Container, blob: Callable[[str, str], Blob], target: Target | None = None
) -> Program | FreeProgram:
    """Read the program of a container, and load its code: the caller must trust the file. `blob`
    loads the weights at a `Ref`. All sections that are used are checked.

    Raises ModelFileError, also for code of another target than `target`, if that is given.
    """
    sizes = sizes_in(found)
    hook = sizes.hook if sizes is not None else None
    head = found.data("program", Head, hook)
    if target is not None and head["target"] != target.key:
        raise ModelFileError(f"{found.path} holds code for {head['target']}, not for {target.key}")
    brief = head["brief"]
    found.array("plan", check=True)
    plan: Any = partial(_plan, found, hook, head)
    if sizes is not None or not brief.entered:  # then a session needs the plan's steps
        plan = plan()
    if brief.entered and brief.threads != 1:
        raise ModelFileError(f"{found.path} has a corrupt program")
    if head["free"] and sizes is None:
        raise ModelFileError(f"{found.path} has a corrupt program: its sizes do not fit it")
    blobs = [blob(name, tag) for name, tag in head["weights"]]
    code = found.array("code", check=True).tobytes()
    try:
        constants = {
            n: found.array(f"constant:{n}", check=True).view(dtype_named(d)).reshape(s)
            for n, (d, s) in head["constants"].items()
        }
        for name, (shape, values) in head["sized"].items():
            constants[name] = np.array(values, object).reshape(shape)
    except (TypeError, ValueError) as error:  # the bytes do not fit the dtype or shape
        raise ModelFileError(f"{found.path} has a corrupt constant: {error}") from error
    team = None
    if brief.threads > 1:
        from tinsmith.backends.library import team_address
        from tinsmith.codegen.target import level

        machine = target or level(head["target"].rpartition("|")[2])
        team = team_address(machine, True, brief.threads)
    library = SharedLibrary(code)
    program = Program(plan, library, blobs, _nodes(head), constants, team, brief)
    if sizes is None:
        return program
    from tinsmith.runtime.free import FreeProgram

    try:
        return FreeProgram(program, sizes.shapes, sizes.scope)
    except (LookupError, ValueError, TypeError) as error:
        raise ModelFileError(f"{found.path} has corrupt sizes: {error}") from error


def sizes_in(found: Container) -> SizesRead | None:
    """Read the section "sizes" of a program for free sizes; None if there is none. Raises
    ModelFileError."""
    if "sizes" not in found:
        return None
    from tinsmith.compiler.size_rows import Rows, SizesRead

    try:
        return SizesRead(found.data("sizes", Rows))
    except Misfit as error:
        raise ModelFileError(f"{found.path} has corrupt sizes: {error}") from error


def _plan(found: Container, hook: Any, head: Head) -> Plan:
    """Read the plan of a stored program, and check that it fits `head`, its section "program".
    `hook` as in `Container.data`. Raises ModelFileError."""
    from tinsmith.conditions import estimating

    plan = found.data("plan", Plan, hook)
    with estimating():
        _check(plan, head, found.path)
    return plan


def _check(plan: Plan, head: Head, path: Path) -> None:
    """Raise ModelFileError for a plan that cannot run: unknown dtypes, reference steps that `head`
    lacks, negative sizes of memory, too many threads."""
    operands = [o for s in plan.steps for o in (*s.reads, *s.writes) if o is not None]
    try:
        for dtype in {o.dtype for o in (*plan.inputs, *plan.outputs, *operands)}:
            dtype_named(dtype)
    except ValueError as error:
        raise ModelFileError(f"{path} has a corrupt program: {error}") from error
    steps = {s.name: s for s in plan.steps if s.kind == "reference"}
    lacking = steps.keys() - head["nodes"].keys() - head["later"].keys()
    for name, row in head["later"].items():
        known = range(len(steps[name].reads)) if name in steps else ()
        if not all(k in known for k in row["read"]):
            raise ModelFileError(f"{path} has a corrupt program: {name} is no such step")
    if lacking or min(plan.memory) < 0 or not 1 <= plan.threads <= MAX_THREADS:
        raise ModelFileError(f"{path} has a corrupt program")


def _nodes(head: Head) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return `Program.nodes` of a section "program": name -> (operator or Later, attributes)."""
    if not head["nodes"] and not head["later"]:
        return {}
    from tinsmith.ops import OPS

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    found: dict[str, tuple[Any, dict[str, Any]]] = {
        n: (OPS[op], {k: frozen(v) for k, v in attrs.items()})
        for n, (op, attrs) in head["nodes"].items()
    }
    if head["later"]:
        from tinsmith.compiler.later import Later

        found |= {n: (Later(n, **row), {}) for n, row in head["later"].items()}
    return found
