"""Functions of a byte: every byte of a tensor becomes an entry of a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from tinsmith.codegen import lookup as tables
from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Tier, kernel
from tinsmith.kernels.layout import Layout, spec_of
from tinsmith.kernels.sharing import parts_for
from tinsmith.kernels.walk import Position, Walk, run
from tinsmith.sizes import Size, typical

STEPS = 3.0
"""Vector instructions for each of the 16 rows of a table; on targets that look bytes up one by one:
instructions for each byte. Estimated."""


@kernel("ByteTable", Tier.VECTOR, dtypes="int8 uint8")
def byte_table(site: Site) -> list[Choice]:
    """Functions of bytes by tables in registers: plain, and blocked where the input is."""
    block = site.layout(site.input(0)).block
    layouts = [PLAIN, Layout(block)] if block and len(site.out.dims) >= 2 else [PLAIN]
    return [_choice(site, layout) for layout in layouts]


def _choice(site: Site, layout: Layout) -> Choice:
    spec, target = spec_of(site.out.dtype, site.out.dims, layout), site.target
    size, table = tables.width(target), site.const(1, "the table")
    bytes_ = typical(spec.size)
    steps = STEPS * (tables.ENTRIES // tables.ROW) if size > 1 else STEPS
    flops = 2.0 * target.lanes * steps * bytes_ / size
    cost = target.time(flops, 2.0 * bytes_)
    outer = prod(spec.padded[:2]) if layout.block else 1
    parts = parts_for(max(1, typical(spec.size // outer) // size), cost / typical(outer))
    return Choice(
        cost=0.2e-6 + cost,
        reads=(layout, None),
        writes=(layout,),
        phases=(Phase(outer * parts, _emit, generic=(parts,)),),
        packed=(Packed("table", tables.pack, (table, tables.row_bytes(target))),),
    )


def _emit(em: Emit, parts: int) -> None:
    """Emit the kernel. A tile is one of `parts` parts: on blocked data, of a channel block of an
    image; on plain data, of all elements."""
    b, x, out = em.b, em.input(0), em.outs[0]
    block, dims = out.spec.layout.block, out.spec.dims
    if not block:
        walk = Walk(dims, [v.spec.strides for v in (x, out)])
        with b.loop(em.begin, em.end) as part:
            _lines(em, walk, [x.pointer, out.pointer], (part, parts), None)
        return
    walk = Walk((*out.spec.spatial, block), [(*v.spec.strides[2:], 1) for v in (x, out)])
    with b.loop(em.begin, em.end) as tile:
        part, plane = tile % parts, tile // parts
        n, c = plane // out.spec.blocks, plane % out.spec.blocks
        left = b.index(dims[1]) - b.index(c) * block if dims[1] % block else None
        _lines(em, walk, [v.at(n, c).fixed() for v in (x, out)], (part, parts), left)


def _lines(
    em: Emit, walk: Walk, pointers: list[Ptr], shared: tuple[Position, int], left: Val | None
) -> None:
    """Emit the look-ups of part number `shared[0]` of `shared[1]` parts of a walk: its share of the
    lines or, if there is one line only, of its vectors. `pointers`: to the first elements of input
    and output. `left`: how many lanes of a channel block are channels (None: all); others become 0.
    """
    b, length, block = em.b, walk.length, em.outs[0].spec.layout.block
    size = tables.width(b.target)

    def some(at: Sequence[Ptr], first: Position, lanes: int, mask: Val | None = None) -> None:
        found = tables.look_up(em.packed[0], (at[0] + first).load(lanes, mask))
        if left is not None and lanes == 1:
            found = (b.index(first % block) < left).select(found, b.zero(found.ty))
        elif left is not None:
            on = b.first_lanes(left, block).shuffle(None, [i % block for i in range(lanes)])
            found = on.select(found, b.zero(found.ty))
        to = at[1] + first
        to.store(Val(b, to.elem.x(lanes), found.ref), mask)

    def vectors(at: Sequence[Ptr], lo: Position, hi: Position) -> None:
        """Look up the vectors [lo, hi) of a line; its last one may overlap the one before."""
        run(b, lo, hi, lambda i: some(at, b.minimum(i * size, length - size), size))

    def line(at: Sequence[Ptr], lo: Position, hi: Position) -> None:
        if isinstance(length, Size):
            singly = partial(run, b, 0, length, lambda i: some(at, i, 1))
            b.choose(b.index(length) >= size, lambda: vectors(at, lo, hi), singly)
        elif length >= size:
            vectors(at, lo, hi)
        else:
            for first, lanes, mask in b.pieces(length, size):
                some(at, first, lanes, mask)

    walk.shared(b, pointers, *shared, line, units=-(-length // size))
