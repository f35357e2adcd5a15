"""Programs for sizes that a model leaves free: made once, they run for all sizes that they admit.

A `FreeProgram` holds a `Program` whose plan has formulas (`sizes.Size`) where others have numbers.
For the shapes of a call it computes these numbers, assigns the arena anew, and gives a program that
shares code and weights: arithmetic, no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tinsmith.errors import OutOfMemory
from tinsmith.formulas import RELATIONS, Form, computed, shown
from tinsmith.plan.memory import Buffer, assign_offsets, lower_bound
from tinsmith.plan.plan import Plan, Step
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program, tables_of
from tinsmith.sizes import Scope, Size, has_sizes

Array = np.ndarray[Any, Any]
Shape = tuple[Any, ...]
"""Of an input: numbers, and `Size`s that are symbols, where it is free."""


class FreeProgram:
    """A program for all sizes that meet its conditions. Any number of threads may use it.

    shapes  of the inputs, as the plan was made for them
    scope   the symbols in them, and the conditions
    """

    def __init__(self, program: Program, shapes: Sequence[Shape | None], scope: Scope) -> None:
        self.program, self.shapes, self.scope = program, list(shapes), scope
        free = [d for dims in shapes if dims is not None for d in dims if isinstance(d, Size)]
        self.symbols = list(dict.fromkeys(d.form for d in free))
        self._names = [shown(form) for form in self.symbols]
        self._least = [scope.least.get(form[0][0][0], 0) for form in self.symbols]
        self._conditions = list(scope.conditions)
        self._decided = computed([form for form, _ in self._conditions], self._names)
        plan = program.plan
        self._buffers = [nbytes for nbytes, _, _ in plan.buffers]
        self._nbytes = computed([_form(n) for n in self._buffers], self._names)
        told = [_told(plan), *(a.reshape(-1).tolist() for a in _sized(program))]
        self._forms = list(dict.fromkeys(s.form for s in _sizes(told)))
        places = [f"at{k}" for k in range(len(plan.buffers))]
        self._symbols = [*self._names, *places, "peak"]
        self._numbers = computed(self._forms, self._symbols)

    def __str__(self) -> str:
        """Which sizes it takes, for a person."""
        least = [f"{n} >= {k}" for n, k in zip(self._names, self._least, strict=True)]
        more = [f"{shown(form)} {relation} 0" for form, relation in self._conditions]
        return f"one program for all sizes where {', '.join([*least, *more])}"

    def values(self, signature: Signature) -> list[int] | None:
        """The values of the symbols for these shapes; None where the program is for others."""
        found: dict[Form, int] = {}
        for dims, given in zip(self.shapes, signature, strict=True):
            if dims is None or given is None or len(dims) != len(given):
                return None
            for d, n in zip(dims, given, strict=True):
                wanted = found.setdefault(d.form, n) if isinstance(d, Size) else d
                if wanted != n:
                    return None
        values = [found[form] for form in self.symbols]
        if any(
            v < self.scope.least.get(form[0][0][0], 0)
            for v, form in zip(values, self.symbols, strict=True)
        ):
            return None
        try:
            decided = self._decided(*values)
        except ZeroDivisionError:  # by what one of the conditions says is not 0
            return None
        pairs = zip(self._conditions, decided, strict=True)
        return values if all(RELATIONS[how](n) for (_, how), n in pairs) else None

    def sized(self, values: Sequence[int]) -> Program:
        """The program for these values of the symbols. Raises OutOfMemory for sizes beyond what a
        machine can address."""
        plan = self.program.plan
        rows = [
            Buffer(nbytes, start, end)
            for nbytes, (_, start, end) in zip(self._nbytes(*values), plan.buffers, strict=True)
        ]
        peak = assign_offsets(rows)
        symbols = (*values, *(b.offset for b in rows), peak)
        numbers = self._numbers(*symbols)
        if numbers and max(numbers) >= 1 << 62:
            raise OutOfMemory(f"{plan.model}: sizes of {list(values)} exceed what can be addressed")
        known = _Numbers(zip(self._forms, numbers, strict=True))
        known.others = lambda form: computed([form], self._symbols)(*symbols)[0]
        program = _with_numbers(self.program, known, lower_bound(rows))
        program.takes = str(self)
        return program


class _Numbers(dict[Form, int]):
    """The numbers of formulas; those that no run reads are computed when they are asked for."""

    others: Callable[[Form], int]

    def __missing__(self, form: Form) -> int:
        self[form] = self.others(form)
        return self[form]


def _sized(program: Program) -> list[Array]:
    """The constants that hold sizes."""
    return [a for a in program.constants.values() if has_sizes(a)]


def _form(value: Any) -> Form:
    return value.form if isinstance(value, Size) else (((), value),)


def _told(plan: Plan) -> tuple[Any, ...]:
    """What of a plan is read when it runs, besides its code."""
    steps = [(s.reads, s.writes, s.fault_at) for s in plan.steps]
    return plan.inputs, plan.outputs, plan.memory, plan.sizes, plan.made, steps


def _sizes(value: Any) -> Iterator[Size]:
    if isinstance(value, Size):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _sizes(item)


def _with_numbers(program: Program, known: dict[Form, int], bound: int) -> Program:
    """A copy of a program whose sizes are numbers."""

    def settled(value: Any) -> Any:
        if isinstance(value, Size):
            return known[value.form]
        if isinstance(value, tuple):
            items = [settled(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def step(s: Step) -> Step:
        if not s.reads and not s.writes and not isinstance(s.fault_at, Size):
            return s
        return s._replace(
            reads=settled(s.reads), writes=settled(s.writes), fault_at=settled(s.fault_at)
        )

    plan = program.plan
    steps = {id(s): step(s) for s in plan.steps}
    new = object.__new__(Program)
    vars(new).update(vars(program))
    new.plan = plan._replace(
        inputs=settled(plan.inputs), outputs=settled(plan.outputs),
        memory=settled(plan.memory)._replace(lower_bound=bound),
        sizes=settled(plan.sizes), made=settled(plan.made), steps=tuple(steps.values()),
        buffers=(), free=False,
    )  # fmt: skip
    new.segments = [
        steps[id(s)] if isinstance(s, Step) else (s[0], [steps[id(one)] for one in s[1]])
        for s in program.segments
    ]
    new.constants = {n: _numbers(array, settled) for n, array in program.constants.items()}
    new.sizes, new.made = tables_of(new)
    new._whole = lambda: new.plan._replace(steps=tuple(map(settled, new.plan.steps)))
    return new


def _numbers(array: Array, settled: Callable[[Any], Any]) -> Array:
    if not has_sizes(array):
        return array
    flat = [settled(v) for v in array.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(array.shape)
