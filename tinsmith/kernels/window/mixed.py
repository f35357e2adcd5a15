"""Grouped convolution with groups of any width, where several groups share a block of channels.

A vector of outputs adds up the products of every group that has a lane in it, with zero weights in
the lanes of other groups. Masks keep infinite inputs, which would give NaN, out of those lanes.
"""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import Choice, Emit, Packed, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.contract import Contraction, Fetch, nest, products
from tinsmith.kernels.window.convolve import convolve
from tinsmith.kernels.window.direct import EFFICIENCY
from tinsmith.kernels.window.geometry import Geometry, Widths, image_of
from tinsmith.kernels.window.panels import Panel, PanelPlace, Tiles, each_panel
from tinsmith.kernels.window.site import ConvSite
from tinsmith.kernels.window.tiles import Panels, Sink, bands, tiling
from tinsmith.kernels.window.ways import Reduction, Way, tap_levels
from tinsmith.kernels.window.weights import ChannelBlocks, pack_bias
from tinsmith.records import dataclass

MASKED = 0.55  # of the peak, where a mask takes as long as its product (estimated)


@dataclass(frozen=True)
class Mixed(Way):
    """The way of groups that share vectors: a panel adds up the products of every group that has a
    lane in it. The kernel's second packed array is `group_ids`.

    widths  input and output channels of a group
    step    input channels of one loop body
    most    the most groups that a panel touches: every panel's packed weights have room for so many
    """

    widths: Widths
    step: int
    most: int

    def touched(self, first: int, count: int) -> tuple[int, int]:
        """The groups [low, high) to which the outputs [first, first + count) belong."""
        last = min(first + count, self.widths.groups * self.widths.outputs) - 1
        return first // self.widths.outputs, last // self.widths.outputs + 1

    def alone(self, lanes: tuple[int, ...]) -> bool:
        """Whether every panel of these lanes lies within one group, so that nothing is masked."""
        return self.widths.outputs % sum(lanes) == 0

    @property
    def starts(self) -> list[tuple[int, int]]:
        """(first output, number of outputs) of every panel."""
        whole, tail = sum(self.panels.main), sum(self.panels.tail)
        found = [(i * whole, whole) for i in range(self.panels.count)]
        return found + ([(self.panels.count * whole, tail)] if tail else [])

    def pack(self, w: np.ndarray) -> np.ndarray:
        return pack_mixed(w, self)

    def reduction(self, em: Emit, geo: Geometry, panel: Panel) -> Reduction:
        return over_groups(em, geo, self, panel, em.packed[1])


@cached(512)
def plan_mixed(target: Target, widths: Widths, rows: int, cols: int, taps: int) -> Mixed:
    """The cheapest panels for groups of `widths`, planes of `rows` by `cols` outputs and kernels of
    `taps` taps. `Panels.cost` is that of one tap for a plane and all input channels, in vector
    multiply-adds."""
    width = block_of(target)
    blocks = -(-widths.groups * widths.outputs // width)
    step = next(s for s in (4, 2, 1) if widths.inputs % s == 0)
    best, least = None, 0.0
    for vectors in range(1, min(4, blocks) + 1):
        count, rest = divmod(blocks, vectors)
        panels = Panels(count, (width,) * vectors, (width,) * rest, 0.0)
        plan = Mixed(panels, 1, 0, 0, widths, step, 0)
        cost, most = 0.0, 0
        for start, outputs in plan.starts:
            low, high = plan.touched(start, outputs)
            depth = (high - low) * widths.inputs
            lanes = (width,) * (outputs // width)
            cost += tiling(target, rows, cols, lanes, depth * taps).cost * depth
            most = max(most, high - low)
        score = cost * (1 + 0.01 * bool(rest))
        if best is None or score < least:
            cut, depth = Panels(count, panels.main, panels.tail, cost), most * widths.inputs
            best = Mixed(cut, 1, depth, depth, widths, step, most)
            least = score
    assert best is not None
    return best


def mixed(conv: ConvSite) -> Choice:
    """The `Choice` of a grouped convolution whose groups share vectors."""
    geo, target = conv.geo, conv.target
    plan = plan_mixed(target, conv.widths, *geo.out[1:], geo.taps)
    flops = 2.0 * conv.width * plan.panels.cost * geo.batch * geo.out[0] * geo.taps
    tile = tiling(target, *geo.out[1:], plan.lanes, plan.depth * geo.taps)
    sets = plan.panels.total * geo.batch
    count = bands(sets, tile.most_bands, flops=flops)
    return conv.choice(
        conv.time(flops, EFFICIENCY if plan.alone(plan.lanes) else MASKED),
        one_phase(sets * count, lambda em: _emit_mixed(em, geo, plan, count)),
        [
            Packed("weights", pack_mixed, (conv.weights, plan)),
            Packed("groups", group_ids, (plan,)),
            *conv.packed_bias(pack_bias, plan.panels),
        ],
        by_channels=geo.batch == 1,
        detail=f"tile {tile}x{plan.panels} over up to {plan.most} groups",
    )


def pack_mixed(w: np.ndarray, plan: Mixed) -> np.ndarray:
    """Pack weights [K, C/group, *taps] as [panel][group of the panel][tap][channel][lane], flat:
    zeros in lanes of other groups, and for groups that a panel does not touch (each has room for
    `most`)."""
    k, inputs = w.shape[:2]
    flat, parts = w.reshape(k, inputs, -1), []
    for start, lanes in plan.starts:
        low, _ = plan.touched(start, lanes)
        part = np.zeros((plan.most, flat.shape[2], inputs, lanes), w.dtype)
        for output in range(start, min(start + lanes, k)):
            part[output // plan.widths.outputs - low, :, :, output - start] = flat[output].T
        parts.append(part.reshape(-1))
    return np.concatenate(parts)


def group_ids(plan: Mixed) -> np.ndarray:
    """The group of every lane of the panels, int32; -1 for lanes beyond the last output."""
    last, lanes = plan.starts[-1]
    ids = np.full(last + lanes, -1, np.int32)
    real = plan.widths.groups * plan.widths.outputs
    ids[:real] = np.arange(real) // plan.widths.outputs
    return ids


def over_groups(em: Emit, geo: Geometry, plan: Mixed, panel: Panel, ids: Ptr) -> Reduction:
    """The function that adds the products of a tile, in loops over the groups that `panel` touches,
    taps, and the channels of a group, which may lie in two blocks. `ids`: address of
    `group_ids`."""
    b, image, widths, lanes = em.b, image_of(em.input(0), geo), plan.widths, panel.lanes
    width, row = block_of(em.target), sum(lanes)
    loop_body = Contraction(lanes, ChannelBlocks(1, widths.inputs, widths.inputs, plan.step))
    levels = tap_levels(geo, image.step, widths.inputs * row)
    alone = plan.alone(lanes)
    low = panel.channel // widths.outputs
    last = b.minimum(panel.channel + row, geo.out_channels)
    high = low + 1 if alone else (last + (widths.outputs - 1)) // widths.outputs

    def one_group(group: Val, x: Ptr, w: Ptr, acc: list[Val], pixels: list[Val | int]) -> list[Val]:
        masks = None
        if not alone:
            own = [(ids + panel.channel + o * width).load(width) for o in range(len(lanes))]
            number = group.to("i32")
            masks = [b.zero(i.ty) - i.eq(number).to("i32") for i in own]
        first = group * widths.inputs

        def channels(xq: Ptr, wq: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
            with b.loop(0, widths.inputs, plan.step, carry=acc) as loop:
                c = first + loop.index
                place = xq + (c // width) * image.plane + c % width
                ws = wq + loop.index * row
                loop.next(products(loop_body, place, ws, loop.vars, pixels, masks))
            return loop.out

        return nest(b, levels, x, w, acc, channels)

    def reduce(
        x: Ptr, w: Ptr, acc: list[Val], pixels: list[Val | int], _: Fetch | None
    ) -> list[Val]:
        with b.loop(low, high, carry=acc) as loop:
            part = w + (loop.index - low) * (geo.taps * widths.inputs * row)
            loop.next(one_group(loop.index, x, part, loop.vars, pixels))
        return loop.out

    return reduce


def _emit_mixed(em: Emit, geo: Geometry, plan: Mixed, count: int) -> None:
    """Emit the kernel; its tiles are (panel, batch, band), the band innermost."""
    image = image_of(em.input(0), geo)

    def body(at: PanelPlace) -> None:
        x = image.corner(at.n)
        sums = plan.sums(em, geo, at.panel)
        convolve(em, geo, at.band, sums, x, Sink(em, geo).at(at.n, at.panel.block))

    each_panel(em, plan.panels, 1, Tiles(geo.batch, count), body)
