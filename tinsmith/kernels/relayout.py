"""Copies of a tensor from one layout to another, of the same dims and element type.

The planner asks `relayout` for a copy if a reader wants another layout than the writer made: plain
to blocked and back, another halo, out of or into a part of a larger tensor. Elements of one and
four bytes move as V x V squares that are transposed in registers, others one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import U8
from tinsmith.kernels._kernel import Choice, Emit, Phase, Site
from tinsmith.kernels.layout import Layout, Spec, spec_of
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position, Walk, run
from tinsmith.sizes import Size, typical


class RelayoutOp:
    """The operator of copies between layouts. The planner makes nodes of it for sites; none is in a
    model's graph, so it has only the methods of `graph.OpLike`."""

    name = "Relayout"
    traits = frozenset({"move"})

    def bind(self, inputs: Any, attrs: Any) -> dict[str, Any]:
        return {}

    def infer(self, inputs: Any, attrs: Any) -> tuple[Any, ...]:
        return (inputs[0].type,)

    def evaluate(self, arrays: Any, attrs: Any) -> tuple[Any, ...]:
        return (arrays[0],)

    def flops(self, inputs: Any, outputs: Any, attrs: Any) -> float:
        return 0.0


RELAYOUT = RelayoutOp()
SQUARES = (1, 4)  # bytes of elements whose squares are transposed
PART = 32 << 10  # bytes of a tile; estimated


def relayout(site: Site, src: Layout, dst: Layout) -> Choice:
    """The choice that copies `site.inputs[0]`, which lies in layout `src`, to `site.out` in layout
    `dst`."""
    dims, dtype = site.out.dims, site.out.dtype
    block = src.block or dst.block
    outer = dims[0] * spec_of(dtype, dims, Layout(block)).blocks if block else 1
    nbytes = (prod(dims[2:]) * block if block else prod(dims)) * dtype.itemsize
    parts = max(1, min(*map(typical, (nbytes // PART, prod(dims[2:] if block else dims)))))
    both = [spec_of(dtype, dims, layout) for layout in (src, dst)]
    cost = 0.3e-6 + 1.2 * site.target.time(0, sum(spec.nbytes for spec in both))
    if dtype.itemsize not in SQUARES and src.block != dst.block and typical(prod(dims[2:])) > 1:
        cost += 0.25e-9 * max(typical(spec.size) for spec in both)  # element by element
    row = _square if block and src.block != dst.block else _straight
    return Choice(
        cost=cost, reads=(src,), writes=(dst,),
        phases=(Phase(outer * parts, lambda em: _emit(em, block, parts, row)),),
        detail=f"{src} -> {dst}",
    )  # fmt: skip


Row = Callable[[Emit, Ptr, Ptr, Val, Position, Position, int], None]


def _emit(em: Emit, block: int, parts: int, row: Row) -> None:
    """Emit the copy. A tile is one of `parts` parts of a channel block of one image or, where
    `block` is 0 (plain layouts), of all elements. `row(em, src, dst, c, lo, hi, length)` emits the
    copy of the units [lo, hi) of a row: of `length` pixels of channel block c, `block` in each
    unit, or of `length` elements, a vector in each."""
    b, source, target = em.b, em.input(0), em.outs[0]
    skip = 2 if block else 0
    walk = Walk(
        target.spec.dims[skip:], [v.spec.strides[skip:] for v in (source, target)], innermost=True
    )
    units = -(-walk.length // (block or em.target.lanes))
    blocks = -(-target.spec.dims[1] // block) if block else 1
    with b.loop(em.begin, em.end) as tile:
        part, place = tile % parts, tile // parts
        src, dst, c = source.pointer, target.pointer, b.index(0)
        if block:
            n = place // blocks
            c = b.index(place % blocks)
            src = _plane(src, source.spec, n, c, block).fixed()
            dst = _plane(dst, target.spec, n, c, block).fixed()

        def line(starts: Sequence[Ptr], lo: Position, hi: Position, c: Val = c) -> None:
            here, there = starts
            row(em, here, there, c, lo, hi, walk.length)

        walk.shared(b, (src, dst), part, parts, line, units)


def _plane(p: Ptr, spec: Spec, n: Position, c: Position, block: int) -> Ptr:
    """The address of the first pixel of channel block c of image n; p is the tensor's."""
    step = spec.strides[1] * (block if spec.layout.is_plain else 1)
    return p + n * spec.strides[0] + c * step


# ---- rows in the same element order


def _straight(em: Emit, src: Ptr, dst: Ptr, c: Val, lo: Position, hi: Position, n: int) -> None:
    """Emit the copy of the units [lo, hi) of a row of n pixels, V in each unit, between layouts of
    equal blocks; or of n elements, a vector in each unit, between plain layouts."""
    b, target = em.b, em.outs[0]
    source = em.input(0)
    block = target.spec.layout.block
    if block:
        run(b, lo, hi, lambda i: _copy_pixels(b, src, dst, i, n, block))
        return
    width = em.target.lanes
    step = [_innermost(v.spec) for v in (source, target)]
    full = n // width

    def vector(i: Position) -> None:
        (dst + i * width).store((src + i * width).load(width))

    def single(i: Position) -> None:
        (dst + i * step[1]).store((src + i * step[0]).load())

    if step != [1, 1] or width == 1:
        run(b, lo * width, b.minimum(hi * width, n), single)
        return
    run(b, lo, b.minimum(hi, full), vector)
    if isinstance(n, Size) or n > full * width:
        last = b.index(hi).eq(full + 1)
        with b.when(last):
            run(b, full * width, n, single)


def _innermost(spec: Spec) -> int:
    """The stride of the innermost axis whose extent is more than 1; 1 if there is none."""
    return next(
        (s for d, s in zip(reversed(spec.dims), reversed(spec.strides), strict=True) if d > 1), 1
    )


def _copy_pixels(b: Builder, src: Ptr, dst: Ptr, unit: Position, n: int, block: int) -> None:
    """Emit the copy of unit number `unit` of a row of n pixels between layouts blocked by `block`
    channels: `block` pixels, or fewer at the row's end. The row begins at `src` and `dst`."""
    first = unit * block
    last = b.minimum(first + block, n)
    run(b, first, last, lambda i: (dst + i * block).store((src + i * block).load(block)))


# ---- between plain and blocked


def _square(em: Emit, src: Ptr, dst: Ptr, c: Val, lo: Position, hi: Position, n: int) -> None:
    """Emit the copy of the units [lo, hi) of a row of n pixels of channel block c from a plain
    layout to a blocked one, or back. A unit is a square: V pixels of V channels."""
    b, target = em.b, em.outs[0]
    source = em.input(0)
    to_blocked = not target.spec.layout.is_plain
    block = (target if to_blocked else source).spec.layout.block
    plain = (source if to_blocked else target).spec
    channels, step = plain.dims[1], plain.strides[1]
    rest = channels % block
    if src.elem.nbytes == 1:  # truth values, too
        src, dst = src.cast(U8), dst.cast(U8)
    mover = _Mover(em, src, dst, to_blocked, block, step, n)

    def squares(count: int) -> None:
        def slowly() -> None:
            mover.slowly(lo, hi, count)

        def transposed() -> None:
            run(b, lo, hi, lambda u: mover.square(b.minimum(u * block, n - block), count))

        if isinstance(n, Size) and src.elem.nbytes in SQUARES:
            b.choose(b.index(n) < block, slowly, transposed)
        elif n == 1 and step == 1 and src.elem.nbytes <= 8:
            mover.pixel(count)
        elif n < block or src.elem.nbytes not in SQUARES:
            slowly()
        else:
            transposed()

    if not rest:
        squares(block)
    elif channels < block:
        squares(rest)
    else:
        b.choose(c < channels // block, lambda: squares(block), lambda: squares(rest))


class _Mover:
    """Emits moves of pixels of one row between a plain layout, whose channels are `step` elements
    apart, and a blocked one. The methods move the first `count` channels of a block; in a blocked
    destination other lanes become zero."""

    def __init__(
        self, em: Emit, src: Ptr, dst: Ptr, to_blocked: bool, block: int, step: int, pixels: int
    ) -> None:
        self.em, self.b = em, em.b
        self.src, self.dst, self.to_blocked = src, dst, to_blocked
        self.block, self.step, self.pixels = block, step, pixels

    def square(self, pixel: Position, count: int) -> None:
        """Move V pixels from number `pixel` on, by transposing a square in registers. The last
        square of a row overlaps the one before, so that none is partial."""
        b, block = self.b, self.block
        if self.to_blocked:
            rows = [(self.src + pixel + k * self.step).load(block) for k in range(count)]
            rows += [b.zero(rows[0].ty)] * (block - count)
            start = (self.dst + pixel * block).fixed()
            for k, column in enumerate(transpose(rows)):
                (start + k * block).store(column)
            return
        start = (self.src + pixel * block).fixed()
        rows = transpose([(start + k * block).load(block) for k in range(block)])
        for k in range(count):
            (self.dst + pixel + k * self.step).store(rows[k])

    def pixel(self, count: int) -> None:
        """Move the only pixel of a row; its channels are contiguous in source and destination."""
        b, block = self.b, self.block
        if count == block:
            self.dst.store(self.src.load(block))
            return
        for k in range(count):
            (self.dst + k).store((self.src + k).load())
        if self.to_blocked:
            for k in range(count, block):
                (self.dst + k).store(b.zero(self.dst.elem))

    def slowly(self, lo: Position, hi: Position, count: int) -> None:
        """Move the pixels of squares [lo, hi) of a row where squares cannot be transposed: elements
        one by one, or a whole row of four-byte elements by `_short`, if its length is known and the
        target has cheap masks."""
        b, block, pixels = self.b, self.block, self.pixels
        if (
            self.src.elem.nbytes == 4
            and not b.target.has_exact_tails
            and not isinstance(pixels, Size)
        ):
            self._short(count)
            return

        def one(p: Position) -> None:
            for k in range(block):
                wide, flat = p * block + k, p + k * self.step
                if k < count:
                    a, z = (flat, wide) if self.to_blocked else (wide, flat)
                    (self.dst + z).store((self.src + a).load())
                elif self.to_blocked:
                    (self.dst + wide).store(b.zero(self.dst.elem))

        run(b, lo * block, b.minimum(hi * block, pixels), one)

    def _short(self, count: int) -> None:
        """Move a row of fewer than V pixels by transposing it: of each channel one vector is loaded
        or stored, under a mask, as it reaches beyond the row's end."""
        b, block, pixels = self.b, self.block, self.pixels
        if self.to_blocked:
            rows = [(self.src + k * self.step).load(block, count=pixels) for k in range(count)]
            rows += [b.zero(rows[0].ty)] * (block - count)
            for k, column in enumerate(transpose(rows)[:pixels]):
                (self.dst + k * block).store(column)
            return
        rows = [(self.src + k * block).load(block) for k in range(pixels)]
        rows += [b.zero(rows[0].ty)] * (block - pixels)
        for k, column in enumerate(transpose(rows)[:count]):
            (self.dst + k * self.step).store(column, count=pixels)
