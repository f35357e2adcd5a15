"""Generic code: it reads its sizes from a table, so that layers of other sizes share it.

A phase with `Phase.generic` is emitted as if its sizes were known only in a call: extents and
strides of its operands, and the numbers in `generic`, are `Size`s. What the code decides by their
values becomes conditions. It serves every phase of the same `Outline.key` whose numbers meet these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from tinsmith.conditions import Scope
from tinsmith.kernels.layout import Layout, Spec
from tinsmith.records import NamedTuple
from tinsmith.sizes import Number, Size, symbol

Specs = Sequence[Spec | None]


class Outline(NamedTuple):
    """The specs of a phase's operands and outputs, and its numbers `Phase.generic`, in two parts.

    key      what generic code is made for: element types, layouts, which numbers are 0 or 1, which
             strides leave no gaps, and which extents, or strides, of one axis are equal
    numbers  the other numbers of one layer, in the order of its table
    """

    key: tuple[tuple[Any, ...], tuple[int, ...]]
    numbers: tuple[int, ...]

    def sized(self) -> tuple[list[Spec | None], list[Number], list[Size]]:
        """(specs, the numbers of `Phase.generic`, symbols): what generic code is emitted with. Each
        of `numbers` is replaced by a symbol, a Size of at least 2 with that number as its example;
        `symbols` has these in order."""
        scope, (rows, more) = Scope(), self.key
        symbols = [symbol(scope, f"t{k}", n, least=2) for k, n in enumerate(self.numbers)]

        def number(place: int) -> Any:
            return place if place < 2 else symbols[place - 2]

        specs: list[Spec | None] = []
        for row in rows:
            if row is None:
                specs.append(None)
                continue
            dtype, layout, dims, places, lane = row
            dims = tuple(map(number, dims))
            strides: list[Any] = []
            for axis in reversed(range(len(places))):
                told = places[axis]
                dense = _dense(dims, layout, axis, strides[-1] if strides else 1)
                strides.append(dense if told is None else number(told))
            specs.append(Spec(dtype, dims, layout, tuple(reversed(strides)), lane))
        return specs, list(map(number, more)), symbols


def outline(specs: Specs, more: Sequence[Number]) -> Outline | None:
    """The outline of the specs of operands and outputs (None: not read) and of the numbers `more`
    (`Phase.generic`). None if one of all these numbers is known only in a call. Equal extents of
    one axis, in whichever operands, become one number of the table: code serves only layers where
    they are equal, too."""
    places: dict[Hashable, int] = {}

    def place(what: Hashable, number: int) -> int:
        """The number itself if it is 0 or 1, else 2 + its place in the table. Only numbers of equal
        `what` (an axis, a stride of an axis) share a place."""
        return number if number < 2 else places.setdefault((what, number), 2 + len(places))

    rows: list[Any] = []
    for spec in specs:
        if spec is None:
            rows.append(None)
            continue
        if any(isinstance(n, Size) for n in (*spec.dims, *spec.strides)):
            return None
        dims = tuple([place(axis, n) for axis, n in enumerate(spec.dims)])
        strides: list[int | None] = []
        inner = 1
        for axis in reversed(range(len(spec.strides))):
            stride = spec.strides[axis]
            dense = stride == _dense(spec.dims, spec.layout, axis, inner)
            strides.append(None if dense else place(("stride", axis), stride))
            inner = stride
        rows.append((spec.dtype, spec.layout, dims, tuple(reversed(strides)), spec.lane))
    if any(isinstance(n, Size) for n in more):
        return None
    rest = tuple([place(("more", i), n) for i, n in enumerate(more)])
    return Outline((tuple(rows), rest), tuple([n for _, n in places]))  # type: ignore[misc]


def _dense(dims: Sequence[int], layout: Layout, axis: int, inner: int) -> int:
    """The stride of an axis if there is no gap between its elements. `inner`: the stride of the
    next axis, 1 for the last one."""
    block, after = layout.block, axis + 1
    if after == len(dims):
        return block or 1
    if not block or after > 1:
        halo = layout.halo[after - 2] if block and layout.halo else (0, 0)
        return inner * (dims[after] + sum(halo))
    return inner * -(-dims[1] // block)


class Shared(NamedTuple):
    """Generic code, and a function from `Outline.numbers` to the numbers of its table, which
    returns None where the conditions of the code are not met."""

    code: Any
    table: Callable[..., tuple[int, ...] | None]

    def serving(self, numbers: Sequence[int]) -> Any | None:
        """The code with the table for these numbers; None if it does not hold for them."""
        sizes = self.table(*numbers)
        return None if sizes is None else replace(self.code, sizes=sizes)
