"""Convolutions of bytes, exact in int32: direct convolution by a row of `codegen/products.py`.

Phases: the input is packed with its padding, sums of windows are taken where zero points of weights
need them, weights are packed where they are computed; then direct convolution multiplies.
"""

from __future__ import annotations

from tinsmith.codegen.products import product_of
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Tier, kernel
from tinsmith.kernels.dot.zeros import side_of
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.contract import Contraction
from tinsmith.kernels.window.direct import EFFICIENCY, phases, rows_of
from tinsmith.kernels.window.geometry import conv_geometry, image_of
from tinsmith.kernels.window.integers_pack import pack_computed, pack_input
from tinsmith.kernels.window.integers_plan import (
    IntegerPlan,
    cut_groups,
    pack_tables,
    pack_weights,
    packed_geometry,
)
from tinsmith.kernels.window.order import Order
from tinsmith.kernels.window.tiles import bands, digits, panels, tiling
from tinsmith.kernels.window.ways import blocked, over_blocks

SUMMED = 4  # lanes that sums of windows are computed in, all alike


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
def conv_integer(site: Site) -> Choice:
    """Direct convolution of bytes, exact in int32, with zero points of outputs."""
    plan, target, layout = _plan(site), site.target, Layout(block_of(site.target))
    geo, cut, row = plan.geo, plan.panels, plan.row
    rows, cols = rows_of(geo)
    depth = plan.depth * geo.taps
    planes = plan.images * (1 if geo.is_pointwise else geo.out[0])
    flops = 2.0 * plan.block * cut.cost * planes * depth * row.group / row.rate
    tile = tiling(target, rows, cols, plan.lanes, depth)
    sets = plan.images * cut.total
    count = bands(sets, tile.most_bands, flops=flops)
    moved = site.input(0).type.nbytes + 8.0 * plan.spec.size + 4.0 * site.out.type.size
    packed: list[Packed] = []
    if plan.constant:
        zero = site.input(3).const if site.has(3) else None
        way = blocked(cut, plan.blocks, plan.groups, product=row.name)
        args = site.input(1).const, zero, plan.cut, way
        packed.append(Packed("weights", pack_weights, args))
        if plan.has_table:
            packed.append(Packed("tables", pack_tables, args))
    read: list[Layout | None] = [layout, *(PLAIN if site.has(i) else None for i in (1, 2, 3))]
    if plan.constant:
        read[1] = read[3] = None
    order = Order(sets * count, count, parts=1, near=False, passes=1, again=0)
    return Choice(
        cost=target.time(flops, moved, EFFICIENCY) + 1e-6,
        reads=site.reads(read[: len(site.inputs)], layout),
        writes=(layout,),
        phases=(*_before(plan), *phases(site.threads, geo, plan, order, flops)),
        packed=tuple(packed),
        scratch=plan.scratch,
        detail=f"{row.name}, tile {tile}x{cut}, {plan.groups} groups of {plan.cut.inputs} channels",
    )


def _plan(site: Site) -> IntegerPlan:
    source, block = conv_geometry(site), block_of(site.target)
    row = product_of(site.target, site.input(0).dtype.name, site.input(1).dtype.name)
    cut = cut_groups(source, site.attr("group"), row, block)
    left, right = side_of(site, 0, row, 1), side_of(site, 1, row, source.out_channels)
    given = [site.input(i).const for i in (1, 3) if site.has(i)]
    constant, off_rows = all(v is not None for v in given), not right.is_zero
    if constant and off_rows:
        off_rows = bool(right.shift) or any(v is not None and bool(v.any()) for v in given[1:])
    geo, blocks = packed_geometry(source, cut)
    most = row.vectors(site.target)
    found = panels(site.target, cut.outputs, *rows_of(geo), blocks.padded * geo.taps, most=most)
    return IntegerPlan(
        found, cut.groups, blocks.padded, blocks.stored, blocks, 0, row.name, source, geo, cut,
        left, right, block, constant, off_rows, not left.is_zero,
    )  # fmt: skip


def _before(plan: IntegerPlan) -> list[Phase]:
    """What is done before the products."""
    found = []
    if not plan.constant:
        found.append(Phase(plan.rows, lambda em: pack_computed(em, plan), barrier=False))
    _, height, _ = plan.geo.size
    rows = plan.images * plan.geo.size[0] * height
    found.append(Phase(rows, lambda em: pack_input(em, plan)))
    if plan.off_rows:
        lines = plan.images * plan.geo.out[0] * plan.geo.out[1]
        found.append(Phase(lines, lambda em: _sum_windows(em, plan)))
    return found


def _sum_windows(em: Emit, plan: IntegerPlan) -> None:
    """Sums of the elements of each window; tiles are rows of outputs."""
    b, geo, em = em.b, plan.geo, plan.operands(em)
    image, it = (
        image_of(em.input(0), geo),
        Contraction((SUMMED,), plan.blocks, row=plan.row, ones=True),
    )
    add = over_blocks(em, geo, it)
    with b.loop(em.begin, em.end) as t:
        r, d, group, n = digits(t, geo.out[1], geo.out[0], plan.groups)
        first = image.corner(n, group)
        to = (em.scratch.cast(I32) + t * geo.out[2] + plan.sums_at).fixed()
        with b.loop(0, geo.out[2]) as c:
            window = image.window(first, d, r, c)
            (sums,) = add(window, window, [b.zero(I32.x(SUMMED))], [0], None)
            (to + c).store(sums.lane(0))
