"""The plan: what runs in which order on which memory. Data only: frozen, printable, savable."""

from __future__ import annotations

from typing import Any, NamedTuple

from tinsmith.plain import decode

ARENA, WEIGHTS, WORKSPACE, SYNC, STAMPS, COUNTERS, HEADER, PORTS = range(8)
"""Slots of the table of pointers that generated code gets; from PORTS on inputs, outputs, then
shared weights. HEADER holds a number: after so many bytes of an array object comes the address of
its elements."""
ENTER = "enter"
"""The function that is a whole call, where the plan is `entered`."""
MOST_ENTERED = 64
"""A call of as many arrays is one of a function; ctypes takes no more than some hundred."""

LINE = 8
"""Words (of 8 bytes) from one counter to the next: threads do not write to one cache line."""
SLACK = 4096
"""Bytes after arena, weights and workspace that code may read, but not write (docs/kernels.md)."""


class Ref(NamedTuple):
    """An address: byte `offset` in a memory space ("arena", "weights", "workspace", "input" or
    "output"); `index` tells which input or output, or whose weights: the program's own (0),
    or those of an earlier program that it shares."""

    space: str
    offset: int = 0
    index: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    stride: int = 0
    """Bytes to where the next turn of a region finds it."""


class Call(NamedTuple):
    """One native function over `tiles`; `barrier`: they, and those of the calls before, must be
    done before the next call begins. `workspace` is the bytes of workspace that each thread owns
    (0: none). `repeat`: so many times in sequence, each done before the next begins. `sweep`: how
    many tiles threads share at a time (0: all)."""

    symbol: str
    refs: tuple[Ref, ...]
    tiles: int
    barrier: bool = True
    workspace: int = 0
    repeat: int = 1
    sweep: int = 0


class Operand(NamedTuple):
    """A plain tensor that a reference step reads or writes: an address, or a named array that only
    reference steps see (`ref` is None)."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    ref: Ref | None


class Step(NamedTuple):
    """One node of the placed graph (or a conversion between layouts).

    `fault`: what it means if the code has set the four bytes at `fault_at` of the arena.
    kind: "native" (calls), "reference" (numpy), "view" (no work). `cost` is the model's seconds.
    Steps of one `region` (not 0) follow each other, and run one after the other for each of its
    `turns`, a whole turn on one thread; cost, flops and bytes are those of all turns.
    A native step has `writes` only where it counts: a dim of -1 is what the last of them holds,
    which must be `stated`, if the model does state it (not -1).
    """

    name: str
    op: str
    kind: str
    kernel: str
    detail: str
    origin: str
    calls: tuple[Call, ...] = ()
    cost: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    reads: tuple[Operand | None, ...] = ()
    writes: tuple[Operand, ...] = ()
    fault: str = ""
    fault_at: int = -1
    region: int = 0
    turns: int = 1
    stated: int = -1


class Memory(NamedTuple):
    """Bytes: the arena's `peak`, the sum of all its tensors without sharing (`naive`), the most
    that is alive at one step (`lower_bound`), packed and constant weights, workspace, code."""

    peak: int
    naive: int
    lower_bound: int
    weights: int
    workspace: int
    code: int = 0

    def __str__(self) -> str:
        def mib(n: int) -> str:
            return f"{n / 2**20:.2f} MiB"

        return (
            f"arena {mib(self.peak)} (lower bound {mib(self.lower_bound)}, without sharing "
            f"{mib(self.naive)}), weights {mib(self.weights)}, workspace {mib(self.workspace)}, "
            f"code {self.code / 1024:.0f} KiB"
        )


class Port(NamedTuple):
    """An input or output of a program: name, dtype name, static shape."""

    name: str
    dtype: str
    dims: tuple[int, ...]


class Plan(NamedTuple):
    """Everything that a Program needs besides code and weights."""

    model: str
    target: str
    isa: str
    threads: int
    inputs: tuple[Port, ...]
    outputs: tuple[Operand, ...]
    steps: tuple[Step, ...]
    memory: Memory

    @property
    def entered(self) -> bool:
        """Whether a call is one function on the calling thread, which takes the array objects."""
        runs = self.segments()
        return (
            self.threads == 1
            and [kind for kind, _ in runs] == ["native"]
            and not runs[0][1][-1].writes
            and all(o.ref is not None and o.ref.space == "output" for o in self.outputs)
            and all(port.dtype != "object" for port in (*self.inputs, *self.outputs))
            and len(self.inputs) + len(self.outputs) <= MOST_ENTERED
        )

    def addressed(self) -> set[int]:
        """The inputs whose memory native code reads, by index."""
        calls = (c for s in self.steps for c in s.calls)
        return {r.index for c in calls for r in c.refs if r.space == "input"}

    def segments(self) -> list[tuple[str, list[Step]]]:
        """In order: runs of native steps, and reference steps one by one, with their kind. A step
        that counts is the last of its run."""
        runs: list[tuple[str, list[Step]]] = []
        for step in self.steps:
            if step.kind == "view":
                continue
            last = runs[-1][1][-1] if runs else step
            if step.kind == "native" == last.kind and runs and not last.writes:
                runs[-1][1].append(step)
            else:
                runs.append((step.kind, [step]))
        return runs

    @property
    def stamp_words(self) -> int:
        """Words that a thread has for the time stamps of a segment."""
        return 1 + max((len(steps) for _, steps in self.segments()), default=0)

    @property
    def counter_words(self) -> int:
        """i64 counters that the largest segment needs: for each call one line, and one a thread."""
        if self.threads == 1:
            return 0
        calls = [
            sum(len(s.calls) for s in steps) for kind, steps in self.segments() if kind == "native"
        ]
        return max(calls, default=0) * LINE * (1 + self.threads)

    def to_json(self) -> list[Any]:
        """Plain data for `from_json`: rows without names, so that it is small and read fast."""
        return list(self)

    @staticmethod
    def from_json(data: list[Any]) -> Plan:
        """Raises Misfit where the data is no plan."""
        return decode(Plan, data)

    def __str__(self) -> str:
        lines = [f"plan {self.model} for {self.target}, {self.threads} thread(s); {self.memory}"]
        for step in self.steps:
            where = " ".join(f"{r.space}+{r.offset}" for c in step.calls for r in c.refs)
            lines.append(f"  {step.name:40} {step.op:16} {step.kernel:24} {step.detail:20} {where}")
        return "\n".join(lines)
