"""A Program is a plan with its code and weights. It is immutable: any number of threads may share
it, each with a `Session` of its own."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tinsmith.graph import Array, dtype_of
from tinsmith.plan.plan import ENTER, HEADER, PORTS, WEIGHTS, Plan, Step
from tinsmith.plan.shared_weights import Blob
from tinsmith.records import NamedTuple
from tinsmith.runtime.memory import DATA_AT, OfThisProcess, address_of
from tinsmith.runtime.session import Native, Session

if TYPE_CHECKING:
    from tinsmith.runtime.tables import Nodes

_SEGMENT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)

FREE, FIXED = "free", "fixed"


class Library(Protocol):
    """A shared library with machine code, loaded into this process: its file's bytes, and addresses
    of its functions. It is unloaded with the object: keep a reference while its code may run."""

    data: bytes

    def address(self, symbol: str) -> int: ...


class Frame(NamedTuple):
    """The numbers of a program that a session needs and that depend on sizes: bytes of the arena,
    bytes of the workspaces of all threads together, dims of outputs (-1: only the run tells), and
    (offset in the arena, error text) of each fault that a step may report."""

    arena: int
    workspace: int
    outputs: Sequence[tuple[int, ...]]
    faults: Sequence[tuple[int, str]]


class Brief(NamedTuple):
    """The facts of a plan that a session needs. A stored program that is one function (`entered`)
    runs with them alone: its plan is read only for reports. Fields not told here: see `Plan`.

    ports    number of inputs and outputs together
    outputs  (dims, dtype) of each; dtype None if code does not write it to an array of its own
    arena, workspace  bytes
    faults   as in `Frame`
    counts   whether code reads a table of sizes, or results of "once" steps (`runtime/tables.py`)
    kept     (number of an output, number of the input in whose memory it is)
    """

    model: str
    threads: int
    stamp_words: int
    counter_words: int
    ports: int
    outputs: tuple[tuple[tuple[int, ...], str | None], ...]
    arena: int
    workspace: int
    faults: tuple[tuple[int, str], ...]
    entered: bool
    counts: bool
    kept: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> Brief:
        return cls(
            plan.model, plan.threads, plan.stamp_words, plan.counter_words,
            len(plan.inputs) + len(plan.outputs),
            tuple([
                (o.dims, o.dtype if o.ref is not None and o.ref.space == "output" else None)
                for o in plan.outputs
            ]),
            plan.memory.peak, plan.memory.workspace,
            tuple([(s.fault_at, fault_text(s)) for s in plan.steps if s.fault]),
            plan.entered, bool(plan.sizes) or any(s.kind == "once" for s in plan.steps),
            tuple([
                (k, o.ref.index) for k, o in enumerate(plan.outputs)
                if o.ref is not None and o.ref.space == "input"
            ]),
        )  # fmt: skip


def fault_text(step: Step) -> str:
    """Return the message of the error that a step's fault raises."""
    return f"{step.origin}: {step.fault}"


class Entry(NamedTuple):
    """The parts of a program that a session needs besides its `Brief`, the same for all sizes.

    stamps     zeros, in the place of the time stamps of a run that is not timed
    table      the table of pointers, to be copied; addresses of the session's memory are 0
    enter      the function that runs a whole call (None: segments are called one by one)
    dtypes     for each output its dtype, if code writes it to a new array; else None
    put_ports  (table, byte offset, *addresses): writes addresses of inputs and outputs"""

    stamps: Array
    table: Array
    enter: Callable[..., None] | None
    dtypes: list[np.dtype[Any] | None]
    put_ports: Callable[..., None]


class Program(OfThisProcess):
    """A plan with its machine code and packed weights.

    plan       the plan; or, with `brief`, a function that reads it from a file
    library    its machine code; None if no step is native
    blobs      its own packed weights first, then those of other programs that it shares
    nodes      name of a "reference" or "once" step -> (operator, attributes)
    constants  the arrays that only such steps read, by name
    team       name -> address of the thread team's functions; None for one thread
    checks     name of a reference step -> a function to call before it, which may raise an error
    stored     whether it was read from a file, not compiled by this process
    """

    takes = ""
    """The sizes that its code takes besides its own, in words; "" if none."""
    is_sized = False
    """Whether it is a `SizedProgram`."""

    @property
    def is_planned(self) -> bool:
        """Whether costs and counts in its plan are those of its sizes; False for a `SizedProgram`
        of other sizes than the example's."""
        return True

    @property
    def base(self) -> Program:
        """The program whose code and weights these are: for a `SizedProgram` the one for free
        sizes, else the program itself."""
        return self

    @property
    def which(self) -> str:
        """For reports: "free" for a `SizedProgram`, else "fixed"."""
        return FREE if self.is_sized else FIXED

    def __init__(
        self,
        plan: Plan | Callable[[], Plan],
        library: Library | None,
        blobs: Sequence[Blob],
        nodes: Nodes,
        constants: Mapping[str, Array],
        team: Callable[[str], int] | None,
        brief: Brief | None = None,
    ) -> None:
        self.stored = brief is not None
        self._read_plan = plan if callable(plan) else lambda: plan
        self.brief = Brief.of(self.plan) if brief is None else brief
        self.library, self.blobs = library, list(blobs)
        self.nodes, self.constants, self.team = dict(nodes), dict(constants), team
        self.checks: dict[str, Callable[[], None]] = {}
        self.sizes: Array | None = None
        """As `made`, from `Tables.made`; None if code reads none."""
        self.made: Array | None = None
        if self.brief.counts and not self.plan.free:
            from tinsmith.runtime.tables import Asked, Tables

            asked = Asked(int)
            tables = Tables(self.plan, nodes, constants, asked)
            self.sizes, self.made = tables.made(list(asked.values))

    @cached_property
    def plan(self) -> Plan:
        return self._read_plan()

    @cached_property
    def segments(self) -> list[tuple[int, list[Step]] | Step]:
        """The plan in the order of execution: (address of a function, its steps) for each native
        segment, and single reference steps."""
        found: list[tuple[int, list[Step]] | Step] = []
        for kind, steps in self.plan.segments():
            if kind == "native":
                assert self.library is not None
                native = sum(not isinstance(s, Step) for s in found)
                found.append((self.library.address(f"seg{native}"), steps))
            else:
                found.append(steps[0])
        return found

    def whole_plan(self) -> Plan:
        """Return the plan with numbers for all sizes. The `plan` of a `SizedProgram` has formulas
        in fields of steps that runs do not read."""
        return self.plan

    def session(self) -> Session:
        return Session(self)

    def thread_session(self) -> Session:
        """Make a session that only the calling thread will run. That of a `SizedProgram` may share
        its memory with the thread's other sessions."""
        return Session(self)

    @cached_property
    def frame(self) -> Frame:
        brief = self.brief
        return Frame(brief.arena, brief.workspace, [d for d, _ in brief.outputs], brief.faults)

    @cached_property
    def entry(self) -> Entry:
        """The parts that are the same for all sizes; see `Entry`."""
        brief = self.brief
        enter, ports = None, brief.ports
        if DATA_AT and brief.entered and self.library is not None:
            made = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.py_object] * ports)
            enter = made(self.library.address(ENTER))
        own, *others = [address_of(b.data) if b.data.size else 0 for b in self.blobs]
        table = [0] * (PORTS + ports) + others
        table[WEIGHTS], table[HEADER] = own, DATA_AT if enter is not None else 0
        return Entry(
            np.zeros((brief.threads, brief.stamp_words), np.int64), np.array(table, np.int64),
            enter, [None if dtype is None else dtype_of(dtype) for _, dtype in brief.outputs],
            struct.Struct(f"{ports}q").pack_into,
        )  # fmt: skip

    @cached_property
    def calls(self) -> list[Step | Native]:
        """As `segments`, with native ones as `session.Native`: (address, function (table, thread),
        steps)."""
        return [s if isinstance(s, Step) else (s[0], _SEGMENT(s[0]), s[1]) for s in self.segments]
