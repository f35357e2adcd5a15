"""One step of an LSTM, GRU or simple recurrent cell, recognised by what it computes.

With s = sigmoid, t = tanh, and affine functions A, B of the input x and of the state h:

    LSTM   c' = s(f) * c + s(i) * t(g);  h' = s(o) * t(c')        i, f, o, g = A(x) + B(h)
    GRU    h' = (1 - s(z)) * n + s(z) * h                         z, r = A(x) + B(h)
           n = t(A(x) + B(s(r) * h)), or t(A(x) + s(r) * B(h))
    RNN    h' = t(A(x) + B(h))

The blend of the GRU may be spelled in any way that expands to these three products; with z and
1 - z exchanged it is the same cell with z's weights negated, since 1 - s(z) = s(-z).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Graph, Node, Value
from tinsmith.passes.facts import Array
from tinsmith.passes.recurrent.affine import Affine, Form, Piece, rows
from tinsmith.passes.recurrent.places import Source, is_zero
from tinsmith.rewrite import Skip


@dataclass(frozen=True, eq=False)
class Cell:
    """One step. `gates` in ONNX's order (the GRU's candidate in two parts, of x and of h); h is
    None where any of several sources may be the state; `h_out` are equal up to their shape."""

    kind: str
    root: Node
    gates: tuple[Form, ...]
    hidden: int
    rows: tuple[Dim, ...]
    h: Source | None
    c: Source | None
    h_out: tuple[Value, ...]
    c_out: Value | None
    nodes: frozenset[Node]
    after: bool = False  # GRU: the reset gate follows the product
    native: Node | None = None  # it is an operator of one step already

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys(s for g in self.gates for s in g.terms))


def find_cells(
    graph: Graph, affine: Affine, refuse: Callable[[Node, str], None]
) -> dict[Node, Cell]:
    """The steps of a graph by the node that gives h, in graph order; near misses are refused."""
    outputs = set(graph.outputs)
    found: dict[Node, Cell] = {}
    for node in graph.nodes:
        recognise = _RECOGNISERS.get(node.op.name)
        if recognise is None or node.outputs[0].dtype != np.float32:
            continue
        try:
            cell = recognise(_Step(affine, node, outputs))
        except Skip as skip:
            refuse(node, str(skip))
            continue
        if cell is not None:
            found[node] = cell
    return found


@dataclass(frozen=True)
class _Step:
    affine: Affine
    root: Node
    outputs: set[Value]

    def gate(self, value: Value, function: str) -> tuple[Form, frozenset[Node]] | None:
        """The argument of an activation of which the value is a part, and the nodes between."""
        part = self.affine.part_of(value)
        node = None if part is None else part[0].producer
        if part is None or node is None or node.op.name != function:
            return None
        columns, x = part[1], node.inputs[0]
        assert x is not None
        form = self.affine.form(x)
        if form is None or columns.ndim != 1:
            return None
        flat = form.cut(lambda a: a.reshape(-1)[columns], form.lead, node)
        return flat, flat.nodes | part[2]

    def cell(self, kind: str, gates: list[Form], **rest: Any) -> Cell:
        out = self.root.outputs[0]
        assert out.shape is not None
        (hidden, *others), lead = {g.features for g in gates}, {rows(g.lead) for g in gates}
        if others or len(lead) != 1 or rows(out.shape[:-1]) not in lead:
            raise Skip("the gates are of different shapes")
        if hidden != (out.shape[-1],):
            raise Skip(f"the gates have {hidden} features, the result is {out.type}")
        if not all(map(_is_product, gates)):
            raise Skip("a gate adds something that is not a product with constant weights")
        return Cell(kind, self.root, tuple(gates), hidden[0], lead.pop(), h_out=(out,), **rest)

    def state(self, value: Value, like: Value, name: str) -> Source:
        source = self.affine.source(value)
        if source is None or value.shape is None or rows(value.shape) != rows(like.shape):  # type: ignore[arg-type]
            raise Skip(f"the {name} {value.name!r} is {value.type}, the result {like.type}")
        return source


def _factors(value: Value) -> tuple[Value, Value] | None:
    node = value.producer
    if node is None or node.op.name != "Mul" or None in node.inputs:
        return None
    return node.inputs  # type: ignore[return-value]


def _either(pair: tuple[Value, Value]) -> Iterator[tuple[Value, Value]]:
    yield pair
    yield pair[::-1]  # type: ignore[misc]


# ---- LSTM


def _lstm(step: _Step) -> Cell | None:
    """o * tanh(f * c + i * g), the products in any order."""
    for o, t in _either(_factors(step.root.outputs[0])):  # type: ignore[arg-type]
        tanh = t.producer
        if tanh is None or tanh.op.name != "Tanh":
            continue
        c_out = tanh.inputs[0]
        assert c_out is not None
        total = c_out.producer
        if total is None or total.op.name != "Add":
            continue
        left, right = (_factors(v) for v in total.inputs)  # type: ignore[arg-type]
        if left is None or right is None:
            continue
        inner = frozenset((step.root, tanh, total, *(v.producer for v in total.inputs)))  # type: ignore[union-attr]
        return _lstm_of(step, o, c_out, left, right, inner)  # type: ignore[arg-type]
    return None


def _lstm_of(
    step: _Step,
    o: Value,
    c_out: Value,
    left: tuple[Value, Value],
    right: tuple[Value, Value],
    inner: frozenset[Node],
) -> Cell:
    made = step.gate(o, "Sigmoid")
    if made is None:
        raise Skip(f"the output gate {o.name!r} is not sigmoid of an affine function")
    for (f, c), (i, g) in (
        (a, b)
        for one, two in ((left, right), (right, left))
        for a in _either(one)
        for b in _either(two)
    ):
        gates = [
            step.gate(i, "Sigmoid"),
            made,
            step.gate(f, "Sigmoid"),
            step.gate(g, "Tanh"),
        ]
        if None in gates or step.affine.source(c) is None:
            continue
        if any(form.terms.keys() != made[0].terms.keys() for form, _ in gates):  # type: ignore[misc]
            continue
        nodes = inner.union(*(n for _, n in gates))  # type: ignore[misc]
        return step.cell(
            "LSTM",
            [form for form, _ in gates],  # type: ignore[misc]
            h=None,
            c=step.state(c, c_out, "state c"),
            c_out=c_out,
            nodes=nodes,
        )
    raise Skip("its state is not sigmoid * state + sigmoid * tanh, of products with weights")


# ---- GRU

_Sum = dict[tuple[Value, ...], float]
MAX_PRODUCTS = 4


class _Expansion:
    """A value as a sum of products of values, through nodes that are used once."""

    def __init__(self, outputs: set[Value]) -> None:
        self.outputs = outputs
        self.nodes: set[Node] = set()
        self._constants: list[Value] = []

    def of(self, value: Value, depth: int = 0) -> _Sum:
        if value.const is not None:
            return self._constant(value, value.const)
        node = value.producer
        inner = depth == 0 or (len(value.uses) == 1 and value not in self.outputs)
        if node is None or not inner or depth > 5:
            return {(value,): 1.0}
        if node.op.name not in ("Add", "Sub", "Mul", "Neg"):
            return {(value,): 1.0}
        self.nodes.add(node)
        parts = [self.of(v, depth + 1) for v in node.inputs if v is not None]
        if node.op.name == "Neg":
            return {k: -x for k, x in parts[0].items()}
        a, b = parts
        total: _Sum = {} if node.op.name == "Mul" else dict(a)
        if node.op.name == "Mul":
            for (k, x), (m, y) in product(a.items(), b.items()):
                both = tuple(sorted((*k, *m), key=id))
                total[both] = total.get(both, 0.0) + x * y
        else:
            sign = -1.0 if node.op.name == "Sub" else 1.0
            for m, y in b.items():
                total[m] = total.get(m, 0.0) + sign * y
        total = {k: x for k, x in total.items() if x != 0}
        return total if len(total) <= MAX_PRODUCTS else {(value,): 1.0}

    def _constant(self, value: Value, array: Array) -> _Sum:
        """Numbers by their value; an initial state and its negative by the same name."""
        if not np.any(array):
            return {}
        if array.size == 1:
            return {(): float(array.reshape(-1)[0])}
        for other in self._constants:
            assert other.const is not None
            for sign in (1.0, -1.0):
                if np.array_equal(other.const, sign * array):
                    return {(other,): sign}
        self._constants.append(value)
        return {(value,): 1.0}


def _blends(total: _Sum) -> Iterator[tuple[Value, Value, Value | None, bool]]:
    """(z, n, h, as is) where the sum may be (1 - z) * n + z * h; or with z exchanged with 1 - z.

    h is None where it is zero and has been folded.
    """
    singles = [k for k in total if len(k) == 1]
    pairs = [k for k in total if len(k) == 2]
    if len(singles) + len(pairs) != len(total) or len(singles) > 1 or not 1 <= len(pairs) <= 2:
        return
    if not singles:  # (1 - z) * 0 + z * n
        if len(pairs) == 1 and total[pairs[0]] == 1:
            one, two = pairs[0]
            yield one, two, None, False
            yield two, one, None, False
        return
    (a,) = singles[0]
    against = [k for k in pairs if a in k and total[k] == -1]
    rest = [k for k in pairs if k not in against]
    if total[singles[0]] != 1 or len(against) != 1:
        return
    z = against[0][0] if against[0][1] is a else against[0][1]
    if not rest:
        yield z, a, None, True
    elif total[rest[0]] == 1 and z in rest[0]:
        b = rest[0][0] if rest[0][1] is z else rest[0][1]
        yield z, a, b, True
        yield z, b, a, False


def _gru(step: _Step) -> Cell | None:
    """(1 - z) * n + z * h in any spelling."""
    expansion, why = _Expansion(step.outputs), ""
    for z, n, h, forward in _blends(expansion.of(step.root.outputs[0])):
        gate, candidate = step.gate(z, "Sigmoid"), step.gate(n, "Tanh")
        if gate is None:
            continue
        if candidate is None:
            if h is not None:
                why = why or f"{n.name!r} is not tanh of products with constant weights"
            continue
        try:
            state = None if h is None else step.state(h, step.root.outputs[0], "state h")
            x_part, h_part, reset, after, extra = _candidate(step, candidate[0], state)
        except Skip as skip:
            why = str(skip) if h is not None else why
            continue
        form, state = gate[0], next(iter(h_part.terms), state)
        update = form if forward else replace(form.scaled(-1.0, step.root), nodes=form.nodes)
        return step.cell(
            "GRU",
            [update, reset, x_part, h_part],
            h=state,
            c=None,
            c_out=None,
            nodes=frozenset(expansion.nodes) | gate[1] | candidate[1] | extra,
            after=after,
        )
    if why:
        raise Skip(why)
    return None


def _candidate(
    step: _Step, form: Form, h: Source | None
) -> tuple[Form, Form, Form, bool, frozenset[Node]]:
    """The candidate's part of x, its part of h, the reset gate, and whether that comes after."""
    for source, pieces in form.terms.items():
        if source.axis is not None or source == h:
            continue
        reset = _reset(step, source.value, pieces)
        if reset is None:
            continue
        gate, other, nodes = reset
        rest = {s: p for s, p in form.terms.items() if s is not source}
        if h in rest:
            raise Skip("the state enters its candidate beside the reset gate as well")
        x_part = replace(form, terms=rest)
        if all(p.weights is not None for p in pieces):
            inner = None if other is None else step.affine.source(other)
            if inner is None or not _is_state(inner, h):
                raise Skip("the reset gate multiplies something else than the state")
            h_part = replace(form, terms={inner: pieces}, bias=None)
            return x_part, h_part, gate, False, nodes
        h_part = _inner(step, other, pieces, form, h)
        return x_part, h_part, gate, True, nodes | h_part.nodes
    raise Skip("its candidate has no reset gate")


def _reset(
    step: _Step, value: Value, pieces: tuple[Piece, ...]
) -> tuple[Form, Value | None, frozenset[Node]] | None:
    """(r, v, nodes) where the value is sigmoid(r) * v; v is None for a constant, in the scale."""
    pair = _factors(value)
    if pair is None:
        alone = step.gate(value, "Sigmoid")
        if alone is None or len(pieces) != 1 or pieces[0].scale is None:
            return None
        return alone[0], None, alone[1]
    for r, v in _either(pair):
        gate = step.gate(r, "Sigmoid")
        if gate is not None and v.shape == value.shape:
            assert value.producer is not None
            return gate[0], v, gate[1] | {value.producer}
    return None


def _inner(
    step: _Step, other: Value | None, pieces: tuple[Piece, ...], like: Form, h: Source | None
) -> Form:
    """B(h) of sigmoid(r) * B(h)."""
    every = np.arange(like.features[0])
    if len(pieces) != 1 or not np.array_equal(pieces[0].columns.reshape(-1), every):
        raise Skip("the reset product is reordered")
    if other is None:  # the product with an initial state of zeros was folded
        return replace(like, terms={}, bias=np.array(pieces[0].scale), nodes=frozenset())
    form = step.affine.form(other)
    if pieces[0].scale is not None or form is None or not _is_product(form):
        raise Skip("what the reset gate multiplies is not a product with constant weights")
    if not all(_is_state(s, h) for s in form.terms):
        raise Skip("the reset gate multiplies products of something else than the state")
    return form


def _is_product(form: Form) -> bool:
    return all(p.weights is not None for pieces in form.terms.values() for p in pieces)


def _is_state(source: Source, h: Source | None) -> bool:
    """Whether it is the state, or, where that has been folded, zeros."""
    return source == h or (h is None and is_zero(source.value))


# ---- RNN, and operators of one step


def _rnn(step: _Step) -> Cell | None:
    """tanh(A(x) + B(h)); whether one of its sources is a state, the steps around it tell."""
    found = step.gate(step.root.outputs[0], "Tanh")
    if found is None or not found[0].terms:
        return None
    form = found[0]
    if not _is_product(form):
        return None
    nodes = form.nodes | {step.root}
    return step.cell("RNN", [form], h=None, c=None, c_out=None, nodes=nodes)


_RECOGNISERS: dict[str, Callable[[_Step], Cell | None]] = {
    "Mul": _lstm,
    "Add": _gru,
    "Sub": _gru,
    "Tanh": _rnn,
}
