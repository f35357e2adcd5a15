"""Reductions along axes, and running sums and products.

Sums of floats are in double precision, so that the reference is an oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Dim, Node, Type, Value
from tinsmith.graph.types import name_of
from tinsmith.ops._apart import Apart
from tinsmith.ops._op import OPS, need, need_one_of, op
from tinsmith.ops._rules import (
    BOOL,
    FLOATS,
    INTS,
    NUMBERS,
    axes_of,
    axis_of,
    const_int,
    const_ints,
    length_of,
    need_dtype,
    scalar,
    unknown,
)
from tinsmith.ops.precision import widen

KINDS = (
    "sum", "mean", "max", "min", "prod", "l1", "l2", "sumsquare", "logsum", "logsumexp",
)  # fmt: skip


@op("reduction")
def Reduce(x, axes=None, *, kind, keepdims=True, noop_with_empty_axes=False):
    """y = the sum, mean, max, min, prod, l1 = sum |x|, l2 = sqrt(sum x^2), sumsquare = sum x^2,
    logsum = ln(sum x) or logsumexp = ln(sum e^x) of x along `axes`, as by Cast in the dtype of x

    No axes mean all axes, or, with noop_with_empty_axes, none: then every element is reduced
    alone. Without elements: sum 0, prod 1, max the least and min the greatest number of the type,
    mean NaN, of integers 0.
    """
    empty = axes is None or np.size(axes) == 0
    if empty:
        where: tuple[int, ...] | None = () if noop_with_empty_axes else None
    else:
        where = tuple(int(a) for a in np.asarray(axes).reshape(-1))
    y = _reduced(x, where, kind, bool(keepdims))
    return y if y.dtype == x.dtype else OPS["Cast"].reference(y, to=name_of(x.dtype))


def _reduced(x: Any, axis: tuple[int, ...] | None, kind: str, keep: bool) -> Any:
    """The reduction `kind` of x over `axis` (None: all), not yet in the dtype of x: sums of floats
    are float64."""
    if kind in ("max", "min"):
        wide = widen(x)
        ufunc = np.maximum if kind == "max" else np.minimum
        least, greatest = _extremes(wide.dtype)
        initial = least if kind == "max" else greatest
        return ufunc.reduce(wide, axis=axis, keepdims=keep, initial=initial)
    whole = x.dtype.kind in "iub"
    if kind in ("sum", "l1", "sumsquare", "prod"):
        wide = x if whole else x.astype(np.float64)
        terms = {"l1": np.abs, "sumsquare": np.square}.get(kind, lambda v: v)(wide)
        total = np.prod if kind == "prod" else np.sum
        return total(terms, axis=axis, keepdims=keep, dtype=terms.dtype)
    wide = x.astype(np.float64)
    if kind == "mean":
        count = max(_count(x.shape, axis), int(whole))
        return np.sum(wide, axis=axis, keepdims=keep) / np.float64(count)
    if kind == "l2":
        return np.sqrt(np.sum(wide * wide, axis=axis, keepdims=keep))
    if kind == "logsum":
        return np.log(np.sum(wide, axis=axis, keepdims=keep))
    top = np.max(wide, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    y = np.log(np.sum(np.exp(wide - top), axis=axis, keepdims=True)) + top
    return y if keep else np.squeeze(y, axis=tuple(range(y.ndim)) if axis is None else axis)


def _count(shape: tuple[int, ...], axis: tuple[int, ...] | None) -> int:
    return int(np.prod(shape if axis is None else [shape[a] for a in axis], dtype=np.int64))


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The least and the greatest number of a type; for floats the infinities."""
    if dtype.kind == "b":
        return False, True
    info = np.iinfo(dtype) if dtype.kind in "iu" else None
    return (info.min, info.max) if info else (-np.inf, np.inf)


@Reduce.type
def _(
    x: Value, axes: Value | None, *, kind: str, keepdims: bool, noop_with_empty_axes: bool
) -> Type:
    need_one_of(KINDS, kind=kind)
    need_dtype(x, NUMBERS | BOOL if kind in ("max", "min") else NUMBERS, "x")
    if axes is not None:
        need_dtype(axes, INTS, "axes")
    numbers = () if axes is None else const_ints(axes)
    if numbers is None and axes is not None and length_of(axes) == 0:
        numbers = ()
    if x.rank is None:
        scalar_result = numbers == () and not noop_with_empty_axes and not keepdims
        return Type(x.dtype, () if scalar_result else None)
    if numbers is None:
        if keepdims:
            return Type(x.dtype, unknown(x.rank))
        count = None if axes is None else length_of(axes)
        return Type(x.dtype, unknown(None if count is None else x.rank - count))
    if numbers:
        reduced = set(axes_of(numbers, x.rank))
    else:
        reduced = set() if noop_with_empty_axes else set(range(x.rank))
    return Type(x.dtype, _shrunk(x, reduced, keepdims))


def _shrunk(x: Value, reduced: set[int], keepdims: bool) -> tuple[Dim, ...]:
    assert x.shape is not None
    if keepdims:
        return tuple(1 if i in reduced else d for i, d in enumerate(x.shape))
    return tuple(d for i, d in enumerate(x.shape) if i not in reduced)


@Reduce.cost
def _(x: Value, axes: Value | None, *, kind: str, **_: Any) -> float:
    each = {"l2": 2, "sumsquare": 2, "l1": 2, "logsumexp": 4}
    return float(x.type.size * each.get(kind, 1))


@op("reduction")
def ArgReduce(x, *, kind, axis=0, keepdims=True, select_last=False):
    """y = the int64 index of the largest ("max") or smallest ("min") element along `axis`

    Of equal ones the first, or with select_last the last. NaN counts as the extreme.
    """
    wide = widen(x)
    find = np.argmax if kind == "max" else np.argmin
    if select_last:
        y = wide.shape[axis] - 1 - find(np.flip(wide, axis), axis=axis, keepdims=bool(keepdims))
    else:
        y = find(wide, axis=axis, keepdims=bool(keepdims))
    return np.asarray(y, np.int64)


@ArgReduce.type
def _(x: Value, *, kind: str, axis: int, keepdims: bool, select_last: bool) -> Type:
    need_one_of(("max", "min"), kind=kind)
    need_dtype(x, NUMBERS, "x")
    if x.shape is None:
        return Type(np.dtype(np.int64), None)
    axis = axis_of(axis, len(x.shape))
    need(x.shape[axis] != 0, f"axis {axis} of {x.type} is empty: there is no extreme")
    return Type(np.dtype(np.int64), _shrunk(x, {axis}, keepdims))


@op("reduction")
def CumSum(x, axis, *, exclusive=False, reverse=False):
    """y[i] = sum of x[j] for j <= i along `axis`; exclusive: j < i; reverse: j >= i; both: j > i"""
    return _running(np.add, x, scalar(axis), exclusive, reverse)


@op("reduction")
def CumProd(x, axis, *, exclusive=False, reverse=False):
    """y[i] = product of x[j] for j <= i along `axis`; exclusive, reverse as for CumSum"""
    return _running(np.multiply, x, scalar(axis), exclusive, reverse)


def _running(ufunc: Any, x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    """The running sum or product of x along `axis`, by `ufunc` (np.add, np.multiply), in the dtype
    of x. `exclusive` leaves out the element itself, `reverse` begins at the end."""
    wide = np.moveaxis(x, axis, -1)
    wide = wide.astype(np.float64) if x.dtype.name in FLOATS else wide
    if reverse:
        wide = wide[..., ::-1]
    total = ufunc.accumulate(wide, axis=-1, dtype=wide.dtype)
    if exclusive and total.shape[-1]:
        first = np.full_like(total[..., :1], ufunc.identity)
        total = np.concatenate([first, total[..., :-1]], axis=-1)
    if reverse:
        total = total[..., ::-1]
    return np.ascontiguousarray(np.moveaxis(total, -1, axis)).astype(x.dtype)


def _running_rule(x: Value, axis: Value, **_: Any) -> Type:
    need_dtype(x, NUMBERS, "x")
    need_dtype(axis, INTS, "axis")
    number = const_int(axis)
    if number is not None and x.rank is not None:
        axis_of(number, x.rank)
    return x.type


CumSum.type(_running_rule)
CumProd.type(_running_rule)


@Reduce.apart
def _(node: Node) -> Apart:
    """The axes that are not reduced; {} if all are, or if it is not known which."""
    x, axes = node.inputs[0], const_ints(node.inputs[1] if len(node.inputs) > 1 else None)
    if x is None or x.shape is None or not axes:
        return {}
    rank = len(x.shape)
    kept = [a for a in range(rank) if a not in axes_of(axes, rank)]
    return {(a if node.keepdims else k): (a,) for k, a in enumerate(kept)}
