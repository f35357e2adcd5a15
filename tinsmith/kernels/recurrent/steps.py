"""The time steps of a recurrent layer: its states, and the products of one step, by blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.dot.panels import each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, product
from tinsmith.kernels.dot.tiles import split_rows
from tinsmith.kernels.recurrent.layer import Layer
from tinsmith.kernels.recurrent.left import left_rows, quantisation_of, real
from tinsmith.kernels.walk import Position, copy
from tinsmith.records import dataclass
from tinsmith.sizes import Size

ROWS = 4  # the most rows of the batch in a register tile; estimated


Vals = list[Val]
UnitBody = Callable[[Vals, Vals, Position, Position, Val], None]
"""body(sums, inputs, row, unit, block): `sums` are the products of a row of the batch and some
gates' recurrent weights, `inputs` those of the step's inputs for all gates, both a vector of V
hidden units for each gate. `unit` is the first unit of the block of this number."""


@dataclass
class TimeStep:
    """One time step of one direction, for the blocks [first, last) of hidden units, while its code
    is emitted. All pointers are to data of the direction; states are [row][padded]."""

    em: Emit
    layer: Layer
    p: Ptr  # the products of this step's inputs, [row][column]
    r: Ptr  # packed recurrent weights
    rb: Ptr  # recurrent bias of the last gate, [block][V]
    way: Val | int  # the number of the direction
    h: Ptr  # state h before the step
    h_next: Ptr  # state h after the step
    c: Ptr  # state c (LSTM), or a buffer of the same size
    y: Ptr  # output of this step
    first: Position
    last: Position
    odd: Val  # the step's number in the order of computation, modulo 2
    t: Val  # the index in time
    peepholes: Ptr | None  # [block][i, o, f][V]

    def each_block(self, left: Ptr, gates: Sequence[int], body: UnitBody) -> None:
        """Emit `body` (see `UnitBody`) for each block and each row of the batch. Its sums are
        products of the float32 rows [row][padded] at `left` and the recurrent weights of `gates`:
        numbers of neighbouring gates."""
        b, layer, v = self.em.b, self.layer, self.layer.lanes
        size, matrix = layer.gates * v, layer.matrices[1]
        quant = quantisation_of(self.em, layer, left, layer.batch, layer.hidden, layer.padded)
        given = left_rows(self.em, layer, 1, left, layer.batch, layer.padded, quant)
        with b.loop(self.first, self.last) as i:
            # Back and forth: what the step before read last is still in the cache.
            block = self.odd.ne(0).select(b.index(self.last) - 1 - (i - b.index(self.first)), i)
            panel = (self.r + block * (matrix.depth * size) + gates[0] * v).fixed()

            def columns(block: Val = block) -> Position:
                return self.way * layer.columns + block * size + gates[0] * v

            def rows(row: Position, height: int) -> None:
                at = Operands(
                    (given.at + row * given.stride).fixed(), given.stride, panel, size,
                    matrix.depth, row=matrix.row,
                )  # fmt: skip
                sums = product(b, at, height, (v,) * len(gates))
                sums = real(self.em, layer, 1, sums, given, columns)
                for k in range(height):
                    here = b.index(row) + k
                    line = (self.p + here * layer.product_strides[1] + block * size).fixed()
                    inputs = [(line + g * v).load(v) for g in range(layer.gates)]
                    body(sums[k], inputs, here, block * v, block)

            panels = split_rows(layer.batch, ROWS)
            each_row_panel(b, panels, 0, panels.count, rows)

    def output(self, h: Val, row: Position, unit: Position) -> None:
        """Emit stores of h, V units from `unit` on, as the next state and the step's output, which
        has no padding. If the row's sequence has ended, the state stays and the output is 0."""
        layer, v = self.layer, self.layer.lanes
        place = row * layer.padded + unit
        (self.h_next + place).store(self.kept(h, (self.h + place).fixed(), row))
        if layer.lens:
            h = self._alive(row).select(h, 0.0)
        place = self.y + row * layer.output_strides[2] + unit
        if layer.hidden % v == 0:
            place.store(h)
            return
        place.store(h, count=self.em.b.index(layer.hidden) - self.em.b.index(unit))

    def kept(self, new: Val, old: Ptr, row: Position) -> Val:
        """V units of a row's state after the step: `new`; or, if its sequence has ended, those at
        `old`, where the state lies that is to stay."""
        if not self.layer.lens:
            return new
        return self._alive(row).select(new, old.load(self.layer.lanes))

    def _alive(self, row: Position) -> Val:
        """Whether the row's sequence has not ended."""
        return self.t < length(self.em, row)


Cell = Callable[[TimeStep], None]
"""Emits a time step: the cell of an LSTM, GRU or RNN."""


class States:
    """The states of direction d, in scratch behind the input products, each [row][padded]: two
    buffers of h, of which a step reads one and writes the other, in turn; and `c`: an LSTM's c, or
    a GRU's r * h, with z behind (`Layer.buffers`)."""

    def __init__(self, em: Emit, layer: Layer, d: Val | int) -> None:
        self.em, self.layer, self.d = em, layer, d
        size = layer.batch * layer.padded
        start = em.scratch.cast(F32) + len(layer.directions) * layer.rows * layer.columns
        base = start + d * (layer.buffers * size)
        self.size = size
        self.h = (base, base + size)
        self.c = base + 2 * size

    def begin(self) -> None:
        """Emit code that loads the initial states into the buffers that step 0 reads: zeros if they
        are not given, for sequences without steps, and in padding."""
        em, layer, b, v = self.em, self.layer, self.em.b, self.layer.lanes
        way, line = layer.state_strides
        for k, buffer in enumerate([self.h[0], self.c][: layer.states], start=5):
            clear(b, buffer, self.size, v)
            view = em.ins[k] if k < len(em.ins) else None
            if view is None:
                continue
            with b.loop(0, layer.batch) as row:
                source = (view.pointer + self.d * way + row * line).fixed()
                with b.when(length(em, row) > 0) if layer.lens else nullcontext():
                    copy(b, source, (buffer + row * layer.padded).fixed(), layer.hidden, v)
        clear(b, self.h[1], self.size, v)

    def step(self, s: Val, first: Position, last: Position, cell: Cell) -> None:
        """Emit step s, by `cell`, for the blocks [first, last) of units. Steps are counted in the
        order of computation: in a reverse direction step 0 is the last index of time."""
        em, layer, d = self.em, self.layer, self.d
        b = em.b
        t: Val = s
        if any(layer.directions):
            mirrored = b.index(layer.steps - 1) - s
            both = b.index(d).eq(0).select(s, mirrored)
            t = mirrored if all(layer.directions) else both
        odd = s % 2
        scratch = em.scratch.cast(F32) + d * (layer.rows * layer.columns)
        out_step, out_way, _ = layer.output_strides
        recurrent, peepholes = layer.matrices[1], None
        if layer.peepholes is not None:
            peepholes = em.packed[4] + d * (3 * layer.padded)
        cell(TimeStep(
            em=em, layer=layer, p=(scratch + t * layer.product_strides[0]).fixed(),
            r=em.packed[2].cast(recurrent.stored) + d * (recurrent.depth * layer.columns),
            rb=em.packed[3] + d * layer.padded, way=d,
            h=self.h[0] + odd * self.size, h_next=self.h[0] + (b.index(1) - odd) * self.size,
            c=self.c, y=em.outs[0].pointer + t * out_step + d * out_way,
            first=first, last=last, odd=odd, t=t, peepholes=peepholes,
        ))  # fmt: skip

    def finish(self) -> None:
        """Emit code that stores the last states to the outputs."""
        em, layer, b = self.em, self.layer, self.em.b
        last = layer.steps % 2
        final = self.h[0] + last * self.size if isinstance(last, Size) else self.h[last]
        way, line = layer.state_strides
        for view, buffer in zip(em.outs[1:], [final, self.c], strict=False):
            with b.loop(0, layer.batch) as row:
                source = (buffer + row * layer.padded).fixed()
                sink = (view.pointer + self.d * way + row * line).fixed()
                copy(b, source, sink, layer.hidden, layer.lanes)


def length(em: Emit, row: Position) -> Val:
    """Emit the load of sequence_lens[row], the number of steps of a row's sequence, as an i64."""
    return (em.input(4).pointer + row).load().to("i64")


def clear(b: Builder, at: Ptr, count: int, lanes: int) -> None:
    """Emit stores of `count` float32 zeros from `at` on; `count` is a multiple of `lanes`."""
    with b.loop(0, count, lanes) as i:
        (at + i).store(b.zero(F32.x(lanes)))
