"""Operators of one step as cells: some exporters write torch's cells so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.graph import Array, Node
from tinsmith.passes.recurrent.affine import Affine, Form, Piece, joined, rows
from tinsmith.passes.recurrent.places import Source
from tinsmith.passes.recurrent.step import Cell

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
PLAIN = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


def native_cell(affine: Affine, node: Node) -> Cell | None:
    """The cell that an LSTM, GRU or RNN node of one time step computes, so that several such nodes
    in a row can become one. None unless it is forward, of float32, with constant weights and usual
    activations, without clip, lengths or peepholes."""
    kind = node.op.name
    if kind not in GATES or not _is_plain(node):
        return None
    b, _, *states = (*node.inputs[3:], *[None] * 4)[:4]
    x, w, r = map(node.operand, range(3))
    if w.const is None or r.const is None or (b is not None and b.const is None):
        return None
    hidden, dtype = r.const.shape[-1], node.outputs[0].dtype
    count = 2 * GATES[kind] * hidden
    bias = np.zeros(count, np.float64) if b is None or b.const is None else b.const[0]
    h, c = (None if v is None else affine.source(v) for v in states)
    xs = [affine.source(part) for part in joined(x, set())]
    lost = any(v is not None and s is None for v, s in zip(states, (h, c), strict=True))
    if None in xs or dtype != np.float32 or lost:
        return None
    after = bool(node.attrs.get("linear_before_reset"))
    weights = (affine.weights.number(w.const[0].T), affine.weights.number(r.const[0].T))
    gates = _gates(kind, after, hidden, weights, xs, h, bias.astype(np.float64))
    outs = node.outputs
    lead = rows(outs[1].shape[:-1]) if outs[1].shape else ()
    return Cell(
        kind, node, gates, hidden, lead, h=h, c=c, h_out=outs[:2],
        c_out=outs[2] if kind == "LSTM" else None, nodes=frozenset((node,)), after=after,
        native=node,
    )  # fmt: skip


def _is_plain(node: Node) -> bool:
    inputs: tuple[str, ...] = node.op.inputs  # type: ignore[attr-defined]
    x, given = node.inputs[0], dict(zip(inputs, node.inputs, strict=False))
    names = tuple(a.lower() for a in node.activations or PLAIN[node.op.name])
    return (
        x is not None
        and x.shape is not None
        and x.shape[0] == 1
        and node.direction == "forward"
        and node.layout == 0
        and node.clip is None
        and names == PLAIN[node.op.name]
        and not any(map(node.attrs.get, ("input_forget", "rounded")))
        and not any(map(given.get, ("sequence_lens", "p", "w_scale", "r_scale")))
    )


def _gates(
    kind: str, after: bool, hidden: int, weights: tuple[int, int], xs: Sequence[Source | None],
    h: Source | None, bias: Array,
) -> tuple[Form, ...]:  # fmt: skip
    wb, rb = bias.reshape(2, -1, hidden)

    def form(gate: int, total: Array, of_x: bool = True, of_h: bool = True) -> Form:
        columns, at = np.arange(gate * hidden, (gate + 1) * hidden), 0
        terms: dict[Source, tuple[Piece, ...]] = {}
        for s in xs if of_x else ():
            assert s is not None
            piece = Piece(weights[0], at, at + s.width, columns, None)
            terms[s] = (*terms.get(s, ()), piece)
            at += s.width
        if of_h and h is not None:
            piece = Piece(weights[1], 0, h.width, columns, None)
            terms[h] = (*terms.get(h, ()), piece)
        return Form((), (hidden,), terms, total, frozenset())

    if kind != "GRU":
        return tuple(form(g, wb[g] + rb[g]) for g in range(GATES[kind]))
    inner = rb[2] if after else np.zeros(hidden)
    return (
        form(0, wb[0] + rb[0]),
        form(1, wb[1] + rb[1]),
        form(2, wb[2] + rb[2] - inner, of_h=False),
        form(2, inner, of_x=False),
    )
