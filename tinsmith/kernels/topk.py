"""The k largest or smallest elements along an axis, kept in order while the axis is walked once."""

from __future__ import annotations

from math import log, prod

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.table import NATIVE
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, elem, kernel

MOST = 1024  # elements that are kept: each new one is compared with them
STEP = 1e-9  # seconds of one comparison, about


@kernel("TopK", Tier.VECTOR)
def topk(site: Site) -> Choice:
    """The best k of each row, sorted; a new one moves those that it beats."""
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
    if k > MOST:
        raise Skip(f"k is {k}: more than {MOST} are sorted by the reference")
    largest = bool(site.attr("largest"))
    rows = outer * inner

    def emit(em: Emit) -> None:
        b, source = em.b, em.ins[0]
        assert source is not None
        values, places = (v.pointer for v in em.outs)
        with b.loop(em.begin, em.end) as row:
            o, i = (row // inner, row % inner) if inner > 1 else (row, 0)
            best = (values + o * (k * inner) + i).fixed()
            where = (places + o * (k * inner) + i).fixed()
            _row(b, (source.pointer + o * (n * inner) + i).fixed(), (best, where), n, k, inner,
                 largest)  # fmt: skip

    kept = k * (1 + log(n / k)) * k / 2  # comparisons of those that are kept, in random order
    cost = 1e-6 + rows * (n + kept) * STEP
    return Choice(cost, (PLAIN, None), (PLAIN, PLAIN), (Phase(rows, emit),), detail=f"k {k}")


def _row(
    b: Builder, x: Ptr, kept: tuple[Ptr, Ptr], n: int, k: int, inner: int, largest: bool
) -> None:
    best = kept[0]
    with b.loop(0, n) as i:
        value = (x + i * inner).load()
        held = b.minimum(i, k)
        full = b.index(i) >= k
        last = (best + (k - 1) * inner).load()
        wanted = (full ^ True) | _beats(value, last, largest)
        with b.when(wanted):
            _insert(b, kept, value, i, b.index(held), k, inner, largest)


def _insert(
    b: Builder, kept: tuple[Ptr, Ptr], value: Val, at: Val, held: Val, k: int, inner: int,
    largest: bool,
) -> None:  # fmt: skip
    """Pass the new element along what is held: it changes places with what it beats."""
    best, where = kept
    with b.loop(0, held, carry=[value, at.to("i64")]) as loop:
        here, place = best + loop.index * inner, where + loop.index * inner
        old, old_place = here.load(), place.load()
        mine, my_place = loop.vars
        equal = _beats(old, mine, largest) ^ True
        moved = _beats(mine, old, largest) | (equal & (my_place < old_place))
        here.store(moved.select(mine, old))
        place.store(moved.select(my_place, old_place))
        loop.next([moved.select(old, mine), moved.select(old_place, my_place)])
    mine, my_place = loop.out
    with b.when(held < k):
        (best + held * inner).store(mine)
        (where + held * inner).store(my_place)


def _beats(a: Val, b: Val, largest: bool) -> Val:
    """Whether a is strictly better; NaN is larger than any number."""
    better = a > b if largest else a < b
    if not a.ty.is_float:
        return better
    if largest:
        return better | (a.is_nan() & (b.is_nan() ^ True))
    return better | (b.is_nan() & (a.is_nan() ^ True))
