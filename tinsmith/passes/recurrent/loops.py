"""The pass: a Loop or Scan that does one recurrent step in each iteration becomes one operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.graph import Dim, Graph, Node, Value
from tinsmith.passes.facts import i64
from tinsmith.passes.manager import Context, register
from tinsmith.passes.recurrent.affine import Affine, rows
from tinsmith.passes.recurrent.edit import Editor
from tinsmith.passes.recurrent.iterations import (
    Item,
    Iterations,
    Read,
    State,
    is_size_of,
    iterations_of,
)
from tinsmith.passes.recurrent.native import GATES
from tinsmith.passes.recurrent.operands import Operands, attributes, count_rows
from tinsmith.passes.recurrent.places import Source, is_zero, under_views
from tinsmith.passes.recurrent.stack import all_cells
from tinsmith.passes.recurrent.step import Cell
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip
from tinsmith.sizes import NUMBER

MAX_BODY = 200  # nodes of a body that is looked at, at most; estimated


@register("portable")
@dataclass(frozen=True)
class StackLoops:
    """A Loop or Scan whose body is one LSTM, GRU or RNN step becomes the operator over time.

    The step's inputs must be slices of scanned or captured values at consecutive indices, its
    weights constant, and the loop's results the states, of every iteration or of the last.
    """

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            if node.op.name not in ("Loop", "Scan") or not _promising(node.body):
                continue
            try:
                _replace(graph, node)
                changes += 1
            except Skip as skip:
                graph.sweep()
                context.refuse("stack-loops", node.name, str(skip))
        return changes


def _promising(body: Graph) -> bool:
    names = {n.op.name for n in body.nodes}
    return len(body) <= MAX_BODY and ("Tanh" in names or not names.isdisjoint(GATES))


def _replace(graph: Graph, node: Node) -> None:
    iterations = iterations_of(node)
    affine = Affine()
    whys: list[str] = []
    for cell in all_cells(iterations.body, affine, lambda _, why: whys.append(why)):
        found = _handed_on(iterations, affine, cell)
        if found is not None:
            _LoopStep(graph, iterations, affine, cell, *found).replace()
            return
    raise Skip(whys[-1] if whys else "its body hands on no state of a recurrent step")


def _handed_on(
    iterations: Iterations, affine: Affine, cell: Cell
) -> tuple[Source, State, State | None] | None:
    """How a loop hands the states of a cell in its body from iteration to iteration: (what the cell
    reads as h, the loop's state for h, that for c or None if the cell has no c). None if it does
    not."""
    for state in iterations.states:
        source = affine.source(state.before)
        if source is None or under_views(state.after) not in map(under_views, cell.h_out):
            continue
        if source != cell.h and (cell.h is not None or source not in cell.sources):
            continue
        if cell.c_out is None:
            return source, state, None
        for c in iterations.states:
            same = cell.c is not None and affine.source(c.before) == cell.c
            if same and under_views(c.after) is under_views(cell.c_out):
                return source, state, c
    return None


@dataclass(frozen=True)
class _LoopStep:
    """A Loop or Scan whose body is one recurrent step, `cell`: `replace` puts an operator over time
    in its place. `source` is what the cell reads as h; `h` and `c` are the loop's states."""

    graph: Graph
    iterations: Iterations
    affine: Affine
    cell: Cell
    source: Source
    h: State
    c: State | None

    def replace(self) -> None:
        edit, node, cell = Editor(self.graph), self.iterations.node, self.cell
        edit.at = node
        xs = [s for s in cell.sources if s != self.source]
        if not xs:
            raise Skip("the step has no input")
        if fixed := [s.value.name for s in xs if s.axis is not None]:
            raise Skip(f"the place in {fixed[0]!r} does not follow the iterations")
        reads = [self.iterations.read(s.value) for s in xs]
        backward = {r.backward for r in reads}
        if len(backward) != 1:
            raise Skip("its inputs are read in opposite directions")
        kept = self._results()
        parts = [self._part(edit, r, s.width) for r, s in zip(reads, xs, strict=True)]
        x = parts[0] if len(parts) == 1 else edit.op("Concat", *parts, axis=2)
        w, r, b = Operands(self.affine.weights).of(cell, xs, self.source)
        (reverse,) = backward
        attrs = attributes(cell, "reverse" if reverse else "forward")
        starts = [self._start(edit, s, x) for s in (self.h, self.c) if s is not None]
        y, y_h, *y_c = edit.op(
            cell.kind, x, w[None], r[None], b[None] if np.any(b) else None, None, *starts,
            name=node.name, origin=node.origin, **attrs,
        )  # fmt: skip
        for item in kept:
            edit.put(item.result, self._item(edit, item, y, reverse))
        for state, last in ((self.h, y_h), (self.c, y_c[0] if y_c else None)):
            if state is not None and last is not None:
                edit.put(state.result, edit.reshape(last, _like(state.initial, last)))
        self.graph.sweep([node])

    def _results(self) -> list[Item]:
        """The stacked results that are read outside. Raises Skip if one of them is not the state h,
        or if a last state is read that is neither h nor c."""
        outputs = set(self.graph.outputs)

        def is_read(v: Value) -> bool:
            return bool(v.uses) or v in outputs

        for state in self.iterations.states:
            if state is not self.h and state is not self.c and is_read(state.result):
                raise Skip(f"the state {state.result.name!r} is another than the step's")
        kept = [item for item in self.iterations.items if is_read(item.result)]
        for item in kept:
            if under_views(item.value) not in map(under_views, self.cell.h_out):
                raise Skip(f"the result {item.result.name!r} is another than the step's")
        return kept

    def _part(self, edit: Editor, read: Read, width: int) -> Value:
        """What the step reads by `read` over all iterations, in ascending order of index, as a
        value [T, N, width]. Raises Skip if the width is another, or rank or rows are not known."""
        base, axis = read.base, read.axis
        if base.shape is None:
            raise Skip(f"the rank of {base.name!r} is not known")
        axis %= len(base.shape)
        base = edit.turned(self._cut(edit, base, axis, read), axis, 0)
        steps, *lead, last = base.shape  # type: ignore[misc]
        if last != width:
            raise Skip(f"the input {base.name!r} is reshaped in the step")
        return edit.reshape(base, (steps, count_rows(rows(tuple(lead))), width))

    def _cut(self, edit: Editor, base: Value, axis: int, read: Read) -> Value:
        """The part of `base` along `axis` that the iterations read by `read`, in ascending order of
        indices; `base` if that is all, as in a Scan. Raises Skip if indices lie outside, or if the
        number of iterations or the axis's size is not known (unless they are known to be equal)."""
        count, size = self.iterations.count, base.shape[axis]  # type: ignore[index]
        if read.first is None or count is None:
            return base
        if count.const is None:
            if read.first == 0 and not read.backward and is_size_of(count, base, axis):
                return base
            raise Skip("the number of iterations is not the size of the input")
        iterations = int(count.const.reshape(-1)[0])
        begin = read.first - iterations + 1 if read.backward else read.first
        if not isinstance(size, NUMBER) or iterations < 1 or begin < 0 or begin + iterations > size:
            raise Skip(
                f"{iterations} iterations from {read.first} do not fit {base.type} on axis {axis}"
            )
        if iterations == size:
            return base
        return edit.op("Slice", base, *map(i64, (begin, begin + iterations, axis)))

    def _start(self, edit: Editor, state: State, x: Value) -> Value | None:
        """The operator's initial state [1, N, H]; None for zeros. `x` is its input [T, N, I]."""
        if is_zero(state.initial):
            return None
        assert x.shape is not None
        return edit.reshape(state.initial, (1, x.shape[1], self.cell.hidden))

    def _item(self, edit: Editor, item: Item, y: Value, reverse: bool) -> Value:
        """The operator's result y [T, 1, N, H] as the loop's result that `item` describes: stacked
        along the same axis, in the same order. `reverse`: the operator goes backwards."""
        whole = edit.reverse(y) if item.backward != reverse else y
        assert y.shape is not None and item.value.shape is not None
        whole = edit.reshape(whole, (y.shape[0], *_like(item.value, y)))
        return edit.turned(whole, 0, item.axis % (len(item.value.shape) + 1))


def _like(value: Value, y: Value) -> Sequence[Dim]:
    """The shape of the value, with its symbol, if it has one, replaced by N of y [..., N, H].
    Raises Skip if more than one of its dims is a symbol, or a rank is not known."""
    if value.shape is None or y.shape is None:
        raise Skip(f"the rank of {value.name!r} is not known")
    if sum(isinstance(d, str) for d in value.shape) > 1:
        raise Skip(f"the rows of {value.type} are not known")
    return [y.shape[-2] if isinstance(d, str) else d for d in value.shape]
