"""The pass: runs of recurrent steps become RNN, GRU and LSTM over a sequence."""

from __future__ import annotations

from collections.abc import Iterable

from tinsmith.graph import Graph, Node
from tinsmith.passes.manager import Context, register
from tinsmith.passes.recurrent.affine import Affine
from tinsmith.passes.recurrent.build import Builder
from tinsmith.passes.recurrent.cells import find_cells
from tinsmith.passes.recurrent.chains import Chains, Refuse
from tinsmith.passes.recurrent.course import Course, Times, course_of
from tinsmith.passes.recurrent.native import GATES, native_cell
from tinsmith.passes.recurrent.step import Cell
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip


@register("portable")
@dataclass(frozen=True)
class StackRecurrent:
    """Unrolled steps of LSTM, GRU and RNN cells become one operator over the sequence.

    A single LSTM or GRU step becomes an operator of one step. Steps are stacked where they have
    equal constant weights, hand their state on, and no input needs an earlier step's result; two
    runs over the same input in opposite directions become one bidirectional operator.
    """

    def run(self, graph: Graph, context: Context) -> int:
        def refuse(node: Node, reason: str) -> None:
            context.refuse("stack-recurrent", node.name, reason)

        affine = Affine()
        cells = all_cells(graph, affine, refuse)
        if not cells:
            return 0
        place = {node: i for i, node in enumerate(graph.nodes)}
        runs = Chains(graph, cells, refuse).runs()
        times: Times = {}
        runs.sort(key=lambda run: place[run.cells[0].root])
        courses = [course_of(run, times) for run in runs]
        # consumers first: what a later layer reads of an earlier one's steps is stacked, and the
        # earlier layer then finds it whole
        builder, changes = Builder(graph, affine), 0
        for group in paired(reversed(courses)):
            changes += _build(builder, group, refuse)
        return changes


def all_cells(graph: Graph, affine: Affine, refuse: Refuse) -> list[Cell]:
    """The recurrent steps of a graph, of primitive operators (`find_cells`) and as LSTM, GRU and
    RNN nodes of one step (`native_cell`), in graph order."""
    if not any(n.op.name == "Tanh" or n.op.name in GATES for n in graph.nodes):
        return []
    found = find_cells(graph, affine, refuse)
    every = (found.get(n) or native_cell(affine, n) for n in graph.nodes)
    return [cell for cell in every if cell is not None]


def _build(builder: Builder, courses: list[Course], refuse: Refuse) -> int:
    try:
        builder.build(courses)
        return 1
    except Skip as skip:
        builder.graph.sweep()
        if len(courses) == 2:
            return sum(_build(builder, [c], refuse) for c in courses)
        refuse(courses[0].run.cells[-1].root, str(skip))
        return 0


def paired(courses: Iterable[Course]) -> list[list[Course]]:
    """Group courses; each group becomes one operator. Two courses of several steps over the same
    input in opposite directions are a group, the forward one first, in the place of the second. Any
    other is a group of its own."""
    groups: list[list[Course]] = []
    waiting: dict[object, list[Course]] = {}
    for course in courses:
        run = course.run
        key = (run.kind, course.parts)
        group = waiting.get(key)
        if len(run.cells) > 1 and group and group[0].reverse != course.reverse:
            groups.remove(group)
            group = sorted([*group, course], key=lambda c: c.reverse)
            del waiting[key]
        else:
            group = [course]
            waiting[key] = group
        groups.append(group)
    return groups
