"""A Program is a plan with its code and weights; a Session holds one caller's memory for it.

A Program is immutable and may be shared by any number of threads. A Session may be used by one
thread at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from tinsmith.errors import (
    BudgetExceeded,
    DataError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    OutOfMemory,
    ReferenceFailed,
    TinsmithError,
)
from tinsmith.plan.plan import (
    ARENA,
    COUNTERS,
    PORTS,
    STAMPS,
    SYNC,
    WEIGHTS,
    WORKSPACE,
    Operand,
    Plan,
    Port,
    Step,
)
from tinsmith.plan.shelf import Blob
from tinsmith.runtime.memory import aligned
from tinsmith.runtime.results import Results
from tinsmith.runtime.threads import Lease, Team

SLACK = 4096
_SEGMENT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)

Array = np.ndarray[Any, Any]


class Library(Protocol):
    """Loaded machine code; `data` are its bytes, where they are one library."""

    data: bytes

    def address(self, symbol: str) -> int: ...


class Reference(Protocol):
    """What a reference step evaluates."""

    @property
    def name(self) -> str: ...

    def evaluate(
        self, arrays: tuple[Array | None, ...], attrs: Mapping[str, Any]
    ) -> tuple[Array, ...]: ...


class OfThisProcess:
    """What holds addresses of this process."""

    def __reduce__(self) -> NoReturn:
        raise TinsmithError(
            f"a {type(self).__name__} is compiled for this process and can be neither copied nor "
            "pickled: any number of threads may call a Net; tinsmith.save(net, path) writes it for "
            "other processes"
        )


class Program(OfThisProcess):
    """Plan, code and weights, bound together.

    `blobs` are its own weights, and those of other programs that it shares; `nodes` maps the names
    of reference steps to (operator, attributes); `constants` holds the arrays that only those
    read; `team` gives the addresses of the thread team's functions;
    `stored` says that it was read from a file, not compiled by this process.
    """

    def __init__(
        self,
        plan: Plan,
        library: Library | None,
        blobs: Sequence[Blob],
        nodes: Mapping[str, tuple[Reference, Mapping[str, Any]]],
        constants: Mapping[str, Array],
        team: Callable[[str], int] | None,
        stored: bool = False,
    ) -> None:
        self.stored = stored
        self.plan, self.library, self.blobs = plan, library, list(blobs)
        self.nodes, self.constants, self.team = dict(nodes), dict(constants), team
        self.checks: dict[str, Callable[[], None]] = {}  # before reference steps of these names
        self.segments: list[tuple[int, list[Step]] | Step] = []
        native = 0
        for kind, steps in plan.segments():
            if kind == "native":
                assert library is not None
                self.segments.append((library.address(f"seg{native}"), steps))
                native += 1
            else:
                self.segments.append(steps[0])

    def session(self) -> Session:
        return Session(self)


def owned(value: Any) -> Any:
    """A copy of what a reference step gave: an array, a list of arrays, or None."""
    if isinstance(value, list):
        return [dict(a) if isinstance(a, dict) else np.array(a) for a in value]
    return None if value is None else np.array(value)


def shown(value: Any) -> str:
    """A value in a message: element type and shape, or how many tensors a sequence has."""
    if value is None:
        return "-"
    return (
        f"{len(value)} tensors" if isinstance(value, list) else f"{value.dtype}{list(value.shape)}"
    )


def _address(array: Array) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it is read-only, or empty
        return int(array.__array_interface__["data"][0])


def _window(memory: Array, offset: int, operand: Operand) -> Array:
    """The plain tensor of an operand inside a byte array, not copied."""
    dtype = np.dtype(operand.dtype) if operand.dtype != "bfloat16" else _extended(operand.dtype)
    count = prod(operand.dims)
    return memory[offset : offset + count * dtype.itemsize].view(dtype).reshape(operand.dims)


def _extended(name: str) -> np.dtype[Any]:
    from tinsmith.graph import dtype_of

    return dtype_of(name)


Native = tuple[int, Callable[[int, int], None], list[Step]]
"""The address of a segment's function, the function, and the steps that it runs."""


class _Run(NamedTuple):
    """One run: its arrays, what its steps have given so far, and their times if they are wanted."""

    inputs: Sequence[Array]
    outputs: list[Array]
    env: dict[str, Array]
    cycles: dict[int, int] | None


class Session(OfThisProcess):
    """One caller's arena, workspace and pointer table. Use from one thread at a time."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._busy = False
        plan = program.plan
        self._arena = aligned(plan.memory.peak + SLACK)
        self._workspace = aligned(plan.memory.workspace + SLACK)
        shared = PORTS + len(plan.inputs) + len(plan.outputs)
        own, *others = [_address(b.data) if b.data.size else 0 for b in program.blobs]
        self._table = np.array([0] * shared + others, np.int64)
        self._stamps = np.zeros((plan.threads, plan.stamp_words), np.int64)
        self._counters = aligned(8 * plan.counter_words)
        self._counters_at, self._words = _address(self._counters), plan.counter_words
        self._table[COUNTERS] = self._counters_at
        self._table[ARENA] = _address(self._arena)
        self._table[WEIGHTS] = own
        self._table[WORKSPACE] = _address(self._workspace)
        self._pointer = _address(self._table)
        self._calls: list[Step | Native] = [
            s if isinstance(s, Step) else (s[0], _SEGMENT(s[0]), s[1]) for s in program.segments
        ]
        self._out = [
            Results(o.dims, _extended(o.dtype))
            if o.ref is not None and o.ref.space == "output"
            else None
            for o in plan.outputs
        ]
        self._late = [(k, o) for k, o in enumerate(plan.outputs) if self._out[k] is None]
        self._team: Team | None = None
        self._jobs: int | None = None  # of the team, when this session's last run ended
        self._first_output = PORTS + len(plan.inputs)
        self._faults = [
            (self._arena[s.fault_at : s.fault_at + 4], s) for s in plan.steps if s.fault
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the session's own memory, with what it keeps for results."""
        memory = self.program.plan.memory
        kept = sum(made.nbytes for made in self._out if made is not None)
        return memory.peak + memory.workspace + 8 * self._words + kept

    @property
    def counter(self) -> int:
        """What the cycle counter was when the last timed run ended; 0 where none did."""
        return int(self._stamps[:, 0].max())

    def run(self, inputs: Sequence[Array], cycles: dict[int, int] | None = None) -> list[Array]:
        """Run on plain, contiguous arrays of the plan's dtypes and shapes, one for each input; new
        output arrays, in memory that nothing else refers to.

        With `cycles`, adds each native step's cycles, and each reference step's nanoseconds
        (negative), by the step's `id`. A call from within a call (of a signal handler, a finaliser)
        gets memory of its own. Raises InputNameError for another number of arrays or a mapping,
        InputTypeError and InputShapeError for other arrays, OutOfMemory where memory cannot be had.
        """
        self._check(inputs)
        return self.run_checked(inputs, cycles)

    def run_checked(
        self, inputs: Sequence[Array], cycles: dict[int, int] | None = None
    ) -> list[Array]:
        """`run`, for inputs that are known to be such arrays: others crash, or give nonsense."""
        if self._busy:
            return self.program.session().run_checked(inputs, cycles)
        try:
            self._busy = True
            return self._run(inputs, cycles)
        except (MemoryError, OverflowError) as error:
            if isinstance(error, TinsmithError):
                raise
            raise OutOfMemory(
                f"{self.program.plan.model} needs more memory than the system gives: {error}"
            ) from error
        finally:
            self._busy = False

    @cached_property
    def _addressed(self) -> list[tuple[int, Port]]:
        """The inputs whose memory native code reads, by index."""
        calls = (c for s in self.program.plan.steps for c in s.calls)
        read = {r.index for c in calls for r in c.refs if r.space == "input"}
        return [(i, p) for i, p in enumerate(self.program.plan.inputs) if i in read]

    def _check(self, inputs: Sequence[Array]) -> None:
        plan = self.program.plan
        if isinstance(inputs, Mapping):
            raise InputNameError(
                f"a session of {plan.model} takes a list of arrays, in the order of the inputs"
                f" {[port.name for port in plan.inputs]}, not a mapping"
            )
        if len(inputs) != len(plan.inputs):
            raise InputNameError(
                f"{plan.model} takes {len(plan.inputs)} inputs; {len(inputs)} arrays are given"
            )
        for i, port in self._addressed:
            array, dtype = inputs[i], _extended(port.dtype)
            what = f"the input {port.name!r} of this program of {plan.model}"
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                found = getattr(array, "dtype", type(array).__name__)
                raise InputTypeError(f"{what} must be an array of {port.dtype}, not {found}")
            if array.shape != port.dims:
                raise InputShapeError(
                    f"{what} must have shape {list(port.dims)}, not {list(array.shape)}; a call of "
                    "the net takes every shape that the model does"
                )
            if not array.flags.c_contiguous:
                raise InputTypeError(f"{what} is not contiguous; numpy.ascontiguousarray(...) is")

    def _run(self, inputs: Sequence[Array], cycles: dict[int, int] | None) -> list[Array]:
        table = self._table
        if cycles is None:
            table[STAMPS] = 0
        for i, array in enumerate(inputs):
            table[PORTS + i] = _address(array) if isinstance(array, np.ndarray) else 0
        outputs: list[Array] = []
        for k, made in enumerate(self._out):
            array = made.array() if made is not None else None
            outputs.append(array)  # type: ignore[arg-type]
            if array is not None:
                table[self._first_output + k] = _address(array)
        for word, _ in self._faults:
            word[:] = 0
        run = _Run(inputs, outputs, {}, cycles)
        threads = self.program.plan.threads
        if threads == 1:
            for call in self._calls:
                self._one(call, None, run)
        else:
            assert self.program.team is not None
            with Lease(threads, self.program.team) as team:
                self._leave(team)
                table[SYNC] = team.address
                for call in self._calls:
                    self._one(call, team, run)
                self._jobs = team.jobs
        for word, step in self._faults:
            if word.any():
                raise DataError(f"{step.origin}: {step.fault}")
        for k, operand in self._late:
            found = self._read(operand, run)
            outputs[k] = owned(found) if isinstance(found, list) else found
        return outputs

    def _leave(self, team: Team) -> None:
        """Before another team runs this session: late workers of the last one must have left, or
        they would take part."""
        if self._team is not None and self._team is not team:
            self._team.settle(self._team.jobs if self._jobs is None else self._jobs)
        self._team, self._jobs = team, None

    def _one(self, call: Step | Native, team: Team | None, run: _Run) -> None:
        if isinstance(call, Step):
            self._reference(call, run)
            return
        address, function, steps = call
        if run.cycles is not None:  # a late worker may still write to the stamps of the last call
            self._stamps = np.zeros_like(self._stamps)
            self._table[STAMPS] = _address(self._stamps)
        if team is not None:
            owners = self, self._stamps
            team.run(address, self._pointer, self._counters_at, self._words, owners)
        else:
            function(self._pointer, 0)
        if steps[-1].writes:
            self._take(steps[-1], run)
        if run.cycles is not None:
            # The thread that was there for most of the time has seen what every step took.
            seen = max(self._stamps[:, 1 : len(steps) + 1], key=np.sum)
            for step, spent in zip(steps, seen, strict=True):
                run.cycles[id(step)] = run.cycles.get(id(step), 0) + int(spent)

    def _take(self, step: Step, run: _Run) -> None:
        """Keep what a step that counts has written: as much as the last operand tells. Raises
        DataError where the model states another number."""
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
            return _window(flat, ref.offset, operand)
        memory = self._arena if ref.space == "arena" else self.program.blobs[ref.index].data
        return _window(memory, ref.offset, operand)

    def _reference(self, step: Step, run: _Run) -> None:
        from time import perf_counter_ns

        start = perf_counter_ns()
        op, attrs = self.program.nodes[step.name]
        args = tuple(None if o is None else self._read(o, run) for o in step.reads)
        if check := self.program.checks.get(step.name):
            check()
        try:
            results = op.evaluate(args, attrs)
        except (BudgetExceeded, DataError) as error:
            raise type(error)(f"{step.origin}: {error}") from error
        except TinsmithError:
            raise
        except Exception as error:
            given = ", ".join(map(shown, args))
            raise ReferenceFailed(
                f"{step.origin}: the reference of {step.op}({given}) failed: {error}"
            ) from error
        for operand, result in zip(step.writes, results, strict=False):
            if operand.ref is None:
                run.env[operand.name] = owned(result)  # a view would change under the caller
            elif result.shape != operand.dims:
                raise DataError(
                    f"{step.origin}: it gives {shown(result)}, where {list(operand.dims)} was "
                    "planned: a size that the model declares is not so"
                )
            else:
                self._read(operand, run)[...] = result
        if run.cycles is not None:
            spent = perf_counter_ns() - start
            run.cycles[id(step)] = run.cycles.get(id(step), 0) - spent
