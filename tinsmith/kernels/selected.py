"""Kernels that select by a condition: the places of elements that are not zero (NonZero), and
slices that are kept (Compress)."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import I64, Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.layout import around, plain_strides
from tinsmith.kernels.move.strided import copy_row
from tinsmith.kernels.sharing import parts_for
from tinsmith.sizes import typical

LOOK, TAKE = 0.2e-9, 1e-9  # seconds to look at an element, and to note its place; estimated
TOGETHER = 16  # elements that are tested together; estimated
PLACE = Ty("u32")
MOST = 1 << 31  # the most elements whose places can be noted (in u32)
NUMBERS = "bool float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64"


def each_held(
    b: Builder, count: Val | int, size: Ptr, holds: Callable[[Val | int, int, Val | None], Val],
    put: Callable[[Val, Val], None],
) -> None:  # fmt: skip
    """Find the indices i below `count` at which `holds` is true: emit `put(n, i)` for each, in
    rising order, where n counts them from 0, and store how many there are at `size`. `holds(i,
    lanes, mask)` gives a mask for the `lanes` elements from i on.

    `put(n, i)` also runs for some i at which `holds` is false, with the n of the next that is
    found, whose own call must overwrite it; after the last one it writes an entry that means
    nothing. n is never above i, so room for `count` entries is enough.
    """
    size.store(b.index(0))

    def some(first: Val | int, lanes: int, mask: Val | None) -> None:
        held = holds(first, lanes, mask)
        with b.when((held if mask is None else held & mask).any()):
            last = b.minimum(b.index(first) + lanes, count)
            with b.loop(first, last, carry=[size.load()]) as loop:
                put(loop.vars[0], loop.index)
                loop.next([loop.vars[0] + holds(loop.index, 1, None).to("i64")])
            size.store(loop.out[0])

    b.vectors(count, TOGETHER if b.target.lanes > 1 else 1, some)


def _need_count(site: Site, elements: int) -> None:
    site.need_no_epilogue("what is counted has no epilogue")
    if len(site.outputs) == 1:
        raise Skip("its size is known: nothing is counted")
    if elements >= MOST:
        raise Skip(f"there are {elements} elements")


@kernel("NonZero", Tier.VECTOR, dtypes=NUMBERS, checks=True)
def places_by_parts(site: Site) -> Choice:
    """The places of elements that are not zero: flat indices part by part, then coordinates."""
    x = site.input(0)
    size, steps = x.type.size, plain_strides(x.dims)
    _need_count(site, size)
    seconds = site.target.time(0, x.type.nbytes) + typical(size) * (LOOK + TAKE)
    parts = parts_for(size, seconds)
    part = -(-size // parts)
    parts = -(-size // part)

    def note(em: Emit) -> None:
        b, source = em.b, em.input(0)
        with b.loop(em.begin, em.end) as tile:
            first = tile * part
            at = (source.pointer + first).fixed()
            notes = (_notes(em, parts) + first).fixed()
            each_held(
                b, b.minimum(b.index(size) - first, part), em.scratch.cast(I64) + tile,
                lambda i, lanes, mask: (at + i).load(lanes, mask).ne(0),
                lambda n, i: (notes + n).store((first + i).to("u32")),
            )  # fmt: skip

    def place(em: Emit) -> None:
        b, counts = em.b, em.scratch.cast(I64)
        with b.loop(em.begin, em.end) as tile:
            with b.loop(0, parts, carry=[b.index(0), b.index(0)]) as loop:
                (before, total), more = loop.vars, (counts + loop.index).load()
                loop.next([before + (loop.index < tile).select(more, 0), total + more])
            before, total = loop.out
            em.outs[1].pointer.store(total)
            notes = (_notes(em, parts) + tile * part).fixed()
            lines = [(em.outs[0].pointer + total * k + before).fixed() for k in range(len(steps))]

            def some(j: Val | int, lanes: int, mask: Val | None) -> None:
                left = (notes + j).load(lanes, mask)
                for step, line in zip(steps, lines, strict=True):
                    (line + j).store((left / step).to("i64"), mask)
                    left = left - left / step * b.const(step, left.ty)

            b.vectors((counts + tile).load(), max(1, b.target.lanes), some)

    phases = Phase(parts, note), Phase(parts, place)
    scratch = 8 * parts + 4 * size
    return Choice(1e-6 + seconds, (PLAIN,), (PLAIN, PLAIN), phases, scratch=scratch,
                  detail=f"{parts} parts")  # fmt: skip


def _notes(em: Emit, counts: int) -> Ptr:
    """The address in scratch of the list of indices (u32) that are selected; before it lie `counts`
    counters of 8 bytes."""
    return (em.scratch.cast(I64) + counts).cast(PLACE)


@kernel("Compress", Tier.VECTOR, checks=True)
def compress_slices(site: Site) -> Choice:
    """Slices that a condition selects: their indices are listed first, then they are copied."""
    x, axis, given = site.input(0), site.attr("axis"), site.input(1).type.size
    _need_count(site, given)
    outer, extent, inner = (1, x.type.size, 1) if axis is None else around(x.dims, axis)
    moved = site.target.time(0, 2 * outer * given * inner * x.dtype.itemsize)
    parts = parts_for(given, moved + typical(outer * given) * TAKE)

    def note(em: Emit) -> None:
        condition = em.input(1)
        notes = _notes(em, 1).fixed()
        each_held(
            em.b, given, em.outs[1].pointer,
            lambda i, lanes, mask: (condition.pointer + i).load(lanes, mask).ne(0),
            lambda n, i: (notes + n).store(i.to("u32")),
        )  # fmt: skip

    def copy(em: Emit) -> None:
        b, source, count = em.b, em.input(0), em.outs[1].pointer.load()
        with b.loop(em.begin, em.end) as tile:
            o, share = tile // parts, tile % parts
            first, last = (count * k // parts for k in (b.index(share), b.index(share) + 1))
            with b.loop(first, last) as k:
                place = (_notes(em, 1) + k).load().to("i64")
                come = source.pointer + (o * extent + place) * inner
                copy_row(b, inner, come, em.outs[0].pointer + (o * count + k) * inner)

    cost = 1e-6 + typical(given) * (LOOK + TAKE) + moved + typical(outer * given) * TAKE
    phases = Phase(1, note), Phase(outer * parts, copy)
    return Choice(cost, (PLAIN, PLAIN), (PLAIN, PLAIN), phases, scratch=8 + 4 * given,
                  detail=f"slices of {inner}")  # fmt: skip
