"""A recurrent layer as phases: first the products of all inputs, then the time steps."""

from __future__ import annotations

from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, grid
from tinsmith.kernels.dot.skeleton import Operands, product
from tinsmith.kernels.dot.tiles import Tiling, choose
from tinsmith.kernels.recurrent.layer import Layer
from tinsmith.kernels.recurrent.left import left_bytes, left_rows, quantisation_of, real
from tinsmith.kernels.recurrent.steps import Cell, States
from tinsmith.kernels.recurrent.weights import PACKING, floats, packed, packing, with_weights_at
from tinsmith.kernels.walk import Position, offsets, share
from tinsmith.sizes import typical


def layer_choice(layer: Layer, cell: Cell, divisible: bool = True) -> Choice:
    """The choice for a layer whose time steps `cell` emits. `divisible`: threads may share a step's
    units, as none needs another's result of this step. They do where each direction has at least
    two blocks of units for each of its threads."""
    site, target = layer.site, layer.site.target
    ways = len(layer.directions)
    inputs, recurrent = layer.matrices
    most = inputs.row.vectors(target)
    tiling = choose(target, layer.rows, layer.columns, inputs.depth, most_vectors=most)
    flops = 2.0 * typical(layer.rows * layer.columns * layer.inputs * ways) / inputs.row.rate
    nbytes = inputs.stored.nbytes * inputs.depth * float(layer.columns)
    first = target.time(flops, nbytes, tiling.efficiency)
    step_flops = 2.0 * typical(layer.batch * layer.hidden * layer.columns) / recurrent.row.rate
    nbytes = recurrent.stored.nbytes * recurrent.depth * float(layer.columns)
    step = target.time(step_flops, nbytes)
    shares = -(-site.threads // ways)
    if divisible and shares > 1 and layer.blocks >= 2 * shares:
        later = _shared_steps(layer, cell, shares)
    else:
        later = (_whole_steps(layer, cell),)
    work = ways * (layer.rows * layer.columns + layer.buffers * layer.batch * layer.padded)
    phases, columns = (_input_products(layer, tiling, first), *later), tiling.columns
    cost = first + typical(layer.steps * ways) * step + 1e-6
    weights = 0
    if layer.computed:
        phases = tuple(
            with_weights_at(phase, layer, columns, work)
            for phase in (packing(layer, columns), *phases)
        )
        weights = ways * sum(floats(layer, columns))
        cost += PACKING * weights
    unread = [] if layer.computed else layer.weights
    reads = (None if v is None or i in unread else PLAIN for i, v in enumerate(site.inputs))
    noted = ", weights packed" if layer.computed else ""
    return Choice(
        cost=cost, reads=tuple(reads), writes=(PLAIN,) * len(site.outputs), phases=phases,
        packed=() if layer.computed else packed(layer, columns),
        workspace=left_bytes(layer, tiling.rows.size), scratch=4 * (work + weights),
        detail=f"{_kinds(layer)}{tiling}, {layer.steps} steps{noted}",
    )  # fmt: skip


def _kinds(layer: Layer) -> str:
    """How the choice's detail begins, such as "int8, vpdpbusd, ": with the element types of both
    weights if any has scales, and the row of the table of products if operands are rounded."""
    if all(m.scale is None for m in layer.matrices):
        return f"{layer.matrices[1].row.name}, " if layer.matrices[1].halves else ""
    kinds = "/".join(dict.fromkeys(layer.site.input(i).dtype.name for i in (1, 2)))
    return f"{kinds}{f', {layer.matrices[1].row.name}' if layer.rounded else ''}, "


def _whole_steps(layer: Layer, cell: Cell) -> Phase:
    """The phase of all time steps, if threads share none. A tile is a direction."""

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as d:
            state = States(em, layer, d)
            state.begin()
            with em.b.loop(0, layer.steps) as s:
                state.step(s, 0, layer.blocks, cell)
            state.finish()

    return Phase(len(layer.directions), emit)


def _shared_steps(layer: Layer, cell: Cell, shares: int) -> tuple[Phase, ...]:
    """The phases of all time steps, if threads share the hidden units of each step in `shares`
    parts: one that loads the initial states, one that is repeated for each step, one that stores
    the last states. Each thread's part of the recurrent weights stays in its L2."""
    ways = len(layer.directions)

    def begin(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as d:
            States(em, layer, d).begin()

    def step(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as tile:
            d, group = tile // shares, tile % shares
            lo, hi = share(group, shares, layer.blocks)
            States(em, layer, d).step(em.b.index(em.step), lo, hi, cell)

    def finish(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as d:
            States(em, layer, d).finish()

    return (Phase(ways, begin), Phase(ways * shares, step, repeat=layer.steps), Phase(ways, finish))


def _input_products(layer: Layer, tiling: Tiling, seconds: float) -> Phase:
    """The phase that computes x w^T + bias for all steps, in `seconds` on a core, into scratch, as
    [direction][row of x][column]. x is one matrix: a row for each step and row of the batch."""
    matrix, columns = layer.matrices[0], tiling.columns
    cells = grid(layer.site.target, tiling, matrix.depth, seconds, len(layer.directions))
    depth = matrix.depth

    def emit(em: Emit) -> None:
        b = em.b
        x = em.input(0).pointer
        quant = quantisation_of(em, layer, x, layer.rows, layer.inputs, layer.inputs)
        with b.loop(em.begin, em.end) as tile:
            d, t = tile // cells.count, tile % cells.count
            weights = em.packed[0].cast(matrix.stored) + d * (depth * columns.padded)
            biases = em.packed[1] + d * layer.columns
            out = em.scratch.cast(F32) + d * (layer.rows * layer.columns)
            rlo, rhi = share(t % cells.rows, cells.rows, tiling.rows.count)
            clo, chi = share(t // cells.rows, cells.columns, columns.count)

            def rows(row: Position, height: int) -> None:
                given = left_rows(
                    em, layer, 0, (x + row * layer.inputs).fixed(), height, layer.inputs, quant
                )

                def panel(c: Position, column: Position, widths: tuple[int, ...], _: int) -> None:
                    right = (weights + c * (depth * columns.size)).fixed()
                    at_k0 = Operands(
                        given.at, given.stride, right, sum(widths), depth, row=matrix.row
                    )
                    sums = product(b, at_k0, height, widths)
                    sums = real(em, layer, 0, sums, given, lambda: d * layer.columns + column)
                    place = (out + row * layer.columns + column).fixed()
                    added = (biases + column).fixed()
                    for i, line in enumerate(sums):
                        for at, value in offsets(line):
                            biased = value + (added + at).load(value.ty.lanes)
                            (place + (i * layer.columns + at)).store(biased)

                each_column_panel(b, columns, clo, chi, panel)

            each_row_panel(b, tiling.rows, rlo, rhi, rows)

    return Phase(cells.count * len(layer.directions), emit)
