"""GRU steps: the blend in any spelling, the reset gate before or after the product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops._arithmetic import multiplies, signs_of
from tinsmith.passes.recurrent.affine import Form, Piece
from tinsmith.passes.recurrent.places import Source, is_zero
from tinsmith.passes.recurrent.step import Cell, TimeStep, either, factors, is_product
from tinsmith.rewrite import Skip

_Sum = dict[tuple[Value, ...], float]
MAX_PRODUCTS = 4  # in a sum that may be the blend of a GRU, which has three


class _Expansion:
    """Writes a value as a sum of products of earlier values (`of`): {factors: coefficient},
    multiplied out through additions and products (`nodes`) whose results nothing else reads. A
    value with more than MAX_PRODUCTS products is one factor itself."""

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
        signs = signs_of(node)
        if signs is None and not multiplies(node):
            return {(value,): 1.0}
        self.nodes.add(node)
        parts = [self.of(v, depth + 1) for v in node.inputs if v is not None]
        total: _Sum = {}
        if signs is None:
            for (k, x), (m, y) in product(*(part.items() for part in parts)):
                both = tuple(sorted((*k, *m), key=id))
                total[both] = total.get(both, 0.0) + x * y
        for sign, part in zip(signs or (), parts, strict=False):
            for k, x in part.items():
                total[k] = total.get(k, 0.0) + sign * x
        total = {k: x for k, x in total.items() if x != 0}
        return total if len(total) <= MAX_PRODUCTS else {(value,): 1.0}

    def _constant(self, value: Value, array: Array) -> _Sum:
        """A constant as a sum: {} if it is zero, a coefficient without factors if it has one
        element, else one factor. An array that equals an earlier one is that factor; one that is
        its negative is -1 times it: exporters fold the negative of an initial state."""
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
    """Yield each (z, n, h, forward) such that the sum is (1 - z) * n + z * h if `forward`, else
    z * n + (1 - z) * h. h is None where it is zero and has been folded."""
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


def gru(step: TimeStep) -> Cell | None:
    """The GRU step that ends in (1 - z) * n + z * h, in any spelling, also with z and 1 - z
    exchanged. None if the root's result is no such blend, or z no sigmoid. Raises Skip if n is no
    tanh with a reset gate (None if h is zeros that were folded), or if `TimeStep.cell` does."""
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
            state = None if h is None else step.state(h, gate[0])
            x_part, h_part, reset, after, extra = _candidate(step, candidate[0], state)
        except Skip as skip:
            why = str(skip) if h is not None else why
            continue
        form, state = gate[0], next(iter(h_part.terms), state)
        update = form if forward else replace(form.scaled(-1.0, step.root), nodes=form.nodes)
        return step.cell(
            "GRU", [update, reset, x_part, h_part], h=state, c=None, c_out=None,
            nodes=frozenset(expansion.nodes) | gate[1] | candidate[1] | extra, after=after,
        )  # fmt: skip
    if why:
        raise Skip(why)
    return None


def _candidate(
    step: TimeStep, form: Form, h: Source | None
) -> tuple[Form, Form, Form, bool, frozenset[Node]]:
    """Take the argument `form` of the candidate's tanh apart: (part of x, part of h, reset gate,
    after, nodes). `after`: the gate multiplies the product with the state h, not h itself; `nodes`
    compute these besides those of the form. Raises Skip if it has no such parts."""
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
    step: TimeStep, value: Value, pieces: tuple[Piece, ...]
) -> tuple[Form, Value | None, frozenset[Node]] | None:
    """(r, v, nodes) if `value` is sigmoid(r) * v, which `nodes` compute; None if it is not. v is
    None if it is sigmoid(r) alone, and `pieces`, those of `value` in the candidate, scale it by a
    constant."""
    pair = factors(value)
    if pair is None:
        alone = step.gate(value, "Sigmoid")
        if alone is None or len(pieces) != 1 or pieces[0].scale is None:
            return None
        return alone[0], None, alone[1]
    for r, v in either(pair):
        gate = step.gate(r, "Sigmoid")
        if gate is not None and v.shape == value.shape:
            assert value.producer is not None
            return gate[0], v, gate[1] | {value.producer}
    return None


def _inner(
    step: TimeStep, other: Value | None, pieces: tuple[Piece, ...], like: Form, h: Source | None
) -> Form:
    """The form of B(h) in the candidate tanh(A(x) + sigmoid(r) * B(h)): r is the reset gate, h the
    state (None: zeros, which were folded). `like`, the form of tanh's argument, tells features and
    leading dims; `pieces` are those of its term sigmoid(r) * B(h). `other` is the value B(h); None:
    folding left sigmoid(r) times a constant, B(0), which is the scale of the one piece. Raises Skip
    if `other` is no product of h with constant weights, or if the term enters the argument scaled
    or with its features in another order."""
    every = np.arange(like.features[0])
    if len(pieces) != 1 or not np.array_equal(pieces[0].columns.reshape(-1), every):
        raise Skip("the reset product is reordered")
    if other is None:  # the product with an initial state of zeros was folded
        return replace(like, terms={}, bias=np.array(pieces[0].scale), nodes=frozenset())
    form = step.affine.form(other)
    if pieces[0].scale is not None or form is None or not is_product(form):
        raise Skip("what the reset gate multiplies is not a product with constant weights")
    if not all(_is_state(s, h) for s in form.terms):
        raise Skip("the reset gate multiplies products of something else than the state")
    return form


def _is_state(source: Source, h: Source | None) -> bool:
    """Whether a source is the state h; if h is None (zeros that have been folded), whether it is
    zeros."""
    return source == h or (h is None and is_zero(source.value))
