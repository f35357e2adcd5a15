"""Grouped convolution with interleaved groups, for groups that are narrower than a vector.

As many groups as fill vectors are a set. A set's input is copied to the workspace with the channels
of its groups interleaved: channel 0 of each group, channel 1 of each, ... One load gives channel c
of all groups, which is repeated over a vector with lanes (output, group). So no lane is wasted, and
no group's input meets another's weights. When sums are done, results change to the usual order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Skip, View, one_phase, packed_table
from tinsmith.kernels.layout import Layout, Spec, block_of, spec_of
from tinsmith.kernels.move.channels import Mix, mix_of
from tinsmith.kernels.transpose import blend
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.contract import Contraction, bias_at, initial
from tinsmith.kernels.window.convolve import convolve
from tinsmith.kernels.window.direct import EFFICIENCY
from tinsmith.kernels.window.geometry import Geometry, Widths, image_of, steps
from tinsmith.kernels.window.site import ConvSite
from tinsmith.kernels.window.tiles import (
    MOST_VECTORS,
    UNROLL,
    Panels,
    Pieces,
    Sink,
    bands,
    digits,
    sizes_of,
    tiling,
)
from tinsmith.kernels.window.ways import Sums, over_blocks
from tinsmith.kernels.window.weights import ChannelBlocks, pack_bias, pack_groups
from tinsmith.records import dataclass

Lanes = tuple[int, ...]


@dataclass(frozen=True)
class Interleaved:
    """How groups are interleaved.

    sides  groups of a set, so many that their inputs and outputs fill blocks of `width` channels
    cut    panels of the outputs of a set; with more than two sides one panel holds all of them
    """

    widths: Widths
    width: int
    sides: int
    cut: Panels

    @property
    def sets(self) -> int:
        return -(-self.widths.groups // self.sides)

    @property
    def ragged(self) -> bool:
        """Whether the last set lacks groups."""
        return self.widths.groups % self.sides != 0

    @property
    def in_blocks(self) -> int:
        return self.widths.inputs * self.sides // self.width

    @property
    def out_blocks(self) -> int:
        return self.widths.outputs * self.sides // self.width

    @property
    def channels(self) -> ChannelBlocks:
        """How loops go through the channels of a group in the interleaved input of a set."""
        each = self.width // self.sides
        step = 2 if self.out_blocks == 1 else UNROLL  # more lets LLVM's scheduler spill
        return ChannelBlocks(self.in_blocks, each, each, min(step, each))

    def output(self, lane: int) -> int:
        """The output channel, counted within a set, that a lane of its panels computes: in lane
        k * sides + s, the k-th of side s. Channels of a side are in order; but the second of two
        sides starts with its first channel at which a block begins, and wraps around: so two
        vectors hold a whole block of each side."""
        side, k = lane % self.sides, lane // self.sides
        outputs = self.widths.outputs
        turn = outputs % self.width if self.sides == 2 else 0
        return side * outputs + (k + side * turn) % outputs

    def taken(self) -> list[Mix]:
        """How the input of a set is interleaved: for each vector of the result, the blocks and
        lanes of the set's input from which its lanes come."""
        inputs, width = self.widths.inputs, self.width
        places = [k % self.sides * inputs + k // self.sides for k in range(inputs * self.sides)]
        return [
            mix_of([(0, p) for p in places[k : k + width]], width)
            for k in range(0, len(places), width)
        ]

    def given(self, first: int, count: int) -> dict[int, Mix]:
        """How results go back from (output, side) lanes to blocks of channels.

        The results are the `count` vectors of a set from number `first` on; they must hold whole
        blocks, else KeyError. Returns, for each output block that they hold (its number within the
        set), the vectors, counted from `first`, and lanes from which its lanes come."""
        width = self.width
        place = {self.output(first * width + k): k for k in range(count * width)}
        found = {}
        for block in sorted({channel // width for channel in place}):
            found[block] = mix_of([(0, place[block * width + k]) for k in range(width)], width)
        return found

    def rows(self) -> np.ndarray:
        """The output channel that each lane of all sets computes; some may not exist."""
        lanes = self.out_blocks * self.width
        order = np.array([self.output(lane) for lane in range(lanes)])
        return (np.arange(self.sets)[:, None] * lanes + order).reshape(-1)


def plan_interleaved(target: Target, geo: Geometry, widths: Widths) -> Interleaved:
    """The sets of the fewest groups (1, 2, 4, ...) that fill whole blocks, and their panels. Raises
    Skip if a set of more than two groups has too many outputs for one panel."""
    width, sides = block_of(target), 1
    while widths.inputs * sides % width or widths.outputs * sides % width:
        sides *= 2
    vectors = widths.outputs * sides // width
    # Of 16 registers, one vector more leaves a tile one pixel, or none.
    most = MOST_VECTORS if target.registers >= 32 else 5
    if vectors <= most:
        count, main, rest = 0, 0, vectors
    elif sides == 2:
        main = 4 if target.registers >= 32 else 2
        count = (vectors - 2) // main
        rest = vectors - count * main
    else:
        raise Skip(f"{sides} groups side by side have {vectors} vectors of outputs")
    lanes = (width,) * main, (width,) * rest
    depth = widths.inputs * geo.taps
    costs = [tiling(target, *geo.out[1:], of, depth).cost if of else 0.0 for of in lanes]
    return Interleaved(widths, width, sides, Panels(count, *lanes, count * costs[0] + costs[1]))


def interleaved(conv: ConvSite) -> Choice:
    """The `Choice` for interleaved groups. Raises Skip as `plan_interleaved` does."""
    geo, widths, target = conv.geo, conv.widths, conv.target
    plan = plan_interleaved(target, geo, widths)
    cut, width, depth = plan.cut, plan.width, widths.inputs * geo.taps
    planes = plan.sets * geo.batch * geo.out[0]
    flops = 2.0 * width * cut.cost * planes * depth
    cuts = [tiling(target, *geo.out[1:], of, depth) for of in (cut.main, cut.tail) if of]
    downs = [((1, geo.out[1]),) if each.wrap else each.rows for each in cuts]
    count = bands(planes, min(sum(n for n, _ in down) for down in downs), flops=flops)
    edges = _edges(downs, count)
    lines = geo.span(1, int(max(edges[:, 1] - edges[:, 0])))
    size = (geo.kernel[0], lines, geo.span(2, geo.out[2]))[3 - geo.rank :]
    room = spec_of(np.float32, (1, plan.in_blocks * width, *size), Layout(width))
    workspace = room.nbytes if widths.inputs > 1 else 0
    return conv.choice(
        conv.time(flops, EFFICIENCY) + target.time(float(planes * count * workspace), 0),
        one_phase(planes * count, lambda em: _emit_interleaved(em, geo, plan, room, count)),
        [
            Packed("weights", _pack, (conv.weights, plan)),
            packed_table("edges", edges),
            *conv.packed_bias(_pack_bias, plan),
        ],
        workspace=workspace,
        by_channels=geo.batch == 1,
        detail=f"{plan.sides} groups side by side",
    )


def _pack(w: np.ndarray, plan: Interleaved) -> np.ndarray:
    return pack_groups(_taken(w, plan), plan.cut, plan.channels, plan.sets)


def _pack_bias(bias: np.ndarray, plan: Interleaved) -> np.ndarray:
    return pack_bias(_taken(bias, plan), plan.cut, plan.sets)


def _taken(values: np.ndarray, plan: Interleaved) -> np.ndarray:
    """Weights or a bias, `values[output channel]`, in the order of the lanes of all sets, with
    zeros for lanes beyond the last channel."""
    rows = plan.rows()
    wide = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    wide[rows < len(values)] = values[rows[rows < len(values)]]
    return wide


def _edges(downs: Sequence[Pieces], count: int) -> np.ndarray:
    """For each of `count` bands: (its first row of outputs, the row after its last one), int64.
    Panels may cut rows into tiles in several ways (`downs`); a band has every row that one of these
    gives it."""
    starts = [np.cumsum([0, *sizes_of(down)]) for down in downs]
    units = [(len(start) - 1) * np.arange(count + 1) // count for start in starts]
    found = np.array([start[unit] for start, unit in zip(starts, units, strict=True)])
    return np.stack([found[:, :-1].min(0), found[:, 1:].max(0)], 1)


def _emit_interleaved(em: Emit, geo: Geometry, plan: Interleaved, room: Spec, count: int) -> None:
    """Emit the kernel; its tiles are (set, batch, plane, band), the band innermost of `count`. All
    panels read the input rows that are copied once for the band, to `room` in the workspace. Groups
    of a single input are not copied: they lie interleaved."""
    b, cut, width, source = em.b, plan.cut, plan.width, em.input(0)
    image = image_of(source, geo)
    copied = plan.widths.inputs > 1
    space = View(em.workspace.cast(F32), room) if copied else source
    inner, flat = replace(em, ins=(space, *em.ins[1:])), replace(geo, out=(1, *geo.out[1:]))
    lanes, depth = plan.out_blocks * width, plan.widths.inputs * geo.taps
    with b.loop(em.begin, em.end) as t:
        band, d, n, group = digits(t, count, geo.out[0], geo.batch)
        corner = image.corner(n) + d * image.stride[0]
        if copied:
            first, end = ((em.packed[1] + (band * 2 + i)).load() for i in range(2))
            line = corner + first * image.stride[1]
            _copy(geo, plan, source.spec, line, b.index(group) * plan.in_blocks, space, end - first)
            _, _, across = steps(room)
            x = space.pointer + first * (-geo.stride[1] * across[1])
            flat = replace(flat, dilation=(1, *geo.dilation[1:]))
        else:
            x = corner + group * image.plane

        def panel(p: Val | int, start: int, of: Lanes) -> None:
            channel = group * lanes + (p * (len(of) * width) + start * width)
            w = em.packed[0] + channel * depth
            start_with = partial(initial, b, bias_at(em, channel), of)
            given = plan.given(start, len(of))
            block = group * plan.out_blocks + p * (len(of) // plan.sides)
            whole = Sink(em, geo).at(n, block, d)
            sink = Blocks(tuple(whole.at(0, k) for k in given), plan.ragged)
            add = over_blocks(
                inner, flat, Contraction(of, plan.channels, (), plan.sides, plan.sides)
            )

            def reduce(*args: Any) -> list[Val]:
                done, size = add(*args), len(of)
                pixels = [done[k : k + size] for k in range(0, len(done), size)]
                return [_blended(pixel, mix) for pixel in pixels for mix in given.values()]

            convolve(inner, flat, (band, count), Sums(of, w, start_with, reduce, depth), x, sink)

        run(b, 0, cut.count, lambda p: panel(p, 0, cut.main))
        if cut.tail:
            panel(0, cut.count * len(cut.main), cut.tail)


def _copy(
    geo: Geometry, plan: Interleaved, spec: Spec, corner: Ptr, first: Val, space: View, rows: Val,
) -> None:  # fmt: skip
    """Emit the copy of the input rows that `rows` rows of outputs read to `space`, interleaved.
    `spec`: how the input lies; `corner`: the address of the first element to copy, in channel block
    0; `first`: the set's first block. Blocks beyond the input's last are zeros."""
    b, width = corner.b, plan.width
    _, plane, (deep, row, _) = steps(spec)
    _, gap, (layer, line, _) = steps(space.spec)
    blocks = [first + k for k in range(plan.in_blocks)]
    starts = [(corner + b.minimum(k, spec.blocks - 1) * plane).fixed() for k in blocks]
    real = [k < spec.blocks for k in blocks]

    def pixel(k: Val | int, i: Val, j: Val) -> None:
        at = k * (geo.dilation[0] * deep) + i * row + j * width
        loaded = [(x + at).load(width) for x in starts]
        if plan.ragged:
            zero = b.zero(F32.x(width))
            loaded = [yes.select(value, zero) for yes, value in zip(real, loaded, strict=True)]
        to = (space.pointer + (k * layer + i * line + j * width)).fixed()
        for q, mix in enumerate(plan.taken()):
            (to + q * gap).store(_blended(loaded, mix))

    def layers(k: Val | int) -> None:
        with b.loop(0, geo.span(1, rows)) as i, b.loop(0, geo.span(2, geo.out[2])) as j:
            pixel(k, i, j)

    run(b, 0, geo.kernel[0], layers)


def _blended(vectors: Sequence[Val], mix: Mix) -> Val:
    """The vector whose lanes come from the lanes of `vectors` that `mix` names."""
    return blend([vectors[k] for _, k, _ in mix], [picked for _, _, picked in mix])


@dataclass(frozen=True)
class Blocks:
    """A `Place` for output blocks that need not be neighbours: parts[o] stores block o of a tile.
    With `ragged`, blocks beyond the output's last are left out."""

    parts: tuple[Sink, ...]
    ragged: bool

    def at(self, *index: Val | int) -> Blocks:
        return Blocks(tuple(part.at(*index) for part in self.parts), self.ragged)

    def put(self, value: Val, *index: Val | int) -> None:
        n, o, *place = index
        assert isinstance(o, int)
        part = self.parts[o]
        if not self.ragged:
            part.put(value, n, 0, *place)
            return
        b = part.em.b
        with b.when(b.index(part.block) < part.em.outs[0].spec.blocks):
            part.put(value, n, 0, *place)
