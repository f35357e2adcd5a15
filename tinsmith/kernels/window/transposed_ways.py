"""Ways to compute the columns of transposed convolutions to few channels.

Along an axis of stride s, the outputs from s*t to s*t + s - 1 belong to place t. A column is one of
those on each axis, of one output channel: at every place it sees the same taps, at the same offsets
of the input. Where several taps of one axis fall on an output, some neighbouring places of that
axis are computed as one, of fewer products of sums of inputs and sums of weights (Cook-Toom).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tinsmith.kernels.window.geometry import Triple, triple
from tinsmith.kernels.window.tiles import cut
from tinsmith.kernels.window.transposed import Axes
from tinsmith.kernels.winograd.choose import GROWTH
from tinsmith.kernels.winograd.matrices import Bilinear, bilinear, floats, supported
from tinsmith.records import dataclass
from tinsmith.sizes import cached

MOST_PLACES, MOST_TAPS = 4, 4  # of one algorithm

Terms = tuple[tuple[int, float], ...]
"""A sum of what such places hold, each times a factor."""
Step = tuple[Triple, tuple[int, ...]]
"""An offset of the input, and the columns of a panel that see it."""


@dataclass(frozen=True)
class Column:
    """One of the sums of products of a place: its offsets of the input, and for each the weight, as
    a sum of taps."""

    number: int  # of (channel, phase on the outer axes, product, phase on the last axis), flat
    offsets: tuple[Triple, ...]
    weights: tuple[Terms, ...]


@dataclass(frozen=True)
class Way:
    """The columns of `algorithm.m` places of `axis` together.

    They see `sequences`, sums of a place's inputs, instead of the input: number s of plane z is
    plane z * len(sequences) + s. `reach` are the offsets of each axis that columns see, `span` the
    inputs of the axis."""

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


@dataclass(frozen=True)
class Kind:
    """Panels of columns that see the same offsets, and so share their code; `first` columns are
    those of the kinds before, which have `weights` for each input channel."""

    steps: tuple[Step, ...]
    panels: tuple[tuple[Column, ...], ...]
    first: int
    weights: int

    @property
    def columns(self) -> int:
        return len(self.panels[0])

    @property
    def products(self) -> int:
        """For each place and input channel."""
        return sum(len(seen) for _, seen in self.steps)


def savings(taps: int, places: int, precision: str) -> list[Bilinear]:
    """Algorithms for neighbouring places of an axis where at most so many taps fall on an
    output."""
    sizes = product(range(2, MOST_PLACES + 1), range(2, MOST_TAPS + 1))
    found = [bilinear(m, r) for m, r in sizes if supported(m, r, 1)]
    return [
        a for a in found if a.r <= taps and a.m <= places and a.growth <= GROWTH.get(precision, 0)
    ]


@cached(16)
def way_of(axes: Axes, least: Triple, outputs: int, algorithm: Bilinear, axis: int) -> Way:
    """All columns, those that see the same offsets side by side; `least` is the first offset of
    each axis, which counts as 0."""
    sequences: dict[Terms, int] = {}
    found: list[tuple[int, list[tuple[int, Triple, Terms]]]] = []
    step, count, across = algorithm.m, algorithm.products, len(axes.phases[2])
    factors = floats(algorithm.g).tolist()
    of = [[(j, c) for j, c in enumerate(row) if c] for row in floats(algorithm.bt).tolist()]
    each = enumerate(product(range(outputs), product(*axes.phases)))
    for k, (m, phases) in each:
        seen = [
            [(p.first - low + j * gap, tap) for j, tap in enumerate(p.taps)]
            for p, gap, low in zip(phases, axes.gaps, least, strict=True)
        ]
        for i in range(count):
            column: list[tuple[int, Triple, Terms]] = []
            for offset, weights in _terms(axes.geometry.kernel, m, seen, axis, factors[i]):
                start = offset[axis]
                inputs = [(start + j, c) for j, c in of[i]]
                ahead = inputs[0][0] // step
                terms = tuple((at - ahead * step, c) for at, c in inputs)
                s = sequences.setdefault(terms, len(sequences))
                here = triple([ahead if a == axis else o for a, o in enumerate(offset)])
                column.append((s, here, weights))
            found.append((k // across * count * across + i * across + k % across, column))
    planes = len(sequences)
    columns = [
        Column(
            number,
            tuple((z * planes + s, y, x) for s, (z, y, x), _ in column),
            tuple(w for _, _, w in column),
        )
        for number, column in found
    ]
    every = [o for _, column in found for _, o, _ in column] or [(0, 0, 0)]
    ends = [terms[-1][0] for terms in sequences]
    spans = [o[axis] * step + ends[s] for _, column in found for s, o, _ in column]
    return Way(
        algorithm, axis, tuple(sequences),
        tuple(sorted(columns, key=lambda c: (c.offsets, c.number))),
        triple([max(o[a] for o in every) + 1 for a in range(3)]),
        max(spans, default=0) + 1,
    )  # fmt: skip


def _terms(
    kernel: Triple,
    channel: int,
    seen: list[list[tuple[int, int]]],
    axis: int,
    factors: list[float],
) -> Iterator[tuple[Triple, Terms]]:
    """What a product of a column is of: (offset of the first input, weight) for each block of
    neighbouring taps of the axis, which have these factors. `seen` are (offset, tap) of each
    axis."""
    along, size = seen[axis], len(factors)
    firsts = range(len(along) % size - size if len(along) % size else 0, len(along), size)
    blocks = [along[max(0, f) : f + size] for f in firsts]
    others = [[[pair] for pair in pairs] for pairs in seen]
    others[axis] = blocks
    for places in product(*others):
        weights = []
        for j, inner in enumerate(places[axis]):
            (_, a), (_, c), (_, d) = (inner if i == axis else p[0] for i, p in enumerate(places))
            if factors[j]:
                number = ((channel * kernel[0] + a) * kernel[1] + c) * kernel[2] + d
                weights.append((number, factors[j]))
        if weights:
            yield triple([p[0][0] for p in places]), tuple(weights)


@cached(64)
def kinds(way: Way, most: int) -> tuple[Kind, ...]:
    """The columns in panels of at most so many, which see the same planes."""
    alike: dict[frozenset[int], list[Column]] = {}
    for c in way.columns:
        alike.setdefault(frozenset(o[0] for o in c.offsets), []).append(c)
    together: dict[tuple[int, tuple[Step, ...]], list[tuple[Column, ...]]] = {}
    for columns in alike.values():
        done = 0
        for size in (size for count, size in cut(len(columns), most) for _ in range(count)):
            panel = tuple(columns[done : done + size])
            offsets = sorted({o for c in panel for o in c.offsets})
            seen = [tuple(k for k, c in enumerate(panel) if o in c.offsets) for o in offsets]
            steps = tuple(zip(offsets, seen, strict=True))
            together.setdefault((size, steps), []).append(panel)
            done += size
    found: list[Kind] = []
    first = weights = 0
    for (_, steps), panels in together.items():
        found.append(Kind(steps, tuple(panels), first, weights))
        first += len(panels) * found[-1].columns
        weights += len(panels) * found[-1].products
    return tuple(found)
