"""One step of an LSTM, GRU or simple recurrent cell, recognised by what it computes.

With s = sigmoid, t = tanh, and affine functions A, B of the input x and of the state h:

    LSTM   c' = s(f) * c + s(i) * t(g);  h' = s(o) * t(c')        i, f, o, g = A(x) + B(h)
    GRU    h' = (1 - s(z)) * n + s(z) * h                         z, r = A(x) + B(h)
           n = t(A(x) + B(s(r) * h)), or t(A(x) + s(r) * B(h))
    RNN    h' = t(A(x) + B(h))

The GRU's blend may be spelled in any way that expands to these three products; with z and 1 - z
exchanged it is the same cell with z's weights negated, as 1 - s(z) = s(-z).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._arithmetic import adds
from tinsmith.passes.recurrent.affine import Affine
from tinsmith.passes.recurrent.gru import gru
from tinsmith.passes.recurrent.step import Cell, TimeStep, either, factors, is_product
from tinsmith.rewrite import Skip


def find_cells(
    graph: Graph, affine: Affine, refuse: Callable[[Node, str], None]
) -> dict[Node, Cell]:
    """The recurrent steps of a graph made of primitive operators: the node that computes
    the state h -> the cell, in graph order. `refuse(node, reason)` is called for each node that is
    nearly the last of a step."""
    outputs = set(graph.outputs)
    found: dict[Node, Cell] = {}
    for node in graph.nodes:
        recognise = _RECOGNISERS.get(node.op.name)
        if recognise is None or node.outputs[0].dtype != np.float32:
            continue
        try:
            cell = recognise(TimeStep(affine, node, outputs))
        except Skip as skip:
            refuse(node, str(skip))
            continue
        if cell is not None:
            found[node] = cell
    return found


# ---- LSTM


def _lstm(step: TimeStep) -> Cell | None:
    """The LSTM step that ends in o * tanh(f * c + i * g), the products in any order. None if the
    node is no such product; raises Skip if the gates are not what they must be."""
    for o, t in either(factors(step.root.outputs[0])):  # type: ignore[arg-type]
        tanh = t.producer
        if tanh is None or tanh.op.name != "Tanh":
            continue
        c_out = tanh.operand(0)
        total = c_out.producer
        if total is None or not adds(total):
            continue
        left, right = (factors(v) for v in total.inputs)  # type: ignore[arg-type]
        if left is None or right is None:
            continue
        inner = frozenset((step.root, tanh, total, *(v.producer for v in total.inputs)))  # type: ignore[union-attr]
        return _lstm_of(step, o, c_out, left, right, inner)  # type: ignore[arg-type]
    return None


def _lstm_of(
    step: TimeStep, o: Value, c_out: Value, left: tuple[Value, Value], right: tuple[Value, Value],
    inner: frozenset[Node],
) -> Cell:  # fmt: skip
    made = step.gate(o, "Sigmoid")
    if made is None:
        raise Skip(f"the output gate {o.name!r} is not sigmoid of an affine function")
    for (f, c), (i, g) in (
        (a, b)
        for one, two in ((left, right), (right, left))
        for a in either(one)
        for b in either(two)
    ):
        gates = [step.gate(i, "Sigmoid"), made, step.gate(f, "Sigmoid"), step.gate(g, "Tanh")]
        if None in gates or step.affine.source(c) is None:
            continue
        if any(form.terms.keys() != made[0].terms.keys() for form, _ in gates):  # type: ignore[misc]
            continue
        nodes = inner.union(*(n for _, n in gates))  # type: ignore[misc]
        return step.cell(
            "LSTM",
            [form for form, _ in gates],  # type: ignore[misc]
            h=None,
            c=step.state(c, made[0]),
            c_out=c_out,
            nodes=nodes,
        )
    raise Skip("its state is not sigmoid * state + sigmoid * tanh, of products with weights")


# ---- RNN


def _rnn(step: TimeStep) -> Cell | None:
    """The RNN step that ends in tanh(A(x) + B(h)), or None. Which of its sources is the state h, if
    any, only the steps before and after it tell. Raises Skip if its shape does not fit."""
    found = step.gate(step.root.outputs[0], "Tanh")
    if found is None or not found[0].terms:
        return None
    form = found[0]
    if not is_product(form):
        return None
    nodes = form.nodes | {step.root}
    return step.cell("RNN", [form], h=None, c=None, c_out=None, nodes=nodes)


_RECOGNISERS: dict[str, Callable[[TimeStep], Cell | None]] = {
    "Mul": _lstm,
    "Add": gru,
    "Sub": gru,
    "Tanh": _rnn,
}
