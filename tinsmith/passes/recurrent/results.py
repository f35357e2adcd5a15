"""Lets readers of the results of single steps read those of the operator that replaces steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Node, Value
from tinsmith.passes.recurrent.affine import nameless
from tinsmith.passes.recurrent.course import Course
from tinsmith.passes.recurrent.edit import Editor
from tinsmith.passes.recurrent.places import is_view, join_axis, under_views

Shape = tuple[Dim, ...]


def deliver(edit: Editor, courses: Sequence[Course], outs: tuple[Value, ...]) -> None:
    """Replace the results of the steps of `courses` by those of the recurrent operator. `outs` are
    y [T, D, N, H] and the last states [D, N, H]; direction d of D is that of courses[d]."""
    y, y_h, *y_c = outs
    ways = len(courses)
    if len(courses[0].run.cells) > 1:
        _divide_joins(edit, courses)
        if ways == 2:
            _join_both(edit, courses, y)
        for d, course in enumerate(courses):
            _stacks(edit, course, y, d, ways)
    for d, course in enumerate(courses):
        _steps(edit, course, (y, y_h, *y_c), d, ways)


def _own(edit: Editor, value: Value, d: int, axis: int, ways: int) -> Value:
    """The part of a result of the operator that belongs to direction d of `ways`, which lie on
    `axis`, without that axis; for one direction the result as it is."""
    return value if ways == 1 else edit.op("Gather", value, np.array(d), axis=axis)


def _steps(edit: Editor, course: Course, outs: Sequence[Value], d: int, ways: int) -> None:
    """Replace the states of a course's cells that are still read: by single steps of the operator's
    results `outs`, from the last cell to the first, as earlier ones lose readers."""
    y, y_h, *y_c = outs
    cells = course.run.cells
    last = cells[-1]
    if last.c_out is not None:
        edit.retire(last.c_out, lambda: _own(edit, y_c[0], d, 0, ways))
    for v in last.h_out:
        edit.retire(v, lambda: _own(edit, y_h, d, 0, ways))
    for step in range(len(cells) - 2, -1, -1):
        place = np.array(course.time(step))

        def one(place: Any = place) -> Value:
            return _own(edit, edit.op("Gather", y, place, axis=0), d, 0, ways)

        for v in cells[step].h_out:
            edit.retire(v, one)


# ---- concatenations


def _stack(course: Course, node: Node) -> tuple[bool, Shape] | None:
    """(forward, shape of one result) if a node concatenates the results of all time steps of a run,
    in the order of time (`forward`) or reversed; None if it concatenates anything else."""
    cells = course.run.cells
    step_of = {v: k for k, cell in enumerate(cells) for v in cell.h_out}
    steps = [None if v is None else step_of.get(under_views(v)) for v in node.inputs]
    times = [None if k is None else course.time(k) for k in steps]
    shapes = {nameless(v.shape): v.shape for v in node.inputs if v is not None}
    up = list(range(len(cells)))
    if times not in (up, up[::-1]) or len(shapes) != 1:
        return None
    (shape,) = shapes.values()
    return None if shape is None else (times == up, shape)


def _stacks(edit: Editor, course: Course, y: Value, d: int, ways: int) -> None:
    """Replace concatenations of all results of a run, in the order of time or reversed, by the
    whole result y of the operator, in direction d of `ways`."""
    for node in _joins(course.run.cells[0].h_out):
        found = _stack(course, node)
        if found is None:
            continue
        whole = _own(edit, y, d, 1, ways)
        if not found[0]:
            whole = edit.reverse(whole)
        rows = edit.reshape(whole, (len(course.run.cells), *found[1]))
        _join(edit, node, rows, node.outputs[0])


def _join(edit: Editor, node: Node, steps: Value, out: Value) -> None:
    """Replace the value `out` by `steps` [T, ...], with the axis T at the axis along which `node`
    concatenates, reshaped to the shape of `out`."""
    axis = join_axis(node)
    assert out.shape is not None and out.producer is not None and axis is not None
    edit.put(out, edit.reshape(edit.turned(steps, 0, axis), out.shape))
    edit.graph.sweep([out.producer])


def _join_both(edit: Editor, courses: Sequence[Course], y: Value) -> None:
    """concat(stack_t(f_t), stack_t(b_t)) over the last axis -> y [T, 2, N, H] as [T, N, 2 * H].
    f_t and b_t: the results of the two courses at time t."""
    for first in _joins(courses[0].run.cells[0].h_out):
        one = _stack(courses[0], first)
        if one is None or not one[0]:
            continue
        for both in dict.fromkeys(first.outputs[0].uses):
            second = _second(both, first)
            two = None if second is None else _stack(courses[1], second)
            if two is None or not two[0] or nameless(two[1]) != nameless(one[1]):
                continue
            beside = edit.op("Transpose", y, perm=(0, 2, 1, 3))
            count, *_, width = y.dims[0], 2 * y.dims[-1]
            rows = edit.reshape(beside, (count, *one[1][:-1], width))
            _join(edit, first, rows, both.outputs[0])


def _second(both: Node, first: Node) -> Node | None:
    """The node whose result `both` concatenates after that of `first`, along the last axis. None
    unless `both` has only these two inputs, and both of them are concatenations along one other
    axis."""
    last = (both.outputs[0].rank or 0) - 1
    if join_axis(both) != last or len(both.inputs) != 2 or both.inputs[0] is not first.outputs[0]:
        return None
    other = both.inputs[1]
    second = None if other is None else other.producer
    fits = second is not None and join_axis(first) == join_axis(second) != last
    return second if fits else None


def _divide_joins(edit: Editor, courses: Sequence[Course]) -> None:
    """stack_t(concat(f_t, b_t)) -> concat(stack_t(f_t), stack_t(b_t)), concat over the last axis,
    stack_t over another; f_t and b_t are results of the courses at time t."""
    results = {v for course in courses for cell in course.run.cells for v in cell.h_out}
    for inner in _joins(courses[0].run.cells[0].h_out):
        for outer in _joins(inner.outputs):
            parts, shape = _columns(outer, results), outer.operand(0).shape
            if parts is None or shape is None:
                continue
            stacks = []
            for part in parts:
                flat = [edit.reshape(v, (*shape[:-1], v.shape[-1])) for v in part]  # type: ignore[index]
                stacks.append(edit.op("Concat", *flat, axis=outer.axis))
            edit.put(outer.outputs[0], edit.op("Concat", *stacks, axis=len(shape) - 1))
            edit.graph.sweep([outer])


def _columns(outer: Node, results: set[Value]) -> list[tuple[Value, ...]] | None:
    """Of a node `outer` that concatenates, along another axis than the last, concatenations of
    `results` along the last axis, of equal shapes: for each position in these inner concatenations,
    the values there. None for any other node."""
    rank = outer.outputs[0].rank
    if not rank or join_axis(outer) == rank - 1:
        return None
    rows: list[tuple[Value, ...]] = []
    shapes = set()
    for v in outer.inputs:
        inner = None if v is None else under_views(v).producer
        if v is None or inner is None:
            return None
        joint = inner.outputs[0]
        if not v.shape or not joint.shape or v.shape[-1] != joint.shape[-1]:
            return None
        if join_axis(inner) != len(joint.shape) - 1:
            return None
        row = tuple(part for part in inner.inputs if part is not None)
        rows.append(row)
        shapes.add((nameless(v.shape), *(nameless(part.shape) for part in row)))
    if len(shapes) != 1 or not all(under_views(v) in results for row in rows for v in row):
        return None
    return list(zip(*rows, strict=True))


def _joins(values: Iterable[Value]) -> Iterator[Node]:
    """The nodes that concatenate and read one of the values, directly or through views. All are
    found before the first is yielded, so that the graph may be edited meanwhile."""
    work, found = list(values), dict[Node, None]()
    while work:
        for user in work.pop().uses:
            if join_axis(user) is not None:
                found[user] = None
            elif is_view(user):
                work += user.outputs
    yield from found
