"""Walks: how kernels visit the elements of tensors of any rank, as lines of vectors.

A kernel without windows visits all elements of some dimensions, in several tensors at once that
may lie differently: parts of larger ones, broadcast operands, images with a halo. The terms:

axis         neighbouring dimensions merged into one, where every tensor has one stride through
             them. Dense tensors have one axis; a matrix and a row that is broadcast over it have
             two.
lane axis    the innermost axis. Vectors run along it; one pass along it is a *line*.
outer axes   all other axes. One flat number counts the lines, so that a tile may be any range of
             lines; `digits` splits it into an index for each axis, for addresses.
rest         the elements of a line after its full vectors: one vector under a mask, narrower
             vectors, or single elements, whichever the machine is good at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from math import prod

from tinsmith.codegen.builder import F32, Builder, Ptr, Val
from tinsmith.conditions import by_formula
from tinsmith.kernels.emit import Emit, View, moved
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import Number, Size, same, typical

Position = Val | int
Axis = tuple[int, int]  # extent, and the dimension whose strides are the axis's
Strides = Sequence[int]  # of one tensor, in elements, one a dimension


# ---- loops


def run(b: Builder, lo: Position, hi: Position, body: Callable[[Position], None]) -> None:
    """Emit `body(i)` for i in [lo, hi): as a loop, unless the bounds are ints of one iteration or
    none."""
    if isinstance(lo, int) and isinstance(hi, int) and hi - lo <= 1:
        if hi > lo:
            body(lo)
        return
    with b.loop(lo, hi) as i:
        body(i)


def inverse(b: Builder, count: Number, lanes: int) -> Val | float:
    """1 / count as a factor for float32: a number, or, where only a call tells the count, a vector
    of `lanes` equal lanes."""
    if isinstance(count, Size):
        return (b.const(1.0, F32) / b.const(count, F32)).splat(lanes)
    return 1.0 / count


def share(part: Position, parts: int, count: int) -> tuple[Position, Position]:
    """The range [first, last) of `count` units that is part number `part` of `parts` about equal
    ones."""
    if parts == 1:
        return 0, count
    if same(parts, count):
        return part, part + 1
    return part * count // parts, (part + 1) * count // parts


@contextmanager
def blocks(b: Builder, count: Position, size: int) -> Iterator[Position]:
    """A context whose body is emitted once, in a loop over blocks of `size` elements that cover
    `count` >= `size` elements. Yields the number of a block's first element. If `count` is no
    multiple of `size`, the last block overlaps the one before."""
    if isinstance(count, int) and count == size:
        yield 0
        return
    with b.loop(0, (count + (size - 1)) // size) as k:
        yield b.minimum(k * size, count - size)


# ---- vectors side by side


def spots(widths: Sequence[int]) -> list[tuple[int, int]]:
    """(first element, lanes) of vectors that lie side by side: (8, 4) gives (0, 8), (8, 4)."""
    return list(zip(accumulate(widths, initial=0), widths, strict=False))


def offsets(values: Sequence[Val]) -> list[tuple[int, Val]]:
    """(how many elements of the row come before it, vector) for each vector of a row."""
    return list(zip(accumulate((v.ty.lanes for v in values), initial=0), values, strict=False))


def load_row(at: Ptr, widths: Sequence[int]) -> list[Val]:
    """Load neighbouring elements from `at` on, as consecutive vectors of `widths` lanes."""
    return [(at + first).load(width) for first, width in spots(widths)]


def store_rows(at: Ptr, tile: Sequence[Sequence[Val]], pitch: int) -> None:
    """Emit stores of the rows of a tile, `pitch` elements apart, from `at` on."""
    for r, values in enumerate(tile):
        for offset, v in offsets(values):
            (at + (r * pitch + offset)).store(v)


def copy(b: Builder, source: Ptr, sink: Ptr, count: Position, lanes: int) -> None:
    """Emit a copy of `count` neighbouring elements, in vectors of `lanes`."""

    def body(i: Position, width: int, mask: Val | None) -> None:
        (sink + i).store((source + i).load(width, mask), mask)

    b.vectors(count, lanes, body)


# ---- axes


def merged(dims: Sequence[int], strides: Sequence[Strides]) -> list[Axis]:
    """Merge `dims` into as few axes as the strides of all tensors allow: (extent, last dimension)
    of each, outermost first. Extents of 1 vanish.

    merged((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) is [(2, 0), (12, 2)]: dimension 0, along which the
    second tensor is broadcast, is an axis of its own.
    """
    axes: list[Axis] = []
    for d, extent in enumerate(dims):
        if same(extent, 1):
            continue
        if axes:
            outer, at = axes[-1]
            with by_formula():
                even = all(s[at] == s[d] * extent for s in strides)
            if even:
                axes[-1] = (outer * extent, d)
                continue
        axes.append((extent, d))
    return axes


def digits(flat: Position, axes: Sequence[Axis]) -> Iterator[tuple[int, Position]]:
    """Split a flat number over `axes`, pairs (extent, dimension), outermost first. Yields
    (dimension, index) of each axis, innermost first."""
    for k in range(len(axes) - 1, 0, -1):
        extent, d = axes[k]
        index, flat = flat % extent, flat // extent
        yield d, index
    if axes:
        yield axes[0][1], flat


class Walk:
    """How to visit the elements of some tensors over the dimensions from `first` on. `dims`, and
    the `strides` of each tensor, are those of these dimensions alone.

    `outer` axes count the `lines`, each of `length` elements along dimension `lane` of the whole
    tensors; `steps` has the stride of each tensor along a line. Of a (2, 3, 4) tensor and a (3, 4)
    one that is broadcast,

        Walk((2, 3, 4), [(12, 4, 1), (0, 4, 1)])

    has two lines of 12 elements, along dimension 2, and steps 1 and 1.

    `innermost`: lines run along the last dimension, even if that has one element only and the
    dimension before has other strides.
    """

    def __init__(
        self, dims: Sequence[int], strides: Sequence[Strides], first: int = 0,
        innermost: bool = False,
    ) -> None:  # fmt: skip
        self.strides, self.first, self.rank = strides, first, first + len(dims)
        self.axes, last = merged(dims, strides), len(dims) - 1
        if innermost and self.axes and any(s[self.axes[-1][1]] != s[last] for s in strides):
            self.axes.append((1, last))
        *self.outer, (self.length, lane) = self.axes or [(1, last)]
        self.lane = first + lane
        self.steps = [s[lane] if s else 1 for s in strides]
        self.lines = prod(extent for extent, _ in self.outer)

    def index(self, flat: Position) -> list[Position]:
        """A flat number over all axes as an index for `View.at`, with zeros before dimension
        `first`. Where dimensions are merged, the last of them gets the whole index of the axis,
        which may exceed its extent."""
        return self._index(digits(flat, self.axes))

    def element(self, line: Position, i: Position) -> list[Position]:
        """The index, as of `index`, of element i of line number `line`."""
        return self._index([*digits(line, self.outer), (self.lane - self.first, i)])

    def _index(self, entries: Iterable[tuple[int, Position]]) -> list[Position]:
        index: list[Position] = [0] * self.rank
        for d, i in entries:
            index[self.first + d] = i
        return index

    def each(self, b: Builder, body: Callable[[list[Position]], None]) -> None:
        """Emit `body(index)` for every element, in nested loops, one for each axis; the index is
        such as the method `index` gives."""

        def level(axes: Sequence[Axis], entries: list[tuple[int, Position]]) -> None:
            if not axes:
                body(self._index(entries))
                return
            (extent, d), *rest = axes
            run(b, 0, extent, lambda i: level(rest, [*entries, (d, i)]))

        level(self.axes, [])

    def starts(self, pointers: Sequence[Ptr], line: Position) -> list[Ptr]:
        """Pointers to the beginning of a line in every tensor; `pointers` are to the tensors' first
        elements."""
        index = list(digits(line, self.outer))
        return [moved(p, s, index).fixed() for p, s in zip(pointers, self.strides, strict=True)]

    def shared(
        self, b: Builder, pointers: Sequence[Ptr], part: Position, parts: int,
        body: Callable[[Sequence[Ptr], Position, Position], None], units: int | None = None,
    ) -> None:  # fmt: skip
        """Emit part number `part` of `parts` of the walk: `body(starts, 0, units)` for each of its
        lines, where `starts` are pointers to the line's beginning in all tensors. If the walk has
        one line only, the parts share its units: `body(pointers, lo, hi)`. A line has `units` units
        of work; None: one for each element."""
        units = self.length if units is None else units
        if self.outer:
            first, last = share(part, parts, self.lines)
            run(b, first, last, lambda line: body(self.starts(pointers, line), 0, units))
        else:
            body(pointers, *share(part, parts, units))


# ---- walks over the output


def walk_of(
    em: Emit, first: int, last: int, others: Sequence[View] = (), dims: Sequence[int] = ()
) -> Walk:
    """A walk over dimensions `first` to `last` - 1 of output 0, for the extras, output 0 and
    `others`, in this order: views with as many dimensions as the output. `dims`: the extents of all
    dimensions, if not those of the output."""
    views = (*em.extras, em.outs[0], *others)
    dims = (dims or em.site.out.dims)[first:last]
    return Walk(dims, [v.spec.strides[first:last] for v in views], first)


def shifted(em: Emit, index: Sequence[Position]) -> Emit:
    """A copy of `em` in which extras and output 0 begin at element `index` of the output, so that
    `finish` and `epilogue` with constant indices need no address arithmetic."""
    out, *more = em.outs
    extras = tuple(shifted_view(v, index) for v in em.extras)
    return replace(em, extras=extras, outs=(shifted_view(out, index), *more))


def shifted_view(view: View, index: Sequence[Position]) -> View:
    return View(view.at(*index).fixed(), view.spec)


def shifted_to(em: Emit, first: int, last: int, flat: Position, *after: Position) -> Emit:
    """`em` shifted to the element of the output with the flat number `flat` over dimensions first
    .. last - 1, and with the indices `after` in the next dimensions."""
    return shifted(em, [*walk_of(em, first, last).index(flat), *after])


def spread(view: View, dims: Sequence[int], first: int) -> View:
    """A plain operand with some dimensions of `dims`, from number `first` on (of extent 1 where it
    is broadcast), as a view with all of `dims`: stride 0 where it is broadcast or lacks the
    dimension."""
    own = view.spec.dims
    steps = [0 if e == 1 else s for e, s in zip(own, view.spec.strides, strict=True)]
    wide = (*(0,) * first, *steps, *(0,) * (len(dims) - first - len(own)))
    return View(view.pointer, replace(view.spec, dims=tuple(dims), strides=wide))


def along(view: View, d: int) -> View:
    """The view for loads of vectors along dimension d: if it is broadcast along d, one element
    fills all lanes."""
    return View(view.pointer, replace(view.spec, lane=0 if view.spec.strides[d] == 0 else 1))


Index = Callable[[Position], list[Position]]
Line = Callable[[Emit, list[View], Position, int, Index], None]


def each_line(
    em: Emit, dims: Sequence[int], others: Sequence[View], body: Line, first: int
) -> None:
    """Emit `body(em, others, position, length, index)` for each line of a walk over dimensions
    `first` and after of `dims`, for plain views.

    `dims` may be smaller than the output's: a part of it, to which `em` is shifted. The body gets
    `em` and the views `others` shifted to the line's start, set up for vectors along the line; the
    flat position of the start; the line's length; and `index(i)`, the index of element i of the
    line for `finish` and `load`.
    """
    walk = walk_of(em, first, len(dims), others, dims)

    def line(number: Position) -> None:
        start = number * walk.length
        where = walk.index(start)
        here = shifted(em, where)
        here = replace(here, extras=tuple(along(v, walk.lane) for v in here.extras))
        there = [along(shifted_view(v, where), walk.lane) for v in others]
        body(here, there, start, walk.length, lambda i: walk.element(0, i))

    run(em.b, 0, walk.lines, line)


def finish_run(em: Emit, value: Val, first: int, flat: Position, mask: Val | None) -> None:
    """Finish (`Emit.finish`) a vector of neighbours of a plain output, whose first element has the
    flat number `flat` over dimensions `first` and after; `em` is shifted to the place in the
    dimensions before. If a walk over `first` and after takes several lines, elements are finished
    one by one, with a `mask` only those before the output's end."""
    dims = em.site.out.dims
    walk = walk_of(em, first, len(dims))
    if not walk.outer:
        lined = replace(em, extras=tuple(along(v, walk.lane) for v in em.extras)) if dims else em
        lined.finish(value, walk.index(flat), mask)
        return
    total = prod(dims[first:])
    for lane in range(value.ty.lanes):
        at, one = flat + lane, value.part(lane, 1)
        if mask is None:
            em.finish(one, walk.index(at))
        else:
            with em.b.when(em.b.index(at) < total):
                em.finish(one, walk.index(at))


# ---- neighbours side by side


class Part(NamedTuple):
    """A vector of a block: `offset` from the block's first element, its lanes, and a mask of the
    lanes that count (None: all)."""

    offset: int
    lanes: int
    mask: Val | None


@dataclass(frozen=True)
class Blocks:
    """A line of `count` elements cut into blocks of up to `vectors` vectors of `lanes` lanes, which
    are computed side by side."""

    count: int
    lanes: int
    vectors: int

    @property
    def width(self) -> int:
        """Elements of a block; the last block may have fewer."""
        return self.lanes * min(self.vectors, typical(-(-self.count // self.lanes)))

    @property
    def number(self) -> int:
        return -(-self.count // self.width)

    def emit(
        self, b: Builder, block: Position, body: Callable[[Position, list[Part]], None]
    ) -> None:
        """Emit `body(first, parts)` for block number `block`: its first element, and its vectors.
        In the last block vectors may be masked or narrower; if only a call tells the count, the
        body is in a loop there, with one vector at a time."""
        lanes = self.lanes
        full, rest = divmod(self.count, self.width)

        def some(first: Position, count: int) -> None:
            parts = [Part(at, lanes, None) for at in range(0, count - lanes + 1, lanes)]
            whole = len(parts) * lanes
            for at, size, mask in b.pieces(count - whole, lanes):
                parts.append(Part(whole + at, size, mask))
            body(first, parts)

        def whole() -> None:
            some(block * self.width, self.width)

        def last() -> None:
            first = full * self.width
            if not isinstance(rest, Size):
                some(first, rest)
                return
            with b.loop(0, rest, lanes) as k:
                body(k + first, [Part(0, lanes, b.first_lanes(b.index(rest) - k, lanes))])

        if isinstance(rest, Size) or (rest and full):
            b.choose(b.index(block) < full, whole, last)
        elif rest:
            some(0, rest)
        else:
            whole()
