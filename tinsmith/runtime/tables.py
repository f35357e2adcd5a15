"""Memory that code reads and that depends on sizes alone: a table of sizes as int64, and the
results of "once" steps, nodes that numpy computes once for each set of sizes.

A `Tables` computes the memory for each set of sizes if its plan has formulas, else for the plan's
numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.errors import DataError
from tinsmith.graph import Array
from tinsmith.graph.evaluate import Reference, evaluate
from tinsmith.plan.plan import Plan
from tinsmith.records import NamedTuple
from tinsmith.runtime.memory import aligned
from tinsmith.sizes import has_sizes

Nodes = Mapping[str, tuple[Reference, Mapping[str, Any]]]
"""Name of a step -> the operator that it evaluates, and its attributes."""


class Asked:
    """Collects the numbers and Sizes that a program needs for each set of sizes, each once, so that
    one function computes a list of all. `values`: key -> place in this list; `key` makes the key of
    a number or Size, such as its formula."""

    def __init__(self, key: Callable[[Any], Hashable]) -> None:
        self.values: dict[Any, int] = {}
        self._key = key

    def at(self, value: Any) -> int:
        """Return the place of a value, added at the end if it is new."""
        return self.values.setdefault(self._key(value), len(self.values))

    def all(self, values: Sequence[Any]) -> list[int]:
        return [self.at(v) for v in values]


class _Once(NamedTuple):
    """A "once" step. Its sizes are places in the list of `Asked`.

    view    places of the dims of its result, if it only reshapes its input; else None
    reads   names of the arrays that it reads
    writes  for each result: its name, dtype, and the places of its number of elements and of its
            offset in bytes (None: only other "once" steps read it)
    """

    name: str
    op: Reference
    attrs: Mapping[str, Any]
    view: list[int] | None
    reads: list[str | None]
    writes: list[tuple[str, np.dtype[Any], int, int | None]]


class Tables:
    """Makes the memory of a plan that depends on sizes alone. `__init__` adds to `asked` the
    numbers and Sizes that it needs; `made` computes the memory from their values. Thread-safe."""

    def __init__(
        self, plan: Plan, nodes: Nodes, constants: Mapping[str, Array], asked: Asked
    ) -> None:
        at = asked.all(plan.sizes)
        first = slice(0, len(at)) if at == list(range(len(at))) else None
        self._sizes_at: Any = np.array(at, np.intp) if first is None else first
        self._has_sizes = bool(at)
        self._nbytes_at = asked.at(plan.made)
        self._once: list[_Once] = []
        written: set[str] = set()
        dtypes: dict[str, str] = {}
        for step in plan.steps:
            if step.kind == "once":
                op, attrs = nodes[step.name]
                writes = [
                    (o.name, np.dtype(o.dtype), asked.at(prod(o.dims)),
                     None if o.ref is None else asked.at(o.ref.offset))
                    for o in step.writes
                ]  # fmt: skip
                dtypes.update((o.name, o.dtype) for o in step.reads if o is not None)
                reads = [None if o is None else o.name for o in step.reads]
                view = asked.all(step.writes[0].dims) if "view" in op.traits else None
                self._once.append(_Once(step.name, op, attrs, view, reads, writes))
                written.update(o.name for o in step.writes)
        names = {n for one in self._once for n in one.reads if n is not None} - written
        arrays = {n: constants[n] for n in names}
        self._constants = {n: a for n, a in arrays.items() if not has_sizes(a)}
        self._sized = [
            (n, np.dtype(dtypes[n]), asked.all(a.reshape(-1).tolist()), a.shape)
            for n, a in arrays.items()
            if has_sizes(a)
        ]

    def made(self, numbers: Sequence[int]) -> tuple[Array | None, Array | None]:
        """Return (sizes, memory): the int64 table of sizes, and the bytes with the results of
        "once" steps; each None if there are none. `numbers`: the values of all that was asked for,
        by place. Raises DataError for a result of another size than planned."""
        sizes = None
        if self._has_sizes:
            sizes = np.frombuffer(array("q", numbers), np.int64)[self._sizes_at]
        if not self._once:
            return sizes, None
        memory = aligned(numbers[self._nbytes_at])
        arrays = dict(self._constants)
        for name, dtype, at, shape in self._sized:
            arrays[name] = np.array([numbers[k] for k in at], dtype).reshape(shape)
        for one in self._once:
            given = tuple([None if n is None else arrays[n] for n in one.reads])
            if one.view is not None and given[0] is not None:
                results = (given[0].reshape([numbers[k] for k in one.view]),)
            else:
                results = evaluate(one.op, given, one.attrs, one.name)
            for (name, dtype, size, at), result in zip(one.writes, results, strict=True):
                arrays[name] = result
                if at is not None:
                    start = numbers[at]
                    if result.size != numbers[size]:
                        raise DataError(f"{one.name}: {result.shape} is not of the planned size")
                    place = memory[start : start + numbers[size] * dtype.itemsize].view(dtype)
                    place[...] = result.reshape(-1)
        return sizes, memory
