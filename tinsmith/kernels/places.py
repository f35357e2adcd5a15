"""Merging dimensions: kernels walk a tensor as few flat axes, whatever its rank.

A run of dimensions is one axis for a set of views if every view steps through it evenly. Flat
positions are then plain multiplications; only where views disagree are they taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tinsmith.codegen.builder import Builder, Val
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.rows import Position


def merged(dims: Sequence[int], views: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """`dims` as few axes: (extent, dimension whose stride is the axis's), outermost first.

    `views` are the strides of each view, one a dimension. Extents of 1 vanish.
    """
    axes: list[tuple[int, int]] = []
    for d, extent in enumerate(dims):
        if extent == 1:
            continue
        if axes:
            outer, at = axes[-1]
            if all(s[at] == s[d] * extent for s in views):
                axes[-1] = (outer * extent, d)
                continue
        axes.append((extent, d))
    return axes


def unravel(flat: Position, dims: Sequence[int], views: Sequence[Sequence[int]]) -> list[Position]:
    """The index, one entry a dimension, of the flat position within `dims`, for `View.at` of views
    with these strides. An entry may exceed its dimension where dimensions are merged."""
    index: list[Position] = [0] * len(dims)
    axes = merged(dims, views)
    for k in range(len(axes) - 1, -1, -1):
        extent, d = axes[k]
        if k == 0:
            index[d] = flat
        else:
            index[d] = flat % extent
            flat = flat // extent
    return index


def strides_of(views: Sequence[View], first: int, count: int) -> list[tuple[int, ...]]:
    """The strides of dimensions first .. first + count - 1 of plain views."""
    return [v.spec.strides[first : first + count] for v in views]


def shifted(em: Emit, index: Sequence[Position]) -> Emit:
    """The same emission with element `index` of the output as its new (0, ..., 0): `finish` and
    `epilogue` with constant indices then address by constants only."""

    def move(v: View) -> View:
        return View(v.at(*index).fixed(), v.spec)

    return replace(em, extras=tuple(map(move, em.extras)), outs=(move(em.outs[0]), *em.outs[1:]))


def spread(view: View, dims: Sequence[int], first: int) -> View:
    """A plain operand whose dimensions are `dims[first:]` (or some of these from `first` on), or 1
    where it broadcasts, as a view of `dims`."""
    own = view.spec.dims
    steps = [0 if e == 1 else s for e, s in zip(own, view.spec.strides, strict=True)]
    wide = (*(0,) * first, *steps, *(0,) * (len(dims) - first - len(own)))
    return View(view.pointer, replace(view.spec, dims=tuple(dims), strides=wide))


def along(view: View, d: int) -> View:
    """The view for vectors along dimension d: one element in all lanes where it broadcasts."""
    return View(view.pointer, replace(view.spec, lane=0 if view.spec.strides[d] == 0 else 1))


def at_outer(em: Emit, before: int, flat: Position) -> Emit:
    """The emission shifted to a flat position of the dimensions before dimension `before`."""
    dims = em.site.out.dims
    views = strides_of([*em.extras, em.outs[0]], 0, before)
    return shifted(em, [*unravel(flat, dims[:before], views), *(0,) * (len(dims) - before)])


Index = Callable[[Position], list[Position]]
Line = Callable[[Emit, list[View], Position, int, Index], None]


def each_line(
    em: Emit, dims: Sequence[int], others: Sequence[View], body: Line, first: int = 0
) -> None:
    """Walk dimensions `first` .. of `dims` as lines through which every view steps evenly.

    `dims` may be smaller than the output's (a part of it, at which `em` is shifted). For each line
    calls `body(em, others, position, length, index)`: emission and other views shifted to its
    start, the flat position of that, and `index(i)`, the index of its element i for `finish` and
    `load`. Vectors may run along a line: lane handling is adapted to its dimension.
    """
    rank = len(dims)
    views = strides_of([*em.extras, em.outs[0], *others], first, rank - first)
    axes = merged(dims[first:], views)
    length, d = (axes[-1][0], axes[-1][1] + first) if axes else (1, rank - 1)
    count = prod(dims[first:]) // length

    def line(number: Position) -> None:
        start = number * length
        where = [*(0,) * first, *unravel(start, dims[first:], views)]
        here = shifted(em, where)
        here = replace(here, extras=tuple(along(v, d) for v in here.extras))
        there = [along(View(v.at(*where).fixed(), v.spec), d) for v in others]

        def index(i: Position) -> list[Position]:
            return [*(0,) * d, i, *(0,) * (rank - d - 1)]

        body(here, there, start, length, index)

    if count == 1:
        line(0)
    else:
        with em.b.loop(0, count) as number:
            line(number)


def finish_run(em: Emit, value: Val, first: int, flat: Position, mask: Val | None) -> None:
    """Epilogue and store of a vector of neighbours in dimensions `first` .. of the output, from
    flat position `flat` of these on; `em` is shifted to the place in the dimensions before."""
    dims = em.site.out.dims
    views = strides_of([*em.extras, em.outs[0]], first, len(dims) - first)
    axes = merged(dims[first:], views)

    def index(at: Position) -> list[Position]:
        return [*(0,) * first, *unravel(at, dims[first:], views)]

    if len(axes) <= 1:
        d = axes[0][1] + first if axes else len(dims) - 1
        lined = replace(em, extras=tuple(along(v, d) for v in em.extras)) if dims else em
        lined.finish(value, index(flat), mask)
        return
    total = prod(dims[first:])
    for lane in range(value.ty.lanes):
        at, one = flat + lane, value.lane(lane) if value.ty.lanes > 1 else value
        if mask is None:
            em.finish(one, index(at))
        else:
            with em.b.when(em.b.index(at) < total):
                em.finish(one, index(at))


def each_vector(
    b: Builder,
    block: Position,
    count: int,
    lanes: int,
    body: Callable[[Position, int, Val | None], None],
) -> None:
    """`body(first, lanes, mask)` for vector number `block` of `count` elements, as one vector, or
    for the last few as a masked one or as single elements."""
    full, rest = divmod(count, lanes)

    def last() -> None:
        b.rest(full * lanes, rest, lanes, body)

    if not rest:
        body(block * lanes, lanes, None)
    elif not full:
        last()
    else:
        b.choose(b.index(block) < full, lambda: body(block * lanes, lanes, None), last)


Sizes = Sequence[tuple[int, "Val | None"]]
"""Neighbouring vectors: lanes, and mask, of each."""


def each_block(
    b: Builder,
    block: Position,
    count: int,
    lanes: int,
    vectors: int,
    body: Callable[[Position, Sizes], None],
) -> None:
    """`body(first, sizes)` for block number `block` of `count` elements: `vectors` vectors, or for
    the last block fewer, the last of them masked or replaced by narrower ones."""
    width = lanes * vectors
    full, rest = divmod(count, width)

    def whole() -> None:
        body(block * width, [(lanes, None)] * vectors)

    def last() -> None:
        sizes: list[tuple[int, Val | None]] = [(lanes, None)] * (rest // lanes)
        sizes += [(size, mask) for _, size, mask in b.pieces(rest % lanes, lanes)]
        body(full * width, sizes)

    if not rest:
        whole()
    elif not full:
        last()
    else:
        b.choose(b.index(block) < full, whole, last)
