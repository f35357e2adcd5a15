"""The axes of a resize: their tables, and which inputs make an element or a row of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32, I64
from tinsmith.kernels._kernel import Choice, Emit, Packed, Phase, Site, packed_table
from tinsmith.kernels.resize_computed import Computed
from tinsmith.kernels.walk import Position, digits
from tinsmith.ops.resize import Table
from tinsmith.records import dataclass
from tinsmith.sizes import typical

MOST_RUNS = 4  # the most runs of copied neighbours that get code of their own; estimated

NONE: Mapping[int, int] = {}

Row = tuple[Ptr, Val | None]  # an input row and its weight


@dataclass(frozen=True)
class Axis:
    """One axis of a resize: its extents before (`size`) and after (`out`), and its table.

    table  None if the axis does not change, or each element is repeated `every` times
    index  the number of the packed array of places, which that of weights follows; of a computed
           table the offset of its places in scratch, in units of 8 bytes, with its weights behind
    every  without a table: how often each element is repeated; 0 if the axis does not change
    """

    size: int
    out: int
    table: Table | Computed | None
    index: int
    every: int = 0

    @property
    def taps(self) -> int:
        return 1 if self.table is None else self.table.taps

    @property
    def weighted(self) -> bool:
        return self.table is not None and self.table.weighted

    def arrays(self, em: Emit) -> tuple[Ptr, Ptr]:
        """Pointers to the places and to the weights of its table, both [result][tap]. Without
        weights the second pointer means nothing."""
        if isinstance(self.table, Computed):
            places = em.scratch.cast(I64) + em.b.index(self.index)
            return places, (places + em.b.index(self.out * self.taps)).cast(F32)
        return em.packed[self.index], em.packed[self.index + self.weighted]

    def in_vectors(self, lanes: int) -> int:
        """How many results of a row are copied in whole vectors, for estimates of the time."""
        if self.repeats and typical(self.size) >= lanes > 1:
            return typical(self.out)
        return sum(hi - lo for lo, hi, _ in self.copied(lanes))

    @property
    def repeats(self) -> int:
        """How often each element is repeated, if all are equally often, twice or more; else 0. Of
        computed tables nothing is known: 0."""
        if self.table is None:
            return self.every
        if self.weighted or isinstance(self.table, Computed):
            return 0
        times, rest = divmod(int(self.out), int(self.size))
        if rest or times < 2:
            return 0
        even = np.arange(self.out) // times
        return times if np.array_equal(self.table.places[:, 0], even) else 0

    def copied(self, least: int) -> list[tuple[int, int, int]]:
        """Runs of at least `least` results that copy neighbouring elements, as (first result, end,
        place of the first element). [] if there are more than MOST_RUNS, or the table has weights
        or is computed."""
        if self.weighted or not isinstance(self.table, Table):
            return []
        places = self.table.places[:, 0]
        edges = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        runs = [(lo, hi, int(places[lo])) for lo, hi in pairwise(edges) if hi - lo >= least]
        return runs if len(runs) <= MOST_RUNS else []


def axes_of(
    site: Site, tables: Sequence[Table | Computed], lead: int, every: Mapping[int, int] = NONE
) -> list[Axis]:
    """The `Axis` of each axis of the site's input from `lead` on. `tables` have the axes that
    change, but for those in `every`: {axis: how often each element is repeated}."""
    named = {t.axis: t for t in tables}
    axes: list[Axis] = []
    packed = start = 0
    for d in range(lead, len(site.out.dims)):
        table = named.get(d)
        times = every.get(d, 0)
        computed = isinstance(table, Computed)
        index = start if computed else packed
        axes.append(Axis(site.input(0).dims[d], site.out.dims[d], table, index, times))
        if computed:
            start += 2 * axes[-1].out * axes[-1].taps
        elif table is not None:
            packed += 1 + table.weighted
    return axes


def with_tables(choice: Choice, axes: Sequence[Axis]) -> Choice:
    """The choice with packed arrays and scratch for the tables of the axes. Known tables are
    packed, in the order of axes: places, then weights, if any. A first phase, of one tile, writes
    computed ones to scratch."""
    packed: list[Packed] = []
    computed = [axis for axis in axes if isinstance(axis.table, Computed)]
    for k, axis in enumerate(axes):
        of = axis.table
        if isinstance(of, Table):
            packed.append(packed_table(f"places{k}", of.places))
            if of.weights is not None:
                packed.append(packed_table(f"weights{k}", of.weights.astype(np.float32)))
    if not computed:
        return replace(choice, packed=tuple(packed))

    def emit(em: Emit) -> None:
        for axis in computed:
            assert isinstance(axis.table, Computed)
            axis.table.emit(em.b, *axis.arrays(em))

    room = sum(16 * axis.out * axis.taps for axis in computed)
    return replace(
        choice, packed=tuple(packed), phases=(Phase(1, emit), *choice.phases), scratch=room
    )


def cost_of(site: Site, axes: Sequence[Axis], each: float) -> float:
    """Seconds of a resize: the time in which input and output are moved, and `each` nanoseconds
    (for one tap of all results) times the taps along `axes`."""
    moved = site.input(0).type.nbytes + site.out.type.nbytes
    return 0.3e-6 + site.target.time(0, moved) + each * 1e-9 * prod(a.taps for a in axes)


def rows_at(
    em: Emit, axes: Sequence[Axis], flat: Position, src: Ptr, dst: Ptr,
    steps: Sequence[Sequence[int]],
) -> tuple[list[Row], Ptr]:  # fmt: skip
    """Find the input rows of which one output row is the weighted sum. Return them, with weights
    (None: one row, which is copied), and a pointer to the output row. `flat` is the number of the
    output row over all axes but the innermost; `src` and `dst` point to the first elements, `steps`
    are the strides of input and output along `axes`."""
    b = em.b
    rows: list[Row] = [(src, None)]
    for k, at in digits(flat, [(a.out, k) for k, a in enumerate(axes[:-1])]):
        axis = axes[k]
        dst = dst + at * steps[1][k]
        if axis.table is None:
            place = at // axis.every if axis.every else at
            rows = [(p + place * steps[0][k], w) for p, w in rows]
            continue
        more: list[Row] = []
        first, (places, weights) = b.index(at) * axis.taps, axis.arrays(em)
        for t in range(axis.taps):
            place = (places + first + t).load() * steps[0][k]
            weight = (weights + first + t).load() if axis.weighted else None
            for p, w in rows:
                both = weight if w is None else w if weight is None else w * weight
                more.append((p + place, both))
        rows = more
    return [(p.fixed(), w) for p, w in rows], dst.fixed()


def weighted_sum(terms: Iterable[tuple[Val, Val | None]]) -> Val:
    """The sum of values times their weights; a value without a weight is the only one."""
    total: Val | None = None
    for value, weight in terms:
        if weight is None:
            return value
        total = value * weight if total is None else value.fma(weight, total)
    assert total is not None
    return total


def with_vectors(rows: Sequence[Row], lanes: int) -> list[Row]:
    return [(p, None if w is None else w.splat(lanes)) for p, w in rows]


def taps_at(em: Emit, axis: Axis, i: Position) -> list[tuple[Val, Val | None]]:
    """Load the taps of result i along an axis: (index of an input element, its weight) for each
    element that the result sums up; the weight is None if one element is copied."""
    first = em.b.index(i) * axis.taps
    every = axis.arrays(em)
    places = (every[0] + first).fixed()
    weights = (every[1] + first).fixed() if axis.weighted else None
    return [
        ((places + t).load(), None if weights is None else (weights + t).load())
        for t in range(axis.taps)
    ]
