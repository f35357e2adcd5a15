"""`memory_report`: how much memory a compiled model takes, step by step, as planned and measured.

A plan has the first and last step of each tensor. From these follow, without a run, the bytes that
are alive in the arena at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from textwrap import fill
from typing import Any, NamedTuple

from tinsmith.compiler.options import refuse_others
from tinsmith.errors import OptionError, counted
from tinsmith.graph import Holder, dtype_of
from tinsmith.graph.copy import shaped_types
from tinsmith.graph.text import weights_in
from tinsmith.passes.shapes import with_sizes
from tinsmith.plan.alive import allocate_and_free, peak_of
from tinsmith.plan.memory import align
from tinsmith.plan.plan import Memory, Operand, Plan, Port
from tinsmith.records import dataclass
from tinsmith.runtime.measured import Measured, measured
from tinsmith.runtime.net import Net
from tinsmith.runtime.program import Program


class Row(NamedTuple):
    """One step of a plan: its number in `Plan.steps`, name, operator and kernel; and in bytes:

    alive      tensors and scratch in the arena that are in use while the step runs
    made       those of them that come into use with this step: its results and its scratch
    workspace  used by it, of all threads together
    """

    step: int
    name: str
    op: str
    kernel: str
    alive: int
    made: int
    workspace: int


def timeline(plan: Plan) -> list[Row]:
    """Return a `Row` for each step of a plan, in order, views left out. The greatest `alive` is the
    plan's lower bound."""
    alive = [0] * (len(plan.steps) + 2)
    made = [0] * (len(plan.steps) + 1)
    for nbytes, start, end in plan.buffers:
        made[start] += align(nbytes)
        alive[start] += align(nbytes)
        alive[end + 1] -= align(nbytes)
    rows: list[Row] = []
    now = 0
    spaces = plan.workspaces or (0,) * len(plan.steps)
    for i, (step, space) in enumerate(zip(plan.steps, spaces, strict=True)):
        now += alive[i]
        if step.kind != "view":
            used = space * plan.threads if step.kind == "native" else 0
            rows.append(Row(i, step.name, step.op, step.kernel, now, made[i], used))
    return rows


WIDTH, NAME = 80, 34
"""Columns of the report, and of a name in its table."""


@dataclass(frozen=True)
class MemoryReport:
    """Memory that a program takes, in bytes, by purpose. `str` gives a report with a line for each
    step.

    shapes        of the inputs, by name
    planned       the arena (`peak`), its lower bound, workspace, packed weights, code
    input_bytes, output_bytes  of the callers' arrays
    file_weights  of the constants of the model, as its file has them
    allocate_and_free  peak of activations in an engine that allocates each result when it is
                  computed, and frees it after its last reader, as ncnn in its light mode
    unsized       number of nodes of unknown sizes, which `allocate_and_free` does not count
    by_reference  number of steps that numpy computes, in memory of its own
    steps         a `Row` for each step but views
    measured      memory that a run has taken; None without inputs
    """

    model: str
    target: str
    threads: int
    shapes: dict[str, list[int]]
    planned: Memory
    input_bytes: int
    output_bytes: int
    file_weights: int
    allocate_and_free: int
    unsized: int
    by_reference: int
    steps: tuple[Row, ...]
    measured: Measured | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; the keys are those of docs/json.md."""
        found = asdict(self)
        found["planned"] = self.planned._asdict()
        found["steps"] = [row._asdict() for row in self.steps]
        found["measured"] = None if self.measured is None else self.measured._asdict()
        return found

    def __str__(self) -> str:
        shapes = ", ".join(f"{n} {list(s)}" for n, s in self.shapes.items())
        threads = counted(self.threads, "thread")
        head = f"memory of {self.model} for {shapes}; {self.target}, {threads}"
        head = fill(head, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join([head, *self._sums(), "", *self._table()])

    def _sums(self) -> list[str]:
        p, m = self.planned, self.measured
        least = "at least " if self.unsized else ""
        rows = [
            ("arena", p.peak, "the planned peak: what lies between steps"),
            ("lower bound", p.lower_bound, "the most that is alive at one step: *"),
            ("without sharing", p.naive, "if each tensor had bytes of its own"),
            ("allocate, free", self.allocate_and_free, f"{least}without a plan, step by step"),
            ("workspace", p.workspace, "of all threads, for one step at a time"),
            ("inputs, outputs", self.input_bytes + self.output_bytes, "the callers' arrays"),
            ("weights, file", self.file_weights, "as the model has them"),
            ("weights, packed", p.weights, "as kernels read them"),
            ("code", p.code, "machine code"),
        ]
        if m is not None:
            rows += [
                ("measured arena", m.arena, "written in a run"),
                ("  workspace", m.workspace, "written in a run"),
                ("  weights", m.weights, "packed, mapped"),
                ("  results", m.results, "new arrays"),
                ("  Python, numpy", m.python, "allocated in a run besides results"),
            ]
        lines = [f"  {name:<16} {kilobytes(n):>13}  {says}" for name, n, says in rows]
        if self.by_reference:
            steps = counted(self.by_reference, "step")
            lines.append(f"  {steps} by reference, in numpy's own memory")
        return lines

    def _table(self) -> list[str]:
        lines = [f"{'step':>4}  {'node':<{NAME}} {'alive kB':>11} {'made kB':>11} {'work kB':>11}"]
        for r in self.steps:
            alive, made, work = (f"{n / 1000:>11,.1f}" for n in (r.alive, r.made, r.workspace))
            mark = "*" if r.alive == self.planned.lower_bound and r.alive else " "
            lines.append(f"{r.step:>4}  {shortened(r.name):<{NAME}} {alive}{mark}{made} {work}")
        return lines


@refuse_others
def memory_report(net: Net, inputs: Any = None) -> MemoryReport:
    """Report the memory of a compiled model, as planned for the shapes it was last compiled for.
    With `inputs` (arrays, in order or by name): for their shapes, and measured in a run on them.

    Raises InputError, also where nothing is compiled yet; TinsmithError for a net without a plan
    (`backend="numpy"`).
    """
    if not isinstance(net, Net):
        raise OptionError(f"memory_report takes a compiled net, not {type(net).__name__}")
    if inputs is None:
        return _report(net, net.program())
    arrays = net.checked(inputs)
    program = net.program(tuple(getattr(a, "shape", None) for a in arrays))
    return _report(net, program, measured(program, arrays))


def _report(net: Net, program: Program, found: Measured | None = None) -> MemoryReport:
    plan = program.whole_plan()
    graph = net.source()
    pairs = zip(graph.inputs, plan.inputs, strict=True)
    shapes = [None if isinstance(v.type, Holder) else p.dims for v, p in pairs]
    moments = allocate_and_free(with_sizes(graph, shaped_types(graph, shapes)))
    return MemoryReport(
        model=plan.model,
        target=plan.target,
        threads=plan.threads,
        shapes={p.name: list(p.dims) for p in plan.inputs},
        planned=plan.memory,
        input_bytes=_bytes(plan.inputs),
        output_bytes=_bytes(plan.outputs),
        file_weights=sum(a.nbytes for a in weights_in([graph])),
        allocate_and_free=peak_of(moments),
        unsized=sum(not m.known for m in moments),
        by_reference=sum(s.kind == "reference" for s in plan.steps),
        steps=tuple(timeline(plan)),
        measured=found,
    )


def _bytes(ports: Sequence[Port] | Sequence[Operand]) -> int:
    return sum(prod(p.dims) * dtype_of(p.dtype).itemsize for p in ports if p.dtype != "object")


def kilobytes(nbytes: int) -> str:
    return f"{nbytes / 1000:,.1f} kB"


def shortened(name: str) -> str:
    """Return a name, cut down to NAME characters by "..." in its middle if it is longer."""
    if len(name) <= NAME:
        return name
    half = (NAME - 3) // 2
    return f"{name[: NAME - 3 - half]}...{name[-half:]}"
