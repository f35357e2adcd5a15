"""Packing the weights of a recurrent layer in the order in which its kernels read them.

Columns are [block of V hidden units][gate][V], so that one register tile holds all gates of a
block, and the cell's arithmetic directly follows the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import split_array
from tinsmith.codegen.products import PRODUCTS, packed_lanes
from tinsmith.codegen.types import BF16, F32
from tinsmith.kernels._kernel import Emit, Packed, Phase
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.float_products import fits_of
from tinsmith.kernels.recurrent.layer import Layer
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position

PACKING = 3e-10
"""Seconds to pack one weight that is known only when the model runs. Estimated."""


def packed(layer: Layer, columns: Columns) -> tuple[Packed, ...]:
    """The packed arrays of constant weights, those of `Layer.arrays`:

    w, r              input weights of each direction in panels of `columns`; recurrent weights,
                      [direction][block][k-group of units][gate][V]
    bias, rb          the bias of the input products, [direction][column]; the one that the last
                      gate adds in the step, [direction][block][V]
    peepholes         [direction][block][i, o, f][V]
    w_scale, r_scale  the scale of each column
    w_sums, r_sums    the sum of each column's weights, which corrects sums for zero points
    """
    site, lanes, ways = layer.site, layer.lanes, len(layer.directions)
    w = site.const(1).reshape(ways, layer.gates, layer.hidden, layer.inputs)
    r = site.const(2).reshape(ways, layer.gates, layer.hidden, layer.hidden)
    shape = (ways, 2, layer.gates, layer.hidden)
    b = site.const(3).reshape(shape) if site.has(3) else np.zeros(shape, np.float32)
    rows = [m.row.name for m in layer.matrices]
    fits = [fits_of(m.row) for m in layer.matrices]
    found = {
        "w": Packed("w", _inputs, (w, lanes, columns, rows[0]), fits=fits[0]),
        "bias": Packed("bias", _sums, (b, layer.gates - layer.apart, lanes)),
        "r": Packed("r", _states, (r, lanes, rows[1]), fits=fits[1]),
        "rb": Packed("rb", _last, (b, lanes)),
    }
    if (at := layer.peepholes) is not None:
        peepholes = site.const(at).reshape(ways, 3, layer.hidden)
        found["peepholes"] = Packed("peepholes", _interleave, (peepholes, lanes))
    for name, array, m in zip("wr", (w, r), layer.matrices, strict=True):
        if m.scale is not None:
            scale = site.const(m.scale).reshape(shape[0], *shape[2:])
            found[f"{name}_scale"] = Packed("scale", _interleave, (scale, lanes))
        found[f"{name}_sums"] = Packed("sums", _column_sums, (array, lanes))
    return tuple(found[name] for name in layer.arrays)


def _inputs(w: np.ndarray, lanes: int, columns: Columns, row: str) -> np.ndarray:
    """Input weights (D, gates, H, I), packed for the phase of input products: the panels of
    `columns` of each direction in turn, flat, in lanes of row `row` of the table of products."""
    return np.concatenate([pack_columns(m, columns) for m in _gated(w, lanes, row)])


def _states(r: np.ndarray, lanes: int, row: str) -> np.ndarray:
    """Recurrent weights (D, gates, H, H) as `r` of `packed`; `row`: as in `_gated`."""
    full = np.stack(_gated(r, lanes, row))
    full = full.reshape(*full.shape[:2], -1, r.shape[1] * lanes)
    return np.ascontiguousarray(full.swapaxes(1, 2))


def _column_sums(w: np.ndarray, lanes: int) -> np.ndarray:
    return _interleave(w.sum(axis=-1, dtype=np.int32), lanes)


def _sums(b: np.ndarray, inner: int, lanes: int) -> np.ndarray:
    """From biases (D, 2, gates, H), `bias` of `packed`: the sums of both biases of the first
    `inner` gates, and the first bias of the others."""
    wb, rb = b.swapaxes(0, 1)
    return _interleave(np.concatenate([(wb + rb)[:, :inner], wb[:, inner:]], axis=1), lanes)


def _last(b: np.ndarray, lanes: int) -> np.ndarray:
    """From biases (D, 2, gates, H), `rb` of `packed`: the second bias of the last gate."""
    return _interleave(b[:, 1, -1:], lanes)


def _gated(weights: np.ndarray, lanes: int, row: str) -> list[np.ndarray]:
    """Weights (D, gates, H, K) as D matrices of lanes for the row named `row` of the table of
    products: (K / g rounded up, columns), where g is the row's k-group. Columns are the module's,
    padded with zeros."""
    if PRODUCTS[row].left == BF16:
        (weights,) = split_array(weights, 1)
    found = (_interleave(np.moveaxis(w, 2, 0), lanes) for w in weights)
    return [packed_lanes(m, PRODUCTS[row], m.dtype) for m in found]


def _interleave(per_gate: np.ndarray, lanes: int) -> np.ndarray:
    """An array (..., gates, H) as (..., columns), the columns in the module's order, of blocks of
    `lanes` units, the last block padded with zeros."""
    *lead, g, h = per_gate.shape
    blocks = -(-h // lanes)
    wide = np.zeros((*lead, g, blocks * lanes), per_gate.dtype)
    wide[..., :h] = per_gate
    wide = wide.reshape(*lead, g, blocks, lanes)
    return np.ascontiguousarray(np.moveaxis(wide, -3, -2)).reshape(*lead, -1)


def floats(layer: Layer, columns: Columns) -> list[int]:
    """How many float32 one direction has in each array of `packed`, for weights that the run packs:
    w, bias, r, rb, and perhaps peepholes."""
    sizes = [layer.inputs * columns.padded, layer.columns, layer.hidden * layer.columns]
    return [*sizes, layer.padded, *([3 * layer.padded] if layer.peepholes is not None else [])]


def with_weights_at(phase: Phase, layer: Layer, columns: Columns, start: int) -> Phase:
    """`phase`, but with the packed arrays (`em.packed`) in scratch, from float32 number `start` on:
    for the phase `packing`, which writes them, and for those that read them."""

    sizes = [len(layer.directions) * n for n in floats(layer, columns)]

    def emit(em: Emit) -> None:
        places = (em.scratch.cast(F32) + start + sum(sizes[:i]) for i in range(len(sizes)))
        phase.emit(replace(em, packed=tuple(places)))

    return replace(phase, emit=emit)


def packing(layer: Layer, columns: Columns) -> Phase:
    """A phase that packs float32 weights that only the run knows, as `packed` packs constant ones,
    to `em.packed`. A tile is one block of one direction."""
    full = layer.hidden // layer.lanes

    def emit(em: Emit) -> None:
        b = em.b
        with b.loop(em.begin, em.end) as tile:
            d, block = tile // layer.blocks, tile % layer.blocks
            if full:
                with b.when(b.index(block) < full):
                    _pack_block(em, layer, columns, d, block, layer.lanes)
            if rest := layer.hidden % layer.lanes:
                with b.when(b.index(block).eq(full)):
                    _pack_block(em, layer, columns, d, block, rest)

    return Phase(len(layer.directions) * layer.blocks, emit)


def _pack_block(
    em: Emit, layer: Layer, columns: Columns, d: Position, block: Position, units: int
) -> None:
    """Emit code that packs one block of V units of direction d: its parts of w (in panels of
    `columns`), bias, r, rb and peepholes. The first `units` units exist, the others become 0."""
    sizes = floats(layer, columns)
    w, bias, r, rb, *peepholes = (p + d * n for p, n in zip(em.packed, sizes, strict=True))
    _pack_matrices(em, layer, columns, (d, block, units), w, r)
    _pack_biases(em, layer, (d, block, units), bias, rb)
    b, v = em.b, layer.lanes
    for to in peepholes:
        given = _vector(em, layer, layer.peepholes or 0, 3, d, block)
        assert given is not None
        for k in range(3):
            line = (given + k * layer.hidden).fixed()
            _fill(b, to + (block * 3 + k) * v, units, v, lambda i, n, p=line: (p + i).load(n))


Block = tuple[Position, Position, int]  # direction, block, units of it that are not padding


def _pack_matrices(em: Emit, layer: Layer, columns: Columns, at: Block, w: Ptr, r: Ptr) -> None:
    """Emit code that packs the weights of the block `at` into the arrays `w` and `r` of its
    direction."""
    (d, block, units), b, v = at, em.b, layer.lanes
    gates, hidden, inputs = layer.gates, layer.hidden, layer.inputs
    row = d * (gates * hidden) + block * v
    from_w, from_r = (em.input(i).pointer for i in (1, 2))
    last = sum(columns.tail) or columns.size
    with b.loop(0, gates) as g:
        column = (block * gates + g) * v
        panel, line = column // columns.size, row + g * hidden
        width = (panel < columns.full).select(b.index(columns.size), b.index(last))
        to = w + panel * (columns.size * inputs) + column % columns.size
        _turn(b, (from_w + line * inputs).fixed(), to.fixed(), inputs, width, units, v)
        to = r + block * (hidden * gates * v) + g * v
        _turn(b, (from_r + line * hidden).fixed(), to.fixed(), hidden, gates * v, units, v)


def _pack_biases(em: Emit, layer: Layer, at: Block, bias: Ptr, rb: Ptr) -> None:
    """Emit code that packs the biases of the block `at` into the arrays `bias` and `rb` of its
    direction."""
    (d, block, units), b, v = at, em.b, layer.lanes
    gates, hidden = layer.gates, layer.hidden
    given = _vector(em, layer, 3, 2 * gates, d, block)

    def read(row: int) -> Callable[[int, int], Val]:
        if given is None:
            return lambda i, n: b.zero(F32.x(n))
        line = given + row * hidden
        return lambda i, n: (line + i).load(n)

    for g in range(gates):
        own, inner = read(g), read(gates + g)

        def both(i: int, n: int, own: Callable = own, inner: Callable = inner) -> Val:
            return own(i, n) + inner(i, n)

        apart = layer.apart and g == gates - 1
        _fill(b, bias + (block * gates + g) * v, units, v, own if apart else both)
    _fill(b, rb + block * v, units, v, read(2 * gates - 1))


def _vector(
    em: Emit, layer: Layer, number: int, rows: int, d: Position, block: Position
) -> Ptr | None:
    """The address of block number `block`, V units each, in the first of the `rows` vectors of H
    units that input `number` has for direction d; None if the input is absent."""
    view = em.ins[number] if number < len(em.ins) else None
    return None if view is None else view.pointer + d * (rows * layer.hidden) + block * layer.lanes


def _fill(b: Builder, to: Ptr, units: int, lanes: int, value: Callable[[int, int], Val]) -> None:
    """Emit stores of `lanes` floats to `to`: `units` of them, then zeros. `value(first, count)`
    loads `count` of them from number `first` on: all `lanes`, or single ones if `units` is less."""
    if units == lanes:
        to.store(value(0, lanes))
        return
    for i in range(lanes):
        (to + i).store(value(i, 1) if i < units else b.zero(F32))


def _turn(
    b: Builder, source: Ptr, to: Ptr, depth: int, stride: Position, units: int, lanes: int
) -> None:
    """Emit a transpose: to[k * stride + lane] = source[lane * depth + k] for all k < `depth` and
    lane < `units`; 0 for the other lanes, up to `lanes`."""
    squares = depth // lanes * lanes
    if squares:
        with b.loop(0, squares, lanes) as k:
            zero = b.zero(F32.x(lanes))
            rows = [(source + (i * depth) + k).load(lanes) for i in range(units)]
            rows += [zero] * (lanes - units)
            for i, column in enumerate(transpose(rows)):
                (to + (k + i) * stride).store(column)
    if squares < depth:
        with b.loop(squares, depth) as k:
            line = (to + k * stride).fixed()
            for i in range(lanes):
                (line + i).store((source + (i * depth) + k).load() if i < units else b.zero(F32))
