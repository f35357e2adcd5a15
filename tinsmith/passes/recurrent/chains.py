"""Runs of steps: cells of equal weights, each of which hands its state on to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from tinsmith.graph import Graph, Node
from tinsmith.graph.uses import depend
from tinsmith.passes.recurrent.places import Source, is_zero, join_axis
from tinsmith.passes.recurrent.step import Cell
from tinsmith.records import dataclass

Refuse = Callable[[Node, str], None]


@dataclass(frozen=True, eq=False)
class Run:
    """Time steps that one operator may compute, in the order of the recurrence: each hands its
    state to the next.

    inputs  for each step its sources besides the state; source i of every step has equal weights
    h, c    the states before the first step; None: zeros (c: or none at all)
    """

    cells: tuple[Cell, ...]
    inputs: tuple[tuple[Source, ...], ...]
    state: Source | None  # what multiplies the recurrent weights in the last step
    h: Source | None
    c: Source | None

    @property
    def kind(self) -> tuple[Any, ...]:
        last = self.cells[-1]
        return (last.kind, last.after, last.hidden, last.rows, len(self.cells))


class Chains:
    """Finds the runs among the cells of a graph, which must not change meanwhile: `runs`. It links
    each cell to the one before, and cuts the chains into runs that one operator can compute.

    state          for each linked cell: which of its sources is its state
    before, after  for each cell: the cell of the time step before and after it
    by_out         value of a state h -> the cell that gives it
    """

    def __init__(self, graph: Graph, cells: Iterable[Cell], refuse: Refuse) -> None:
        self.refuse, self.outputs = refuse, set(graph.outputs)
        self.cells = list(cells)
        self.by_out = {v: cell for cell in self.cells for v in cell.h_out}
        self.state: dict[Cell, Source | None] = {}
        self.before: dict[Cell, Cell] = {}
        self.after: dict[Cell, Cell] = {}
        self._numbers: dict[Any, int] = {}

    def runs(self) -> list[Run]:
        for cell in self.cells:
            self._link(cell)
        found: list[Run] = []
        for cell in self.cells:
            if cell in self.before:
                continue
            chain = [cell]
            while chain[-1] in self.after:
                chain.append(self.after[chain[-1]])
            if len(chain) == 1 and (cell.kind == "RNN" or cell.native is not None):
                continue  # nothing says that it is recurrent, or nothing is to be done
            for part in self._parts(chain):
                for piece in self._closed(part):
                    run = self._run(piece)
                    if run is not None:
                        found.append(run)
        return found

    # ---- linking

    def _link(self, cell: Cell) -> None:
        """Find the cell of the time step before this one, and record it: a cell of equal weights
        whose new states this one reads as its states, and that no other cell follows."""
        candidates = cell.sources if cell.h is None else (cell.h,)
        for s in candidates:
            first = self.by_out.get(s.value) if s.axis is None else None
            if first is None or s.width != cell.hidden or not _alike(first, cell):
                continue
            c = cell.c
            hands_on = c is not None and c.axis is None and c.value is first.c_out
            if cell.c_out is not None and not hands_on:
                continue
            known = self._state_of(first, cell, s)
            if known is _NONE:
                if cell.kind != "RNN":
                    self.refuse(cell.root, f"its weights differ from those of {first.root.name!r}")
                continue
            if first in self.after:
                self.refuse(cell.root, f"another step follows {first.root.name!r}")
                continue
            self.state[first], self.state[cell] = known, s
            self.before[cell], self.after[first] = first, cell
            return

    def _state_of(self, first: Cell, cell: Cell, state: Source) -> Any:
        """The source of `first` that must be its state for both cells to have equal weights, where
        `state` is that of `cell`; None if its state is zeros that have been folded; _NONE if no
        choice makes the weights equal."""
        w, r, b = self._signature(cell, state)
        options: list[Source | None]
        if first in self.state:
            options = [self.state[first]]
        elif first.h is not None:
            options = [first.h]
        else:
            options = list(first.sources)
        for s in options:
            if self._signature(first, s) == (w, r, b):
                return s
        # products with a state of zeros may have been folded, in some gates or in all
        if first.h is not None and not is_zero(first.h.value):
            return _NONE
        w0, r0, b0 = self._signature(first, first.h)
        some = all(not mine or mine == theirs for mine, theirs in zip(r0, r, strict=True))
        return first.h if (w0, b0) == (w, b) and some else _NONE

    def _signature(self, cell: Cell, state: Source | None) -> tuple[Any, ...]:
        """A cell's (weights of the inputs, weights of the state for each gate, biases), as keys
        that are equal for equal content, if `state` is its state."""
        xs = sorted(self._key(cell, s) for s in cell.sources if s != state)
        r = tuple(() if state is None else g.key(state) for g in cell.gates)
        biases = self._number(tuple(g.bias_key() for g in cell.gates))
        return tuple(xs), r, biases

    def _key(self, cell: Cell, source: Source) -> int:
        return self._number(tuple(g.key(source) for g in cell.gates))

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    # ---- what may be one operator

    def _parts(self, chain: list[Cell]) -> Iterator[list[Cell]]:
        """The pieces of a chain of steps that can each become one operator. It is cut where a state
        c is read elsewhere, or where an input needs an earlier step's result."""
        part, roots, seen = chain[:1], set(_roots(chain[0])), set[Node]()
        for last, cell in pairwise(chain):
            reason = self._cut(last, cell, roots, seen)
            if reason:
                self.refuse(cell.root, reason)
                yield part
                part, roots, seen = [], set(), set()
            part.append(cell)
            roots.update(_roots(cell))
        yield part

    def _cut(self, last: Cell, cell: Cell, roots: set[Node], seen: set[Node]) -> str:
        if last.c_out is not None:
            inside = last.nodes | cell.nodes
            if last.c_out in self.outputs or not inside.issuperset(last.c_out.uses):
                return f"the cell state of {last.root.name!r} is read elsewhere"
        state = self.state[cell]
        needs = [s.value for s in cell.sources if s != state]
        if depend(needs, roots, seen):
            return "its input needs the result of an earlier step"
        return ""

    def _closed(self, part: list[Cell]) -> Iterator[list[Cell]]:
        """Split a run at cells with inner values, other than states, that nodes outside the run
        read. Yields the pieces between these cells."""
        union = frozenset[Node]().union(*(c.nodes for c in part))
        piece: list[Cell] = []
        bad = [self._escape(cell, union) for cell in part]
        if not any(bad):
            yield part
            return
        for cell, name in zip(part, bad, strict=True):
            if name:
                self.refuse(cell.root, f"{name!r} is read outside the step")
                if piece:
                    yield from self._closed(piece)
                piece = []
            else:
                piece.append(cell)
        if piece:
            yield from self._closed(piece)

    def _escape(self, cell: Cell, union: frozenset[Node]) -> str:
        for node in cell.nodes:
            if join_axis(node) is not None:
                continue  # joined inputs, which cost nothing where they are read elsewhere too
            for v in node.outputs:
                if v in cell.h_out or v is cell.c_out:
                    continue
                if v in self.outputs or not union.issuperset(v.uses):
                    return v.name
        return ""

    def _run(self, cells: list[Cell]) -> Run | None:
        """The `Run` of these cells; None if it is not worth an operator (one RNN step, or a step
        that is an operator), or if the last step has no input or no state."""
        first, last = cells[0], cells[-1]
        if len(cells) == 1 and (last.kind == "RNN" or last.native is not None):
            return None
        if last not in self.state:
            self.state[last] = self._guess(last)
        states = [self.state.get(c, c.h) for c in cells]
        inputs = []
        for cell, state in zip(cells, states, strict=True):
            xs = [s for s in cell.sources if s != state]
            inputs.append(tuple(sorted(xs, key=lambda s, c=cell: self._key(c, s))))
        state = states[-1]
        if state is None or not inputs[-1] or not any(state in g.terms for g in last.gates):
            self.refuse(last.root, "it is a step without an input, or without a state")
            return None
        return Run(tuple(cells), tuple(inputs), state, states[0], first.c)

    def _guess(self, cell: Cell) -> Source | None:
        """The source that is taken for the state of a step that is linked to no other: `h`, if it
        is known, else any source of the state's width, best a whole value, no slice; else None."""
        if cell.h is not None:
            return cell.h
        fits = [s for s in cell.sources if s.width == cell.hidden]
        return min(fits, key=lambda s: s.axis is not None, default=None)


_NONE: Any = object()


def _alike(a: Cell, b: Cell) -> bool:
    return (a.kind, a.after, a.hidden, a.rows) == (b.kind, b.after, b.hidden, b.rows)


def _roots(cell: Cell) -> Iterator[Node]:
    yield cell.root
    if cell.c_out is not None and cell.c_out.producer is not None:
        yield cell.c_out.producer


def roots_of(run: Run) -> set[Node]:
    return {n for c in run.cells for n in _roots(c)}
