"""Ways to compute transposed convolutions to few channels: places, columns, panels of columns.

Along an axis of stride s, the outputs s*t, s*t + 1, ..., s*t + s - 1 belong to place t. A place on
all axes thus has s_z * s_y * s_x outputs of each channel. A column is one of these, for one output
channel: at every place it multiplies the same taps by inputs at the same offsets from the place.

By the definition a column is computed tap by tap. Where outputs have several taps along an axis,
Winograd's methods F(m, r) compute m neighbouring places of that axis as one, by fewer products of
sums of inputs (sequences) and sums of weights. A column is then one of these products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tinsmith.conditions import cached
from tinsmith.kernels.window.geometry import Triple, triple
from tinsmith.kernels.window.tiles import cut, sizes_of
from tinsmith.kernels.window.transposed import Axes
from tinsmith.kernels.winograd.choose import GROWTH
from tinsmith.kernels.winograd.matrices import Bilinear, bilinear, floats, supported
from tinsmith.records import dataclass

MOST_PLACES, MOST_TAPS = 4, 4  # of one algorithm

Terms = tuple[tuple[int, float], ...]
"""A sum of factor times input, or tap, for each (number, factor). Inputs are numbered by their
offset along an axis, taps through all kernels of a group's outputs."""
Sum = tuple[tuple[Triple, float], ...]
"""A sum of factor times tap for each (tap, factor). Tap (z, y, x) is kernel element (taps[0][z],
taps[1][y], taps[2][x]) of a column's `taps`."""
Places = tuple[tuple[int, ...], ...]
"""For each axis, the offset from a place of the input that each tap of a phase reads."""
Step = tuple[Triple, tuple[int, ...]]
"""An offset (z, y, x) from a place, and which columns of a panel read the input there."""


@dataclass(frozen=True, eq=False)
class Seen:
    """The inputs of a column, and how its weights are made. Columns that differ only in their
    channel and kernel elements share one `Seen`.

    offsets  the offset (z, y, x) from a place of each input; z numbers sequences as well (`Way`)
    sums     for each offset its weight, a sum of taps
    """

    offsets: tuple[Triple, ...]
    sums: tuple[Sum, ...]


@dataclass(frozen=True, eq=False)
class Column:
    """One sum of inputs times weights at each place. By the definition it is an output; by fewer
    products it is one product, of which `transposed_mix.unmix` makes outputs.

    number   its flat index among all, [channel][phase on depth, height][product][phase on width]
    channel  the output channel, counted within its group
    taps     the kernel indices of its phase on each axis
    """

    number: int
    seen: Seen
    channel: int
    taps: tuple[tuple[int, ...], ...]

    @property
    def offsets(self) -> tuple[Triple, ...]:
        return self.seen.offsets

    def weights(self, kernel: Triple) -> dict[Triple, Terms]:
        """For each offset the weight of the input there: a sum of taps, which are numbered through
        all kernels (of extents `kernel`) of a group's outputs."""
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
    """One way to compute all outputs. `algorithm.m` neighbouring places along `axis` are computed
    as one; the definition is F(1, 1).

    sequences  sums of inputs along `axis`, which columns read in place of the input: sequence s of
               input plane z is their plane z * len(sequences) + s
    reach      on each axis, how many neighbouring offsets columns read
    span       how many neighbouring inputs along `axis` the places computed as one take together
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
    def steps(self) -> Triple:
        """How many neighbouring places along each axis are computed as one."""
        return triple([self.step if a == self.axis else 1 for a in range(3)])

    @property
    def products(self) -> int:
        return self.algorithm.products


@dataclass(frozen=True, eq=False)
class Kind:
    """Panels of columns with the same offsets, so that one piece of code serves all of them.

    steps    the offsets, each with the columns of a panel that read it
    first    how many columns all kinds before this one have
    weights  how many weights, for each input channel, all kinds before this one have
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
        """How many products a panel has for each place and input channel."""
        return sum(len(seen) for _, seen in self.steps)


def savings(taps: int, places: int, precision: str) -> list[Bilinear]:
    """The methods F(m, r) of Winograd by which m neighbouring places of an axis may be computed as
    one. `taps`: the most taps that an output has along the axis; `places`: places of the axis. The
    growth of errors is at most what `precision` allows."""
    sizes = product(range(2, MOST_PLACES + 1), range(2, MOST_TAPS + 1))
    found = [bilinear(m, r) for m, r in sizes if supported(m, r, 1)]
    return [
        a for a in found if a.r <= taps and a.m <= places and a.growth <= GROWTH.get(precision, 0)
    ]


@cached(16)
def way_of(axes: Axes, outputs: int, algorithm: Bilinear, axis: int) -> Way:
    """The way that computes m neighbouring places of `axis` as one by `algorithm`, F(m, r). Columns
    with the same offsets are neighbours in it. `outputs`: output channels of a group. Offsets count
    from the first input that a place reads (`Axes.least`), along `axis` in steps of m inputs."""
    sequences: dict[Terms, int] = {}
    step, count, across = algorithm.m, algorithm.products, len(axes.phases[2])
    factors = floats(algorithm.g).tolist()
    of = [[(j, c) for j, c in enumerate(row) if c] for row in floats(algorithm.bt).tolist()]
    offsets = [
        [tuple(p.first - low + j * gap for j in range(len(p.taps))) for p in phases]
        for phases, gap, low in zip(axes.phases, axes.gaps, axes.least, strict=True)
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
    """The `Seen` of each product; each[i] has the (sequence, offset, weight) of product i. With
    `planes` sequences, sequence s of plane z is plane z * planes + s."""
    return [
        Seen(
            tuple((z * planes + s, y, x) for s, (z, y, x), _ in rows),
            tuple(weight for _, _, weight in rows),
        )
        for rows in each
    ]


def _terms(places: Places, axis: int, factors: list[float]) -> Iterator[tuple[Triple, Sum]]:
    """The terms of one product of an algorithm F(m, r): (offset of the first input, weight). Taps
    of the axis are taken in blocks of r neighbours. A block's weight is the sum of its taps times
    `factors`, a row of the matrix G. `places`: the offsets of the taps on each axis."""
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
    """The columns of a way in panels of at most `most` columns. Panels with the same steps are one
    kind; the columns of a panel read the same planes."""
    every = dict.fromkeys(c.seen for c in way.columns)
    planes = {seen: frozenset(o[0] for o in seen.offsets) for seen in every}
    alike: dict[frozenset[int], list[Column]] = {}
    for c in way.columns:
        alike.setdefault(planes[c.seen], []).append(c)
    known: dict[tuple[Seen, ...], tuple[Step, ...]] = {}
    together: dict[tuple[int, tuple[Step, ...]], list[tuple[Column, ...]]] = {}
    for columns in alike.values():
        done = 0
        for size in sizes_of(cut(len(columns), most)):
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
    """The offsets that a panel's columns read, ascending, with the numbers of those columns."""
    offsets = sorted({o for s in seen for o in s.offsets})
    return tuple((o, tuple(k for k, s in enumerate(seen) if o in s.offsets)) for o in offsets)
