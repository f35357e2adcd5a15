"""Where tensors lie: in the arena, or in the threads' workspace if only micro-batches see them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinsmith.budget import machine_memory
from tinsmith.conditions import by_formula
from tinsmith.errors import PlanError, size_text
from tinsmith.graph import Graph
from tinsmith.plan.memory import Buffer, align, assign_offsets, lower_bound, one_behind_another
from tinsmith.plan.placed import Placed
from tinsmith.plan.tensors import Tensor
from tinsmith.sizes import Number, Size, largest, typical


def _last_reads(placed: list[Placed]) -> dict[Tensor, int]:
    """For each root (a tensor that owns memory): the index of the last step that reads or writes it
    or a tensor inside it."""
    last: dict[Tensor, int] = {}
    for i, step in enumerate(placed):
        for t in (*step.reads, *step.writes):
            if t is not None and t.is_static:
                last[t.root] = i
    return last


def is_in_place(step: Placed, operand: int) -> bool:
    """Whether a step's output 0 begins at the same byte as its operand number `operand`."""
    x, y = step.reads[operand], step.writes[0]
    return x is not None and x.root is y.root and x.shift == y.shift


@by_formula()
def take_over(placed: list[Placed], outputs: list[Tensor], of_inputs: Mapping[int, int]) -> None:
    """Let steps write their result into the memory of an operand, to need less: `parent` of the
    result becomes the operand's root. The kernel must allow it (`Choice.may_take_over`), no
    later step may need the operand, and both must lie alike. `outputs` are the program's: their
    memory is not taken over. An input's memory is taken only by an output that is kept in it:
    `of_inputs` maps the output's number to the input's."""
    last = _last_reads(placed)
    kept = {t.root for t in outputs}
    owns = _owns(placed, of_inputs)
    for i, step in enumerate(placed):
        if step.kind != "native" or step.choice is None or step.site is None:
            continue
        candidates = step.choice.may_take_over(len(step.site.inputs))
        y = step.writes[0]
        own = owns.get(y)
        if y.parent is not None or (y.space != "arena" and own is None):
            continue
        for k in candidates:
            x = step.reads[k]
            if x is None or not x.is_static or x.root in kept:
                continue
            where = x.root.space, x.root.index
            if x.root.space != "arena" if own is None else where != ("input", own):
                continue
            others = [
                t for j, t in enumerate(step.reads) if t is not None and j != k and t.root is x.root
            ]
            if not x.root.region == y.root.region == step.region:
                continue
            whole = x.root.settled
            same = x.settled == y.settled and whole.size == y.settled.size and x.shift == 0
            if last[x.root] == i and same and not others:
                y.parent = x.root
                last[x.root] = last.pop(y, i)
                break


def _owns(placed: list[Placed], of_inputs: Mapping[int, int]) -> dict[Tensor, int]:
    """Tensor -> number of the program's input in whose memory it may come to lie. These are
    outputs, by `of_inputs` (output number -> input number), and, from the last step to the first,
    operands in the arena whose memory a step's result that is such a tensor may take over."""
    owns: dict[Tensor, int] = {}
    for step in reversed(placed):
        if step.kind != "native" or step.choice is None or step.site is None:
            continue
        y = step.writes[0]
        own = of_inputs.get(y.index) if y.space == "output" else owns.get(y)
        if own is not None:
            owns[y] = own
            reads = [step.reads[k] for k in step.choice.may_take_over(len(step.site.inputs))]
            owns |= {x: own for x in reads if x is not None and x.space == "arena"}
    return owns


def arena_of(
    placed: list[Placed], outputs: list[Tensor]
) -> tuple[dict[Tensor, int], tuple[tuple[Number, int, int], ...], int, int, int]:
    """Assign places in the arena, and set `Placed.scratch` of the steps that have scratch. Returns,
    all in bytes:

    offsets  of tensors that own memory in the arena (roots), and of scratch outside of regions
    lives    (bytes, first step, last step) of each of these, in order, for `Plan.buffers`
    size     the arena's
    naive    what all tensors would take if none shared bytes with another
    bound    the lower bound of the size (`memory.lower_bound`)
    """
    buffers: dict[Tensor, Buffer] = {}
    naive = 0
    spans = _spans(placed)
    for i, step in enumerate(placed):
        for t in (*step.reads, *step.writes):
            if t is None or t.root.space != "arena" or t.root.region:
                continue
            root = t.root
            begin, end = spans.get(step.region, (i, i))
            if root in buffers:
                buffers[root].end = end
            else:
                buffers[root] = Buffer(root.settled.nbytes, begin, end)
        naive += sum(
            typical(align(t.settled.nbytes))
            for t in step.writes
            if t.is_static and t.parent is None
        )
        if step.choice is not None and step.choice.scratch:
            scratch = Tensor(f"{step.name}.scratch", np.dtype("uint8"), (step.choice.scratch,))
            scratch.settle()
            step.scratch = scratch
            if step.region:
                scratch.region = step.region
                continue
            naive += typical(align(step.choice.scratch))
            kept = (0, len(placed)) if step.choice.fault else (i, i)  # read after the run
            buffers[scratch] = Buffer(step.choice.scratch, *kept)
    for t in outputs:
        if t.root in buffers:
            buffers[t.root].end = len(placed)
    rows = list(buffers.values())
    size = assign_offsets(rows)
    bound = lower_bound([Buffer(typical(b.nbytes), b.start, b.end) for b in rows])
    lives = tuple((b.nbytes, b.start, b.end) for b in rows)
    return {t: b.offset for t, b in buffers.items()}, lives, size, naive, bound


def _spans(placed: list[Placed]) -> dict[int, tuple[int, int]]:
    """Number of a region -> the indices of its first and its last step."""
    spans: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(placed):
        if step.region:
            spans[step.region] = spans.get(step.region, (i, i))[0], i
    return spans


def workspace_of(placed: list[Placed], offsets: dict[Tensor, int]) -> int:
    """The bytes of workspace that each thread needs: the most that one step or region needs. A step
    needs what its kernel asks for (`Choice.workspace`), a region the most of its kernels and,
    behind that, the tensors that only one micro-batch sees: their places are added to `offsets`."""
    most: Number = _workspace(placed)
    for region, (first, last) in _spans(placed).items():
        buffers: dict[Tensor, Buffer] = {}
        start = _workspace(placed[first : last + 1])
        for i in range(first, last + 1):
            step = placed[i]
            for t in (*step.reads, *step.writes, step.scratch):
                if t is None or t.root.region != region:
                    continue
                if t.root in buffers:
                    buffers[t.root].end = i
                else:
                    buffers[t.root] = Buffer(t.root.settled.nbytes, i, i)
        rows = list(buffers.values())
        free = any(isinstance(b.nbytes, Size) for b in rows)
        most = largest(most, start + (one_behind_another(rows) if free else assign_offsets(rows)))
        offsets.update((t, start + b.offset) for t, b in buffers.items())
    return most


def workspaces_of(placed: list[Placed], offsets: Mapping[Tensor, int]) -> tuple[int, ...]:
    """For reports: how many bytes of one thread's workspace each step uses, in the order of steps.
    A step of a region counts what the whole region uses. `offsets` are those of `workspace_of`; of
    free sizes the typical numbers count."""
    spans = _spans(placed)
    behind = dict.fromkeys(spans, 0)
    for step in placed:
        for t in (*step.reads, *step.writes, step.scratch):
            if t is not None and t.root.region:
                end = typical(offsets[t.root]) + align(typical(t.root.settled.nbytes))
                behind[t.root.region] = max(behind[t.root.region], end)
    own = {r: typical(_workspace(placed[a : b + 1])) for r, (a, b) in spans.items()}
    return tuple(
        max(own[s.region], behind[s.region]) if s.region else typical(_workspace([s]))
        for s in placed
    )


def _workspace(steps: list[Placed]) -> int:
    most: Number = 0
    for s in steps:
        if s.choice:
            most = largest(most, align(s.choice.workspace))
    return most


def check_values(graph: Graph) -> None:
    """Raise PlanError if the result of a single node, other than a view, exceeds the machine's
    memory. Called before kernels are chosen, which may make tables of such sizes."""
    memory = machine_memory()
    if memory is None:
        return
    for node in graph.nodes:
        for v in node.outputs if "view" not in node.op.traits else ():
            if v.type.is_static and typical(v.type.nbytes) > memory:
                raise PlanError(
                    f"{graph.name} needs {size_text(v.type.nbytes)} for {v.name!r} "
                    f"({v.type}), this machine has {size_text(memory)}"
                )


def check_size(graph: Graph, arena: int, offsets: Mapping[Tensor, int]) -> None:
    """Raise PlanError, naming the largest tensor of `offsets` (`arena_of`), if `arena` bytes exceed
    the machine's memory."""
    memory = machine_memory()
    if memory is not None and typical(arena) > memory:
        greatest = max(offsets, key=lambda t: typical(t.settled.nbytes))
        raise PlanError(
            f"{graph.name} needs {size_text(arena)} for its tensors, this machine has "
            f"{size_text(memory)}; the largest is {greatest.name!r} of shape {list(greatest.dims)}"
        )
