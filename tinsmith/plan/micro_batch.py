"""Runs of nodes that may compute a batch in micro-batches, and the graph of one micro-batch.

A value at the border of a run is cut along axis 0: micro-batch i reads and writes its i-th part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.kernels.layout import Layout
from tinsmith.plan.placement import Placement
from tinsmith.plan.rows import divides, part_of
from tinsmith.plan.tensors import Tensor
from tinsmith.records import dataclass


@dataclass
class MicroBatch:
    """Consecutive `nodes` of a graph (the outer one), and the graph that computes one of
    `micro_batches` equal parts of their results.

    body     the graph for one part of the batch
    cut      outer value that the nodes read -> input of the body that is a part of it
    whole    outer value that the nodes read -> input of the body that is all of it
    results  outer value that is read after the nodes -> output of the body that is a part of it
    """

    micro_batches: int
    nodes: list[Node]
    body: Graph
    cut: dict[Value, Value] = field(default_factory=dict)
    whole: dict[Value, Value] = field(default_factory=dict)
    results: dict[Value, Value] = field(default_factory=dict)
    inner: dict[Node, Node] = field(default_factory=dict)
    """The body's node for each outer one."""


def runs(graph: Graph, micro_batches: int) -> Iterator[list[Node]]:
    """All maximal runs of consecutive nodes of which each can compute one of `micro_batches` equal
    parts of its results along axis 0 from the same part of what it reads."""
    run: list[Node] = []
    for node in graph.nodes:
        if _copied(Graph(), node, {}, micro_batches) is not None:
            run.append(node)
        elif run:
            yield run
            run = []
    if run:
        yield run


def one_micro_batch(graph: Graph, nodes: Sequence[Node], micro_batches: int) -> MicroBatch:
    """The `MicroBatch` of `nodes`: a run that `runs` gives for `graph`, or consecutive nodes of
    one. The body's outputs are the parts of those results that are read after the nodes."""
    body = Graph(f"{graph.name}/{micro_batches}", graph.file)
    made = MicroBatch(micro_batches, list(nodes), body)
    env: dict[Value, Value] = {}
    inside = {v for n in nodes for v in n.outputs}
    for node in nodes:
        for v in node.inputs:
            if v is None or v in env or v.const is not None or v in inside:
                continue
            parted = _is_cut(v, micro_batches)
            env[v] = made.body.input(
                f"{v.name}.part", _part_type(v, micro_batches) if parted else v.type
            )
            (made.cut if parted else made.whole)[v] = env[v]
        copy = _copied(made.body, node, env, micro_batches)
        assert copy is not None, f"{node.name} does not run in micro-batches"
        made.inner[node] = copy
    chosen = set(nodes)
    for node in nodes:
        for v in node.outputs:
            if v in graph.outputs or any(u not in chosen for u in v.uses):
                made.results[v] = env[v]
    made.body.outputs.extend(made.results.values())
    return made


def _is_cut(v: Value, micro_batches: int) -> bool:
    return v.const is None and divides(v, micro_batches)


def _part_type(v: Value, micro_batches: int) -> Type:
    first, *rest = v.dims
    return v.type.like(shape=(first // micro_batches, *rest))


def _copied(body: Graph, node: Node, env: dict[Value, Value], micro_batches: int) -> Node | None:
    """Add to `body` a copy of the node, for one of `micro_batches` equal parts of axis 0, and
    return it. Every input whose first axis divides is read in parts.

    `env` maps outer values to those in `body`; the node's results are added to it. An input that
    `env` lacks is added, too: a constant is copied, any other becomes a value without a producer,
    of one part's shape if axis 0 divides. Returns None if the node cannot run in micro-batches;
    then `body` may hold remains."""
    cut = [v is not None and _is_cut(v, micro_batches) for v in node.inputs]
    return _narrowed(body, node, cut, env, micro_batches)


def _narrowed(
    body: Graph, node: Node, cut: Sequence[bool], env: dict[Value, Value], micro_batches: int
) -> Node | None:
    """`_copied`, but `cut` tells for each input whether the copy reads a part of it or all."""
    attrs = dict(node.attrs)
    if "body" in attrs:
        if node.op.name not in ("Fused", "Block"):
            return None
        inner = _narrowed_body(attrs["body"], cut, micro_batches)
        if inner is None:
            return None
        consts, attrs["body"] = {}, inner
    else:
        part = part_of(node, cut, micro_batches)
        if part is None:
            return None
        consts, attrs = part.consts, attrs | part.attrs
    inputs: list[Value | None] = []
    for i, v in enumerate(node.inputs):
        if v is None:
            inputs.append(None)
        elif i in consts:
            inputs.append(body.const(consts[i], v.name))
        else:
            if v not in env:
                if v.const is not None:
                    env[v] = body.const(v.const, v.name)
                else:
                    env[v] = Value(body, _part_type(v, micro_batches) if cut[i] else v.type, v.name)
            inputs.append(env[v])
    names = [v.name for v in node.outputs]
    try:
        copy = body.add(
            node.op, *inputs, name=node.name, origin=node.origin, outputs=names, **attrs
        )
    except TypeRuleError:
        return None
    if any(
        new.type != _part_type(old, micro_batches)
        for old, new in zip(node.outputs, copy.outputs, strict=True)
    ):
        return None
    env.update(zip(node.outputs, copy.outputs, strict=True))
    return copy


def _narrowed_body(outer: Graph, cut: Iterable[bool], micro_batches: int) -> Graph | None:
    """`outer`, the body of a Fused or Block node, as it computes one micro-batch. `cut` tells of
    each of its inputs whether it is a part. None if one of its nodes cannot run in
    micro-batches."""
    body = Graph(outer.name, outer.file)
    parted: set[Value] = set()
    env: dict[Value, Value] = {}
    for v, is_part in zip(outer.inputs, cut, strict=True):
        env[v] = body.input(v.name, _part_type(v, micro_batches) if is_part else v.type)
        if is_part:
            parted.add(v)
    for node in outer.nodes:
        inner_cut = [v in parted for v in node.inputs]
        if _narrowed(body, node, inner_cut, env, micro_batches) is None:
            return None
        parted.update(node.outputs)
    body.outputs.extend(env[v] for v in outer.outputs)
    return body


def part_in(home: Tensor, inner: Value) -> Tensor:
    """The tensor of `inner`, the part of a batch that one micro-batch sees, inside `home`, the
    tensor of the whole batch. It begins at part 0; later micro-batches add `Tensor.stride`."""
    return Tensor(
        inner.name, inner.dtype, inner.dims, home.block, home.space, parent=home, part=0,
        halo=home.halo, is_batch_part=True,
    )  # fmt: skip


def whole_of(placement: Placement, outer: Value, inner: Value, plain: bool) -> Tensor:
    """The tensor of the value `outer`, of which micro-batches write the parts `inner`: plain, if
    `plain`, else in the layout of `inner`. The tensor of `inner` comes to lie inside it. If that
    cannot be, as it lies in other memory or another layout, a conversion that copies each part into
    the whole is added to the steps."""
    home = placement.homes[inner]
    block = 0 if plain else home.block
    whole = Tensor(outer.name, outer.dtype, outer.dims, block)
    if home.parent is None and home.space == "arena" and home.block == block:
        home.parent, home.part, home.is_batch_part = whole, 0, True
        whole.widen(Layout(home.block, home.halo))
        if home.pinned:
            whole.pin()
    else:
        placement.convert(inner, home, part_in(whole, inner))
    return whole
