"""Gathers and scatters at computed indices. Each is checked; one out of range makes the run raise
DataError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.functions import FUNCTIONS
from tinsmith.codegen.types import I64
from tinsmith.kernels._kernel import Choice, Emit, Phase, Site, Skip, Tier, elem, kernel
from tinsmith.kernels.layout import PLAIN, Layout, block_of, plain_strides
from tinsmith.kernels.move.scatter import copy_all
from tinsmith.kernels.move.strided import copy_row, words
from tinsmith.kernels.walk import digits
from tinsmith.sizes import typical

ELEMENT = 4e-9  # seconds to read and check one index; estimated
COMBINE = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
FAULT = "an index is out of range: it must lie in [-{0}, {0})"


def _need_plain(site: Site) -> None:
    """Raise Skip if there is an epilogue, if the indices (input 1) are constant or not int32 or
    int64, or if these or input 0 are empty."""
    site.need_no_epilogue("a copy has no epilogue")
    if site.input(1).const is not None:
        raise Skip("the places are constant")
    _need_integers(site, 1)
    if not site.input(1).type.size or not site.input(0).type.size:
        raise Skip("nothing is moved")


def _need_integers(site: Site, index: int) -> None:
    if site.input(index).dtype.name not in ("int32", "int64"):
        raise Skip(f"the places are {site.input(index).dtype.name}")


def _base(row: Val, dims: Sequence[int], steps: Sequence[int]) -> Val:
    """Emit and return the sum of index * step (`steps`) over all axes, where the indices are those
    of element number `row` of an array of shape `dims`. Axes of step 0 are left out."""
    total = row - row
    for k, at in digits(row, [(extent, k) for k, extent in enumerate(dims)]):
        total = total + at * steps[k]
    return total


def _slice_at(em: Emit, start: Ptr, row: Val, dims: Sequence[int], steps: Sequence[int]) -> Ptr:
    """Emit and return the address of the slice that tuple number `row` of the indices (input 1)
    selects in the array at `start`. The tuple has an index for each of `dims`, which it is checked
    against; `steps` are the strides of these axes."""
    for k, (extent, step) in enumerate(zip(dims, steps, strict=True)):
        start = start + em.place(em.input(1).pointer + row * len(dims) + k, extent) * step
    return start


@kernel("GatherElements", Tier.VECTOR)
def gather_elements(site: Site) -> Choice:
    """Gather one element of the input for each index, along an axis."""
    _need_plain(site)
    dims, counts = site.input(0).dims, site.input(1).dims
    axis = site.attr("axis") % len(dims)
    steps, length = plain_strides(dims), counts[-1]
    fixed = [0 if k == axis else step for k, step in enumerate(steps)]
    rows, lanes = prod(counts[:-1]), block_of(site.target) // 2

    def emit(em: Emit) -> None:
        b, table = em.b, em.input(1)
        x, y = (words(v.pointer) for v in (em.input(0), em.outs[0]))
        with b.loop(em.begin, em.end) as row:
            line = (x + _base(row, counts[:-1], fixed[:-1])).fixed()
            at, out = (table.pointer + row * length).fixed(), (y + row * length).fixed()
            lane = b.vector(range(lanes), I64)

            def several(j: Val | int, size: int, mask: Val | None) -> None:
                index = em.place(at + j, dims[axis], size, mask)
                index = index * steps[axis]
                if fixed[-1]:
                    index = index + (lane + j if size > 1 else b.index(j)) * fixed[-1]
                (out + j).store(line.gather(index, mask), mask)

            b.vectors(length, lanes, several)

    total = site.out.type.size
    cost = (
        1e-6 + site.target.time(0, 2 * site.out.type.nbytes + 8 * total) + typical(total) * ELEMENT
    )
    fault = FAULT.format(dims[axis])
    return Choice(cost, (PLAIN, PLAIN), (PLAIN,), (Phase(rows, emit),), scratch=64, fault=fault)


@kernel("GatherND", Tier.VECTOR)
def gather_slices(site: Site) -> Choice:
    """Gather one slice of the input for each tuple of indices."""
    _need_plain(site)
    dims, counts, batch = site.input(0).dims, site.input(1).dims, site.attr("batch_dims")
    depth, last = counts[-1], batch + counts[-1]
    steps, inner = plain_strides(dims), prod(dims[last:])
    rows, each = prod(counts[:-1]), prod(counts[batch:-1])

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as row:
            x = em.input(0).pointer
            if batch:
                x = x + row // each * prod(dims[batch:])
            x = _slice_at(em, x, row, dims[batch:last], steps[batch:last])
            copy_row(em.b, inner, x, em.outs[0].pointer + row * inner)

    cost = 1e-6 + site.target.time(0, 2 * site.out.type.nbytes) + typical(rows * depth) * ELEMENT
    fault = FAULT.format("the size of its axis")
    return Choice(cost, (PLAIN, PLAIN), (PLAIN,), (Phase(rows, emit),), scratch=64, fault=fault)


# ---- scatters


@kernel("ScatterElements", Tier.VECTOR)
def scatter_elements(site: Site) -> Choice:
    """A copy of the input, then one update after the other to its place.

    A reduction combines it with the element that is there."""
    _need_plain(site)
    dims, counts = site.input(0).dims, site.input(1).dims
    axis = site.attr("axis") % len(dims)
    steps = plain_strides(dims)
    fixed = [0 if k == axis else step for k, step in enumerate(steps)]
    combine = _combination(site)

    def scatter(em: Emit) -> None:
        b, table, updates = em.b, em.input(1), em.input(2)
        with b.loop(0, prod(counts)) as k:
            index = em.place(table.pointer + k, dims[axis])
            to = em.outs[0].pointer + _base(k, counts, fixed) + index * steps[axis]
            _put(b, to, (updates.pointer + k).load(), combine)

    fault = FAULT.format(dims[axis])
    return _scattered(site, scatter, prod(counts), fault)


@kernel("ScatterND", Tier.VECTOR)
def scatter_slices(site: Site) -> Choice:
    """A copy of the input, then one slice after the other to its place.

    A reduction combines it with the elements that are there."""
    _need_plain(site)
    dims, counts = site.input(0).dims, site.input(1).dims
    depth = counts[-1]
    steps, inner, rows = plain_strides(dims), prod(dims[depth:]), prod(counts[:-1])
    combine = _combination(site)

    def scatter(em: Emit) -> None:
        b = em.b
        with b.loop(0, rows) as row:
            to = _slice_at(em, em.outs[0].pointer, row, dims[:depth], steps[:depth]).fixed()
            come = (em.input(2).pointer + row * inner).fixed()
            with b.loop(0, inner) as i:
                _put(b, to + i, (come + i).load(), combine)

    return _scattered(site, scatter, rows * inner, FAULT.format("the size of its axis"))


@kernel("TensorScatter", Tier.VECTOR)
def scatter_rows(site: Site) -> Choice:
    """A copy of the input, then the new rows of each sequence to consecutive places.

    The first place is `start`, plus what input 2, if it is there, has for the sequence. In mode
    circular places wrap around at the axis's end; otherwise rows beyond it are a fault."""
    site.need_no_epilogue("a copy has no epilogue")
    y, update, given = site.out, site.input(1), site.has(2)
    if given:
        _need_integers(site, 2)
    if not update.type.size:
        raise Skip("nothing is moved")
    axis, start = site.attr("axis") % len(y.dims), site.attr("start")
    wraps = site.attr("mode") == "circular"
    extent, count = y.dims[axis], update.dims[axis]
    outer, inner = prod(y.dims[1:axis]), prod(y.dims[axis + 1 :])
    each = 1 if wraps else count  # rows that are copied together: all, unless they wrap around

    def place(em: Emit, item: Val, row: Val | int) -> Val:
        """Emit and return the index along `axis` to which row `row` of an item goes. An item is all
        rows at one index of the axes before `axis`; the first of these counts sequences."""
        first = em.b.index(start)
        if given:
            first = (em.input(2).pointer + item // outer).load().to("i64") + start
            bad = (first < 0) if wraps else first.to("u64") > em.b.index(extent - count).to("u64")
            em.fault(bad)
            first = bad.select(0, first)
        return (first + row) % extent if wraps else first

    def scatter(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as tile:
            item, row = (tile // count, tile % count) if wraps else (tile, 0)
            to = item * (extent * inner) + place(em, em.b.index(item), row) * inner
            come = em.input(1).pointer + tile * (each * inner)
            copy_row(em.b, each * inner, come, em.outs[0].pointer + to)

    phases = copy_all(y), Phase(y.dims[0] * outer * (count if wraps else 1), scatter)
    cost = 1e-6 + site.target.time(0, 2 * y.type.nbytes)
    reads: tuple[Layout | None, ...] = (PLAIN, PLAIN, PLAIN if given else None)
    fault = f"the rows to write do not lie in an axis of {extent}" if given else ""
    scratch = 64 if given else 0
    reads = reads[: len(site.inputs)]
    return Choice(cost, reads, (PLAIN,), phases, scratch=scratch, fault=fault, inplace=0)


def _combination(site: Site) -> str:
    """The name (in `FUNCTIONS`) of the function that combines an update with the element
    that is there; "" if the update replaces it. Raises Skip if it has no native code."""
    how = site.attr("reduction")
    if how == "none":
        elem(site.out)
        return ""
    name = COMBINE[how]
    if site.out.dtype.name not in FUNCTIONS[name].dtypes or site.out.dtype == np.bool_:
        raise Skip(f"{how} of {site.out.dtype.name} has no native code")
    return name


def _put(b: Builder, to: Ptr, value: Val, combine: str) -> None:
    """Emit a store of the update `value` to `to`, combined with the element there by the function
    `combine`; "": replacing it (`_combination`)."""
    if combine:
        value = FUNCTIONS[combine].emit(b, None, [to.load(), value], 1)
    to.store(value)


def _scattered(site: Site, scatter: Callable[[Emit], None], count: int, fault: str) -> Choice:
    """The choice of a kernel that copies input 0 to the output, in parallel, and then stores
    `count` updates there, as `scatter` emits them. These are one tile, so that they are stored in
    order: of several that replace one element the last one stays. `fault`: as in `Choice`."""
    y = site.out
    phases = (copy_all(y), Phase(1, scatter))
    cost = 1e-6 + site.target.time(0, 2 * y.type.nbytes) + typical(count) * ELEMENT
    return Choice(cost, (PLAIN,) * 3, (PLAIN,), phases, scratch=64, fault=fault, inplace=0)
