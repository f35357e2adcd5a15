"""What code reads of sizes: their numbers, and arrays that depend on sizes alone ("once" steps).

A `Tables` is made once from a plan. Where the plan has formulas, it computes its arrays for the
numbers of each call; where the plan has numbers, for these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.errors import DataError
from tinsmith.graph.evaluate import Reference, evaluate
from tinsmith.plan.plan import Plan
from tinsmith.records import NamedTuple
from tinsmith.runtime.memory import aligned
from tinsmith.sizes import has_sizes

Array = np.ndarray[Any, Any]


Nodes = Mapping[str, tuple[Reference, Mapping[str, Any]]]
"""By the name of a step: the operator that it evaluates, and the attributes."""


class Asked:
    """Numbers that are asked for together, each once. `values` has them in order, as `key` gives
    them: numbers, or the forms of sizes."""

    def __init__(self, key: Callable[[Any], Hashable]) -> None:
        self.values: dict[Any, int] = {}
        self._key = key

    def at(self, value: Any) -> int:
        """The place of a number in the table; a number that is new is added at the end."""
        return self.values.setdefault(self._key(value), len(self.values))

    def all(self, values: Sequence[Any]) -> list[int]:
        return [self.at(v) for v in values]


class _Once(NamedTuple):
    """A node that is computed once for each set of sizes: what it reads, by name; of each result
    the name, the dtype, and the places of the numbers of its size and offset (None: only such nodes
    read it). A node that only gives its input other dims has the places of these."""

    name: str
    op: Reference
    attrs: Mapping[str, Any]
    view: list[int] | None
    reads: list[str | None]
    writes: list[tuple[str, np.dtype[Any], int, int | None]]


class Tables:
    """The sizes that the code of a plan reads, and the steps that are computed once for them. It
    asks for the numbers that `made` takes. Any number of threads may use it."""

    def __init__(
        self, plan: Plan, nodes: Nodes, constants: Mapping[str, Array], asked: Asked
    ) -> None:
        self._sizes_at = asked.all(plan.sizes)
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
        """The numbers that code reads, and the memory of what is computed once; None where there is
        nothing. `numbers`: of all that was asked for."""
        sizes = np.array([numbers[k] for k in self._sizes_at], np.int64) if self._sizes_at else None
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
