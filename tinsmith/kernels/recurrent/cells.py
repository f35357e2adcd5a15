"""The cells of LSTM, GRU and RNN: from the products of a time step's gates to the next state."""

from __future__ import annotations

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import Choice, Site, Tier, kernel
from tinsmith.kernels.recurrent.layer import layer_of
from tinsmith.kernels.recurrent.products import layer_choice
from tinsmith.kernels.recurrent.steps import TimeStep, Vals
from tinsmith.kernels.walk import Position


@kernel("LSTM", Tier.SHAPED, dtypes="float32")
def lstm_steps(site: Site) -> Choice:
    """An LSTM: one product for the inputs of all steps, then each step's four gates by blocks."""
    layer = layer_of(site, 4, 2, ("sigmoid", "tanh", "tanh"))
    gate, candidate, result = layer.functions
    v, coupled = layer.lanes, bool(site.attr("input_forget"))

    def cell(step: TimeStep) -> None:
        def block(sums: Vals, inputs: Vals, row: Position, unit: Position, k: Val) -> None:
            i, o, f, g = (x + y for x, y in zip(sums, inputs, strict=True))
            place = (step.c + row * layer.padded + unit).fixed()
            old = place.load(v)

            def peep(x: Val, number: int, c: Val) -> Val:
                """`x` plus peephole weights `number` (of i, o, f) times the cell state c."""
                if step.peepholes is None:
                    return x
                return (step.peepholes + k * (3 * v) + number * v).load(v).fma(c, x)

            i = gate(peep(i, 0, old))
            f = 1.0 - i if coupled else gate(peep(f, 2, old))
            c = f.fma(old, i * candidate(g))
            place.store(step.kept(c, place, row))
            step.output(gate(peep(o, 1, c)) * result(c), row, unit)

        step.each_block(step.h, range(4), block)

    return layer_choice(layer, cell)


@kernel("GRU", Tier.SHAPED, dtypes="float32")
def gru_steps(site: Site) -> Choice:
    """A GRU: one product for the inputs of all steps, then each step's three gates by blocks."""
    after = bool(site.attr("linear_before_reset"))
    layer = layer_of(site, 3, 1, ("sigmoid", "tanh"), apart=after)
    gate, last = layer.functions
    v = layer.lanes

    def blend(step: TimeStep, z: Val, n: Val, row: Position, unit: Position) -> None:
        """Emit the next state, z h + (1 - z) n, and the output."""
        old = (step.h + row * layer.padded + unit).load(v)
        step.output(z.fma(old - n, n), row, unit)

    def reset_after(step: TimeStep) -> None:
        def block(sums: Vals, inputs: Vals, row: Position, unit: Position, k: Val) -> None:
            z, r = gate(sums[0] + inputs[0]), gate(sums[1] + inputs[1])
            inner = sums[2] + (step.rb + k * v).load(v)
            blend(step, z, last(r.fma(inner, inputs[2])), row, unit)

        step.each_block(step.h, range(3), block)

    def reset_before(step: TimeStep) -> None:
        kept = step.c + layer.batch * layer.padded  # z of every unit, until n is computed

        def gates(sums: Vals, inputs: Vals, row: Position, unit: Position, _: Val) -> None:
            z, r = gate(sums[0] + inputs[0]), gate(sums[1] + inputs[1])
            at = row * layer.padded + unit
            (kept + at).store(z)
            (step.c + at).store(r * (step.h + at).load(v))

        def candidate(sums: Vals, inputs: Vals, row: Position, unit: Position, _: Val) -> None:
            z = (kept + (row * layer.padded + unit)).load(v)
            blend(step, z, last(sums[0] + inputs[2]), row, unit)

        step.each_block(step.h, (0, 1), gates)
        step.each_block(step.c, (2,), candidate)

    return layer_choice(layer, reset_after if after else reset_before, divisible=after)


@kernel("RNN", Tier.SHAPED, dtypes="float32")
def rnn_steps(site: Site) -> Choice:
    """An RNN: one product for the inputs of all steps, then each step by blocks of units."""
    layer = layer_of(site, 1, 1, ("tanh",))
    (function,) = layer.functions

    def cell(step: TimeStep) -> None:
        def block(sums: Vals, inputs: Vals, row: Position, unit: Position, _: Val) -> None:
            step.output(function(sums[0] + inputs[0]), row, unit)

        step.each_block(step.h, (0,), block)

    return layer_choice(layer, cell)
