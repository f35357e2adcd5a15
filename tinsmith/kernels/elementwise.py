"""Elementwise nodes and regions: one loop over the output, whatever the expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.expr import Expr, emit_expr
from tinsmith.codegen.functions import flops_of
from tinsmith.kernels._kernel import ELEMENTWISE, Choice, Phase, Site, Skip, Tier, elem, kernel
from tinsmith.kernels.emit import Emit
from tinsmith.kernels.layout import PLAIN, Layout, lanes_of, spec_of
from tinsmith.kernels.sharing import PARTS, by_positions, whole_shares
from tinsmith.kernels.walk import Position, Walk, run, share
from tinsmith.sizes import Size, same, typical

PART = 32 << 10  # bytes of output of a tile, at least (estimated)
WORK = 20e-6  # seconds of a tile, about (estimated)

Operand = tuple[Ptr, int, bool]


@kernel(ELEMENTWISE, Tier.VECTOR)
def elementwise(site: Site) -> list[Choice]:
    """Any expression over the elements of its operands, in vectors.

    Answers with a choice for plain data and, if the output has two dimensions or more, one for each
    block size in which an extra lies.
    """
    if site.epilogue is None:
        raise Skip("there is nothing to compute")
    for v in (*site.extras, site.out):
        elem(v)
    blocks = {site.layout(v).block for v in site.extras} - {0}
    layouts = [PLAIN]
    if len(site.out.dims) >= 2:
        layouts += [Layout(b) for b in sorted(blocks)]
    return [_choice(site, layout) for layout in layouts]


def _choice(site: Site, layout: Layout) -> Choice:
    """The choice that reads and writes `layout`. A tile is a part of all elements of plain data, or
    of one channel block of one image."""
    assert site.epilogue is not None
    spec = spec_of(site.out.dtype, site.out.dims, layout)
    nbytes = typical(spec.nbytes + sum(v.type.nbytes for v in site.extras))
    flops = 2.0 * flops_of(site.epilogue) * typical(spec.size)
    cost = site.target.time(flops, nbytes, 0.8)
    outer = prod(spec.padded[:2]) if layout.block else 1
    written, planes = typical(spec.nbytes), typical(outer)
    wanted = max(1, int(cost / WORK), written // PART)
    parts = max(1, min(wanted // planes, typical(spec.size) // planes))
    single = layout.block > 0 and typical(spec.dims[0]) == 1
    shares = whole_shares(min(typical(prod(spec.spatial)), PARTS), site.threads)
    near = single and len(site.extras) > 0
    near = near and by_positions(
        site, max(site.extras, key=lambda v: typical(v.type.nbytes)), read=nbytes - written,
        flops=flops, parts=(shares, planes), planes=2 * planes,
    )  # fmt: skip
    if near:
        parts = whole_shares(parts, site.threads)
    emit = _emit_blocked if layout.block else _emit_plain
    sweep = parts if near else 0
    # Short rows, and long ones that threads share, are faster where their lengths are known.
    flat = layout.block or all(
        same(v.type.size, 1) or same(v.type.size, site.out.type.size) for v in site.extras
    )
    phase = Phase(outer * parts, partial(emit, parts=parts), sweep=sweep)
    if flat:
        phase = Phase(outer * parts, emit, sweep=sweep, generic=(parts,))
    return Choice(
        cost=0.2e-6 + cost, reads=site.reads((), layout), writes=(layout,),
        phases=(phase,), by_channels=single and not near, detail=str(site.epilogue)[:60],
    )  # fmt: skip


class _Loop:
    """Emits the code of one row of an elementwise result, a vector at a time.

    `views` are the extras and, last, the output, each as (pointer to the row's start, step, splat):
    the element at position p is `step * p` elements on; with `splat` one element fills all lanes.
    An operand of step 0 is loaded once, before the row. Vector v begins at position `v * pitch`.
    `finish`, if set, is applied to each result before it is stored.
    """

    def __init__(self, em: Emit, lanes: int, pitch: int, views: Sequence[Operand]) -> None:
        assert em.site.epilogue is not None
        self.b, self.expr = em.b, em.site.epilogue
        self.lanes, self.pitch = lanes, pitch
        self.views, self.out = views[:-1], views[-1]
        self.finish: Callable[[Val], Val] | None = None
        flops = flops_of(self.expr)
        few = em.target.registers < 32
        self.unroll = 4 if flops < 8 else 2 if flops < (10 if few else 30) else 1
        self._once = [
            None if step else p.load() if splat else p.load(lanes) for p, step, splat in self.views
        ]
        self._wide = [
            None if v is None else v.splat(lanes) if splat else v
            for v, (_, _, splat) in zip(self._once, self.views, strict=True)
        ]

    def vectors(self, lo: Position, hi: Position) -> None:
        """Emit the vectors [lo, hi): several in each iteration, then the rest one by one."""
        b, several = self.b, self.unroll
        middle = lo
        if several > 1:
            groups = (hi - lo) // several
            middle = groups * several + lo
            first = lo * self.pitch
            step = several * self.pitch
            run(b, 0, groups, lambda i: self.compute(i * step + first, several, self.lanes))
        run(b, middle, hi, lambda i: self.compute(i * self.pitch, 1, self.lanes))

    def compute(self, position: Position, count: int, lanes: int, mask: Val | None = None) -> None:
        """Emit the expression for `count` vectors of `lanes` elements, the first at `position`, the
        others `pitch` apart; all are loaded before the first is stored."""
        results = []
        for u in range(count):
            got = emit_expr(self.b, self.expr, self._leaves(position, u * self.pitch, lanes, mask))
            got = got.splat(lanes) if got.ty.lanes != lanes else got
            results.append(self.finish(got) if self.finish else got)
        pointer, step, _ = self.out
        base = pointer + position * step
        for u, result in enumerate(results):
            (base + u * self.pitch * step).store(result, mask)

    def _leaves(self, position: Position, shift: int, lanes: int, mask: Val | None) -> list[Val]:
        leaves = []
        ready = self._wide if lanes == self.lanes else self._once
        for value, (pointer, step, splat) in zip(ready, self.views, strict=True):
            if value is None:
                place = pointer + position * step + shift * step
                value = place.splat(lanes) if splat else place.load(lanes, mask)
            leaves.append(value)
        return leaves


def _lanes_for(em: Emit, expr: Expr) -> int:
    """How many elements are computed together: as many as a register holds of the widest type in
    the expression, but at least 4."""
    return max(4, lanes_of(em.target, max(e.dtype.itemsize for e in expr.nodes())))


# ---- plain


def _emit_plain(em: Emit, parts: int) -> None:
    b = em.b
    assert em.site.epilogue is not None
    views = [*em.extras, em.outs[0]]
    walk = Walk(em.outs[0].spec.dims, [v.spec.strides for v in views])
    steps = walk.steps
    even = all(s in (0, 1) for s in steps[:-1]) and steps[-1] == 1
    lanes = _lanes_for(em, em.site.epilogue) if even else 1
    full, rest = divmod(walk.length, lanes)
    pieces = 1 if not walk.outer or isinstance(walk.lines, Size) else max(1, parts // walk.lines)

    def row(line: Position, lo: Position, hi: Position, last: Val | bool) -> None:
        starts = walk.starts([v.pointer for v in views], line)
        operands = [(p, step, step == 0) for p, step in zip(starts, steps, strict=True)]
        loop = _Loop(em, lanes, lanes, operands)
        if isinstance(full, Size) or full:
            loop.vectors(lo, hi)
        some = isinstance(rest, Size) or rest
        if some and last is True:
            _tail(loop, full * lanes, rest)
        elif some:
            assert isinstance(last, Val)
            with b.when(last):
                _tail(loop, full * lanes, rest)

    with b.loop(em.begin, em.end) as tile:
        if not walk.outer:
            lo, hi = share(tile, parts, full)
            row(0, lo, hi, tile.eq(parts - 1) if parts > 1 else True)
        elif pieces > 1:
            piece, r = tile % pieces, tile // pieces
            with b.when(b.index(r) < walk.lines):
                lo, hi = share(piece, pieces, full)
                row(r, lo, hi, b.index(piece).eq(pieces - 1))
        else:
            first, end = share(tile, parts, walk.lines)
            run(b, first, end, lambda r: row(r, 0, full, True))


def _tail(loop: _Loop, start: int, rest: int) -> None:
    """Emit the `rest` elements of a row after its last full vector, from `start` on."""
    b = loop.b
    b.rest(start, rest, loop.lanes, lambda i, lanes, mask: loop.compute(i, 1, lanes, mask))


# ---- blocked


def _emit_blocked(em: Emit, parts: int) -> None:
    b, out = em.b, em.outs[0]
    block, channels, blocks = out.spec.layout.block, out.spec.dims[1], out.spec.blocks
    views = [*em.extras, out]
    walk = Walk(out.spec.spatial, [v.spec.strides[2:] for v in views])
    clear = channels % block != 0 and not em.keeps_zero

    def row(starts: Sequence[Ptr], lo: Position, hi: Position, mask: Val | None) -> None:
        lanes = [v.spec.lane == 0 for v in views]
        operands = list(zip(starts, walk.steps, lanes, strict=True))
        loop = _Loop(em, block, 1, operands)
        if mask is not None:
            loop.finish = lambda value: mask.select(value, b.zero(value.ty))
        loop.vectors(lo, hi)

    with b.loop(em.begin, em.end) as tile:
        part, place = tile % parts, tile // parts
        n, c = place // blocks, place % blocks
        planes = [v.at(n, c).fixed() for v in views]
        mask = b.first_lanes(b.index(channels) - b.index(c) * block, block) if clear else None
        walk.shared(b, planes, part, parts, partial(row, mask=mask))
