"""Poolings of ncnn for which our graphs have several nodes: to a given output size, and means with
standard deviations."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from tinsmith.frontends.ncnn.pool import KEEP
from tinsmith.frontends.ncnn.window import AXES
from tinsmith.frontends.nodes import bins_of
from tinsmith.graph import Node, Value
from tinsmith.writers.ncnn.layers import pool_type
from tinsmith.writers.ncnn.several import maker, source
from tinsmith.writers.ncnn.writer import Writer, claims
from tinsmith.writers.rows import Inexpressible, need, need_defaults, numbers

POOLS = {"AveragePool": "mean", "MaxPool": "max"}


@claims("Concat")
def joined(w: Writer, node: Node) -> None:
    """Claim a Concat of a mean and a deviation, or of the windows of a pooling to a given size.
    Raises Inexpressible for others."""
    with suppress(Inexpressible):
        return deviations(w, node)
    return adaptive(w, node)


# ---- to a given size


class _Stage(NamedTuple):
    """A pooling of x along one axis to `wanted` windows, of the `kind` "mean" or "max", computed by
    `nodes`."""

    x: Value
    axis: int
    wanted: int
    kind: str
    nodes: list[Node]


def adaptive(w: Writer, node: Node) -> None:
    """Claim a Concat that ends a pooling to a given size, with the stages for other axes before it,
    as one pooling layer. Raises Inexpressible for other nodes."""
    last = _windows(w, node)
    need(_goes_on(w, node) is None, "it is a part of another pooling")
    stages = [last]
    while before := _before(w, stages[-1]):
        need(before.axis < stages[-1].axis and before.kind == last.kind, "it pools twice")
        stages.append(before)
    n = len(w.dims(node.output)) - 1
    need(n in AXES, "it slides over too many axes")
    sizes = {s.axis: s.wanted for s in stages}
    given: dict[str, Any] = {"adaptive_pooling": 1, "pooling_type": int(last.kind == "mean")}
    given |= {f"out_{c}": sizes.get(i, KEEP) for i, c in enumerate(AXES[n], 2)}
    taken = {m for s in stages for m in s.nodes} - {node}
    w.claim_as(node, taken, pool_type(n), [stages[-1].x], [node.output], given)


def _windows(w: Writer, node: Node) -> _Stage:
    """Return the pooling stage that ends in the Concat `node`: it joins the reductions of m slices
    of an axis of n elements, slice i from floor(i n / m) to ceil((i + 1) n / m). Raises
    Inexpressible for other nodes."""
    axis, wanted = node.attrs["axis"] % (node.output.rank or 1), len(node.inputs)
    need(axis > 1, "it is along channels")
    reduces = [source(w, v, "Reduce") for v in node.inputs]
    slices = [source(w, r.inputs[0], "Slice") for r in reduces]
    x, kind = slices[0].inputs[0], reduces[0].attrs["kind"]
    assert x is not None and x.shape
    size = x.shape[axis]
    need(isinstance(size, int) and kind in POOLS.values(), "it is no pooling")
    for r, s, (begin, end) in zip(reduces, slices, bins_of(size, wanted), strict=True):
        need(s.inputs[0] is x and len(s.inputs) == 4, "its parts are of several values")
        ends = [numbers(v, "an end") for v in s.inputs[1:]]
        need(ends == [(begin,), (end,), (axis,)], "no window")
        same = numbers(r.inputs[1], "the axis") == (axis,) and r.attrs["kind"] == kind
        need(same and r.attrs["keepdims"], "no windows")
    return _Stage(x, axis, wanted, kind, [*slices, *reduces, node])


def _goes_on(w: Writer, node: Node) -> Node | None:
    """Return the Concat of a stage that pools the output of `node` along another axis; None if
    there is none."""
    user = next(iter(node.output.uses), None)
    for op in ("Reduce", "Concat"):
        user = None if user is None else w.only_user(user.output, op)
    if user is not None:
        with suppress(Inexpressible):
            return user if _windows(w, user).x is node.output else None
    return None


def _before(w: Writer, stage: _Stage) -> _Stage | None:
    """Return the stage whose output `stage` pools, if nothing else reads it; else None."""
    x, node = stage.x, stage.x.producer
    if node is None or x in w.graph.outputs or not set(x.uses) <= set(stage.nodes):
        return None
    with suppress(Inexpressible):
        return _windows(w, maker(x, "Concat"))
    with suppress(Inexpressible):
        maker(x, *POOLS)
        need_defaults(node, "kernel", "stride")
        kernel, whole = node.attrs["kernel"], node.inputs[0]
        axes = [i for i, k in enumerate(kernel, 2) if k > 1]
        need(len(axes) == 1 and node.attrs["stride"] == kernel, "its windows overlap")
        assert whole is not None and whole.shape and x.shape
        wanted = x.shape[axes[0]]
        assert isinstance(wanted, int)
        need(whole.shape[axes[0]] == wanted * kernel[axes[0] - 2], "its windows leave a rest")
        return _Stage(whole, axes[0], wanted, POOLS[node.op.name], [node])
    return None


# ---- means with deviations


def deviations(w: Writer, node: Node) -> None:
    """Claim a Concat of the mean and the standard deviation of each channel as a StatisticsPooling
    layer. Raises Inexpressible for others."""
    need(node.attrs["axis"] == 1 and len(node.inputs) == 2, "it joins other values")
    flat, upright = (source(w, v, "Reshape") for v in node.inputs)
    root = source(w, upright.inputs[0], "Sqrt")
    around = source(w, root.inputs[0], "Reduce")
    square = source(w, around.inputs[0], "Mul")
    off, mean = square.operand(0), flat.operand(0)
    need(square.inputs[1] is off and set(off.uses) == {square}, "it is no square")
    need(not {off, mean} & {*w.graph.outputs}, "it is an output itself")
    minus, first = maker(off, "Sub"), maker(mean, "Reduce")
    need(minus.inputs[1] is mean, "no mean is taken away")
    x = minus.operand(0)
    need(first.inputs[0] is x, "it is of another value")
    need(set(mean.uses) == {flat, minus}, "its mean is read elsewhere, too")
    places = tuple(range(2, x.rank or 0))
    for r in (first, around):
        whole = numbers(r.inputs[1], "the axes") == places
        need(whole and r.attrs["kind"] == "mean" and r.attrs["keepdims"], "no mean")
    taken = {flat, upright, root, around, square, minus, first}
    w.claim_as(node, taken, "StatisticsPooling", [x], [node.output], {"include_stddev": 1})
