"""Operators that hold graphs: If, Loop, Scan, SequenceMap, and regions (several nodes as one).

Subgraphs see nothing of the graph around them: values that they capture from it are inputs of the
node, and of the subgraph, after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import (
    Array,
    Dim,
    Graph,
    Holder,
    Node,
    OptionalType,
    SequenceType,
    Type,
    Value,
    agree,
    bare,
    same_kind,
)
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import axis_of, need_data
from tinsmith.ops.interpret import Refusal, flops_of_graph, infer_graph, run_graph
from tinsmith.ops.sequence import either, item_of
from tinsmith.sizes import NUMBER


def _forgotten(body: Graph) -> list[Type]:
    """The output types of a body of which every run fails (`Refusal`): those that the body has, but
    with unknown ranks."""
    types = [v.type for v in body.outputs]
    return [t if isinstance(t, Holder) else t.like(shape=None) for t in types]


def join(a: Type, b: Type, what: str) -> Type:
    """The type of a value that has type `a` on one path and `b` on the other, as after an If: dims
    that differ become new symbols, ranks that differ unknown; optional if either is. Raises
    TypeRuleError, which calls the value `what`, where element types differ."""
    need(same_kind(bare(a), bare(b)), f"{what} is {a} on one path and {b} on the other")
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        return OptionalType(join(bare(a), bare(b), what))
    if isinstance(a, Holder) and isinstance(b, Holder):
        return type(a)(join(a.item, b.item, what))
    return either(a, b, what)


# ---- If


@op("control", "branch")
def If(condition, *captured, then_branch, else_branch):
    """y = then_branch(*captured) if condition else else_branch(*captured)"""
    branch = then_branch if bool(np.asarray(condition).reshape(())) else else_branch
    return tuple(run_graph(branch, captured))


@If.type
def _(condition, *captured, then_branch, else_branch):
    need(condition.dtype == np.bool_, f"the condition must be bool, it is {condition.dtype}")
    counts = len(then_branch.outputs), len(else_branch.outputs)
    need(counts[0] == counts[1], "the branches have {} and {} outputs".format(*counts))
    found: list[list[Type]] = []
    refusals: list[Refusal] = []
    for branch in (then_branch, else_branch):
        try:
            found.append(infer_graph(branch, captured))
        except Refusal as refusal:
            refusals.append(refusal)
    if not found:
        raise refusals[0]
    pairs = enumerate(zip(found[0], found[-1], strict=True))
    return tuple(join(a, b, f"output {i}") for i, (a, b) in pairs)


If.cost(lambda *_, then_branch, else_branch: max(map(flops_of_graph, (then_branch, else_branch))))


# ---- Loop


@op("control")
def Loop(count=None, condition=None, *values, body, captured=0):
    """While condition and i < count: condition, states, items = body(i, condition, states, ...)

    `values` are the initial states, then `captured` captures, which are the same in all iterations.
    Returns the last states, then each item stacked over the iterations. An absent count is no
    limit, an absent condition is true.
    """
    states = list(values[: len(values) - captured])
    captures = values[len(values) - captured :]
    limit = None if count is None else int(np.asarray(count).reshape(()))
    go = condition is None or bool(np.asarray(condition).reshape(()))
    items: list[list[Array]] = [[] for _ in body.outputs[1 + len(states) :]]
    i = 0
    while go and (limit is None or i < limit):
        flags = np.array(i, np.int64), np.array(go)
        got = run_graph(body, [*flags, *states, *captures])
        go = bool(got[0].reshape(()))
        states = got[1 : 1 + len(states)]
        for row, a in zip(items, got[1 + len(states) :], strict=True):
            row.append(a)
        i += 1
    stacked = [
        np.stack(row) if row else _no_items(v)
        for row, v in zip(items, body.outputs[1 + len(states) :], strict=True)
    ]
    return (*states, *stacked)


def _no_items(v: Value) -> Array:
    dims = (d if isinstance(d, NUMBER) else 0 for d in v.shape or ())
    return np.zeros((0, *dims), v.dtype)


def _settle(body: Graph, lead: list[Value], states: list[Value], rest: list[Value]) -> list[Type]:
    """The output types of a loop's body, as they are in all iterations (`_forgotten` if every run
    fails). The inputs of the body are [*lead, *states, *rest]: `lead` the number of the iteration
    and the condition of a Loop, or nothing for a Scan; `rest` what is scanned, and captures. The
    types in `states` are generalised (changing the list) until an iteration returns states of the
    same types: dims that change between iterations become new symbols."""
    skip, own = len(lead[1:]), set[str]()
    while True:
        try:
            types = infer_graph(body, [*lead, *states, *rest])
        except Refusal:
            return _forgotten(body)
        changed = False
        for i, (v, t) in enumerate(zip(states, types[skip : skip + len(states)], strict=True)):
            kept = kept_type(v.type, t, own)
            if kept is not v.type:
                states[i] = Value(body, kept, v.name)
                changed = True
        if not changed:
            return types


def kept_type(before: Type, after: Type, own: set[str]) -> Type:
    """The type of a loop's state of type `before` before an iteration, and `after` after it:
    `before` itself if it is general enough, else with new symbols for dims that differ. New symbols
    are added to `own`: they stand for any size. Raises TypeRuleError where element types differ."""
    if _covers(before, after, own):
        return before
    joined = join(before, after, "a state")
    own.update(d for d in joined.shape or () if d not in (before.shape or ()))  # type: ignore[misc]
    return joined


def _covers(general: Type, special: Type, own: set[str] | None) -> bool:
    """Whether every value of type `special` is also of type `general`. Raises TypeRuleError where
    element types differ.

    A symbol of `general` that is in `own` (None: any symbol, as for the items of a sequence) stands
    for any size. Any other symbol stands for one size, so `special` must have the same symbol.
    """
    need(
        same_kind(bare(general), bare(special)),
        f"a state is {general} before an iteration and {special} after it",
    )
    if isinstance(special, OptionalType) and not isinstance(general, OptionalType):
        return False
    if isinstance(general, OptionalType):
        return _covers(general.item, bare(special), None)
    if isinstance(general, SequenceType) and isinstance(special, SequenceType):
        return _covers(general.item, special.item, None)
    if general.shape is None:
        return True
    if special.shape is None or len(special.shape) != len(general.shape):
        return False
    return all(
        g == s or (isinstance(g, str) if own is None else g in own)
        for g, s in zip(general.shape, special.shape, strict=True)
    )


def _loop_values(body: Graph, values: tuple[Value, ...], captured: int) -> list[Value]:
    need(0 <= captured <= len(values), f"captured is {captured}, {len(values)} values are given")
    return [Value(body, v.type, v.name) for v in values[: len(values) - captured]]


@Loop.type
def _(count=None, condition=None, *values, body, captured):
    states = _loop_values(body, values, captured)
    need(
        len(body.outputs) >= 1 + len(states),
        f"the body has {len(body.outputs)} outputs, but 1 condition and {len(states)} states",
    )
    flags = [
        Value(body, Type(np.dtype(np.int64), ()), "i"),
        Value(body, Type(np.dtype(bool), ()), "condition"),
    ]
    types = _settle(body, flags, states, list(values[len(states) :]))
    go = body.outputs[0]
    always = go is body.inputs[1] or (go.const is not None and bool(go.const.reshape(())))
    iterations: Dim = fresh()
    if condition is not None and condition.const is not None and not condition.const.reshape(()):
        iterations = 0
    elif count is not None and count.const is not None and always:
        known = condition is None or condition.const is not None
        iterations = max(0, int(count.const.reshape(()))) if known else iterations
    return (*(v.type for v in states), *_stacked(types[1 + len(states) :], iterations))


def _stacked(types: Sequence[Type], iterations: Dim) -> list[Type]:
    for t in types:
        need(
            not isinstance(t, Holder),
            f"an item of every iteration is {t}; only tensors are stacked",
        )
    return [t.like(shape=None if t.shape is None else (iterations, *t.shape)) for t in types]


@Loop.cost
def _(count=None, condition=None, *values, body, captured):
    iterations = 1 if count is None or count.const is None else int(count.const.reshape(()))
    return iterations * flops_of_graph(body)


# ---- Scan


@op("control")
def Scan(
    *values, body, num_scan_inputs, captured=0, scan_input_axes=None, scan_input_directions=None,
    scan_output_axes=None, scan_output_directions=None,
):  # fmt: skip
    """For every t: states, items = body(states, inputs at t, captures)

    `values` are the initial states, num_scan_inputs inputs, of which iteration t sees the slices at
    index t of their axes, and `captured` captures, which are the same in all iterations. Returns
    the last states, then each item stacked along its axis. Direction 1 goes from the last index to
    the first.
    """
    cut = len(values) - captured
    states, inputs = list(values[: cut - num_scan_inputs]), values[cut - num_scan_inputs : cut]
    axes, backward = (per(a, len(inputs)) for a in (scan_input_axes, scan_input_directions))
    heads = [np.moveaxis(a, axis, 0) for a, axis in zip(inputs, axes, strict=True)]
    lengths = {len(h) for h in heads}
    need_data(len(lengths) == 1, f"inputs are scanned for {sorted(lengths)} iterations")
    heads = [h[::-1] if back else h for h, back in zip(heads, backward, strict=True)]
    outs = body.outputs[len(states) :]
    items: list[list[Array]] = [[] for _ in outs]
    for t in range(len(heads[0])):
        got = run_graph(body, [*states, *(h[t] for h in heads), *values[cut:]])
        states = got[: len(states)]
        for row, a in zip(items, got[len(states) :], strict=True):
            row.append(a)
    results = []
    axes, backward = (per(a, len(outs)) for a in (scan_output_axes, scan_output_directions))
    placed = zip(axes, backward, strict=True)
    for row, v, (axis, back) in zip(items, outs, placed, strict=True):
        stacked = np.stack(row[::-1] if back else row) if row else _no_items(v)
        results.append(np.ascontiguousarray(np.moveaxis(stacked, 0, axis)))
    return (*states, *results)


def per(given: Sequence[int] | None, count: int, what: str = "an attribute") -> tuple[int, ...]:
    """An attribute of Scan that has a number for each of `count` inputs or outputs: 0 where it is
    absent. Raises TypeRuleError, which calls it `what`, for another number of them."""
    need(given is None or len(given) == count, "{} is {}, for {} values", what, given, count)
    return (0,) * count if given is None else tuple(given)


@Scan.type
def _(
    *values, body, num_scan_inputs, captured, scan_input_axes, scan_input_directions,
    scan_output_axes, scan_output_directions,
):  # fmt: skip
    need(num_scan_inputs >= 1, f"num_scan_inputs must be at least 1, it is {num_scan_inputs}")
    need(
        len(values) >= num_scan_inputs + captured,
        f"{num_scan_inputs} scan inputs and {captured} captures, but {len(values)} values",
    )
    cut = len(values) - captured
    states = _loop_values(body, values[: cut - num_scan_inputs], 0)
    inputs = values[cut - num_scan_inputs : cut]
    iterations: Any = None
    rows = []
    axes = per(scan_input_axes, len(inputs), "scan_input_axes")
    for v, axis in zip(inputs, axes, strict=True):
        shape = None
        if v.shape is not None:
            at = axis_of(axis, len(v.shape), "scan_input_axes")
            length = v.shape[at]
            need(agree(iterations, length), f"inputs are scanned for {iterations} and {length}")
            if iterations is None or isinstance(length, NUMBER):
                iterations = length
            shape = (*v.shape[:at], *v.shape[at + 1 :])
        rows.append(Value(body, v.type.like(shape=shape), v.name))
    types = _settle(body, [], states, [*rows, *values[cut:]])
    iterations = fresh() if iterations is None else iterations
    results = []
    items = types[len(states) :]
    ways = (
        *per(scan_input_directions, len(inputs), "scan_input_directions"),
        *per(scan_output_directions, len(items), "scan_output_directions"),
    )
    need(set(ways) <= {0, 1}, f"directions are 0 (forward) or 1 (backward), not {ways}")
    for t, axis in zip(items, per(scan_output_axes, len(items), "scan_output_axes"), strict=True):
        if t.shape is None:
            results.append(t)
            continue
        at = axis_of(axis, len(t.shape) + 1, "scan_output_axes")
        results.append(t.like(shape=(*t.shape[:at], iterations, *t.shape[at:])))
    return (*(v.type for v in states), *results)


# ---- SequenceMap


@op("control")
def SequenceMap(*values, body, captured=0):
    """y[i] = body(values[0][i], values[1][i], ..., captures) for every i of the sequence values[0]

    Of `values`, tensors and the last `captured` ones are passed whole for every i. Returns a
    sequence for each output of the body.
    """
    cut = len(values) - captured
    rows: list[list[Any]] = [[] for _ in body.outputs]
    for i in range(len(values[0])):
        items = (v[i] if isinstance(v, list) else v for v in values[:cut])
        for row, a in zip(rows, run_graph(body, [*items, *values[cut:]]), strict=True):
            row.append(a)
    return tuple(rows)


@SequenceMap.type
def _(*values, body, captured):
    need(0 <= captured < len(values), f"captured is {captured}, {len(values)} values are given")
    need(isinstance(values[0].type, SequenceType), f"{values[0]!r} is no sequence")
    cut = len(values) - captured
    each = [
        Value(body, item_of(v) if isinstance(v.type, SequenceType) else v.type, v.name)
        for v in values[:cut]
    ]
    try:
        types = infer_graph(body, [*each, *values[cut:]])
    except Refusal:
        types = _forgotten(body)
    for t in types:
        need(not isinstance(t, Holder), f"the body gives {t}; a sequence holds tensors")
    return tuple(SequenceType(t) for t in types)


# ---- regions


@op("control", "region")
def Fused(*xs, body):
    """y = body(*xs): an anchor with its epilogue, or elementwise nodes alone, for one kernel"""
    return tuple(run_graph(body, xs))


@op("control", "region")
def Block(*xs, body):
    """y = body(*xs): several anchors, each alone or in a Fused node, for one kernel"""
    return tuple(run_graph(body, xs))


@op("control", "region")
def Part(*xs, body, backend):
    """y = body(*xs), which the backend of this name computes ("cpu": once sizes of xs are known)

    While a file is written, a Part keeps passes off nodes that are one layer of its format; then
    `backend` is the format's name.
    """
    return tuple(run_graph(body, xs))


def fused_body(node: Node) -> Graph | None:
    """The graph inside a `Fused` node; None for any other node."""
    return node.attrs["body"] if node.op is Fused else None


def anchors_of(node: Node) -> list[Node]:
    """The nodes in a Fused node that are not elementwise; [node] for a node of another operator."""
    body = fused_body(node)
    return [node] if body is None else [n for n in body.nodes if "elementwise" not in n.op.traits]


@Fused.type
@Block.type
@Part.type
def _(*xs, body, backend=""):
    if [x.type for x in xs] == [v.type for v in body.inputs]:
        return tuple(v.type for v in body.outputs)
    return tuple(infer_graph(body, xs))


@Fused.cost
@Block.cost
@Part.cost
def _(*xs, body, backend=""):
    return flops_of_graph(body)
