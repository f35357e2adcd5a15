"""Values as affine functions of others: y = sum of source @ columns of constant weights, + bias.

However exporters slice, concatenate, merge and reorder the products of recurrent gates, a `Form`
holds the same few facts about each gate: which columns of which weights multiply which source.
Slicing and reshaping a value slices and reshapes the column indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim, Node, Value
from tinsmith.ops._arithmetic import multiplies, subtracts
from tinsmith.ops._move import Along, moves_of
from tinsmith.passes.recurrent.places import Source, at_width, join_axis, place_of, source_of, taken
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER

MAX_DEPTH = 40  # nodes above a value that are followed, at most; estimated
MAX_TERMS = 8  # sources of one affine value, at most; estimated


@dataclass(frozen=True)
class Piece:
    """One term of an affine function: source @ (weights[lo:hi][:, columns] * scale).

    weights  the index of a constant matrix in `Weights`, of which rows lo to hi count; None: the
             term is source[:, columns] * scale, some features of the source itself
    columns  the column that gives each feature: an array of the shape `Form.features`
    scale    a factor for each feature, in the same shape; None: 1
    """

    weights: int | None
    lo: int
    hi: int
    columns: Array
    scale: Array | None

    def cut(self, move: Callable[[Array], Array]) -> Piece:
        scale = None if self.scale is None else move(self.scale)
        return replace(self, columns=move(self.columns), scale=scale)

    def scaled(self, by: Array | float) -> Piece:
        old = 1.0 if self.scale is None else self.scale
        return replace(self, scale=np.broadcast_to(old * by, self.columns.shape))

    @property
    def key(self) -> tuple[Any, ...]:
        scale = None if self.scale is None or np.all(self.scale == 1) else self.scale.tobytes()
        return (self.weights, self.lo, self.hi, self.columns.tobytes(), scale)

    @property
    def is_whole(self) -> bool:
        """Whether the term is some or all features of the source, without weights or a factor."""
        return self.weights is None and self.scale is None


@dataclass(frozen=True)
class Form:
    """A value of shape [*lead, *features] as an affine function of sources: the sum of all `terms`
    (source -> its pieces) and `bias` (by features; None: zeros). `nodes` compute it from the
    sources."""

    lead: tuple[Dim, ...]
    features: tuple[int, ...]
    terms: dict[Source, tuple[Piece, ...]]
    bias: Array | None
    nodes: frozenset[Node]

    def cut(self, move: Callable[[Array], Array], lead: tuple[Dim, ...], node: Node) -> Form:
        """The form of the result of `node`, which takes some features of this form, or gives them
        another order or shape: `move` does that to an array with an element for each feature.
        `lead` are the leading dims of the result."""
        terms = {s: tuple(p.cut(move) for p in ps) for s, ps in self.terms.items()}
        bias = None if self.bias is None else move(self.bias)
        shape = move(np.empty(self.features, np.int8)).shape
        return Form(lead, shape, terms, bias, self.nodes | {node})

    def scaled(self, by: Array | float, node: Node) -> Form:
        terms = {s: tuple(p.scaled(by) for p in ps) for s, ps in self.terms.items()}
        bias = None if self.bias is None else self.bias * by
        return replace(self, terms=terms, bias=bias, nodes=self.nodes | {node})

    def plus(self, other: Form, node: Node) -> Form:
        terms = dict(self.terms)
        for s, pieces in other.terms.items():
            terms[s] = terms.get(s, ()) + pieces
        nodes = self.nodes | other.nodes | {node}
        return replace(self, terms=terms, bias=_sum(self.bias, other.bias), nodes=nodes)

    def shifted(self, by: Array, node: Node) -> Form:
        wide = np.broadcast_to(by.astype(np.float64), self.features)
        return replace(self, bias=_sum(self.bias, wide), nodes=self.nodes | {node})

    def key(self, source: Source) -> tuple[Any, ...]:
        """A key of the matrix that multiplies `source`: equal for two forms with equal matrices."""
        keys = [p.key for p in self.terms.get(source, ())]
        return tuple(keys if len(keys) < 2 else sorted(keys, key=repr))

    def bias_key(self) -> bytes:
        zero = np.zeros(self.features)
        return (zero if self.bias is None else self.bias + 0.0).astype(np.float32).tobytes()


def _sum(a: Array | None, b: Array | None) -> Array | None:
    return b if a is None else a if b is None else a + b


def rows(lead: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Dims without ones: two values whose leading dims have equal `rows` have the same rows, so
    that neither is broadcast to the other."""
    return tuple(d for d in lead if d != 1)


def nameless(shape: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """A shape with "" for every symbol, to compare values whose dims are equal, whatever their
    symbols are called (graph outputs have symbols of their own)."""
    return None if shape is None else tuple("" if isinstance(d, str) else d for d in shape)


class Weights:
    """A table of constant matrices, which pieces name by their index. `number` gives the index of
    an array, the same for arrays of equal content."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._places: dict[Any, int] = {}
        self._alike: dict[Any, list[int]] = {}

    def number(self, array: Array) -> int:
        # copies of a view (a transpose that was folded for every step) share memory
        at = array.__array_interface__["data"][0]
        place = (at, array.shape, array.strides, array.dtype)
        found = self._places.get(place)
        if found is None:
            found = self._places[place] = self._by_content(array)
        return found

    def _by_content(self, array: Array) -> int:
        sample = array[:: max(1, len(array) // 8)][:8]
        alike = self._alike.setdefault((array.shape, array.dtype, sample.tobytes()), [])
        for k in alike:
            if np.array_equal(self.arrays[k], array):
                return k
        self.arrays.append(array)
        alike.append(len(self.arrays) - 1)
        return alike[-1]

    def matrix(self, pieces: tuple[Piece, ...], width: int, columns: int) -> Array:
        """The matrix [width, columns] that multiplies a source of `width` features: the sum of the
        matrices of its `pieces`, each of `columns` columns."""
        total = np.zeros((width, columns), np.float32)
        for p in pieces:
            whole = np.eye(width) if p.weights is None else self.arrays[p.weights][p.lo : p.hi]
            part = whole[:, p.columns.reshape(-1)]
            total += part if p.scale is None else part * p.scale.reshape(-1).astype(np.float32)
        return total


class Affine:
    """Finds values of one graph as affine functions of sources (`form`). Results are cached, so the
    graph must not change meanwhile."""

    def __init__(self) -> None:
        self.weights = Weights()
        self.value_of: dict[Source, Value] = {}
        self._forms: dict[Value, Form | None] = {}
        self._sources: dict[Value, Source | None] = {}

    def source(self, value: Value) -> Source | None:
        """The `Source` of a value (`source_of`); None if its last dimension is not known.
        `value_of[source]` becomes the first value for which it was found."""
        if value not in self._sources:
            found = source_of(value)
            if found is not None:
                self.value_of.setdefault(found, value)
            self._sources[value] = found
        return self._sources[value]

    def form(self, value: Value, depth: int = 0) -> Form | None:
        """The value as an affine function of earlier ones; of itself if no rule knows its node, or
        it has too many terms or is too deep (`depth`: nodes followed so far). None if not even its
        last dimension is known."""
        if value not in self._forms:
            node = value.producer
            rule = None if node is None else _rule(node)
            found = None
            if rule is not None and depth < MAX_DEPTH and value.shape is not None:
                found = rule(self, node, value, depth + 1)
            if found is None or len(found.terms) > MAX_TERMS:
                found = self.opaque(value)
            self._forms[value] = found
        return self._forms[value]

    def opaque(self, value: Value) -> Form | None:
        source = self.source(value)
        if source is None or value.shape is None:
            return None
        every = np.arange(source.width, dtype=np.int64)
        piece = Piece(None, 0, source.width, every, None)
        return Form(value.shape[:-1], (source.width,), {source: (piece,)}, None, frozenset())

    def part_of(self, value: Value) -> tuple[Value, Array, frozenset[Node]] | None:
        """(v, columns, nodes) if the value is some features of an earlier value v (or all),
        unchanged: the features `columns`, which `nodes` take out. Else None."""
        form = self.form(value)
        if form is None or len(form.terms) != 1 or form.bias is not None:
            return None
        ((source, pieces),) = form.terms.items()
        if len(pieces) != 1 or not pieces[0].is_whole or source.axis is not None:
            return None
        return source.value, pieces[0].columns, form.nodes

    def _add(self, node: Node, value: Value, depth: int) -> Form | None:
        a, b = node.operands
        sign = -1.0 if subtracts(node) else 1.0
        for x, c, s, t in ((a, b, 1.0, sign), (b, a, sign, 1.0)):
            if c.const is None or x.const is not None:
                continue
            form = self._same_shape(x, value, depth)
            vector = None if form is None else _vector(c.const, form.features)
            if form is None or vector is None:
                return None
            form = form if s == 1 else form.scaled(s, node)
            return form.shifted(vector * t, node)
        left, right = self._same_shape(a, value, depth), self._same_shape(b, value, depth)
        if left is None or right is None or left.features != right.features:
            return None
        return left.plus(right if sign == 1 else right.scaled(sign, node), node)

    def _same_shape(self, x: Value, y: Value, depth: int) -> Form | None:
        form = self.form(x, depth)
        return form if x.shape == y.shape else None

    def _negative(self, node: Node, value: Value, depth: int) -> Form | None:
        form = self.form(node.inputs[0], depth)  # type: ignore[arg-type]
        return None if form is None else form.scaled(-1.0, node)

    def _scale(self, node: Node, value: Value, depth: int) -> Form | None:
        a, b = node.operands
        if a.const is not None and multiplies(node):
            a, b = b, a
        if b.const is None or a.const is not None:
            return None
        form = self._same_shape(a, value, depth)
        factor = None if form is None else _vector(b.const, form.features)
        if form is None or factor is None:
            return None
        wide = np.broadcast_to(factor.astype(np.float64), form.features)
        with np.errstate(all="ignore"):
            return form.scaled(wide if multiplies(node) else 1 / wide, node)

    def _product(self, node: Node, value: Value, depth: int) -> Form | None:
        x, w = node.operands
        if w.const is None or w.const.ndim != 2 or not x.rank:
            return None
        number, (_, count) = self.weights.number(w.const), w.const.shape
        assert value.shape is not None
        lead = value.shape[:-1]
        nodes = {node}
        at, terms = 0, {}
        for part in joined(x, nodes):
            source = self.source(part)
            if source is None:
                return None
            piece = Piece(number, at, at + source.width, np.arange(count, dtype=np.int64), None)
            terms[source] = (*terms.get(source, ()), piece)
            at += source.width
        return Form(lead, (count,), terms, None, frozenset(nodes))

    def _activation(self, node: Node, value: Value, depth: int) -> Form | None:
        """The form of an activation's result: a source of its own, as it is not affine, but with
        the features of its argument, so that later slices pick from both alike."""
        form = self.form(node.inputs[0], depth)  # type: ignore[arg-type]
        if form is None:
            return None
        count = prod(form.features)
        piece = Piece(None, 0, count, np.arange(count, dtype=np.int64).reshape(form.features), None)
        return Form(form.lead, form.features, {Source(value, count): (piece,)}, None, frozenset())

    def _moved(self, node: Node, value: Value, depth: int) -> Form | None:
        """The form of the result of a node that reorders, reshapes or slices features, or that
        picks one index of a leading axis, such as the time (`_at_time`). Else None."""
        move, shape = moves_of(node)[value.index], value.shape
        if move is None or move.fill is not None or len(move.parts) != 1 or shape is None:
            return None
        (part,) = move.parts
        form = self.form(node.inputs[part.source], depth)  # type: ignore[arg-type]
        if form is None:
            return None
        lead = len(form.lead)
        if _size(part.dims[lead:]) != prod(form.features) or not _in_order(part.axes[:lead]):
            return self._at_time(node, value, form)
        if _in_order(part.axes):
            after = _leading(shape, prod(form.features))
        else:
            after = lead if shape[lead:] and _size(shape[lead:]) == prod(part.box[lead:]) else None
        if after is None:
            return None
        axes = [replace(a, axis=None if a.axis is None else a.axis - lead) for a in part.axes]
        inner = replace(part, dims=part.dims[lead:], axes=tuple(axes[lead:]))
        features: Any = shape[after:]
        return form.cut(lambda a: inner.read(a).reshape(features), shape[:after], node)

    def _at_time(self, node: Node, value: Value, form: Form) -> Form | None:
        """The form of `value`, the result of `node`, if that picks one constant index of a leading
        axis of its input, whose form is `form`: each source is then read at that index. None for
        another node, or if a source has other leading dims than `form` or is read at an index
        already."""
        found = taken(node, value)
        if found is None or found[0] >= len(form.lead):
            return None
        axis, index = found
        place = place_of(index)
        if place is None:
            return None
        terms = {}
        for s, pieces in form.terms.items():
            shape = s.value.shape
            if s.axis is not None or shape is None or shape[:-1] != form.lead:
                return None
            terms[Source(s.value, s.width, axis, place)] = pieces
        lead = form.lead[:axis] + form.lead[axis + 1 :]
        if isinstance(index, np.ndarray):
            lead = (*form.lead[:axis], 1, *form.lead[axis + 1 :])
        # the whole product over time stays behind: it is shared by the steps
        return Form(lead, form.features, terms, form.bias, frozenset())


def joined(value: Value, nodes: set[Node]) -> Iterator[Value]:
    """Yield the values whose concatenation along the last axis is `value`, in order, nested ones
    taken apart; `value` itself if it is no concatenation. The nodes that concatenate are added to
    `nodes`."""
    value = at_width(value)
    node = value.producer
    if node is None or not value.rank or join_axis(node) != value.rank - 1:
        yield value
        return
    nodes.add(node)
    for v in node.inputs:
        if v is not None:
            yield from joined(v, nodes)


def _vector(c: Array, features: tuple[int, ...]) -> Array | None:
    """A constant that is the same for all rows, as an array of the shape of the features; None for
    any other."""
    outer = max(0, c.ndim - len(features))
    lead, inner = c.shape[:outer], c.shape[outer:]
    lines = c.reshape(prod(lead), *inner)
    if not len(lines) or np.any(lines != lines[:1]):
        return None
    try:
        return np.broadcast_to(lines[0], features)
    except ValueError:
        return None


def _leading(shape: tuple[Dim, ...], count: int) -> int | None:
    """How many dims come before the fewest trailing dims (at least one) whose product is `count`;
    None where there are none."""
    total = 1
    for lead in range(len(shape) - 1, -1, -1):
        d = shape[lead]
        if not isinstance(d, NUMBER) or total * d > count:
            return None
        total *= d
        if total == count:
            return lead
    return None


def _size(dims: Sequence[Dim]) -> int | None:
    """The product of dims; None where one is a symbol."""
    return None if any(isinstance(d, str) for d in dims) else prod(dims)  # type: ignore[type-var]


def _in_order(axes: Sequence[Along]) -> bool:
    """Whether the axes of a box are the first axes of its input, each read whole and in order."""
    return all(a.axis == k and a.places is None for k, a in enumerate(axes))


def _rule(node: Node) -> Any:
    return _RULES.get(node.op.name, Affine._moved if node.op.traits & {"view", "move"} else None)


_RULES: dict[str, Any] = {
    "Add": Affine._add,
    "Sub": Affine._add,
    "Mul": Affine._scale,
    "Div": Affine._scale,
    "Neg": Affine._negative,
    "MatMul": Affine._product,
    **dict.fromkeys(("Sigmoid", "Tanh"), Affine._activation),
}
