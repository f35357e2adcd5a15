"""From a placed graph to a plan: native code for each step, addresses for every tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tinsmith.codegen.target import Target
from tinsmith.errors import CodegenError
from tinsmith.graph import Graph, Node
from tinsmith.graph.types import name_of
from tinsmith.kernels.counted import counted_dims
from tinsmith.kernels.halo import zero_halo
from tinsmith.kernels.layout import Spec
from tinsmith.kernels.memo import choice_key, phase_code
from tinsmith.plan.arena import (
    arena_of,
    check_size,
    check_values,
    is_in_place,
    take_over,
    workspace_of,
    workspaces_of,
)
from tinsmith.plan.footprint import footprint
from tinsmith.plan.gate import absorbed
from tinsmith.plan.kept import kept_outputs
from tinsmith.plan.main import helpers_text, main_text
from tinsmith.plan.micro_batching import choose_micro_batches, forced_micro_batches
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.place import place
from tinsmith.plan.placed import Placed
from tinsmith.plan.placement import Placement, dims_of
from tinsmith.plan.plan import SLACK, Call, Memory, Operand, Plan, Port, Ref, Step
from tinsmith.plan.shared_weights import Blob, Kept, Key, SharedWeights
from tinsmith.plan.state import Sink, State, product_row
from tinsmith.plan.tensors import Tensor
from tinsmith.records import dataclass
from tinsmith.sizes import typical

USUAL = PlanOptions()
MAIN, HELPERS = "main", "helpers"
WORTH_DIVIDING = 20e-6
"""Seconds of a program below which it runs on the calling thread alone: waking other threads would
cost more. Estimated."""


@dataclass
class Built:
    """A plan with what a Program is made of.

    codes      LLVM IR by symbol; segment functions under MAIN, their helpers under HELPERS
    weights    (offset in bytes, array) of each packed array that no earlier program has
    nodes      by name of a step: the node that a reference computes, in each run or once
    constants  by name: arrays that reference steps read, and outputs that are constant
    placed     the steps before memory was planned, for `explain`
    """

    plan: Plan
    codes: dict[str, str]
    weights: list[tuple[int, np.ndarray[Any, Any]]]
    """Empty if a sink took them."""
    nodes: dict[str, Node]
    constants: dict[str, np.ndarray[Any, Any]]
    placed: list[Placed]
    own_bytes: int = 0
    """Bytes of the program's own weights. Others lie in blobs of earlier programs (`shared`)."""
    shared: list[Blob] = field(default_factory=list)
    made: list[tuple[Key, Kept]] = field(default_factory=list)
    """The packed arrays among the own weights that later programs may share."""

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """(offset in bytes, bytes) of each array of `made`, each once, as for `Blob.rows`."""
        return tuple(dict.fromkeys((kept.offset, kept.nbytes) for _, kept in self.made))


def make_plan(
    graph: Graph,
    target: Target,
    options: PlanOptions = USUAL,
    sink: Sink | None = None,
    shared_weights: SharedWeights | None = None,
) -> Built:
    """Plan a graph for a target. Nodes whose shapes are not static run as reference steps. A
    program of less than WORTH_DIVIDING seconds gets one thread only. Raises PlanError if the
    machine's memory does not suffice.

    `sink` takes code and packed weights as they are made (None: `Built` holds them). Weights that
    `shared_weights` holds are not packed again.
    """
    check_values(graph)
    graph, kept, shown = kept_outputs(absorbed(graph), options)
    target = replace(target, footprint=footprint(graph))
    placement = Placement(target, options)
    state = State(sink, shared_weights or SharedWeights())
    placed = _place(graph, placement, state)
    if placed is None:
        placement = placement.again(1)
        placed = _place(graph, placement, state)
        assert placed is not None
    take_over(placed, placement.outputs, kept)
    assert all(placement.outputs[k].root.space == "input" for k in kept), "written elsewhere"
    state.offsets, buffers, arena, naive, bound = arena_of(placed, placement.outputs)
    check_size(graph, arena, state.offsets)
    workspace = workspace_of(placed, state.offsets)
    state.workspace = workspace + SLACK if typical(workspace) else 0
    steps = [_step(s, state, target) for s in placed]
    plan = Plan(
        model=graph.name,
        target=str(target),
        isa=target.isa,
        threads=placement.threads,
        inputs=tuple(Port(v.name, name_of(v.dtype), dims_of(v)) for v in graph.inputs),
        outputs=tuple(
            _output(name, dims if k in kept else t.dims, t, state)
            for k, ((name, dims), t) in enumerate(zip(shown, placement.outputs, strict=True))
        ),
        steps=tuple(steps),
        memory=Memory(arena, naive, bound, state.weight_bytes, state.workspace * placement.threads),
        sizes=tuple(state.sizes),
        free=any(v.type.is_free for v in graph.inputs),
        made=state.made,
        buffers=buffers,
        workspaces=workspaces_of(placed, state.offsets),
    )
    state.code(HELPERS, helpers_text(plan.threads, target))
    text, more = main_text(plan, target)
    state.code(MAIN, text)
    plan = plan._replace(sizes=(*plan.sizes, *more))
    constants = _constants(placed, placement.outputs)
    kinds = ("reference", "once")
    nodes = {s.name: s.node for s in placed if s.kind in kinds and s.node is not None}
    return Built(
        plan, state.codes, state.weights, nodes, constants, placed,
        state.own_bytes, state.shared, state.fresh,
    )  # fmt: skip


def _place(graph: Graph, placement: Placement, state: State) -> list[Placed] | None:
    """Place the steps of a graph, and generate the code of each (into `state`) as soon as it is
    settled. None, with no code generated, if the placement is for several threads, but the program
    is so short that one would be faster: place it anew."""
    micro_batches = placement.options.micro_batches
    if micro_batches is None:
        regions = choose_micro_batches(graph, placement.again, placement.threads)
    else:
        regions = forced_micro_batches(graph, micro_batches)
    waiting: list[Placed] = []
    spent = 0.0

    def generate() -> None:
        for s in waiting:
            _generate(s, state)
        waiting.clear()

    def settled(s: Placed) -> None:
        nonlocal spent
        spent += s.cost * s.micro_batches
        waiting.append(s)
        if placement.threads == 1 or spent >= WORTH_DIVIDING:
            generate()

    placed = place(placement, graph, regions, settled)
    if placement.threads > 1 and sum(s.cost * s.micro_batches for s in placed) < WORTH_DIVIDING:
        return None
    generate()
    return placed


def _constants(
    placed: Sequence[Placed], outputs: Sequence[Tensor]
) -> dict[str, np.ndarray[Any, Any]]:
    """Name of a tensor -> its array: of constants that steps read as arrays in Python, and of
    outputs that are such constants."""
    reads = (t for s in placed for t in s.reads if t is not None and t.space == "python")
    return {t.name: t.array for t in (*reads, *outputs) if t.array is not None}


def _output(name: str, dims: tuple[int, ...], tensor: Tensor, state: State) -> Operand:
    found = _operand(tensor, state)
    return found._replace(name=name, dims=dims) if found.ref else found._replace(dims=())


def _ref(t: Tensor, state: State) -> Ref:
    """The address of element (0, ...) of a settled tensor, behind its halo. A constant is added to
    the weights."""
    root = t.root
    before = root.settled.before * root.dtype.itemsize + t.shift
    if root.region:
        return Ref("workspace", state.offsets[root] + before)
    if root.space == "weights":
        assert root.array is not None
        return state.ref(state.constant(root.array), before)
    if root.space == "made":
        return Ref("made", state.made_at(root) + before)
    if root.space == "arena":
        return Ref("arena", state.offsets[root] + before, 0, t.stride())
    return Ref(root.space, before, root.index, t.stride())


# ---- steps


def _generate(s: Placed, state: State) -> None:
    """Pack the weights of a settled step and generate the code of its phases, into `state` and the
    step. Nothing is done for a step without a kernel. Raises CodegenError if the kernel leaves out
    the fused epilogue."""
    if s.site is None or s.choice is None:
        return
    s.packed = list(map(state.packed, s.packings))
    specs = [None if t is None else t.settled.seen for t in s.reads]
    key = choice_key(s.site, s.kernel, s.rank, s.choice, s.computed)
    writes, dtypes = [t.settled.seen for t in s.writes], [p.dtype for p in s.packed]
    for k in range(len(s.choice.phases)):
        code = phase_code(s.site, s.choice, k, specs, writes, dtypes, key)
        s.codes.append(code)
        state.code(code.symbol, code.text)
    anchor = s.site.anchor
    if anchor and s.site.epilogue and not any(code.finishes for code in s.codes):
        raise CodegenError(
            f"the kernel {s.kernel} leaves out what is fused to {anchor.op.name} {s.name!r}: it "
            "has to finish its results by em.finish or em.epilogue, or to decline (Skip)"
        )


def _step(s: Placed, state: State, target: Target) -> Step:
    """The step of the plan that runs a placed node: what it calls, and where in memory it reads and
    writes."""
    if s.kind in ("reference", "once"):
        return Step(
            s.name, s.op, s.kind, s.kernel, s.reason, s.origin,
            reads=tuple(None if t is None else _operand(t, state) for t in s.reads),
            writes=tuple(_operand(t, state) for t in s.writes),
        )  # fmt: skip
    if s.kind == "view":
        return Step(s.name, s.op, s.kind, s.kernel, "", s.origin)
    assert s.site is not None and s.choice is not None
    calls = [*_zero_calls(s, state, target)]
    refs = [_ref(t, state) for t in s.reads if t is not None]
    refs += [_ref(t, state) for t in s.writes]
    refs += [state.ref(p) for p in s.packed]
    refs.append(Ref("workspace"))
    refs.append(_ref(s.scratch, state) if s.scratch else Ref("arena", 0))
    for phase, code in zip(s.choice.phases, s.codes, strict=True):
        if phase.copies is not None and is_in_place(s, phase.copies):
            continue
        shape = phase.tiles, phase.barrier, state.workspace, phase.repeat, phase.sweep
        calls.append(Call(code.symbol, tuple(refs), *shape, state.tables(code, s.site.epilogue)))
    kept = any(p.copies is not None and is_in_place(s, p.copies) for p in s.choice.phases)
    moved = sum(
        typical(t.settled.nbytes)
        for t in (*s.reads, *s.writes)
        if t is not None
        and typical(t.settled.size) > 0
        and not (kept and t.root is s.writes[0].root)
    )
    return Step(
        name=s.name,
        op=s.op,
        kind=s.kind,
        kernel=s.kernel,
        detail=s.choice.detail,
        origin=s.origin,
        calls=tuple(calls),
        cost=s.cost * s.micro_batches,
        flops=state.flops(s) * s.micro_batches,
        nbytes=float(moved + sum(p.nbytes for p in s.packed)) * s.micro_batches,
        fault=s.choice.fault,
        writes=_counted(s, state) if s.counted else (),
        stated=s.stated,
        fault_at=state.offsets[s.scratch] if s.scratch and s.choice.fault else -1,
        region=s.region,
        micro_batches=s.micro_batches,
        row=product_row(s.site).name,
    )


def _counted(s: Placed, state: State) -> tuple[Operand, ...]:
    """The operands (`Step.writes`) of a step that counts its results: the outputs whose shapes only
    the run tells, with a dim of -1 for the count, and last the count itself."""
    assert s.node is not None
    *found, count = [_operand(t, state) for t in s.writes]
    pairs = [(o, v) for o, v in zip(found, s.node.outputs, strict=True) if not v.type.is_static]
    return (*(o._replace(dims=counted_dims(v)) for o, v in pairs), count)


def _zero_calls(s: Placed, state: State, target: Target) -> list[Call]:
    """The calls that zero the halos of the tensors that a step writes, or of those in which these
    lie; but for tensors that earlier steps zero. Their code goes into `state`."""
    calls: list[Call] = []
    for t in s.writes:
        top = t.top
        if top.has_halo and top not in state.zeroed:
            state.zeroed.add(top)
            parts = _halo_parts(top.settled, s)
            code, tiles = zero_halo(top.settled, target, parts)
            state.code(code.symbol, code.text)
            ref = _ref(top, state)
            sweep = parts if parts > 1 else 0
            sizes = state.tables(code, None)
            space = state.workspace
            calls.append(Call(code.symbol, (ref,), tiles, False, space, sweep=sweep, sizes=sizes))
    return calls


def _halo_parts(spec: Spec, s: Placed) -> int:
    """Into how many shares of its first spatial axis the halo of a tensor that a step writes is
    cut, so that each thread zeroes the halo beside the positions that it computes. 1 where threads
    share channels instead, where there is one thread or rows are fewer than threads, in regions and
    for several images."""
    assert s.site is not None and s.choice is not None
    several = s.site.threads > 1 and s.micro_batches == 1 and spec.dims[0] == 1
    near = several and not s.choice.by_channels and spec.spatial[0] >= s.site.threads
    return s.site.threads if near else 1


def _operand(t: Tensor, state: State) -> Operand:
    ref = _ref(t, state) if t.is_static else None
    return Operand(t.name, name_of(t.dtype), t.dims, ref)
