"""Makes the operator of a run: its input over time, its weights, and what takes its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import Array
from tinsmith.passes.recurrent.affine import Affine, Form
from tinsmith.passes.recurrent.cells import Cell
from tinsmith.passes.recurrent.chains import Run, reaches, roots_of
from tinsmith.passes.recurrent.places import VIEWS, Source, is_zero, under_views
from tinsmith.rewrite import Skip, meet


@dataclass(frozen=True)
class Course:
    """A run in the order of time: `parts` are the sources of each input at every time."""

    run: Run
    reverse: bool
    parts: tuple[tuple[Source, ...], ...]

    def time(self, step: int) -> int:
        return len(self.run.cells) - 1 - step if self.reverse else step

    @property
    def inputs(self) -> list[Source]:
        states = [s for s in (self.run.h, self.run.c) if s is not None]
        return [s for part in self.parts for s in part] + states


def course_of(run: Run) -> Course:
    """Backwards in time where an input is read from its last place to its first."""
    parts = tuple(zip(*run.inputs, strict=True))
    ways = {_way(p) for p in parts}
    reverse = -1 in ways and 1 not in ways
    return Course(run, reverse, tuple(p[::-1] for p in parts) if reverse else parts)


def _way(sources: Sequence[Source]) -> int:
    """1 or -1 where the sources are neighbouring places of one value, in that direction."""
    if len(sources) < 2 or not _one_value(sources):
        return 0
    steps = {b.index - a.index for a, b in pairwise(sources)}
    return steps.pop() if steps in ({1}, {-1}) else 0


def _one_value(sources: Sequence[Source]) -> bool:
    return sources[0].axis is not None and (len({(s.value, s.axis, s.width) for s in sources}) == 1)


class Builder:
    """Replaces runs of one analysis; values that were replaced are looked up where they went."""

    def __init__(self, graph: Graph, affine: Affine) -> None:
        self.graph, self.affine = graph, affine
        self.moved: dict[Value, Value] = {}
        self._weights: dict[Any, tuple[Array, Array, Array]] = {}
        self._consts: dict[Any, Value] = {}
        self.at: Node

    def build(self, courses: Sequence[Course]) -> None:
        """One operator for a run, or for two of opposite directions over the same input.

        Raises Skip, with nothing replaced, where that cannot be.
        """
        first = courses[0]
        last = first.run.cells[-1]
        self.at = last.root
        sources = [s for c in courses for s in c.inputs]
        self._check(courses, sources)
        n = _count(last.rows)
        x = self._input(first, n)
        w, r, b = self._operands(courses)
        way = "reverse" if first.reverse else "forward"
        attrs: dict[str, Any] = {
            "hidden_size": last.hidden,
            "direction": "bidirectional" if len(courses) == 2 else way,
        }
        if last.kind == "GRU":
            attrs["linear_before_reset"] = bool(last.after)
        states = [self._states([c.run.h for c in courses], n, last.hidden)]
        if last.kind == "LSTM":
            states.append(self._states([c.run.c for c in courses], n, last.hidden))
        outs = self._op(
            last.kind,
            x,
            w,
            r,
            b,
            None,
            *states,
            name=last.root.name,
            origin=last.root.origin,
            **attrs,
        )
        for d, course in enumerate(courses):
            self._deliver(course, outs, d, len(courses))

    def _check(self, courses: Sequence[Course], sources: Sequence[Source]) -> None:
        if sum(len(c.run.cells) for c in courses) < 2:
            return
        roots = {n for c in courses for n in roots_of(c.run)}
        if reaches([self._live(s.value) for s in sources], roots, set()):
            raise Skip("another recurrence lies between its steps")

    # ---- operands

    def _live(self, value: Value) -> Value:
        while value in self.moved:
            value = self.moved[value]
        return value

    def _op(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        return OPS[op](*inputs, before=self.at, **attrs)

    def _reshape(self, value: Value, dims: Sequence[Dim]) -> Value:
        if value.shape == tuple(dims):
            return value
        target = [-1 if isinstance(d, str) else d for d in dims]
        if target.count(-1) > 1 or 0 in target:
            raise Skip(f"a result of the shape {list(dims)} cannot be made by a reshape")
        return self._op("Reshape", value, np.array(target, np.int64))

    def _input(self, course: Course, n: Dim) -> Value:
        """[T, N, I]"""
        count = len(course.run.cells)
        parts = []
        for sources in course.parts:
            if count > 1 and _one_value(sources):
                x = self._places(sources)
            else:
                every = [self._live(self.affine.value_of[s]) for s in sources]
                flat = [
                    self._reshape(v, (1, n, s.width)) for v, s in zip(every, sources, strict=True)
                ]
                x = flat[0] if count == 1 else self._op("Concat", *flat, axis=0)
            parts.append(self._reshape(x, (count, n, sources[0].width)))
        return parts[0] if len(parts) == 1 else self._op("Concat", *parts, axis=2)

    def _places(self, sources: Sequence[Source]) -> Value:
        """Places of one value, with their axis first."""
        base, axis = self._live(sources[0].value), sources[0].axis
        assert base.shape is not None and axis is not None
        places, size = [s.index for s in sources], base.shape[axis]
        if _way(sources) != 1:
            base = self._op("Gather", base, np.array(places, np.int64), axis=axis)
        elif places[0] != 0 or size != len(places):
            bounds = [np.array([k], np.int64) for k in (places[0], places[-1] + 1, axis)]
            base = self._op("Slice", base, *bounds)
        if axis == 0:
            return base
        rest = [a for a in range(len(base.shape)) if a != axis]  # type: ignore[arg-type]
        return self._op("Transpose", base, perm=(axis, *rest))

    def _operands(self, courses: Sequence[Course]) -> list[Value | None]:
        """w [D, gates * H, I], r [D, gates * H, H], b [D, 2 * gates * H] or None."""
        sets = [self._weights_of(c.run) for c in courses]
        key = tuple(id(a) for arrays in sets for a in arrays)
        if key not in self._consts:
            name = courses[0].run.cells[0].root.name
            joined = [np.stack(arrays) for arrays in zip(*sets, strict=True)]
            made = [self.graph.const(a, f"{name}.{k}") for a, k in zip(joined, "wrb", strict=True)]
            self._consts[key] = made  # type: ignore[assignment]
        w, r, b = self._consts[key]  # type: ignore[misc]
        return [w, r, b if np.any(b.const) else None]

    def _weights_of(self, run: Run) -> tuple[Array, Array, Array]:
        cell, xs, h = run.cells[-1], run.inputs[-1], run.state
        assert h is not None
        gates = cell.gates
        from_x = gates[:3] if cell.kind == "GRU" else gates
        from_h = (*gates[:2], gates[3]) if cell.kind == "GRU" else gates
        key = (
            tuple(g.key(s) for g in from_x for s in xs),
            tuple(g.key(h) for g in from_h),
            tuple(g.bias_key() for g in gates),
        )
        if key not in self._weights:
            self._weights[key] = self._arrays(cell, xs, h, from_x, from_h)
        return self._weights[key]

    def _arrays(
        self,
        cell: Cell,
        xs: Sequence[Source],
        h: Source,
        from_x: Sequence[Form],
        from_h: Sequence[Form],
    ) -> tuple[Array, Array, Array]:
        size = cell.hidden

        def matrix(form: Form, s: Source) -> Array:
            return self.affine.weights.matrix(form.terms.get(s, ()), s.width, size).T

        w = np.concatenate([np.concatenate([matrix(g, s) for s in xs], 1) for g in from_x])
        r = np.concatenate([matrix(g, h) for g in from_h])
        zero = np.zeros(size)
        biases = [zero if g.bias is None else g.bias.reshape(-1) for g in cell.gates]
        inner = [zero] * len(from_h)
        if cell.kind == "GRU":
            inner[2] = biases.pop()
        b = np.concatenate([*biases, *inner]).astype(np.float32)
        return np.ascontiguousarray(w), np.ascontiguousarray(r), b

    def _states(self, sources: Sequence[Source | None], n: Dim, hidden: int) -> Value | None:
        """[D, N, H], or None for zeros."""
        given = [None if s is None else self._live(self.affine.value_of[s]) for s in sources]
        given = [None if v is None or is_zero(v) else v for v in given]
        if not any(v is not None for v in given):
            return None
        if any(v is None for v in given) and not isinstance(n, int):
            raise Skip("one direction begins with zeros, of a number that is not known")
        rows = [
            self.graph.const(np.zeros((1, n, hidden), np.float32), "zeros")  # type: ignore[arg-type]
            if v is None
            else self._reshape(v, (1, n, hidden))
            for v in given
        ]
        return rows[0] if len(rows) == 1 else self._op("Concat", *rows, axis=0)

    # ---- results

    def _deliver(self, course: Course, outs: Any, d: int, ways: int) -> None:
        """Let what reads the steps' results read the operator's."""
        y, y_h, *y_c = outs
        cells = course.run.cells
        last = cells[-1]

        def own(value: Value, axis: int) -> Value:
            return value if ways == 1 else self._op("Gather", value, np.array(d), axis=axis)

        if len(cells) > 1:
            self._stacks(course, lambda: own(y, 1))
        if last.c_out is not None:
            self._replace(last.c_out, lambda: own(y_c[0], 0))
        for v in last.h_out:
            self._replace(v, lambda: own(y_h, 0))
        for step in range(len(cells) - 2, -1, -1):
            for v in cells[step].h_out:
                place = np.array(course.time(step))
                self._replace(v, lambda p=place: own(self._op("Gather", y, p, axis=0), 0))

    def _replace(self, old: Value, make: Any) -> None:
        producer = old.producer
        if old.uses or any(v is old for v in self.graph.outputs):
            assert old.shape is not None
            new = self._reshape(make(), old.shape)
            self._put(old, new)
        if producer is not None:
            self.graph.sweep([producer])

    def _put(self, old: Value, new: Value) -> None:
        new.type = meet(old.type, new.type)
        self.graph.replace(old, new)
        self.moved[old] = new

    def _stacks(self, course: Course, make: Any) -> None:
        """concat of all steps' results, in the order of time or against it -> y, turned."""
        cells = course.run.cells
        step_of = {v: k for k, cell in enumerate(cells) for v in cell.h_out}
        y: Value | None = None
        for node in list(dict.fromkeys(_joins(cells[0]))):
            steps = [step_of.get(under_views(v)) for v in node.inputs]  # type: ignore[arg-type]
            times = [None if k is None else course.time(k) for k in steps]
            shapes = {v.shape for v in node.inputs if v is not None}
            up = list(range(len(cells)))
            if times not in (up, up[::-1]) or len(shapes) != 1:
                continue
            (shape,) = shapes
            y = make() if y is None else y
            assert y is not None and shape is not None
            whole = y
            if times != up:
                ends = [np.array([k], np.int64) for k in (-1, -(1 << 60), 0, -1)]
                whole = self._op("Slice", y, *ends)
            self._join(node, self._reshape(whole, (len(cells), *shape)))

    def _join(self, node: Node, steps: Value) -> None:
        """`steps` [T, ...] in place of the concatenation of its rows."""
        out, shape = node.outputs[0], steps.shape
        assert out.shape is not None and shape is not None
        axis = node.axis % len(out.shape)
        order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))
        turned = steps if axis == 0 else self._op("Transpose", steps, perm=order)
        self._put(out, self._reshape(turned, out.shape))
        self.graph.sweep([node])


def _count(rows: tuple[Dim, ...]) -> Dim:
    """The number of rows; a symbol where one dimension is not known."""
    symbols = [d for d in rows if isinstance(d, str)]
    if len(symbols) > 1 or 0 in rows:
        raise Skip(f"the number of rows {list(rows)} is not known")
    if not symbols:
        return prod(rows)  # type: ignore[arg-type]
    return symbols[0] if len(rows) == 1 else "?rows"


def _joins(cell: Cell) -> Iterator[Node]:
    """The concatenations that read a step's result, through views."""
    work = list(cell.h_out)
    while work:
        for user in work.pop().uses:
            if user.op.name == "Concat":
                yield user
            elif user.op.name in VIEWS:
                work += user.outputs
