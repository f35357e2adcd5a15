"""Programs for free sizes: compiled once, they run for all sizes that meet their conditions.

A `FreeProgram` holds a `Program` whose plan has formulas (`sizes.Size`) where others have numbers.
For the shapes of a call it computes the numbers that code and sessions read, and returns a
`SizedProgram` that shares code and weights: nothing is compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from tinsmith.budget import machine_memory
from tinsmith.conditions import Scope
from tinsmith.errors import OutOfMemory, size_text
from tinsmith.formulas import Form, added, computed, number_form, shown, valued
from tinsmith.graph import Array
from tinsmith.plan.memory import Buffer, Lives, lower_bound
from tinsmith.plan.plan import Plan, Step
from tinsmith.records import NamedTuple
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Frame, Program, fault_text
from tinsmith.runtime.results import SPARE, RunMemory
from tinsmith.runtime.session import Native, Session
from tinsmith.runtime.tables import Asked, Tables
from tinsmith.sizes import Size, has_sizes, values_in

Shape = tuple[Any, ...]
"""The shape of an input: numbers, and symbols (`Size`) in the place of free sizes."""
LEAST_SPARE = 1024
"""Spare bytes, at least, of a buffer that may grow. Estimated."""
DENSE = 2
"""Buffers keep their places while they fill at least 1 / DENSE of them. Estimated."""
NEAR = 1 << 18
"""Bytes up to which an arena, as second-level caches hold it, may be filled less. Estimated."""
PLACES = 8
"""Sets of places of buffers that are kept. Estimated."""


class _Places(NamedTuple):
    """The places of the arena's buffers: the bytes that each may have (`most`) and its offset; the
    bytes of the arena (`peak`), and the sum of `most` (`total`)."""

    most: Sequence[int]
    offsets: Sequence[int]
    peak: int
    total: int


class FreeProgram:
    """A program for all sizes that meet its conditions; `sized` returns the program for given ones.
    Any number of threads may use it.

    program  its code and plan, in which free sizes are formulas (`Size`)
    shapes   of the inputs, with symbols for free sizes; None for an input that is no tensor
    scope    the symbols in the shapes, and the conditions
    """

    def __init__(self, program: Program, shapes: Sequence[Shape | None], scope: Scope) -> None:
        self.program, self.shapes, self.scope = program, list(shapes), scope
        free = [d for dims in shapes if dims is not None for d in dims if isinstance(d, Size)]
        self.symbols = list(dict.fromkeys(d.form for d in free))
        self._names = [shown(form) for form in self.symbols]
        self._least = [scope.least.get(form[0][0][0], 0) for form in self.symbols]
        self._values = values_in(self.shapes, self.symbols)
        self.conditions = list(scope.conditions)
        plan = program.plan
        self._grows = [isinstance(n, Size) for n, _, _ in plan.buffers]
        nbytes = [_form(n) for n, _, _ in plan.buffers]
        least = [
            (added(form, number_form(-k)), ">=")
            for form, k in zip(self.symbols, self._least, strict=True)
        ]
        self._nbytes = computed(nbytes, self._names, [*least, *self.conditions])
        """From the values of the symbols to the bytes of each buffer; None for values that the
        program does not take."""
        self._places: list[_Places] = []
        self.names = [*self._names, *(f"at{k}" for k in range(len(plan.buffers))), "peak"]
        asked = Asked(_form)
        self.tables = Tables(plan, program.nodes, program.constants, asked)
        self._frame_at = asked.at(plan.memory.peak), asked.at(plan.memory.workspace)
        self._dims = [_picked(asked.all(o.dims)) for o in plan.outputs]
        self._faults_at = [(asked.at(s.fault_at), fault_text(s)) for s in plan.steps if s.fault]
        self._numbers = computed(list(asked.values), self.names)
        self.entry = program.entry
        same = all(_is_same(s) for _, steps in plan.segments() for s in steps)
        self.calls: list[Step | Native] | None = program.calls if same else None
        """`Program.calls`, if they are the same for all sizes; else None."""
        self._largest: tuple[int, ...] | None = None
        self.memories = threading.local()

    def __str__(self) -> str:
        """Say in words which sizes the program takes."""
        least = [f"{n} >= {k}" for n, k in zip(self._names, self._least, strict=True)]
        more = [f"{shown(form)} {relation} 0" for form, relation in self.conditions]
        return f"one program for all sizes where {', '.join([*least, *more])}"

    def bound(self, dims: Sequence[Sequence[Any] | None], most: Mapping[str, int]) -> None:
        """Limit the spare memory of growing buffers to what the largest sizes need. `dims` are the
        inputs' shapes in the model, `most`: name of a free dimension -> its largest size. Nothing
        is limited if a free dimension is not in `most`."""
        pairs = zip(self.shapes, dims, strict=True)
        both = [(d, n) for own, names in pairs for d, n in zip(own or (), names or (), strict=True)]
        found: dict[Form, Any] = {d.form: n for d, n in both if isinstance(d, Size)}
        if all(n in most for n in found.values()):
            nbytes = computed([_form(n) for n, _, _ in self.program.plan.buffers], self._names)
            self._largest = nbytes(*[most[found[form]] for form in self.symbols])

    def sized(self, signature: Signature) -> SizedProgram | None:
        """Return the program for a signature; None if it does not fit `shapes`, or does not meet
        the conditions. Raises OutOfMemory for sizes that need more than the machine has."""
        values = self._values(signature)
        if values is None:
            return None
        try:
            nbytes = self._nbytes(*values)
        except ZeroDivisionError:  # the divisor is 0, which a condition excludes
            return None
        if nbytes is None:
            return None
        places = self._placed(nbytes)
        symbols = (*values, *places.offsets, places.peak)
        numbers = self._numbers(*symbols)
        if numbers and max(numbers) >= 1 << 62:
            model = self.program.plan.model
            raise OutOfMemory(f"{model}: sizes of {list(values)} exceed what can be addressed")
        return SizedProgram(self, symbols, nbytes, numbers)

    def _placed(self, nbytes: tuple[int, ...]) -> _Places:
        """Return places for buffers of these bytes: earlier places into which they fit, if they
        fill at least 1 / DENSE of them or the arena has at most NEAR bytes; else new ones. In
        these, buffers whose size is free get spare bytes, if all together need less than DENSE
        times the last places. Raises OutOfMemory."""
        total = sum(nbytes)
        for places in self._places:
            dense = total * DENSE >= places.total or places.peak <= NEAR
            if places.total >= total and dense and all(map(int.__le__, nbytes, places.most)):
                return places
        most = nbytes
        last = self._places[-1] if self._places else None
        if last is not None and total < last.total * DENSE:  # they grow step by step
            pairs = zip(nbytes, self._grows, strict=True)
            most = tuple(n + n // SPARE + LEAST_SPARE if grows else n for n, grows in pairs)
            if self._largest is not None:
                ends = zip(nbytes, most, self._largest, strict=True)
                most = tuple(max(n, min(wide, end)) for n, wide, end in ends)
        found = _Places(most, *self._lives.offsets(most), sum(most))
        memory = machine_memory()
        if memory is not None and found.peak > memory:
            raise OutOfMemory(
                f"{self.program.plan.model} needs {size_text(found.peak)} for its tensors at these "
                f"sizes, this machine has {size_text(memory)}; run it with a smaller batch or "
                "smaller inputs"
            )
        self._places = [*self._places, found][-PLACES:]
        return found

    @cached_property
    def all_numbers(self) -> tuple[list[Form], Callable[..., Any]]:
        """(all formulas in the plan and the constants, a function from the values of `names`, which
        are free sizes, offsets of buffers and bytes of the arena, to the numbers of these
        formulas)."""
        program = self.program
        sized = [a for a in program.constants.values() if has_sizes(a)]
        told = [_told(program.plan), *(a.reshape(-1).tolist() for a in sized)]
        forms = list(dict.fromkeys(s.form for s in _sizes(told)))
        return forms, computed(forms, self.names)

    @cached_property
    def _lives(self) -> Lives:
        return Lives([(first, last) for _, first, last in self.program.plan.buffers])

    def memory_at(self, program: SizedProgram) -> str:
        """Return the peak of the bytes that are alive in the arena as a formula in text, such as
        "64*n + 128": of the step at which most are for the sizes of `program`."""
        buffers = self.program.plan.buffers
        rows = self.rows(program.buffer_bytes)
        moments = sorted({first for _, first, _ in buffers})

        def used(at: int) -> list[int]:
            return [k for k, (_, first, last) in enumerate(buffers) if first <= at <= last]

        most = max(moments, key=lambda at: sum(rows[k].nbytes for k in used(at)), default=None)
        form: Form = ()
        for k in used(most) if most is not None else ():
            form = added(form, _form(buffers[k][0]))
        return shown(form)

    def rows(self, nbytes: Sequence[int]) -> list[Buffer]:
        """Return the plan's buffers, of `nbytes` bytes each, with their lifetimes."""
        buffers = self.program.plan.buffers
        return [Buffer(n, *life) for n, (_, *life) in zip(nbytes, buffers, strict=True)]

    def frame(self, numbers: Sequence[int]) -> Frame:
        """Return the numbers of a program that a session reads. `numbers`: the values of all that
        `Asked` has collected, by place."""
        arena, workspace = self._frame_at
        return Frame(
            numbers[arena],
            numbers[workspace],
            [dims(numbers) for dims in self._dims],
            [(numbers[at], text) for at, text in self._faults_at],
        )

    def memory(self) -> RunMemory:
        """Return the calling thread's run memory, made at its first call. The programs of one model
        share it, by the same `memories`."""
        try:
            return self.memories.memory
        except AttributeError:
            self.memories.memory = memory = RunMemory(shared=True)
            return memory


class SizedProgram(Program):
    """A `FreeProgram` for given sizes: the same code and weights with a table of numbers. Its plan
    with numbers for formulas is computed only when it is read.

    symbols  values of `FreeProgram.names`
    nbytes   of each buffer of the arena
    numbers  as for `FreeProgram.frame`
    """

    is_sized = True

    def __init__(
        self, free: FreeProgram, symbols: Sequence[int], nbytes: Sequence[int],
        numbers: Sequence[int],
    ) -> None:  # fmt: skip
        base = free.program
        self.stored, self.library, self.blobs = base.stored, base.library, base.blobs
        self.nodes, self.team, self.checks = base.nodes, base.team, base.checks
        self.brief, self.free = base.brief, free
        self._symbols, self.buffer_bytes = symbols, nbytes
        self.entry, self.frame = free.entry, free.frame(numbers)
        self.sizes, self.made = free.tables.made(numbers)

    @property
    def base(self) -> Program:
        return self.free.program

    @property
    def is_planned(self) -> bool:
        return all(valued(f) == n for f, n in zip(self.free.symbols, self._symbols))  # noqa: B905

    @property
    def takes(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return str(self.free)

    def thread_session(self) -> Session:
        memory = self.free.memory()  # must not grow while it is in use
        return Session(self) if memory.busy else Session(self, memory)

    def whole_plan(self) -> Plan:
        return self.plan._replace(steps=tuple(map(self._settled, self.plan.steps)))

    @cached_property
    def calls(self) -> list[Step | Native]:
        return Program.calls.func(self) if self.free.calls is None else self.free.calls

    @cached_property
    def _known(self) -> _Numbers:
        free, symbols = self.free, self._symbols
        forms, numbers = free.all_numbers
        known = _Numbers(zip(forms, numbers(*symbols), strict=True))
        known.others = lambda form: computed([form], free.names)(*symbols)[0]
        return known

    def _settled(self, value: Any) -> Any:
        """Return a value of a plan (also a tuple, such as a step, of any depth) with numbers in the
        place of Sizes."""
        if isinstance(value, Size):
            return self._known[value.form]
        if isinstance(value, tuple):
            items = [self._settled(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def _step(self, s: Step) -> Step:
        if _is_same(s):
            return s
        return s._replace(reads=self._settled(s.reads), writes=self._settled(s.writes))

    @cached_property
    def _steps(self) -> dict[int, Step]:
        return {id(s): self._step(s) for s in self.free.program.plan.steps}

    @cached_property
    def plan(self) -> Plan:
        plan, settled = self.free.program.plan, self._settled
        rows = self.free.rows(self.buffer_bytes)
        return plan._replace(
            inputs=settled(plan.inputs), outputs=settled(plan.outputs),
            memory=settled(plan.memory)._replace(lower_bound=lower_bound(rows)),
            sizes=settled(plan.sizes), made=settled(plan.made), steps=tuple(self._steps.values()),
            buffers=tuple((b.nbytes, b.start, b.end) for b in rows), free=False,
        )  # fmt: skip

    @cached_property
    def segments(self) -> list[tuple[int, list[Step]] | Step]:
        steps = self._steps
        return [
            steps[id(s)] if isinstance(s, Step) else (s[0], [steps[id(one)] for one in s[1]])
            for s in self.free.program.segments
        ]

    @cached_property
    def constants(self) -> dict[str, Array]:
        return {n: _numbers(a, self._settled) for n, a in self.free.program.constants.items()}


class _Numbers(dict[Form, int]):
    """Formula -> its number; `others` computes that of a missing one when it is first read."""

    others: Callable[[Form], int]

    def __missing__(self, form: Form) -> int:
        self[form] = self.others(form)
        return self[form]


def _picked(at: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Return a function from a sequence to the tuple of its elements at the places `at`."""
    return itemgetter(*at) if len(at) > 1 else lambda numbers: tuple([numbers[k] for k in at])


def _form(value: Any) -> Form:
    return value.form if isinstance(value, Size) else (((), value),) if value else ()


def _is_same(step: Step) -> bool:
    """Whether a step has no operands, so that what runs read of it holds no Sizes."""
    return not step.reads and not step.writes


def _told(plan: Plan) -> tuple[Any, ...]:
    """Return the parts of a plan that sessions read and that may hold Sizes."""
    steps = [(s.reads, s.writes) for s in plan.steps]
    return plan.inputs, plan.outputs, plan.memory, plan.sizes, plan.made, steps


def _sizes(value: Any) -> Iterator[Size]:
    if isinstance(value, Size):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _sizes(item)


def _numbers(array: Array, settled: Callable[[Any], Any]) -> Array:
    if not has_sizes(array):
        return array
    flat = [settled(v) for v in array.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(array.shape)
