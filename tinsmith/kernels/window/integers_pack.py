"""Code of convolutions of bytes that packs the input, and weights that only the run knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import and_

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.integers_plan import Plan
from tinsmith.sizes import Number, Size


def pack_input(em: Emit, plan: Plan) -> None:
    """Emit the phase that packs the input with its padding to scratch; a tile is a padded row."""
    row = plan.size[2] * plan.cut.lanes * plan.row.group
    sink = em.scratch.cast(plan.left.packed)
    zero = plan.left.zeros(em, 0, 1)
    with em.b.loop(em.begin, em.end) as t:
        pack_row(em, plan, t, (sink + t * row).fixed(), zero)


def pack_row(em: Emit, plan: Plan, t: Position, to: Ptr, zero: Val | None) -> None:
    """Emit the packing of one row of the input with its padding to `to`. `t` is its number among
    the padded rows of all groups of all images; `zero` the input's zero point, None for 0."""
    depth, height, width = plan.size
    image, d, h = t // (depth * height), t // height % depth, t % height
    begin, size = plan.geo.begin, plan.geo.size
    d, h = d - begin[0], h - begin[1]
    inside = [
        em.b.index(place).to("u64") < extent
        for place, extent, all_of in ((d, size[0], depth), (h, size[1], height))
        if isinstance(all_of - extent, Size) or extent < all_of
    ]
    copy = partial(_row, em, plan, (image, d, h), to, zero)
    if inside:
        em.b.choose(reduce(and_, inside), copy, partial(_padding, em, plan, to, width, zero))
    else:
        copy()


def _row(em: Emit, plan: Plan, place: tuple[Position, ...], to: Ptr, zero: Val | None) -> None:
    """Emit the packing of one row of the input to `to`, with padding at both ends. `place`: the
    row's (image * groups + group, depth, height) in the unpadded input; `zero` as in `pack_row`."""
    b, pixel = em.b, plan.cut.lanes * plan.row.group
    begin, width, after = plan.geo.begin[2], plan.geo.size[2], plan.geo.after[2]
    _padding(em, plan, to, begin, zero)
    _padding(em, plan, to + (begin + width) * pixel, after, zero)
    image, d, h = place
    n, group = image // plan.cut.groups, image % plan.cut.groups
    first = group * (plan.cut.inputs // plan.block) if plan.cut.groups > 1 else 0
    view = em.input(0)

    with b.loop(0, width) as w:
        spot = [at * every for at, every in zip((d, h, w), plan.every, strict=True)]
        source = view.at(*plan.geo.place((n, first, *spot))).fixed()
        sink = (to + (w + begin) * pixel).fixed()

        def move(block: Position, valid: int, count: int) -> None:
            if not valid:
                (sink + block * plan.block).store(b.zero(sink.elem.x(plan.block)))
                return
            x = (source + block * view.spec.strides[1]).load(plan.block)
            value = plan.left.stored(x, zero)
            if valid < plan.block:
                value = b.first_lanes(valid, plan.block).select(value, b.zero(value.ty))
            (sink + block * plan.block).store(value, count=count)

        _blocks(em, plan, move)


def _blocks(em: Emit, plan: Plan, body: Callable[[Position, int, int], None]) -> None:
    """Emit `body(block, channels, elements)` for each channel block of a pixel of one group:
    `channels` of the block exist, and packed it takes `elements`. Blocks of 0 channels may follow,
    which only fill up lanes."""
    whole, rest = divmod(plan.cut.inputs, plan.block)
    if whole == 1:
        body(0, plan.block, plan.block)
    elif whole:
        with em.b.loop(0, whole) as block:
            body(block, plan.block, plan.block)
    elements = plan.cut.lanes * plan.row.group
    if rest:
        body(whole, rest, min(elements - whole * plan.block, plan.block))
    done = whole + bool(rest)
    for block in range(elements // plan.block - done):
        body(done + block, 0, plan.block)


def _padding(em: Emit, plan: Plan, to: Ptr, pixels: Number, zero: Val | None) -> None:
    """Emit `pixels` pixels of padding at `to`: the zero point, or 0 if it is None or taken off."""
    if not isinstance(pixels, Size) and not pixels:
        return
    b, packed = em.b, plan.left.packed
    one = b.zero(packed) if plan.left.centred or zero is None else zero.to(packed.kind)
    line, pixel = one.splat(plan.block), plan.cut.lanes * plan.row.group
    to = to.fixed()
    with b.loop(0, pixels) as w:
        sink = (to + w * pixel).fixed()

        def fill(block: Position, valid: int, count: int) -> None:
            value = line
            if valid < plan.block:
                value = b.first_lanes(valid, plan.block).select(value, b.zero(value.ty))
            (sink + block * plan.block).store(value, count=count)

        _blocks(em, plan, fill)


def pack_computed(em: Emit, plan: Plan) -> None:
    """Emit the phase that packs weights which the run computes, in the order of constant weights,
    and makes their table of zero points and sums. A tile is one column (output) of a group."""
    with em.b.loop(em.begin, em.end) as t:
        _column(em, plan, t // plan.cut.columns, t % plan.cut.columns)


def _column(em: Emit, plan: Plan, group: Position, column: Position) -> None:
    """Emit the packing of one column of a group's weights, and, if there is a table, of its zero
    point and the sum of its elements less that. Weights between channels of different groups that
    were merged are the zero point."""
    b, cut, right, g = em.b, plan.cut, plan.right, plan.row.group
    own = plan.geo.channels // em.site.attr("group")  # input channels of a group as it was
    each = plan.geo.out_channels // em.site.attr("group")
    exists = b.index(column) < cut.outputs
    output = group * cut.outputs + b.minimum(column, cut.outputs - 1)
    zero = right.zeros(em, output, 1)
    source = (em.input(1).pointer + output * (own * plan.geo.taps)).fixed()
    first = b.minimum(column, cut.outputs - 1) // each * own
    to, size = _sink(em, plan, group, column)
    known = b.zero(I32) if zero is None or right.centred else zero
    nothing = b.zero(I32)
    with b.loop(0, plan.geo.taps * cut.lanes * g, carry=[nothing]) as loop:
        tap, c = loop.index // (cut.lanes * g), loop.index % (cut.lanes * g)
        channel = c - first
        mine = b.index(channel).to("u64") < own
        place = mine.select(b.index(channel), b.index(0))
        x = right.element((source + place * plan.geo.taps + tap).load(), zero)
        there = exists & (b.index(c) < cut.inputs)
        value = there.select(mine.select(x, known), nothing)
        at = ((tap * cut.lanes + c // g) * size) * g + c % g
        (to + at).store(value.to(right.packed.kind))
        loop.next([loop.vars[0] + there.select(value - known, nothing)])
    if plan.has_table:
        at = em.scratch.cast(I32) + group * (2 * cut.columns) + column
        at = (at + plan.tables_at).fixed()
        at.store(exists.select(known, nothing))
        (at + cut.columns).store(loop.out[0])


def _sink(em: Emit, plan: Plan, group: Position, column: Position) -> tuple[Ptr, Val]:
    """(the address of a column's first packed element, the number of columns of its panel)."""
    b, columns, g = em.b, plan.tiling.columns, plan.row.group
    depth = plan.geo.taps * plan.cut.lanes
    wide, tail = columns.size, sum(columns.tail)
    full = columns.full * wide
    in_full = b.index(column) < full
    panel = in_full.select(b.index(column // wide * wide), b.index(full))
    size = in_full.select(b.index(wide), b.index(tail or wide))
    lanes = group * plan.panels + panel * depth + (b.index(column) - panel)
    to = em.scratch.cast(plan.right.packed) + lanes * g
    return (to + plan.weights_at * g).fixed(), size
