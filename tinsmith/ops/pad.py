"""Padding, and cropping, at the ends of axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value
from tinsmith.ops._dims import fresh
from tinsmith.ops._move import MOST, Move, Places, by_table, placed, spanned
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import (
    INTS,
    axes_of,
    const_ints,
    length_of,
    need_data,
    need_dtype,
    need_room,
    need_same,
    unknown,
)
from tinsmith.sizes import same


@op("move")
def Pad(x, pads, value=None, axes=None, *, mode="constant"):
    """y = x with pads[i] elements before and pads[n + i] after, on axis axes[i]; negative ones cut

    n is the number of `axes` (default: all). `mode`: constant (`value`, default 0), reflect
    (without the edge), edge (repeats it), wrap (periodic).
    """
    return _padded(x, _pairs(pads, axes, x.ndim), value, mode)


def _pairs(pads: Any, axes: Any, rank: int) -> list[tuple[int, int]]:
    """The (before, after) padding of each of `rank` axes, from the operands of a Pad (numbers, not
    Values); (0, 0) for axes that are not in `axes`."""
    numbers = np.asarray(pads).reshape(2, -1).tolist()
    where = range(rank) if axes is None else np.asarray(axes).reshape(-1).tolist()
    pairs = [(0, 0)] * rank
    for axis, before, after in zip(where, *numbers, strict=True):
        pairs[axis] = (before, after)
    return pairs


def _padded(x: Any, pairs: list[tuple[int, int]], value: Any, mode: Any) -> Any:
    """x padded by (before, after) of `pairs` on each axis, cut where a number is negative; `value`
    and `mode` as in Pad. Raises DataError if more is cut than there is."""
    for axis, ((a, b), n) in enumerate(zip(pairs, x.shape, strict=True)):
        cuts = max(0, -a) + max(0, -b)
        need_data(cuts <= n, f"pads cut {cuts} elements of axis {axis}, which has {n}")
    cut = tuple(
        slice(min(max(0, -a), n), max(n - max(0, -b), 0))
        for (a, b), n in zip(pairs, x.shape, strict=True)
    )
    x = x[cut]
    grow = [(max(a, 0), max(b, 0)) for a, b in pairs]
    if not any(a or b for a, b in grow):
        return x
    dims = [n + a + b for n, (a, b) in zip(x.shape, grow, strict=True)]
    need_room(dims, x.dtype)
    if mode != "constant":
        return np.pad(x, grow, mode=mode)
    y = np.empty(dims, x.dtype)
    y[...] = _fill(value, x.dtype)
    y[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, grow, strict=True))] = x
    return y


def _fill(value: Any, dtype: Any) -> Any:
    """The element that fills padding, as an array [1] of `dtype`: `value`, or, where it is None, 0
    ("" for strings)."""
    if value is None:
        return np.full(1, "" if dtype.kind == "O" else 0, dtype)
    return np.asarray(value).reshape(-1)[:1].astype(dtype)


@Pad.type
def _(x: Value, pads: Value, value: Value | None, axes: Value | None, *, mode: str) -> Type:
    need_one_of(("constant", "reflect", "edge", "wrap"), mode=mode)
    need_dtype(pads, INTS, "pads")
    need_dtype(axes, INTS, "axes")
    need_same(x, value)
    numbers, where = const_ints(pads), const_ints(axes)
    if x.shape is None:
        count = length_of(pads)
        return Type(x.dtype, unknown(count // 2) if axes is None and count else None)
    rank = len(x.shape)
    if numbers is None or (axes is not None and where is None):
        return Type(x.dtype, unknown(rank))
    where = tuple(range(rank)) if where is None else axes_of(where, rank)
    need(len(numbers) == 2 * len(where), f"{len(numbers)} pads do not fit {len(where)} axes")
    dims: list[Dim] = []
    for d, (a, b) in zip(x.shape, _pairs(numbers, where, rank), strict=True):
        if isinstance(d, str):
            dims.append(d if a + b == 0 and a >= 0 and b >= 0 else fresh())
            continue
        left = d - max(0, -a) - max(0, -b)
        need(left >= 0, f"pads {list(numbers)} cut more than {x.type} has")
        fits = mode == "constant" or left or not (a > 0 or b > 0)
        need(fits, f"mode {mode} cannot pad an empty axis")
        dims.append(d + a + b)
    return Type(x.dtype, tuple(dims))


@Pad.moves
def _(y: Value, x: Value, pads: Any, value: Any, axes: Any, *, mode: str) -> Move | None:
    """Constant padding reads each axis at indexes outside of it, which give the fill; the other
    modes read the elements that are copied there."""
    places: dict[int, Places] = {}
    how: Any = mode
    shape, fill = x.shape or (), _fill(value, x.dtype) if mode == "constant" else None
    for axis, ((a, b), n) in enumerate(zip(_pairs(pads, axes, len(shape)), shape, strict=True)):
        if same(a, 0) and same(b, 0):
            continue
        if isinstance(n, str):
            return None
        places[axis] = spanned(-a, n + b)
        if fill is None:
            kept: Any = range(max(-a, 0), n - max(-b, 0))
            grown: Any = (max(a, 0), max(b, 0))
            if len(kept) + sum(grown) > MOST:
                return None
            places[axis] = np.pad(kept, grown, mode=how) if any(grown) else np.array(kept)
    return Move(y.shape or (), (placed(x, places),), fill=fill)


@op("move")
def CenterCropPad(x, shape, *, axes=None):
    """y = the middle of x, cut or padded with zeros to `shape` along `axes` (default: all)

    Where an odd number is cut or padded, one more is at the end.
    """
    where = range(x.ndim) if axes is None else axes
    pairs = [(0, 0)] * x.ndim
    for axis, want in zip(where, np.asarray(shape).reshape(-1).tolist(), strict=True):
        gap = want - x.shape[axis]
        before = gap // 2 if gap >= 0 else -(-gap // 2)
        pairs[axis] = (before, gap - before)
    return _padded(x, pairs, None, "constant")


by_table(CenterCropPad)


@CenterCropPad.type
def _(x: Value, shape: Value, *, axes: tuple[int, ...] | None) -> Type:
    need_dtype(shape, INTS, "shape")
    wanted = const_ints(shape)
    if x.shape is None:
        return Type(x.dtype, None)
    where = range(len(x.shape)) if axes is None else axes_of(axes, len(x.shape))
    need(length_of(shape) in (None, len(where)), f"shape does not fit {len(where)} axes")
    need(wanted is None or all(w >= 0 for w in wanted), f"shape {wanted} has a negative dim")
    dims = list(x.shape)
    for i, axis in enumerate(where):
        dims[axis] = fresh() if wanted is None else wanted[i]
    return Type(x.dtype, tuple(dims))
