"""The k largest or smallest elements along an axis: a heap whose root is the worst that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log2, prod

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.table import NATIVE
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, elem, kernel

STEP = 3e-9  # seconds of one level of a heap, about
LONG = 512  # elements of a row that is sorted as a whole faster than by a heap
LOOK = 0.7e-9  # seconds to look at an element that is not kept

Pair = tuple[Val, Val]
"""An element and its place on the axis, as i64."""


@kernel("TopK", Tier.VECTOR)
def topk(site: Site) -> Choice:
    """A heap of the best k of each row, in the place of the results, that is sorted in the end."""
    if site.extras or site.epilogue is not None:
        raise Skip("two results have no epilogue")
    x, y = site.input(0), site.out
    axis = site.attr("axis") % len(x.dims)
    n, k = x.dims[axis], y.dims[axis]
    outer, inner = prod(x.dims[:axis]), prod(x.dims[axis + 1 :])
    if site.input(1).const is None:
        raise Skip("k is not a constant")
    if x.dtype.name not in NATIVE or x.dtype == np.bool_ or elem(x).is_half:
        raise Skip(f"x is {x.dtype.name}")
    if not k or not x.type.size:
        raise Skip("nothing is kept")
    if n > LONG and 2 * k > n:
        raise Skip(f"{k} of {n} are kept: the reference sorts the whole row faster")
    largest, rows = bool(site.attr("largest")), outer * inner

    def emit(em: Emit) -> None:
        b, source = em.b, em.ins[0]
        assert source is not None
        values, places = (v.pointer for v in em.outs)
        with b.loop(em.begin, em.end) as row:
            o, i = (row // inner, row % inner) if inner > 1 else (row, 0)
            first = o * (k * inner) + i
            heap = _Heap(b, (values + first).fixed(), (places + first).fixed(), k, inner, largest)
            _row(heap, (source.pointer + o * (n * inner) + i).fixed(), n)

    moves = k * (1.5 + log(n / k)) * (1 + log2(k))  # of rows in random order
    cost = 1e-6 + rows * (n * LOOK + moves * STEP)
    return Choice(cost, (PLAIN, None), (PLAIN, PLAIN), (Phase(rows, emit),), detail=f"k {k}")


@dataclass(frozen=True)
class _Heap:
    """`size` pairs, `step` elements apart: each is worse than those below it."""

    b: Builder
    values: Ptr
    places: Ptr
    size: int
    step: int
    largest: bool

    def at(self, index: Val | int) -> Pair:
        return (self.values + index * self.step).load(), (self.places + index * self.step).load()

    def put(self, index: Val | int, pair: Pair) -> None:
        (self.values + index * self.step).store(pair[0])
        (self.places + index * self.step).store(pair[1])

    def beats(self, a: Val, b: Val) -> Val:
        """Whether a is strictly better; NaN is larger than any number."""
        better = a > b if self.largest else a < b
        if not a.ty.is_float:
            return better
        odd, plain = (a, b) if self.largest else (b, a)
        return better | (odd.is_nan() & (plain.is_nan() ^ True))

    def worse(self, a: Pair, b: Pair) -> Val:
        """Whether a comes behind b: of equal ones, that of the greater place."""
        equal = self.beats(a[0], b[0]) ^ True
        return self.beats(b[0], a[0]) | (equal & (a[1] > b[1]))

    def sink(self, start: Val | int, pair: Pair, count: Val | int) -> None:
        """Put a pair at `start`, or below, where all below it are better, among the first
        `count`."""
        b, count = self.b, self.b.index(count)
        levels = max(1, self.size.bit_length() - 1)
        with b.loop(0, levels, carry=[b.index(start)]) as loop:
            here = loop.vars[0]
            left = here * 2 + 1
            there = left < count
            left = there.select(left, 0)
            two = (left + 1 < count) & there
            right = two.select(left + 1, left)
            low, high = self.at(left), self.at(right)
            turn = two & self.worse(high, low)
            child = turn.select(high[0], low[0]), turn.select(high[1], low[1])
            down = there & self.worse(child, pair)
            self.put(here, (down.select(child[0], pair[0]), down.select(child[1], pair[1])))
            loop.next([down.select(turn.select(right, left), here)])
        self.put(loop.out[0], pair)


def _row(heap: _Heap, x: Ptr, n: int) -> None:
    b, k = heap.b, heap.size
    with b.loop(0, k) as i:
        heap.put(i, ((x + i * heap.step).load(), b.index(i)))
    if k > 1:
        with b.loop(0, k // 2) as i:
            top = b.index(k // 2 - 1) - i
            heap.sink(top, heap.at(top), k)
    if n > k:
        with b.loop(k, n) as i:
            value = (x + i * heap.step).load()
            with b.when(heap.beats(value, heap.values.load())):
                heap.sink(0, (value, b.index(i)), k)
    if k > 1:
        with b.loop(0, k - 1) as i:
            end = b.index(k - 1) - i
            worst, last = heap.at(0), heap.at(end)
            heap.put(end, worst)
            heap.sink(0, last, end)
