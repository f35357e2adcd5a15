"""The plan: what runs in which order on which memory. Data only: frozen, printable, storable."""

from __future__ import annotations

from typing import Any

from tinsmith.records import NamedTuple

ARENA, WEIGHTS, WORKSPACE, SYNC, STAMPS, COUNTERS, HEADER, SIZES, MADE, PORTS = range(10)
"""Slots of the table of pointers that generated code gets. SIZES: the numbers of `Plan.sizes`;
MADE: results that are computed once for these numbers. From PORTS on: inputs, outputs, then weights
shared with other programs. HEADER is a number, not a pointer: the offset in bytes, in an array
object, at which the address of its elements is stored."""
ENTER = "enter"
"""The name of the function that is a whole call, if the plan is `entered`."""
MOST_ENTERED = 64
"""The most arrays of such a function: ctypes takes no more than some hundred arguments."""

WRITTEN = frozenset(("output", "input"))
"""Where outputs are when native code has run: in arrays of their own, or kept in an input's."""

LINE = 8
"""Words (of 8 bytes) from one counter to the next: each has a cache line of its own, so that
threads do not slow each other."""
SLACK = 4096
"""Bytes after arena, weights and workspace that code may read, but not write (docs/kernels.md)."""


class Ref(NamedTuple):
    """An address: byte `offset` in a memory space: "arena", "weights", "workspace", "input",
    "output", "sizes" (numbers that follow from free sizes) or "made" (tensors that are computed
    once for each set of sizes). `index` tells which input or output; for weights, whose: 0 for the
    program's own, else those of an earlier program that it shares."""

    space: str
    offset: int = 0
    index: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    stride: int = 0
    """Bytes from one micro-batch of a region to the next."""


class Call(NamedTuple):
    """One call of a kernel function, whose `tiles` the threads share.

    symbol     the function's name in the program's code
    refs       the addresses that it gets
    barrier    its tiles, and those of the calls before, must be done before the next call begins
    workspace  bytes from one thread's workspace to the next's (0: the program has none)
    repeat     how often it runs, each time after the last is done
    sweep      how many tiles threads share at a time (0: all)
    """

    symbol: str
    refs: tuple[Ref, ...]
    tiles: int
    barrier: bool = True
    workspace: int = 0
    repeat: int = 1
    sweep: int = 0
    sizes: tuple[Ref, ...] = ()
    """Where the tables of numbers and sizes lie that its function reads, if it reads any."""


class Operand(NamedTuple):
    """A plain tensor that a reference step reads or writes, or an output of the program: at the
    address `ref`; if that is None, an array in Python, found by its name."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    ref: Ref | None


class Step(NamedTuple):
    """One node of the placed graph, or a conversion between layouts.

    kind    "native" (calls), "reference" (numpy), "once" (numpy, for each set of sizes), or "view"
            (no work)
    kernel  the kernel's name; of other kinds what computes the node, such as "view"
    detail  the kernel's variant; of a reference why no kernel computes the node
    cost    estimated seconds on one core
    flops, nbytes  arithmetic operations; bytes of tensors and packed weights that it moves
    fault   the message of the DataError that the run raises if native code has set the four bytes
            at offset `fault_at` of the arena ("", -1: it reports none)
    region  not 0: steps of one region follow each other, and run in turn for each of its
            `micro_batches`, on one thread each; cost, flops and nbytes are those of all of them
    reads, writes  operands of a step in numpy. A native step has none, unless it counts its
            results: the last of `writes` is then the count, which replaces each dim of -1
    stated  the count that the model states, which the run must find (-1: it states none)
    row     the row of the table of products (`codegen/products.py`) whose peak is its 100 %
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
    micro_batches: int = 1
    stated: int = -1
    row: str = "float32"


class Memory(NamedTuple):
    """Bytes of memory that a program needs.

    peak         the arena
    naive        what the arena's tensors would take if none shared bytes with another
    lower_bound  the most bytes of the arena that are alive at one step
    weights      packed weights and constants, those of earlier programs that it reads included
    workspace    the workspaces of all threads
    code         machine code
    """

    peak: int
    naive: int
    lower_bound: int
    weights: int
    workspace: int
    code: int = 0

    def __str__(self) -> str:
        def mb(n: int) -> str:
            return f"{n / 1e6:.2f} MB"

        return (
            f"arena {mb(self.peak)} (lower bound {mb(self.lower_bound)}, without sharing "
            f"{mb(self.naive)}), weights {mb(self.weights)}, workspace {mb(self.workspace)}, "
            f"code {self.code / 1000:.0f} kB"
        )


class Port(NamedTuple):
    """An input of a program: its name, the name of its dtype, its dims (() if not static)."""

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
    sizes: tuple[Any, ...] = ()
    """Numbers that code reads: of a plan for free sizes, `Size`s, else ints."""
    free: bool = False
    """Whether some sizes are free: the shapes of the inputs have formulas in place of numbers."""
    made: Any = 0
    """Bytes of the memory space "made": results that are computed once for each set of sizes."""
    buffers: tuple[tuple[Any, int, int], ...] = ()
    """(bytes, first step, last step) of each tensor and scratch in the arena; both inclusive."""
    workspaces: tuple[int, ...] = ()
    """By step: bytes of each thread's workspace that it uses; of a plan for free sizes, as it was
    made."""

    @property
    def entered(self) -> bool:
        """Whether a whole call is one generated function, `enter`, which runs on the calling thread
        and takes array objects: of one thread and one native segment, with few arrays."""
        runs = self.segments()
        return (
            self.threads == 1
            and [kind for kind, _ in runs] == ["native"]
            and not runs[0][1][-1].writes
            and all(o.ref is not None and o.ref.space in WRITTEN for o in self.outputs)
            and all(port.dtype != "object" for port in (*self.inputs, *self.outputs))
            and len(self.inputs) + len(self.outputs) <= MOST_ENTERED
        )

    def addressed(self) -> set[int]:
        """The indices of the inputs whose memory generated code reads or writes."""
        calls = (c for s in self.steps for c in s.calls)
        return {r.index for c in calls for r in c.refs if r.space == "input"}

    def segments(self) -> list[tuple[str, list[Step]]]:
        """The steps in order, without those of the kinds "view" and "once", cut into segments:
        ("native", the steps that one generated function runs) or ("reference", [one step]). A
        native step that counts its results is the last of its segment."""
        runs: list[tuple[str, list[Step]]] = []
        for step in self.steps:
            if step.kind in ("view", "once"):
                continue
            last = runs[-1][1][-1] if runs else step
            if step.kind == "native" == last.kind and runs and not last.writes:
                runs[-1][1].append(step)
            else:
                runs.append((step.kind, [step]))
        return runs

    @property
    def work(self) -> dict[str, float]:
        """The operations of all steps, by `Step.row`; without rows of which no step has any."""
        found: dict[str, float] = {}
        for step in self.steps:
            if step.flops:
                found[step.row] = found.get(step.row, 0.0) + step.flops
        return found

    @property
    def stamp_words(self) -> int:
        """How many words (i64) the time stamps of one thread take in the longest segment."""
        return 1 + max((len(steps) for _, steps in self.segments()), default=0)

    @property
    def counter_words(self) -> int:
        """How many words (i64) the counters of the largest segment take: for each of its calls LINE
        words for the tiles that are done, and LINE more for each thread. 0 with one thread."""
        if self.threads == 1:
            return 0
        calls = [
            sum(len(s.calls) for s in steps) for kind, steps in self.segments() if kind == "native"
        ]
        return max(calls, default=0) * LINE * (1 + self.threads)

    def __str__(self) -> str:
        lines = [f"plan {self.model} for {self.target}, {self.threads} thread(s); {self.memory}"]
        for step in self.steps:
            where = " ".join(f"{r.space}+{r.offset}" for c in step.calls for r in c.refs)
            lines.append(f"  {step.name:40} {step.op:16} {step.kernel:24} {step.detail:20} {where}")
        return "\n".join(lines)
