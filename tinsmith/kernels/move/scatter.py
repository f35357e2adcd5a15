"""Scatters to constant places: a copy of the input, then copies of rows of the updates over it."""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.graph import Value
from tinsmith.kernels._kernel import Choice, Emit, Phase, Site, Skip, Tier, kernel, packed_table
from tinsmith.kernels.layout import PLAIN, lanes_of, plain_strides
from tinsmith.kernels.move.strided import copy_row, words
from tinsmith.kernels.walk import copy

CHUNK = 1 << 13
"""Elements of a tile of the copy of the input, and the most of a line of updates. Estimated."""


@kernel("ScatterND", Tier.VECTOR)
def scatter_nd_constant(site: Site) -> Choice:
    """Slices of the updates to constant places; of equal places the last one stays."""
    dims = site.input(0).dims
    places = site.const(1, "the places")
    count = places.shape[-1]
    rows = np.zeros(places.shape[:-1], np.int64)
    for axis, step in enumerate(plain_strides(dims[:count])):
        rows = rows + step * _wrapped(places[..., axis], dims[axis])
    return _choice(site, rows.reshape(-1), prod(dims[count:]))


@kernel("ScatterElements", Tier.VECTOR)
def scatter_elements_constant(site: Site) -> Choice:
    """Elements of the updates to constant places; of equal places the last one stays."""
    dims = site.input(0).dims
    places = site.const(1, "the places")
    axis = site.attr("axis") % len(dims)
    index = list(np.indices(places.shape))
    index[axis] = _wrapped(places, dims[axis])
    steps = plain_strides(dims)
    flat = sum(i * s for i, s in zip(index, steps, strict=True))
    return _choice(site, np.asarray(flat).reshape(-1), 1)


def _wrapped(places: np.ndarray, extent: int) -> np.ndarray:
    """Indices along an axis as int64 positions, its `extent` added to negative ones. Raises Skip if
    one is out of range."""
    least, most = (places.min(), places.max()) if places.size else (0, 0)
    if least < -extent or most >= max(extent, 1):
        raise Skip("a place is out of range")
    places = places.astype(np.int64, copy=False)
    return places if least >= 0 else np.where(places < 0, places + extent, places)


def _choice(site: Site, rows: np.ndarray, inner: int) -> Choice:
    """The choice of a scatter that copies the input to the output, then row k of the updates
    to row `rows[k]` of the output. Rows have `inner` elements. Raises Skip for a reduction."""
    if site.attr("reduction") != "none":
        raise Skip(f"the reduction is {site.attr('reduction')}")
    site.need_no_epilogue("a copy has no epilogue")
    y, updates = site.out, site.input(2)
    if not rows.size:
        raise Skip("nothing is scattered")
    lines, sources, length = _lines(rows, CHUNK // inner if inner else 1)
    targets, sources, inner = lines * inner, sources * inner, length * inner

    def scatter(em: Emit) -> None:
        source = em.input(2)
        with em.b.loop(em.begin, em.end) as k:
            to, come = ((p + k).load() for p in em.packed)
            copy_row(em.b, inner, source.pointer + come, em.outs[0].pointer + to)

    nbytes = 2 * (y.type.nbytes + updates.type.nbytes)
    return Choice(
        1e-6 + site.target.time(0, nbytes) + len(targets) * 2e-9, (PLAIN, None, PLAIN), (PLAIN,),
        (copy_all(y), Phase(len(targets), scatter)),
        (packed_table("targets", targets), packed_table("sources", sources)), inplace=0,
    )  # fmt: skip


def _lines(rows: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Join copies of a scatter, source row k to target row `rows[k]`, into lines: rows that follow
    one another on both sides. Return the first target row of each line, its first source row, and
    how many rows every line has, at most `most`. Of several sources of one target the last is kept.

    _lines([5, 6, 0, 1], 8) is ([5, 0], [0, 2], 2)."""
    kept = np.arange(len(rows))
    if (np.diff(rows) <= 0).any():
        kept = np.sort(len(rows) - 1 - np.unique(rows[::-1], return_index=True)[1])
        rows = rows[kept]
    ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(kept) != 1)) + 1
    common = int(np.gcd.reduce(np.diff(ends, prepend=0, append=len(rows))))
    length = max((n for n in range(1, min(common, most) + 1) if common % n == 0), default=1)
    return rows[::length], kept[::length], length


def copy_all(y: Value) -> Phase:
    """A phase that copies input 0 to the output y, CHUNK elements a tile."""
    size = y.type.size

    def emit(em: Emit) -> None:
        b = em.b
        first, end = b.index(em.begin) * CHUNK, b.minimum(b.index(em.end) * CHUNK, size)
        source, out = ((words(v.pointer) + first).fixed() for v in (em.input(0), em.outs[0]))
        copy(b, source, out, b.index(end) - first, lanes_of(b.target, out.elem.nbytes))

    return Phase(-(-size // CHUNK), emit, copies=0)
