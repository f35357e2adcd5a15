"""RNN, GRU and LSTM layers: the input products of all steps as one dot, then the steps in one loop.

Gate columns are interleaved by blocks of V hidden units ([block][gate][V]), so that one register
tile holds all gates of a block and the cell's arithmetic follows the product directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import sigmoid, tanh
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Layout,
    Packed,
    Phase,
    Site,
    Skip,
    Tier,
    kernel,
)
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, grid, part
from tinsmith.kernels.dot.skeleton import Operands, product
from tinsmith.kernels.dot.tiles import choose, split_rows
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position

ROWS = 4


@dataclass(frozen=True)
class Layer:
    """Sizes of one recurrent layer: T steps, N rows, I inputs, H units in blocks of V, D
    directions; `gates` columns of each unit in the product, `bias` (D, gates, H)."""

    site: Site
    gates: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: tuple[bool, ...]  # True: from the last step to the first
    lanes: int
    w: np.ndarray = field(repr=False)
    r: np.ndarray = field(repr=False)
    wb: np.ndarray = field(repr=False)
    rb: np.ndarray = field(repr=False)

    @property
    def blocks(self) -> int:
        return -(-self.hidden // self.lanes)

    @property
    def padded(self) -> int:
        return self.blocks * self.lanes

    @property
    def columns(self) -> int:
        return self.blocks * self.gates * self.lanes

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    def interleave(self, per_gate: np.ndarray) -> np.ndarray:
        """(..., gates, H) as (..., blocks * gates * V), zero-padded."""
        *lead, g, h = per_gate.shape
        wide = np.zeros((*lead, g, self.padded), np.float32)
        wide[..., :h] = per_gate
        wide = wide.reshape(*lead, g, self.blocks, self.lanes)
        return np.ascontiguousarray(np.moveaxis(wide, -3, -2)).reshape(*lead, -1)

    def gated(self, weights: np.ndarray, d: int) -> np.ndarray:
        """Direction d of (D, gates * H, K) weights as a (K, columns) matrix."""
        per_gate = weights[d].reshape(self.gates, self.hidden, -1)
        return self.interleave(np.moveaxis(per_gate, 2, 0))


def _layer(site: Site, gates: int, states: int, plain: Sequence[str]) -> Layer:
    """The layer of a site, or Skip for what the native kernel does not do."""
    x = site.input(0)
    w, r = site.const(1, "w"), site.const(2, "r")
    if site.attr("layout") != 0:
        raise Skip("layout is 1")
    if site.has(4):
        raise Skip("sequence_lens is given")
    if site.has(5 + states):
        raise Skip("peepholes are given")
    if site.attr("clip"):
        raise Skip("clip is set")
    count = w.shape[0]
    names = tuple(a.lower() for a in site.attr("activations") or tuple(plain) * count)
    if names != tuple(plain) * count:
        raise Skip(f"the activations are {site.attr('activations')}")
    hidden = r.shape[2]
    bias = site.const(3, "b") if site.has(3) else np.zeros((count, 2 * gates * hidden), np.float32)
    wb, rb = np.split(bias.reshape(count, 2, gates, hidden), 2, axis=1)
    way = site.attr("direction")
    directions = (False, True) if way == "bidirectional" else (way == "reverse",)
    t, n, i = x.dims
    return Layer(
        site, gates, t, n, i, hidden, directions, block_of(site.target), w, r, wb[:, 0], rb[:, 0]
    )


def _choice(layer: Layer, bias: np.ndarray, states: int, matrices: int, cell: _CellCode) -> Choice:
    """Two phases: products of all inputs into scratch, then a loop over the steps for each
    direction. `bias` is (D, gates, H); `matrices` how many recurrent products a step takes."""
    site, target, v = layer.site, layer.site.target, layer.lanes
    tiling = choose(target, layer.rows, layer.columns, layer.inputs)
    flops = 2.0 * layer.rows * layer.columns * layer.inputs * len(layer.directions)
    first = target.time(flops, 4.0 * layer.columns * layer.inputs, tiling.efficiency)
    cells = grid(target, tiling, layer.inputs, first, len(layer.directions))
    per_direction = layer.rows * layer.columns
    step_bytes = 4.0 * layer.hidden * layer.columns
    later = (
        layer.steps
        * len(layer.directions)
        * target.time(2.0 * layer.batch * layer.hidden * layer.columns, step_bytes)
    )

    def products(em: Emit) -> None:
        b = em.b
        x = em.ins[0].pointer  # type: ignore[union-attr]
        with b.loop(em.begin, em.end) as tile:
            d, t = tile // cells.count, tile % cells.count
            weights = em.packed[0] + d * (layer.inputs * tiling.columns.padded)
            biases = em.packed[1] + d * layer.columns
            out = em.scratch.cast(F32) + d * per_direction
            rlo, rhi = part(t % cells.rows, cells.rows, tiling.rows.count)
            clo, chi = part(t // cells.rows, cells.columns, tiling.columns.count)

            def rows(row: Position, height: int) -> None:
                left = (x + row * layer.inputs).fixed()

                def panel(c: Position, column: Position, widths: tuple[int, ...], _: int) -> None:
                    right = (weights + c * (layer.inputs * tiling.columns.size)).fixed()
                    sums = product(
                        b,
                        Operands(left, layer.inputs, right, sum(widths), layer.inputs),
                        height,
                        widths,
                    )
                    place = (out + row * layer.columns + column).fixed()
                    added = (biases + column).fixed()
                    for i, line in enumerate(sums):
                        at = 0
                        for value in line:
                            lanes = value.ty.lanes
                            (place + (i * layer.columns + at)).store(
                                value + (added + at).load(lanes)
                            )
                            at += lanes

                each_column_panel(b, tiling.columns, clo, chi, panel)

            each_row_panel(b, tiling.rows, rlo, rhi, rows)

    def steps(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as d:
            _steps(em, layer, d, states, cell)

    has_state = [site.has(5 + k) for k in range(states)]
    reads: list[Layout | None] = [None] * len(site.inputs)
    reads[0] = PLAIN
    for k, given in enumerate(has_state):
        if given:
            reads[5 + k] = PLAIN
    every = range(len(layer.directions))

    def pack_w() -> np.ndarray:
        return np.concatenate(
            [pack_columns(layer.gated(layer.w, d), tiling.columns) for d in every]
        )

    def pack_r() -> np.ndarray:
        full = np.stack([layer.gated(layer.r, d) for d in every])
        size = layer.gates * v
        return np.ascontiguousarray(
            full.reshape(len(every), layer.hidden, layer.blocks, size).swapaxes(1, 2)
        )

    return Choice(
        cost=first + later + 1e-6,
        reads=tuple(reads),
        writes=(PLAIN,) * len(site.outputs),
        phases=(Phase(cells.count * len(every), products), Phase(len(every), steps)),
        packed=(
            Packed("w", pack_w),
            Packed("bias", lambda: layer.interleave(bias)),
            Packed("r", pack_r),
            Packed("rb", lambda: layer.interleave(layer.rb[:, -1:])),
        ),
        workspace=4 * layer.batch * layer.padded * (2 + states + matrices),
        scratch=4 * per_direction * len(every),
        detail=f"{tiling}, {layer.steps} steps",
    )


_CellCode = Callable[["_Step"], None]


@dataclass
class _Step:
    """One step of one direction while it is emitted."""

    em: Emit
    layer: Layer
    direction: Val
    p: Ptr  # input products of this step: [row][columns]
    r: Ptr  # packed recurrent weights
    rb: Ptr  # recurrent bias of the last gate, [block][V]
    h: Ptr  # h before the step, [row][padded]
    h_next: Ptr
    c: Ptr  # second state, or work of the same size
    y: Ptr  # output of this step: [row][H]

    def each_block(
        self,
        left: Ptr,
        gates: Sequence[int],
        body: Callable[[list[Val], list[Val], Position, Position, Val], None],
    ) -> None:
        """`body(products of the gates, input products of all gates, row, unit, block)`."""
        b, layer, v = self.em.b, self.layer, self.layer.lanes
        size = layer.gates * v
        with b.loop(0, layer.blocks) as block:
            panel = (self.r + block * (layer.hidden * size) + gates[0] * v).fixed()

            def rows(row: Position, height: int) -> None:
                at = Operands(
                    (left + row * layer.padded).fixed(), layer.padded, panel, size, layer.hidden
                )
                sums = product(b, at, height, (v,) * len(gates))
                for i in range(height):
                    here = b.index(row) + i
                    line = (self.p + here * layer.columns + block * size).fixed()
                    inputs = [(line + g * v).load(v) for g in range(layer.gates)]
                    body(sums[i], inputs, here, block * v, block)

            each_row_panel(
                b, split_rows(layer.batch, ROWS), 0, split_rows(layer.batch, ROWS).count, rows
            )

    def output(self, h: Val, row: Position, unit: Position) -> None:
        """Store h as the next state and as the step's output (only real units)."""
        layer, v = self.layer, self.layer.lanes
        (self.h_next + row * layer.padded + unit).store(h)
        place = self.y + row * layer.hidden + unit
        if layer.hidden % v == 0:
            place.store(h)
            return
        _store_some(self.em.b, place, h, self.em.b.index(layer.hidden) - self.em.b.index(unit))


def _store_some(b: Builder, place: Ptr, value: Val, count: Val) -> None:
    """Store the first `count` lanes (all, where there are more)."""
    lanes = value.ty.lanes
    full = count >= lanes

    def some() -> None:
        if b.target.has_masks:
            place.store(value, b.first_lanes(count, lanes))
            return
        for k in range(lanes - 1):
            with b.when(count > k):
                (place + k).store(value.lane(k))

    b.choose(full, lambda: place.store(value), some)


def _steps(em: Emit, layer: Layer, d: Val, states: int, cell: _CellCode) -> None:
    """All steps of direction d, then its last states."""
    b, v = em.b, layer.lanes
    size = layer.batch * layer.padded
    work = em.workspace.cast(F32)
    h, c, extra = [work, work + size], work + 2 * size, work + 3 * size
    state = layer.batch * layer.hidden
    for k, buffer in enumerate([h[0], c][:states]):
        _load_state(em, layer, d, 5 + k, buffer)
    _clear(b, h[1], size, v)
    out = em.outs[0].pointer
    scratch = em.scratch.cast(F32) + d * (layer.rows * layer.columns)
    with b.loop(0, layer.steps) as s:
        t: Val = s
        if any(layer.directions):
            mirrored = b.index(layer.steps - 1) - s
            t = mirrored if all(layer.directions) else d.eq(0).select(s, mirrored)
        odd = s % 2
        before, after = h[0] + odd * size, h[0] + (b.index(1) - odd) * size
        step = _Step(
            em=em, layer=layer, direction=d,
            p=(scratch + t * (layer.batch * layer.columns)).fixed(),
            r=em.packed[2] + d * (layer.hidden * layer.columns),
            rb=em.packed[3] + d * layer.padded,
            h=before, h_next=after, c=c if states > 1 else extra,
            y=out + t * (len(layer.directions) * state) + d * state,
        )  # fmt: skip
        cell(step)
    final = h[layer.steps % 2]
    for view, buffer in zip(em.outs[1:], [final, c], strict=False):
        with b.loop(0, layer.batch) as row:
            source, sink = (
                (buffer + row * layer.padded).fixed(),
                (view.pointer + d * state + row * layer.hidden).fixed(),
            )
            _copy(b, source, sink, layer.hidden, v)


def _copy(b: Builder, source: Ptr, sink: Ptr, count: int, lanes: int) -> None:
    def body(i: Position, width: int, mask: Val | None) -> None:
        (sink + i).store((source + i).load(width, mask), mask)

    b.vectors(count, lanes, body)


def _clear(b: Builder, at: Ptr, count: int, lanes: int) -> None:
    with b.loop(0, count, lanes) as i:
        (at + i).store(b.zero(F32.x(lanes)))


def _load_state(em: Emit, layer: Layer, d: Val, index: int, buffer: Ptr) -> None:
    """The initial state of direction d into padded rows, zeros where it is not given."""
    b, v = em.b, layer.lanes
    _clear(b, buffer, layer.batch * layer.padded, v)
    view = em.ins[index] if index < len(em.ins) else None
    if view is None:
        return
    source = view.pointer + d * (layer.batch * layer.hidden)
    with b.loop(0, layer.batch) as row:
        _copy(
            b,
            (source + row * layer.hidden).fixed(),
            (buffer + row * layer.padded).fixed(),
            layer.hidden,
            v,
        )


@kernel("LSTM", Tier.SHAPED, dtypes="float32")
def lstm_steps(site: Site) -> Choice:
    """All input products as one dot, then every step's four gates block by block."""
    if site.attr("input_forget"):
        raise Skip("input_forget is set")
    layer = _layer(site, 4, 2, ("sigmoid", "tanh", "tanh"))

    def cell(step: _Step) -> None:
        def block(
            sums: list[Val], inputs: list[Val], row: Position, unit: Position, _: Val
        ) -> None:
            i, o, f, g = (x + y for x, y in zip(sums, inputs, strict=True))
            place = (step.c + row * layer.padded + unit).fixed()
            c = sigmoid(f).fma(place.load(layer.lanes), sigmoid(i) * tanh(g))
            place.store(c)
            step.output(sigmoid(o) * tanh(c), row, unit)

        step.each_block(step.h, range(4), block)

    return _choice(layer, layer.wb + layer.rb, 2, 0, cell)


@kernel("GRU", Tier.SHAPED, dtypes="float32")
def gru_steps(site: Site) -> Choice:
    """All input products as one dot, then every step's three gates block by block."""
    layer = _layer(site, 3, 1, ("sigmoid", "tanh"))
    v, after = layer.lanes, bool(site.attr("linear_before_reset"))

    def blend(step: _Step, z: Val, n: Val, row: Position, unit: Position) -> None:
        old = (step.h + row * layer.padded + unit).load(v)
        step.output(z.fma(old - n, n), row, unit)

    def reset_after(step: _Step) -> None:
        def block(
            sums: list[Val], inputs: list[Val], row: Position, unit: Position, k: Val
        ) -> None:
            z, r = sigmoid(sums[0] + inputs[0]), sigmoid(sums[1] + inputs[1])
            inner = sums[2] + (step.rb + k * v).load(v)
            blend(step, z, tanh(r.fma(inner, inputs[2])), row, unit)

        step.each_block(step.h, range(3), block)

    def reset_before(step: _Step) -> None:
        kept = step.c + layer.batch * layer.padded  # z of every unit, until n is known

        def gates(
            sums: list[Val], inputs: list[Val], row: Position, unit: Position, _: Val
        ) -> None:
            z, r = sigmoid(sums[0] + inputs[0]), sigmoid(sums[1] + inputs[1])
            at = b_index(row, unit)
            (kept + at).store(z)
            (step.c + at).store(r * (step.h + at).load(v))

        def candidate(
            sums: list[Val], inputs: list[Val], row: Position, unit: Position, _: Val
        ) -> None:
            z = (kept + b_index(row, unit)).load(v)
            blend(step, z, tanh(sums[0] + inputs[2]), row, unit)

        def b_index(row: Position, unit: Position) -> Position:
            return row * layer.padded + unit

        step.each_block(step.h, (0, 1), gates)
        step.each_block(step.c, (2,), candidate)

    bias = layer.wb + layer.rb
    if after:
        bias = np.concatenate([bias[:, :2], layer.wb[:, 2:]], axis=1)
    return _choice(layer, bias, 1, 2, reset_after if after else reset_before)


@kernel("RNN", Tier.SHAPED, dtypes="float32")
def rnn_steps(site: Site) -> Choice:
    """All input products as one dot, then every step block by block."""
    layer = _layer(site, 1, 1, ("tanh",))

    def cell(step: _Step) -> None:
        def block(
            sums: list[Val], inputs: list[Val], row: Position, unit: Position, _: Val
        ) -> None:
            step.output(tanh(sums[0] + inputs[0]), row, unit)

        step.each_block(step.h, (0,), block)

    return _choice(layer, layer.wb + layer.rb, 1, 0, cell)
