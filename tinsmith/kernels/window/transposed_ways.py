"""Ways to compute the columns of transposed convolutions to few channels.

Along an axis of stride s, the outputs from s*t to s*t + s - 1 belong to place t. A column is one of
those on each axis, of one output channel: at every place it sees the same taps, at the same offsets
of the input. Where several taps of one axis fall on an output, some neighbouring places of that
axis are computed as one, of fewer products of sums of inputs and sums of weights (Cook-Toom).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tinsmith.conditions import cached
from tinsmith.kernels.window.geometry import Triple, triple
from tinsmith.kernels.window.tiles import cut
from tinsmith.kernels.window.transposed import Axes
from tinsmith.kernels.winograd.choose import GROWTH
from tinsmith.kernels.winograd.matrices import Bilinear, bilinear, floats, supported
from tinsmith.records import dataclass

MOST_PLACES, MOST_TAPS = 4, 4  # of one algorithm

Terms = tuple[tuple[int, float], ...]
"""A sum of (number, factor) terms: of inputs by their offset, or of taps by their number."""
Sum = tuple[tuple[Triple, float], ...]
"""A sum of taps times factors; a tap is told by its places in a `Column.taps`, one an axis."""
Places = tuple[tuple[int, ...], ...]
"""For each axis, the offsets of the inputs that a phase's taps see."""
Step = tuple[Triple, tuple[int, ...]]
"""An offset of the input (z, y, x), and the numbers of the columns of a panel that see it."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a column sees; columns that differ only in their taps share one `Seen`.

    offsets  of the inputs that it sees; z counts sequences too (`Way`)
    sums     for each offset, the weight: a sum of taps, by their places in the column's `taps`
    """

    offsets: tuple[Triple, ...]
    sums: tuple[Sum, ...]


@dataclass(frozen=True, eq=False)
class Column:
    """One result at each place: for one output channel, the sum over some taps of each axis of
    inputs times weights. By the definition it is an output; by fewer products one product, of which
    `transposed_mix.unmix` makes outputs."""

    number: int  # of (channel, phase on the outer axes, product, phase on the last axis), flat
    seen: Seen
    channel: int
    taps: tuple[tuple[int, ...], ...]

    @property
    def offsets(self) -> tuple[Triple, ...]:
        return self.seen.offsets

    def weights(self, kernel: Triple) -> dict[Triple, Terms]:
        """What each input is multiplied by, for each offset at which the column reads one: a sum of
        (number of a tap among those of all kernels, factor)."""
        (_, high, wide), (planes, rows, columns) = kernel, self.taps
        first = self.channel * kernel[0]
        return {
            offset: tuple(
                (((first + planes[z]) * high + rows[y]) * wide + columns[x], factor)
                for (z, y, x), factor in terms
            )
            for offset, terms in zip(self.offsets, self.seen.sums, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Way:
    """One way to compute all outputs: columns, of which those of `algorithm.m` neighbouring places
    along `axis` are computed as one.

    sequences  sums of inputs, which are read in place of the input: number s of plane z is plane z
               * len(sequences) + s
    reach      how many offsets columns see along each axis
    span       how many inputs a place reads along `axis`
    """

    algorithm: Bilinear
    axis: int
    sequences: tuple[Terms, ...]
    columns: tuple[Column, ...]
    reach: Triple
    span: int

    @property
    def step(self) -> int:
        return self.algorithm.m

    @property
    def products(self) -> int:
        return self.algorithm.products


@dataclass(frozen=True, eq=False)
class Kind:
    """Panels of columns that see the same offsets, so that one piece of code serves all.

    steps    the offsets, each with the columns of a panel that see it
    first    how many columns the kinds before this one have
    weights  how many weights, for each input channel, the kinds before this one have
    """

    steps: tuple[Step, ...]
    panels: tuple[tuple[Column, ...], ...]
    first: int
    weights: int

    @property
    def columns(self) -> int:
        return len(self.panels[0])

    @property
    def products(self) -> int:
        """How many products there are for each place and input channel."""
        return sum(len(seen) for _, seen in self.steps)


def savings(taps: int, places: int, precision: str) -> list[Bilinear]:
    """The algorithms F(m, r) of Winograd that may compute m neighbouring places of an axis as
    one: m is at most `places`, r at most `taps` (the most taps of an axis that one output has),
    and the error growth at most what the precision allows."""
    sizes = product(range(2, MOST_PLACES + 1), range(2, MOST_TAPS + 1))
    found = [bilinear(m, r) for m, r in sizes if supported(m, r, 1)]
    return [
        a for a in found if a.r <= taps and a.m <= places and a.growth <= GROWTH.get(precision, 0)
    ]


@cached(16)
def way_of(axes: Axes, least: Triple, outputs: int, algorithm: Bilinear, axis: int) -> Way:
    """The way that computes m neighbouring places of `axis` as one by `algorithm`, F(m, r); F(1, 1)
    is the definition. Columns that see the same offsets lie side by side. `outputs` are those of a
    group; `least` is the first offset of each axis, which counts as 0."""
    sequences: dict[Terms, int] = {}
    step, count, across = algorithm.m, algorithm.products, len(axes.phases[2])
    factors = floats(algorithm.g).tolist()
    of = [[(j, c) for j, c in enumerate(row) if c] for row in floats(algorithm.bt).tolist()]
    offsets = [
        [tuple(p.first - low + j * gap for j in range(len(p.taps))) for p in phases]
        for phases, gap, low in zip(axes.phases, axes.gaps, least, strict=True)
    ]
    found: dict[Places, list[list[tuple[int, Triple, Sum]]]] = {}
    for places in dict.fromkeys(product(*offsets)):
        found[places] = [[] for _ in range(count)]
        for i, rows in enumerate(found[places]):
            for offset, weight in _terms(places, axis, factors[i]):
                start = offset[axis]
                inputs = [(start + j, c) for j, c in of[i]]
                ahead = inputs[0][0] // step
                terms = tuple((at - ahead * step, c) for at, c in inputs)
                s = sequences.setdefault(terms, len(sequences))
                here = triple([ahead if a == axis else o for a, o in enumerate(offset)])
                rows.append((s, here, weight))
    seen = {places: _seen(each, len(sequences)) for places, each in found.items()}
    columns = []
    every = product(range(outputs), zip(product(*axes.phases), product(*offsets), strict=True))
    for k, (m, (phases, places)) in enumerate(every):
        first, (z, y, x) = k // across * count * across + k % across, phases
        taps = (z.taps, y.taps, x.taps)
        columns += [Column(first + i * across, s, m, taps) for i, s in enumerate(seen[places])]
    order = sorted({s.offsets for each in seen.values() for s in each})
    rank = {id(s): order.index(s.offsets) for each in seen.values() for s in each}
    rows = [row for each in found.values() for product in each for row in product]
    ends = [terms[-1][0] for terms in sequences]
    return Way(
        algorithm, axis, tuple(sequences),
        tuple(sorted(columns, key=lambda c: (rank[id(c.seen)], c.number))),
        triple([max((o[a] for _, o, _ in rows), default=0) + 1 for a in range(3)]),
        max((o[axis] * step + ends[s] for s, o, _ in rows), default=0) + 1,
    )  # fmt: skip


def _seen(each: list[list[tuple[int, Triple, Sum]]], planes: int) -> list[Seen]:
    """What each product sees: each[i] has (sequence, offset, weight) of product i. As every plane
    consists of `planes` sequences, sequence s of plane z is plane z * planes + s."""
    return [
        Seen(
            tuple((z * planes + s, y, x) for s, (z, y, x), _ in rows),
            tuple(weight for _, _, weight in rows),
        )
        for rows in each
    ]


def _terms(places: Places, axis: int, factors: list[float]) -> Iterator[tuple[Triple, Sum]]:
    """What one product of an algorithm adds up: (offset of the first input, weight) for each block
    of neighbouring taps of the axis, as many as there are `factors` (a row of G), by which they are
    multiplied. `places` are the offsets of the taps of each axis."""
    numbered = [list(enumerate(offsets)) for offsets in places]
    along, size = numbered[axis], len(factors)
    firsts = range(len(along) % size - size if len(along) % size else 0, len(along), size)
    others = [[[pair] for pair in pairs] for pairs in numbered]
    others[axis] = [along[max(0, f) : f + size] for f in firsts]
    for blocks in product(*others):
        weight = [
            (triple([(inner if a == axis else b[0])[0] for a, b in enumerate(blocks)]), factor)
            for inner, factor in zip(blocks[axis], factors, strict=False)
            if factor
        ]
        if weight:
            yield triple([b[0][1] for b in blocks]), tuple(weight)


@cached(64)
def kinds(way: Way, most: int) -> tuple[Kind, ...]:
    """The columns of a way in panels of at most `most` columns, panels with the same steps together
    as one kind. The columns of a panel see the same planes."""
    every = dict.fromkeys(c.seen for c in way.columns)
    planes = {seen: frozenset(o[0] for o in seen.offsets) for seen in every}
    alike: dict[frozenset[int], list[Column]] = {}
    for c in way.columns:
        alike.setdefault(planes[c.seen], []).append(c)
    known: dict[tuple[Seen, ...], tuple[Step, ...]] = {}
    together: dict[tuple[int, tuple[Step, ...]], list[tuple[Column, ...]]] = {}
    for columns in alike.values():
        done = 0
        for size in (size for count, size in cut(len(columns), most) for _ in range(count)):
            panel = tuple(columns[done : done + size])
            seen = tuple(c.seen for c in panel)
            if seen not in known:
                known[seen] = _steps(seen)
            together.setdefault((size, known[seen]), []).append(panel)
            done += size
    found: list[Kind] = []
    first = weights = 0
    for (_, steps), panels in together.items():
        found.append(Kind(steps, tuple(panels), first, weights))
        first += len(panels) * found[-1].columns
        weights += len(panels) * found[-1].products
    return tuple(found)


def _steps(seen: tuple[Seen, ...]) -> tuple[Step, ...]:
    """Each offset that columns of a panel see, ascending, with the numbers of those columns."""
    offsets = sorted({o for s in seen for o in s.offsets})
    return tuple((o, tuple(k for k, s in enumerate(seen) if o in s.offsets)) for o in offsets)
