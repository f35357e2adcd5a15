"""How operators that only copy elements (Slice, Transpose, Concat, Pad, ...) move them, as data.

A result (`Move`) is one or more parts, joined along an axis. A `Part` is read from one input in
three steps, of which each may do nothing:

    reshape     x' = x.reshape(dims)
    take        some axes of x' are read at listed places, as by numpy's take
    transpose   the axes come in a new order, perhaps with new ones along which all is repeated

A part that is alone is then reshaped to the shape of the result. Example: Transpose([2,3] -> [3,2])
is one part with dims (2, 3) and the axes (1, 0). Every operator with the trait `move` declares its
moves by `Op.moves`; views need not. Passes, plan and kernels ask `moves_of`, and know no such
operator by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tinsmith.graph import Array, Dim, Node, Value
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import NUMBER, Size

if TYPE_CHECKING:
    from tinsmith.ops._op import Op

Places = Union[range, "Span", Array]
"""Indexes along an axis."""
MOST = 1 << 20
"""The most places that are listed one by one; no move is known of operators that need more."""


class Span(NamedTuple):
    """A `range` whose bounds may be symbolic sizes (`Size`: known only in the call). It is never
    empty, and its step is positive."""

    start: int
    stop: int
    step: int

    @property
    def count(self) -> int:
        """How many places there are."""
        return (self.stop - self.start + self.step - 1) // self.step

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """The places as an array, for `np.asarray`; a bound that is a `Size` counts as the number
        of its example."""
        return np.arange(int(self.start), int(self.stop), int(self.step), dtype=dtype)


EVEN = (range, Span)
"""The kinds of `Places` that have a constant step."""


def spanned(start: int, stop: int, step: int = 1) -> range | Span:
    """The places start, start + step, ... before `stop`: a `Span` where a bound is a `Size`, else a
    range; an empty range where there are none. With a negative step, bounds that are `Size`s are
    fixed to the numbers of the example."""
    step = int(step)
    if not isinstance(start, Size) and not isinstance(stop, Size):
        return range(start, stop, step)
    if step < 0:
        return range(int(start), int(stop), step)
    return range(0) if stop <= start else Span(start, stop, step)


def count_of(places: Places) -> Any:
    """How many places there are: a number, or a Size."""
    return places.count if isinstance(places, Span) else len(places)


@dataclass(frozen=True, eq=False)
class Along:
    """What one axis of a part (`Part.axes`) reads.

    axis    the axis of the reshaped input that it reads; None: a new axis of repetitions, as many
            as `places`
    places  the indexes that are read of `axis`, in order; None: all. An index outside of the axis
            gives `Move.fill`
    """

    axis: int | None
    places: Places | None = None

    def __str__(self) -> str:
        if self.places is None:
            return str(self.axis)
        if self.axis is None:
            return f"*{count_of(self.places)}"
        p = self.places
        if isinstance(p, EVEN):
            return f"{self.axis}[{p.start}:{p.stop}:{p.step}]"
        return f"{self.axis}{p.tolist()}"


@dataclass(frozen=True, eq=False)
class Part:
    """An array that is copied from input number `source`: that input is reshaped to `dims`, and
    `axes[k]` says what axis k of the part reads of it. See the top of this file."""

    source: int
    dims: tuple[Any, ...]  # numbers and symbols
    axes: tuple[Along, ...]

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.dims))
        return f"input {self.source} as [{dims}], axes ({'; '.join(map(str, self.axes))})"

    @property
    def box(self) -> tuple[Any, ...]:
        """The shape of the part, before it is reshaped to that of the result."""
        return tuple(self._count(a) for a in self.axes)

    def _count(self, a: Along) -> Dim:
        if a.places is not None:
            return count_of(a.places)
        assert a.axis is not None
        return self.dims[a.axis]

    def read(self, x: Array, fill: Any = None) -> Array:
        """The part, of shape `box`, from the array `x` of its input. Places outside an axis give
        `fill`; without a fill there must be none."""
        x = x.reshape(self.dims)
        for a in self.axes:
            if a.axis is None or a.places is None:
                continue
            places, size = np.asarray(a.places, np.int64), x.shape[a.axis]
            outside = (places < 0) | (places >= size)
            if fill is not None and outside.any():
                grown = [(0, int(k == a.axis)) for k in range(x.ndim)]
                x, places = np.pad(x, grown, constant_values=fill), np.where(outside, size, places)
            x = x.take(places, a.axis)
        x = x.transpose([a.axis for a in self.axes if a.axis is not None])
        repeated = tuple(k for k, a in enumerate(self.axes) if a.axis is None)
        return np.broadcast_to(np.expand_dims(x, repeated), self.box)

    def cut(self, shape: Sequence[Dim] | None) -> tuple[int, Any] | None:
        """(axis, places) if the part is `np.take(x, places, axis)` of an input x of `shape`, as for
        a Slice of one axis; (0, None) if it is all of x in order. None for all else, such as
        repeated or exchanged axes."""
        if shape is None or any(a.axis is None for a in self.axes):
            return None
        rank, axes = len(shape), self.axes
        first = 0
        while first < min(rank, len(axes)) and self._keeps(first, first, shape[first]):
            first += 1
        last = 0  # from the end
        while last < min(rank, len(axes)) - first and self._keeps(
            -1 - last, -1 - last, shape[~last]
        ):
            last += 1
        if first == rank == len(axes):
            return 0, None
        if rank - first - last != 1:
            return None
        middle, between = axes[first : len(axes) - last], self.dims[first : len(self.dims) - last]
        if len(middle) == len(between) == 1 and between[0] == shape[first]:
            return first, middle[0].places
        if not isinstance(shape[first], NUMBER) or prod(map(int, between)) != shape[first]:
            return None
        inner = tuple(Along(a.axis - first, a.places) for a in middle if a.axis is not None)
        numbers = np.arange(shape[first])
        return first, Part(0, between, inner).read(numbers).reshape(-1)

    def is_whole(self, shape: Sequence[Dim] | None) -> bool:
        """Whether the part is all of an input of `shape`, in order."""
        cut = self.cut(shape)
        return cut is not None and cut[1] is None

    def _keeps(self, place: int, axis: int, size: Dim) -> bool:
        """Whether axis `place` of the part is axis `axis` of `dims`, whole and in order, and of the
        length `size`. Negative axes count from the end."""
        a, rank = self.axes[place], len(self.dims)
        return a.places is None and a.axis == axis % rank and self.dims[axis] == size


@dataclass(frozen=True, eq=False)
class Move:
    """One output of a node that only moves data: shape `dims`, made of `parts` joined along `axis`.
    `fill` is what places outside an input give; None if there are none."""

    dims: tuple[Any, ...]
    parts: tuple[Part, ...]
    axis: int = 0
    fill: Any = None

    def __str__(self) -> str:
        return f" then along {self.axis} ".join(map(str, self.parts))

    def apply(self, arrays: Sequence[Array | None]) -> Array:
        """Compute the output from the arrays of all inputs, None for those that are not read. All
        dims must be numbers. On `np.arange` it tells from which flat index each element comes."""
        read = []
        for p in self.parts:
            x = arrays[p.source]
            assert x is not None
            box = p.read(x, self.fill)
            read.append(box if len(self.parts) > 1 else box.reshape(self.dims))
        return read[0] if len(read) == 1 else np.concatenate(read, self.axis)


def placed(x: Value, places: dict[int, Places], source: int = 0) -> Part:
    """The part that reads the value `x`, input number `source`, at `places` (axis -> places); axes
    that are not among them are read whole. So Slice and Gather read."""
    return split_moved(x.shape or (), range(x.rank or 0), places, source)


def split_moved(
    dims: Sequence[Dim],
    order: Sequence[int],
    places: dict[int, Places] | None = None,
    source: int = 0,
) -> Part:
    """The part that reads input number `source`, reshaped to `dims` and transposed by `order`.
    `places`: axis of `dims` -> the places that are read of it; missing axes are read whole."""
    return Part(source, tuple(dims), tuple(Along(k, (places or {}).get(k)) for k in order))


def view(y: Value, x: Value) -> Move | None:
    """The move of an operator with the trait `view`: y has the elements of `x` in the same order.
    None if their element types differ (BitCast)."""
    return Move(y.shape, (placed(x, {}),)) if x.dtype == y.dtype else None  # type: ignore[arg-type]


def by_table(operator: Op) -> None:
    """Declare the moves of `operator` by its reference, for operators that copy elements of their
    first input or give 0: applied to 1, 2, 3, ... in place of that input, the reference tells which
    element goes where. No move is known for inputs of unknown sizes, or of more than MOST
    elements."""

    @operator.moves
    def _(y: Value, x: Value, *rest: Array | None, **attrs: Any) -> Move | None:
        if not x.type.is_static or not y.type.is_static or x.type.is_free or y.type.is_free:
            return None
        if x.type.size > MOST:
            return None
        numbers = np.arange(1, x.type.size + 1).reshape(x.dims)
        got = operator.reference(numbers, *rest, **attrs)
        part = split_moved((x.type.size,), (0,), {0: got.reshape(-1) - 1})
        return Move(y.dims, (part,), fill=x.dtype.type(0))


def moves_of(node: Node) -> tuple[Move | None, ...]:
    """For each output of a node, how it is copied from the inputs. None for an output that is
    computed, or whose move depends on data or on unknown sizes."""
    declared = getattr(node.op, "moved", None)
    return (None,) * len(node.outputs) if declared is None else declared(node)
