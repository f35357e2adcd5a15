"""What recognising a recurrent step needs: the step itself, its gates, its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinsmith.graph import Dim, Node, Value
from tinsmith.ops._arithmetic import multiplies
from tinsmith.passes.recurrent.affine import Affine, Form, nameless, rows
from tinsmith.passes.recurrent.places import Source
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip


@dataclass(frozen=True, eq=False)
class Cell:
    """One time step of a recurrent layer, found in a graph.

    kind    "LSTM", "GRU" or "RNN"
    root    the node that computes the new state h
    gates   affine functions in ONNX's order: i, o, f, g of an LSTM; z, r, n of a GRU, n as two:
            the parts of x and of h (letters as in `cells`)
    hidden  features of the state; rows: leading dims of the gates, without ones
    h, c    the states that the step reads; h is None where any of several sources may be it
    h_out   values of the new state h, equal but for their shapes; c_out: the new state c, or None
    nodes   the nodes that compute the step
    """

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


@dataclass(frozen=True)
class TimeStep:
    """Helps to recognise a recurrent step whose last node is `root`: its gates and its state.
    `outputs`: the graph's."""

    affine: Affine
    root: Node
    outputs: set[Value]

    def gate(self, value: Value, function: str) -> tuple[Form, frozenset[Node]] | None:
        """(form, nodes) if the value is some or all features of the result of the activation named
        `function`: its argument for these features as an affine function, and the nodes that
        compute the value from the sources of that. Else None."""
        part = self.affine.part_of(value)
        node = None if part is None else part[0].producer
        if part is None or node is None or node.op.name != function:
            return None
        _, columns, nodes = part
        form = self.affine.form(node.operand(0))
        if form is None or columns.ndim != 1:
            return None
        flat = form.cut(lambda a: a.reshape(-1)[columns], form.lead, node)
        return flat, flat.nodes | nodes

    def cell(self, kind: str, gates: list[Form], **rest: Any) -> Cell:
        """The cell with these gates, and `rest` as further fields. Raises Skip if gates differ in
        shape from each other or from the result, or are not products with constant weights."""
        out = self.root.outputs[0]
        assert out.shape is not None
        (hidden, *others), lead = {g.features for g in gates}, {rows(g.lead) for g in gates}
        if others or len(lead) != 1:
            raise Skip("the gates are of different shapes")
        if hidden != (out.shape[-1],) or nameless(rows(out.shape[:-1])) != nameless(*lead):
            raise Skip(f"the gates have {hidden} features, the result is {out.type}")
        if not all(map(is_product, gates)):
            raise Skip("a gate adds something that is not a product with constant weights")
        return Cell(kind, self.root, tuple(gates), hidden[0], lead.pop(), h_out=(out,), **rest)

    def state(self, value: Value, gate: Form) -> Source:
        """A state as a source. Raises Skip unless `value` has the rows and features of `gate`."""
        source = self.affine.source(value)
        same = value.shape is not None and rows(value.shape[:-1]) == rows(gate.lead)
        if source is None or not same or gate.features != (source.width,):
            dims = [*gate.lead, *gate.features]
            raise Skip(f"the state {value.name!r} is {value.type}, the gates {dims}")
        return source


def is_product(form: Form) -> bool:
    return all(p.weights is not None for pieces in form.terms.values() for p in pieces)


def factors(value: Value) -> tuple[Value, Value] | None:
    node = value.producer
    if node is None or not multiplies(node) or None in node.inputs:
        return None
    return node.inputs  # type: ignore[return-value]


def either(pair: tuple[Value, Value]) -> Iterator[tuple[Value, Value]]:
    yield pair
    yield pair[::-1]  # type: ignore[misc]
