"""Operators of sequences and optionals, which are values that hold tensors.

In references, a sequence is a list of arrays, and an optional is None, an array or a list. No
reference changes a list that it is given.
"""

from __future__ import annotations

import numpy as np

from tinsmith.errors import DataError
from tinsmith.graph import Holder, OptionalType, SequenceType, Type, Value
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import axis_of, const_ints, dtype_attr, need_dtype, scalar

POSITIONS = ("int32", "int64")


def item_of(value: Value) -> Type:
    """The type of one tensor of the sequence `value`, with new symbols, as its tensors may differ
    in size. Raises TypeRuleError if `value` is no sequence."""
    held = value.type
    need(isinstance(held, SequenceType), f"{value!r} is no sequence")
    assert isinstance(held, SequenceType)
    item = held.item
    if item.shape is None:
        return item
    return item.like(shape=tuple(fresh() if isinstance(d, str) else d for d in item.shape))


def either(a: Type, b: Type, what: str) -> Type:
    """The type that covers tensors of type `a` and of type `b`: dims that differ become new
    symbols, ranks that differ unknown. Raises TypeRuleError, which calls the tensors `what`, where
    element types differ."""
    need(a.dtype == b.dtype, f"{what} are {a} and {b}; a sequence has one element type")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return a.like(shape=None)
    dims = (m if m == n else fresh() for m, n in zip(a.shape, b.shape, strict=True))
    return a.like(shape=tuple(dims))


def _place(at, count, most):
    """The index in a sequence of `count` tensors that the scalar `at` means; negative ones count
    from the end. Raises DataError unless -count <= at <= most."""
    place = scalar(at)
    if not -count <= place <= most:
        raise DataError(f"the position {place} is outside of a sequence of {count} tensors")
    return place + count if place < 0 else place


def _need_place(at):
    need_dtype(at, POSITIONS, "the position")


# ---- making


@op("holder")
def SequenceEmpty(*, dtype="float32"):
    """y = []"""
    return []


@SequenceEmpty.type
def _(*, dtype):
    return SequenceType(Type(dtype_attr(dtype), None))


@op("holder")
def SequenceConstruct(*xs):
    """y = [*xs]"""
    return list(xs)


@SequenceConstruct.type
def _(*xs):
    need(len(xs) > 0, "it needs at least one tensor; SequenceEmpty makes an empty sequence")
    item = xs[0].type
    for x in xs:
        need(not isinstance(x.type, Holder), f"{x!r} is no tensor")
        item = either(item, x.type, "the tensors")
    return SequenceType(item)


@op("holder")
def SplitToSequence(x, sizes=None, *, axis=0, keepdims=True):
    """y[i] = the i-th part of x along an axis

    `sizes` is the size of each part (1-D), or of all parts (a scalar; the last may be smaller).
    Without it parts have the size 1, and lose the axis unless `keepdims`.
    """
    total = x.shape[axis]
    if sizes is not None and np.ndim(sizes):
        ends = np.cumsum(sizes)
        if np.min(sizes, initial=0) < 0 or np.sum(sizes) != total:
            raise DataError(f"parts of {np.asarray(sizes).tolist()} do not add up to {total}")
    else:
        step = 1 if sizes is None else scalar(sizes)
        if step < 1:
            raise DataError(f"a part cannot have the size {step}")
        ends = np.minimum(np.arange(step, total + step, step), total)
    parts = np.split(x, ends[:-1], axis) if len(ends) else []
    return [p.squeeze(axis) for p in parts] if sizes is None and not keepdims else list(parts)


@SplitToSequence.type
def _(x, sizes, *, axis, keepdims):
    need(not isinstance(x.type, Holder), f"{x!r} is no tensor")
    need_dtype(sizes, POSITIONS, "the sizes of the parts")
    if x.shape is None:
        return SequenceType(x.type)
    at = axis_of(axis, len(x.shape))
    before, after = x.shape[:at], x.shape[at + 1 :]
    if sizes is None:
        return SequenceType(x.type.like(shape=(*before, *((1,) if keepdims else ()), *after)))
    known = set(const_ints(sizes) or ())
    step = known.pop() if sizes.rank == 1 and len(known) == 1 else fresh()
    return SequenceType(x.type.like(shape=(*before, step, *after)))


# ---- changing


@op("holder")
def SequenceInsert(s, x, at=None):
    """y = s with x before the place `at` (if negative, counted from the end), or at the end"""
    place = len(s) if at is None else _place(at, len(s), len(s))
    return [*s[:place], x, *s[place:]]


@SequenceInsert.type
def _(s, x, at):
    _need_place(at)
    need(not isinstance(x.type, Holder), f"{x!r} is no tensor")
    return SequenceType(either(item_of(s), x.type, "the elements"))


@op("holder")
def SequenceErase(s, at=None):
    """y = s without the tensor at the place `at`, or without the last"""
    place = _place(-1 if at is None else at, len(s), len(s) - 1)
    return [*s[:place], *s[place + 1 :]]


@SequenceErase.type
def _(s, at):
    _need_place(at)
    return SequenceType(item_of(s))


# ---- reading


@op("holder")
def SequenceAt(s, at):
    """y = s[at]"""
    return s[_place(at, len(s), len(s) - 1)]


@SequenceAt.type
def _(s, at):
    _need_place(at)
    return item_of(s)


@op("holder")
def SequenceLength(s):
    """y = the number of tensors in s"""
    return np.array(len(s), np.int64)


@SequenceLength.type
def _(s):
    item_of(s)
    return Type(np.dtype(np.int64), ())


@op("holder")
def ConcatFromSequence(s, *, axis, new_axis=False):
    """y = the tensors of s, joined along an axis, or stacked along a new one"""
    if not s:
        raise DataError("the sequence is empty: there is nothing to join")
    return np.stack(s, axis) if new_axis else np.concatenate(s, axis)


@ConcatFromSequence.type
def _(s, *, axis, new_axis):
    item = item_of(s)
    if item.shape is None:
        return item
    at = axis_of(axis, len(item.shape) + new_axis)
    return item.like(shape=(*item.shape[:at], fresh(), *item.shape[at + (not new_axis) :]))


# ---- optionals


@op("holder")
def Optional(x=None, *, dtype=None, sequence=False):
    """y = x, or an empty optional where x is absent

    An empty one is for tensors of element type `dtype`, or, with `sequence`, sequences of these.
    """
    return x


@Optional.type
def _(x, *, dtype, sequence):
    if x is not None:
        need(not isinstance(x.type, OptionalType), f"{x!r} is optional already")
        return OptionalType(x.type)
    need(dtype is not None, "without an input it needs an element type")
    item = Type(dtype_attr(dtype), None)
    return OptionalType(SequenceType(item) if sequence else item)


@op("holder")
def OptionalHasElement(x=None):
    """y = whether the optional x is not empty, a bool scalar"""
    return np.array(x is not None)


@OptionalHasElement.type
def _(x):
    return Type(np.dtype(bool), ())


@op("holder")
def OptionalGetElement(x):
    """y = the tensor or sequence in the optional x; DataError if it is empty"""
    if x is None:
        raise DataError("the optional value is empty")
    return x


@OptionalGetElement.type
def _(x):
    return x.type.item if isinstance(x.type, OptionalType) else x.type
