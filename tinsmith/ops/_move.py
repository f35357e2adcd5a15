"""What operators move where, as data.

A part of a result is read from one input in three steps: the input is taken as an array of other
dims, in the same order; each axis of that is read at certain places; and the axes come in another
order, perhaps with axes between them along which everything repeats. With x' the input under
`dims`, p_k the places of axis k, and a(k) the axis that comes at place k:

    box[i_0, i_1, ...] = x'[j],  j_a(k) = p_k(i_k);    part = box, under the dims of the result

A result is its parts, one after the other along `axis`. Every operator with the trait `move` or
`view` says by `Op.moves` what its results are in these terms: passes, the plan and the kernels of
copies ask that, and know no operator by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tinsmith.graph import Dim, Node, Value
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import NUMBER, Size

if TYPE_CHECKING:
    from tinsmith.ops._op import Op

Array = np.ndarray[Any, Any]

Places = Union[range, "Span", Array]
"""Places along an axis."""
MOST = 1 << 20
"""Places that are worked out one by one, at most."""


class Span(NamedTuple):
    """A range whose bounds are numbers that only the call tells (`Size`); used only where it cannot
    be empty."""

    start: int
    stop: int
    step: int

    @property
    def count(self) -> int:
        """How many places there are."""
        return (self.stop - self.start + self.step - 1) // self.step

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """The places for the numbers that the bounds have in the example, as `np.asarray` asks for
        them."""
        return np.arange(int(self.start), int(self.stop), int(self.step), dtype=dtype)


EVEN = (range, Span)
"""Places in even steps."""


def spanned(start: int, stop: int, step: int = 1) -> range | Span:
    """The places start, start + step, ... before `stop`: a range, or a `Span` where a bound is a
    `Size`, the step positive and the range not empty."""
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
    """One axis of a box: which axis of the input it reads, and where.

    axis    the axis of the input, as an array of `Part.dims`; None: everything repeats along it
    places  the places on that axis; None: all in order. With `axis` None only their number counts

    A place outside the axis gives the fill of the `Move`, if it has one.
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
    """A box that is read from input number `source`, reshaped to `dims`: `axes` says for each axis
    of the box what it reads."""

    source: int
    dims: tuple[Any, ...]  # numbers and symbols
    axes: tuple[Along, ...]

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.dims))
        return f"input {self.source} as [{dims}], axes ({'; '.join(map(str, self.axes))})"

    @property
    def box(self) -> tuple[Any, ...]:
        """How many places there are along each axis of the box."""
        return tuple(self._count(a) for a in self.axes)

    def _count(self, a: Along) -> Dim:
        if a.places is not None:
            return count_of(a.places)
        assert a.axis is not None
        return self.dims[a.axis]

    def read(self, x: Array, fill: Any = None) -> Array:
        """The box, read from the array `x` of the input. Places outside an axis give `fill`;
        without a fill there must be none."""
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
        """(axis, places): the one axis of an input of `shape` that is not read in order, and the
        places on it; (0, None) if the box is the whole input in order. None for all else, such as
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
        """Whether the box is all of an input of `shape`, in order."""
        cut = self.cut(shape)
        return cut is not None and cut[1] is None

    def _keeps(self, place: int, axis: int, size: Dim) -> bool:
        """Whether axis `place` of the box reads, whole and in order, axis `axis` of `dims`, and
        that has the extent `size`. Negative numbers count from the last axis."""
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
        """The output, computed from the arrays of all inputs; all dims are numbers.

        Applied to the indexes of the elements of its input, a move tells where each element comes
        from; applied to the result of another move, it is the composition of both.
        """
        read = []
        for p in self.parts:
            x = arrays[p.source]
            assert x is not None
            box = p.read(x, self.fill)
            read.append(box if len(self.parts) > 1 else box.reshape(self.dims))
        return read[0] if len(read) == 1 else np.concatenate(read, self.axis)


def placed(x: Value, places: dict[int, Places], source: int = 0) -> Part:
    """The part that reads input number `source`, the value `x`, at the given places of some axes
    (axis -> places), and whole along the others."""
    return split_moved(x.shape or (), range(x.rank or 0), places, source)


def split_moved(
    dims: Sequence[Dim],
    order: Sequence[int],
    places: dict[int, Places] | None = None,
    source: int = 0,
) -> Part:
    """The part that reads input number `source`, reshaped to `dims`, with its axes in `order`;
    `places`: axis -> the places on it, all in order for axes that are missing."""
    return Part(source, tuple(dims), tuple(Along(k, (places or {}).get(k)) for k in order))


def view(y: Value, x: Value) -> Move | None:
    """The move that takes all elements of `x` in order as those of `y`; None if their element types
    differ."""
    return Move(y.shape, (placed(x, {}),)) if x.dtype == y.dtype else None  # type: ignore[arg-type]


def by_table(operator: Op) -> None:
    """Declare the move of an operator that copies elements of its first input as only its reference
    tells: the reference is applied to the numbers 1, 2, ... of the elements, and a 0 in its result
    is the fill, 0. No move is known for inputs of unknown sizes, or of more than MOST elements."""

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
    """For each output of a node, how its elements are copied from inputs; None for an output that
    is more than moved, or of which only the run tells."""
    declared = getattr(node.op, "moved", None)
    return (None,) * len(node.outputs) if declared is None else declared(node)
