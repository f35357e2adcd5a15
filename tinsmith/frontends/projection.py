"""Recurrent layers of PyTorch and ncnn. LSTMs with a projection of the state (`proj_size` in
PyTorch), which ONNX and our operator do not have, become an LSTM and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.frontends.nodes import SourceNode
from tinsmith.graph import Array, Value


def recurrent_layer(
    node: SourceNode, op: str, x: Value, weights: tuple[Array, Array, Array | None, Any],
    states: Sequence[Value], attrs: dict[str, Any],
) -> tuple[Value, ...]:  # fmt: skip
    """A layer of our operator `op` ("LSTM", "GRU", "RNN"), for PyTorch and ncnn, whose GRU resets
    behind the product; an LSTM may have a projection, h = p s, where s [D,N,H] is the state of an
    LSTM without.

    x [T,N,F]; `weights` are w [D,4H,F], r [D,4H,P], p [D,P,H] (None: no projection) and the biases,
    in our order of gates; `states` are the initial h [D,N,P] and c [D,N,H], or none (zeros).
    `attrs` are those of our operator. Returns y [T,D,N,P] and the last h and c.

    As r h = r (p s) = (r p) s, our LSTM gets r p as its recurrent weights. A given initial h is no
    p s: it becomes more features of x in the first time step, with the weights r, and zeros in all
    others.
    """
    w, r, p, b = weights
    if op == "GRU":
        attrs = attrs | {"linear_before_reset": True}
    if p is None:
        return node.emit(op, x, w, r, b, None, *states, **attrs)
    ends: list[Value | None] = []
    if states:
        count, size = len(p), p.shape[1]
        more = np.zeros((*w.shape[:2], count * size), w.dtype)
        for d in range(count):
            more[d, :, d * size : (d + 1) * size] = r[d]
        w = np.concatenate([w, more], axis=2)
        firsts = _first_steps(node, x, states[0], attrs["direction"])
        x = node.emit("Concat", x, *firsts, axis=2)
        ends = [None, states[1]]
    y, h, c = node.emit("LSTM", x, w, np.matmul(r, p), b, None, *ends, **attrs)
    turned = node.const(np.ascontiguousarray(p.swapaxes(1, 2)))
    return node.emit("MatMul", y, turned), node.emit("MatMul", h, turned), c


def _first_steps(node: SourceNode, x: Value, h: Value, direction: str) -> list[Value]:
    """For each direction d a tensor [T,N,P] of features: h[d] in the time step that the direction
    begins with, zeros in the others."""
    size = x.shape[0] if x.shape else ""
    if isinstance(size, int):
        steps = node.ints(size - 1)
    else:
        steps = node.emit("Sub", node.emit("Shape", x, start=0, end=1), node.ints(1))
    none = node.ints(0)
    found = []
    for d in range(2 if direction == "bidirectional" else 1):
        backward = direction == "reverse" or d == 1
        part = node.emit("Slice", h, node.ints(d), node.ints(d + 1), node.ints(0))
        first, last = (steps, none) if backward else (none, steps)
        widths = (first, none, none, last, none, none)
        known = [w.const for w in widths if w.const is not None]
        pads = np.concatenate(known) if len(known) == 6 else node.emit("Concat", *widths, axis=0)
        found.append(node.emit("Pad", part, pads))
    return found
