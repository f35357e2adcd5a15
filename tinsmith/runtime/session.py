"""A Session holds one caller's memory for a program, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.errors import DataError, OutOfMemory, TinsmithError
from tinsmith.graph import Array, Type, dtype_of, shown
from tinsmith.plan.plan import (
    ARENA,
    COUNTERS,
    MADE,
    PORTS,
    SIZES,
    SLACK,
    STAMPS,
    SYNC,
    WORKSPACE,
    WRITTEN,
    Operand,
    Step,
)
from tinsmith.records import NamedTuple
from tinsmith.runtime import outputs
from tinsmith.runtime.inputs import Inputs, check_ports
from tinsmith.runtime.memory import OfThisProcess, address_of, addresses, aligned, owned, window
from tinsmith.runtime.results import RunMemory

if TYPE_CHECKING:
    from tinsmith.runtime.later import Cycles
    from tinsmith.runtime.program import Program
    from tinsmith.runtime.threads import Team


def _nothing() -> None:
    """Stands for the function that makes a result's array, if only the run tells its size."""


Native = tuple[int, Callable[[int, int], None], list[Step]]
"""The address of a segment's function, the function, and the steps that it runs."""


class _Run(NamedTuple):
    """The data of one run. `env`: name -> result of a step that has no place in the arena; `cycles`
    collects the times of steps, or is None."""

    inputs: Sequence[Array]
    outputs: list[Array]
    env: dict[str, Array]
    cycles: Cycles | None


class Session(OfThisProcess):
    """One caller's memory for a program: arena, workspace, and the table of pointers that code
    reads. Use from one thread at a time."""

    left = 0
    """Calls until `Often.run` handles one (the call that takes it from 1 to 0); below 1: never."""

    def __init__(self, program: Program, memory: RunMemory | None = None) -> None:
        self.program = program
        entry, brief = program.entry, program.brief
        self._memory = RunMemory() if memory is None else memory
        self._table = entry.table.copy()
        self._stamps = entry.stamps
        self._words, self._counters_at = brief.counter_words, 0
        if self._words:
            self._counters = aligned(8 * self._words)
            self._table[COUNTERS] = self._counters_at = address_of(self._counters)
        self._pointer = address_of(self._table)
        self._put_ports, self._enter = entry.put_ports, entry.enter
        self._kept = brief.kept
        self._team: Team | None = None
        self._jobs: int | None = None  # jobs of the team when this session's last run ended
        self._put_sizes()
        self._move(self._memory)

    def _put_sizes(self) -> None:
        """Put the addresses of the program's table of sizes and of "once" results into the pointer
        table."""
        program = self.program
        if program.sizes is not None:
            self._table[SIZES] = address_of(program.sizes)
        if program.made is not None:
            self._table[MADE] = address_of(program.made)

    def _make_makers(self) -> None:
        """Set `_new`: for each output a function that makes its array, of the program's sizes."""
        pairs = zip(self.program.frame.outputs, self.program.entry.dtypes, strict=True)
        self._new: list[Callable[[], Any]] = [
            _nothing if dtype is None else self._memory.maker(k, dims, dtype)
            for k, (dims, dtype) in enumerate(pairs)
        ]

    def resize(self, program: Program) -> None:
        """Change to a program that differs from the session's only in its sizes. The session's
        memory, which no other session may share, is enlarged if needed."""
        self.program = program
        for name in ("_late", "_addressed"):
            self.__dict__.pop(name, None)
        self._put_sizes()
        self._make_makers()
        frame = program.frame
        self._memory.fit(frame.arena + SLACK, frame.workspace + SLACK)
        if self._version != self._memory.version:
            self._find_memory()

    def _move(self, memory: RunMemory) -> None:
        """Run in `memory` from now on."""
        self._memory = memory
        self._find_memory()
        self._make_makers()

    def _find_memory(self) -> None:
        """Enlarge the memory if needed, and put its addresses into the pointer table."""
        frame, memory = self.program.frame, self._memory
        memory.fit(frame.arena + SLACK, frame.workspace + SLACK)
        version = memory.version  # read first: addresses that are newer do no harm
        self._table[ARENA] = address_of(memory.arena)
        self._table[WORKSPACE] = address_of(memory.workspace)
        self._version = version

    @cached_property
    def _late(self) -> list[tuple[int, Operand]]:
        """(number, operand) of each output that code does not write to an array of the run; `_read`
        gets it after the run."""
        outputs = self.program.plan.outputs if None in self.program.entry.dtypes else ()
        return [
            (k, o) for k, o in enumerate(outputs) if o.ref is None or o.ref.space not in WRITTEN
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the session's memory, including what it keeps for results."""
        memory = self._memory
        return len(memory.arena) + len(memory.workspace) + memory.kept_bytes + 8 * self._words

    @property
    def is_shared(self) -> bool:
        """Whether other sessions share its memory, or may."""
        return self._memory.thread is not None

    def run(self, inputs: Sequence[Array], cycles: Cycles | None = None) -> list[Array]:
        """Run on plain, contiguous arrays of the plan's dtypes and shapes, one for each input.
        Return new output arrays, to which nothing else refers; for states kept in place the inputs.

        To `cycles` the run adds the time of each step, by `id(step)`: cycles (positive) of a native
        step, nanoseconds (negative) of a reference step. A run that begins during another (in a
        signal handler, a finaliser) gets memory of its own. Raises InputNameError for a wrong
        number of arrays or a mapping, InputTypeError and InputShapeError for other arrays,
        OutOfMemory, and DataError for wrong data.
        """
        check_ports(self.program.plan, inputs, self._addressed)
        return self.run_checked(inputs, cycles)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, on inputs in order or by name, as `run`. One output is returned as an array,
        several as a dict by name."""
        plan = self.program.plan
        types = {p.name: Type(dtype_of(p.dtype), p.dims) for p in plan.inputs} if kwargs else {}
        results = self.run(Inputs(plan.model, types).ordered(args, kwargs) if kwargs else args)
        names = (o.name for o in plan.outputs)
        return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))

    def __repr__(self) -> str:
        plan = self.program.plan
        shapes = ", ".join(f"{p.name}: {p.dtype}{list(p.dims)}" for p in plan.inputs)
        return f"<Session of {plan.model}({shapes})>"

    @cached_property
    def _addressed(self) -> set[int]:
        return self.program.plan.addressed()

    def run_checked(
        self,
        inputs: Sequence[Array],
        cycles: Cycles | None = None,
        into: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """As `run`, for inputs that were checked: with others, code crashes or gives wrong results.
        Where `into` has an array for an output, the result is written into it. Raises OutputError
        if it does not fit."""
        memory = self._memory
        if memory.thread is not None and memory.foreign:
            self._move(RunMemory())  # of its own: another thread runs it than that which shares
            memory = self._memory
        if memory.busy:
            return self.program.session().run_checked(inputs, cycles, into)
        try:
            memory.busy = True
            if self._version != memory.version:
                self._find_memory()
            return self._run(inputs, cycles) if into is None else self._run_into(inputs, into)
        except (MemoryError, OverflowError) as error:
            if isinstance(error, TinsmithError):
                raise
            raise OutOfMemory(
                f"{self.program.brief.model} needs more memory than the system gives: {error}"
            ) from error
        finally:
            memory.busy = False

    def _run(
        self,
        inputs: Sequence[Array],
        cycles: Cycles | None = None,
        outputs: list[Any] | None = None,
    ) -> list[Array]:
        """Run on checked inputs; write the results into `outputs` or new arrays, and return them.
        Raises DataError for faults that code has found."""
        if outputs is None:
            outputs = [new() for new in self._new]
        for k, i in self._kept:
            outputs[k] = inputs[i]  # this output is kept in the input's memory
        faults = self.program.frame.faults
        for at, _ in faults:
            self._memory.arena[at : at + 4] = 0
        if self._enter is not None and cycles is None:
            self._enter(self._pointer, *inputs, *outputs)
        else:
            self._through(_Run(inputs, outputs, {}, cycles))
        for at, text in faults:
            if self._memory.arena[at : at + 4].any():
                raise DataError(text)
        return outputs

    def _run_into(self, inputs: Sequence[Array], into: Sequence[Array | None]) -> list[Array]:
        """Run with the caller's arrays for results (None: new ones). Native code writes into them
        if that is safe (`outputs.direct`); else results are copied after. Raises OutputError."""
        ports = self.program.plan.outputs
        places: list[Any] = []
        for array, dims, new, port in zip(
            into, self.program.frame.outputs, self._new, ports, strict=True
        ):
            made = new is not _nothing
            if array is not None:
                outputs.check(port.name, array, dtype_of(port.dtype), dims if made else None)
            whole = made and outputs.direct(array, inputs)
            places.append(np.asarray(array) if whole else new())
        found = self._run(inputs, outputs=places)
        return [
            one if array is None else outputs.copy_into(port.name, array, one)
            for port, array, one in zip(ports, into, found, strict=True)
        ]

    def _through(self, run: _Run) -> None:
        """Run all segments in order; then put into `run.outputs` the results that code does not
        write there: those whose size only the run tells, and constants such as strings."""
        table: Any = self._table
        self._put_ports(table, 8 * PORTS, *addresses([*run.inputs, *run.outputs]))
        try:
            threads, address = self.program.brief.threads, self.program.team
            if threads == 1 or address is None:
                for call in self.program.calls:
                    self._one(call, None, run)
            else:
                from tinsmith.runtime.threads import Lease

                with Lease(threads, address) as team:
                    self._leave(team)
                    self._table[SYNC] = team.address
                    for call in self.program.calls:
                        self._one(call, team, run)
                    self._jobs = team.jobs
        finally:
            if run.cycles is not None:
                self._table[STAMPS] = 0
        for k, operand in self._late:
            found = self._read(operand, run)
            run.outputs[k] = owned(found) if isinstance(found, list) else found

    def _leave(self, team: Team) -> None:
        """Called before `team` runs this session. If another team ran it last, wait until all its
        workers have left that job: a late one would still take tiles of it."""
        if self._team is not None and self._team is not team:
            self._team.settle(self._team.jobs if self._jobs is None else self._jobs)
        self._team, self._jobs = team, None

    def _one(self, call: Step | Native, team: Team | None, run: _Run) -> None:
        """Run one native segment or reference step; add its steps' times to `run.cycles`, if set.
        Results that have no place in memory go to `run.env`. Raises DataError for a result of
        another size than the model declares."""
        if isinstance(call, Step):
            self._reference(call, run)
            return
        address, function, steps = call
        if run.cycles is not None:  # a late worker may still write to the stamps of the last call
            self._stamps = np.zeros_like(self._stamps)
            self._table[STAMPS] = address_of(self._stamps)
        if team is not None:
            owners = self, self._stamps
            team.run(address, self._pointer, self._counters_at, self._words, owners)
        else:
            function(self._pointer, 0)
        if steps[-1].writes:
            self._take(steps[-1], run)
        if run.cycles is not None:
            # The thread that was running for most of the time has the times of all steps.
            seen = max(self._stamps[:, 1 : len(steps) + 1], key=np.sum)
            for step, spent in zip(steps, seen, strict=True):
                run.cycles[id(step)] = run.cycles.get(id(step), 0) + int(spent)
            run.cycles.counter = int(self._stamps[:, 0].max())

    def _take(self, step: Step, run: _Run) -> None:
        """Put copies of results whose size the native step itself has found (as of NonZero) into
        `run.env`. The last of `step.writes` holds the size, which takes the place of negative dims.
        Raises DataError if it is not the size that the model declares."""
        *found, last = step.writes
        count = int(self._read(last, run))
        if step.stated not in (-1, count):
            raise DataError(
                f"{step.origin}: it gives {count}, where {step.stated} were planned: a size that "
                "the model declares is not so"
            )
        for operand in found:
            sized = operand._replace(dims=tuple(count if d < 0 else d for d in operand.dims))
            run.env[operand.name] = owned(self._read(sized, run))

    def _read(self, operand: Operand, run: _Run) -> Array:
        """Return the tensor of an operand, wherever it lies, not copied."""
        ref = operand.ref
        if ref is None:
            if operand.name in run.env:
                return run.env[operand.name]
            if operand.name in self.program.constants:
                return self.program.constants[operand.name]
            names = [p.name for p in self.program.plan.inputs]
            return run.inputs[names.index(operand.name)]
        if ref.space in ("input", "output"):
            array = (run.inputs if ref.space == "input" else run.outputs)[ref.index]
            flat = array.reshape(-1).view(np.uint8)
            return window(flat, ref.offset, operand)
        memory = self._memory.arena if ref.space == "arena" else self.program.blobs[ref.index].data
        if ref.space == "made":
            assert self.program.made is not None
            memory = self.program.made
        return window(memory, ref.offset, operand)

    def _reference(self, step: Step, run: _Run) -> None:
        """Run a step that is not native: an operator's reference in numpy, or a `LaterStep`.
        Results go to their places in memory, or to `run.env` if they have none. Raises DataError
        for a result of another size than planned."""
        from tinsmith.graph.evaluate import evaluate
        from tinsmith.runtime.later import LaterStep

        start = perf_counter_ns()
        op, attrs = self.program.nodes[step.name]
        args = tuple(None if o is None else self._read(o, run) for o in step.reads)
        if check := self.program.checks.get(step.name):
            check()
        if isinstance(op, LaterStep):
            results, new = op.run(args, run.cycles), True
        else:
            results, new = evaluate(op, args, attrs, step.origin), False
        for operand, result in zip(step.writes, results, strict=False):
            if operand.ref is None:
                # Copied: it may be a view of memory that later steps overwrite.
                run.env[operand.name] = result if new else owned(result)
            elif result.shape != operand.dims:
                raise DataError(
                    f"{step.origin}: it gives {shown(result)}, where {list(operand.dims)} was "
                    "planned: a size that the model declares is not so"
                )
            else:
                self._read(operand, run)[...] = result
        if run.cycles is not None and not new:
            spent = perf_counter_ns() - start
            run.cycles[id(step)] = run.cycles.get(id(step), 0) - spent
