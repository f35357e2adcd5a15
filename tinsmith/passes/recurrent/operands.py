"""The weights of a recurrent operator from the gates of a step, in ONNX's order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim
from tinsmith.passes.recurrent.affine import Form, Weights
from tinsmith.passes.recurrent.places import Source
from tinsmith.passes.recurrent.step import Cell
from tinsmith.rewrite import Skip


class Operands:
    """Makes the constants of a recurrent operator from the gates of a step: `of` gives w [gates *
    H, I], r [gates * H, H] and b [2 * gates * H]. For equal steps it gives the same arrays."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._known: dict[Any, tuple[Array, Array, Array]] = {}

    def of(self, cell: Cell, xs: Sequence[Source], h: Source) -> tuple[Array, Array, Array]:
        gates = cell.gates
        from_x = gates[:3] if cell.kind == "GRU" else gates
        from_h = (*gates[:2], gates[3]) if cell.kind == "GRU" else gates
        key = (
            tuple(g.key(s) for g in from_x for s in xs),
            tuple(g.key(h) for g in from_h),
            tuple(g.bias_key() for g in gates),
        )
        if key not in self._known:
            w = np.concatenate(
                [np.concatenate([self._matrix(g, s) for s in xs], axis=1) for g in from_x]
            )
            r = np.concatenate([self._matrix(g, h) for g in from_h])
            self._known[key] = (np.ascontiguousarray(w), np.ascontiguousarray(r), _bias(cell))
        return self._known[key]

    def _matrix(self, gate: Form, source: Source) -> Array:
        (size,) = gate.features
        return self.weights.matrix(gate.terms.get(source, ()), source.width, size).T


def _bias(cell: Cell) -> Array:
    zero = np.zeros(cell.hidden)
    outer = [zero if g.bias is None else g.bias.reshape(-1) for g in cell.gates]
    inner = [zero] * len(outer)
    if cell.kind == "GRU":  # the candidate's bias of h is apart: the reset gate may multiply it
        inner = [zero, zero, outer.pop()]
    return np.concatenate([*outer, *inner]).astype(np.float32)


def attributes(cell: Cell, direction: str) -> dict[str, Any]:
    attrs: dict[str, Any] = {"hidden_size": cell.hidden, "direction": direction}
    if cell.kind == "GRU":
        attrs["linear_before_reset"] = bool(cell.after)
    return attrs


def count_rows(rows: tuple[Dim, ...]) -> Dim:
    """The product of the leading dims `rows`, as one dim: a number; the symbol itself, if it is the
    only dim; "?rows" (a symbol) if one of several is a symbol. Raises Skip if more than one is a
    symbol, or one is 0."""
    symbols = [d for d in rows if isinstance(d, str)]
    if len(symbols) > 1 or 0 in rows:
        raise Skip(f"the number of rows {list(rows)} is not known")
    if not symbols:
        return prod(rows)  # type: ignore[arg-type]
    return symbols[0] if len(rows) == 1 else "?rows"
