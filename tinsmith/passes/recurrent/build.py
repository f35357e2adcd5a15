"""Puts one recurrent operator in the place of a run: makes its input over time, weights, states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Graph, Value
from tinsmith.graph.uses import depend
from tinsmith.passes.facts import i64
from tinsmith.passes.recurrent.affine import Affine
from tinsmith.passes.recurrent.chains import roots_of
from tinsmith.passes.recurrent.course import Course, one_value
from tinsmith.passes.recurrent.edit import Editor
from tinsmith.passes.recurrent.operands import Operands, attributes, count_rows
from tinsmith.passes.recurrent.places import Source, is_zero
from tinsmith.passes.recurrent.results import deliver
from tinsmith.rewrite import Skip
from tinsmith.sizes import NUMBER


class Builder:
    """Replaces runs of time steps of one graph by LSTM, GRU and RNN operators (`build`). Values
    that earlier replacements changed are looked up in the `Editor`."""

    def __init__(self, graph: Graph, affine: Affine) -> None:
        self.graph, self.affine, self.edit = graph, affine, Editor(graph)
        self.weights = Operands(affine.weights)
        self._consts: dict[Any, Value] = {}

    def build(self, courses: Sequence[Course]) -> None:
        """Put one operator in the place of the steps of a run, or of two runs of opposite
        directions over the same input: the one or two `courses`. Raises Skip where that cannot be;
        unread new nodes may stay."""
        first = courses[0]
        last = first.run.cells[-1]
        self.edit.at = last.root
        sources = [s for c in courses for s in c.inputs]
        self._check(courses, sources)
        n = count_rows(last.rows)
        x = self._input(first, n)
        w, r, b = self._operands(courses)
        way = "reverse" if first.reverse else "forward"
        attrs = attributes(last, "bidirectional" if len(courses) == 2 else way)
        states = [self._states([c.run.h for c in courses], n, last.hidden)]
        if last.kind == "LSTM":
            states.append(self._states([c.run.c for c in courses], n, last.hidden))
        outs = self.edit.op(
            last.kind, x, w, r, b, None, *states, name=last.root.name, origin=last.root.origin,
            **attrs,
        )  # fmt: skip
        deliver(self.edit, courses, outs)

    def _check(self, courses: Sequence[Course], sources: Sequence[Source]) -> None:
        if sum(len(c.run.cells) for c in courses) < 2:
            return
        roots = {n for c in courses for n in roots_of(c.run)}
        if depend([self.edit.live(s.value) for s in sources], roots, set()):
            raise Skip("another recurrence lies between its steps")

    def _input(self, course: Course, n: Dim) -> Value:
        """The operator's input x [T, N, I]: for each input of a step, its sources at all times are
        joined along T, in the order of time; then these are joined along I. `n` is N."""
        count = len(course.run.cells)
        parts = []
        for sources in course.parts:
            if count > 1 and one_value(sources):
                x = self._places(sources)
            else:
                flat = [self.edit.reshape(self._value(s), (1, n, s.width)) for s in sources]
                x = flat[0] if count == 1 else self.edit.op("Concat", *flat, axis=0)
            parts.append(self.edit.reshape(x, (count, n, sources[0].width)))
        return parts[0] if len(parts) == 1 else self.edit.op("Concat", *parts, axis=2)

    def _value(self, source: Source) -> Value:
        value = self.affine.value_of.get(source)
        if value is not None:
            return self.edit.live(value)
        place, base = np.array(source.index), self.edit.live(source.value)
        return self.edit.op("Gather", base, place, axis=source.axis)

    def _places(self, sources: Sequence[Source]) -> Value:
        """The slices of one value that `sources` name by their indices on one axis, as one value,
        in this order, with that axis first."""
        base, axis = self.edit.live(sources[0].value), sources[0].axis
        assert base.shape is not None and axis is not None
        places, size = [s.index for s in sources], base.shape[axis]
        if places != list(range(places[0], places[0] + len(places))):
            base = self.edit.op("Gather", base, np.array(places, np.int64), axis=axis)
        elif places[0] != 0 or size != len(places):
            base = self.edit.op("Slice", base, *map(i64, (places[0], places[-1] + 1, axis)))
        return self.edit.turned(base, axis, 0)

    def _operands(self, courses: Sequence[Course]) -> list[Value | None]:
        """The operator's constants w [D, gates * H, I], r [D, gates * H, H], and b [D, 2 * gates *
        H], or None if all biases are 0; D is the number of courses, H the features of the state."""
        sets = []
        for c in courses:
            assert c.run.state is not None
            sets.append(self.weights.of(c.run.cells[-1], c.run.inputs[-1], c.run.state))
        key = tuple(id(a) for arrays in sets for a in arrays)
        if key not in self._consts:
            name = courses[0].run.cells[0].root.name
            joined = [np.stack(arrays) for arrays in zip(*sets, strict=True)]
            made = [self.graph.const(a, f"{name}.{k}") for a, k in zip(joined, "wrb", strict=True)]
            self._consts[key] = made  # type: ignore[assignment]
        w, r, b = self._consts[key]  # type: ignore[misc]
        return [w, r, b if np.any(b.const) else None]

    def _states(self, sources: Sequence[Source | None], n: Dim, hidden: int) -> Value | None:
        """The operator's initial state [D, N, H], joined from `sources`, one for each course (None:
        zeros); None if all are zeros. `n` is N, `hidden` H. Raises Skip if one of two is zeros and
        N is not known."""
        given = [None if s is None else self._value(s) for s in sources]
        given = [None if v is None or is_zero(v) else v for v in given]
        if not any(v is not None for v in given):
            return None
        if any(v is None for v in given) and not isinstance(n, NUMBER):
            raise Skip("one direction begins with zeros, of a number that is not known")
        rows = [
            self.graph.const(np.zeros((1, n, hidden), np.float32), "zeros")  # type: ignore[arg-type]
            if v is None
            else self.edit.reshape(v, (1, n, hidden))
            for v in given
        ]
        return rows[0] if len(rows) == 1 else self.edit.op("Concat", *rows, axis=0)
