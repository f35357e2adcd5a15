"""How pooling reduces the taps of a window to one value: to their maximum, or their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.types import Ty
from tinsmith.records import dataclass

Carried = list[Val]
Part = tuple[Val, ...]


@dataclass(frozen=True)
class Fold:
    """How the taps of a window are reduced to one value. In loops: from `start`, the value of no
    taps, by `add(value so far, tap)`. Unrolled: the taps of each column of the window by `column`,
    then what that gives by `across`; windows that overlap share columns."""

    start: float
    add: Callable[[Val, Val], Val]
    flops: float  # what one tap costs, in operations at the peak rate
    column: Callable[[Sequence[Val]], Part]
    across: Callable[[Sequence[Part]], Val]


def larger(kept: Val, new: Val) -> Val:
    """The larger of two values, lane by lane. NaN counts as largest, as in the reference."""
    best = (new > kept).select(new, kept)
    return new.is_nan().select(new, best)


def _largest(xs: Sequence[Val]) -> Part:
    """`Fold.column` of the float maximum, lane by lane: (the largest tap, or any where one is NaN;
    whether one is NaN). One comparison tests two taps for NaN."""
    pairs = [xs[i].unordered(xs[min(i + 1, len(xs) - 1)]) for i in range(0, len(xs), 2)]
    return reduce(Val.max, xs), reduce(Val.__or__, pairs)


def _largest_of(parts: Sequence[Part]) -> Val:
    """`Fold.across` of the float maximum: from (largest number, whether a tap is NaN) of each
    column of a window, the largest number, or NaN where a column has one."""
    numbers, nans = zip(*parts, strict=True)
    return reduce(Val.__or__, nans).select(float("nan"), reduce(Val.max, numbers))


def _by(start: float, join: Callable[[Any, Any], Any], flops: float) -> Fold:
    """The fold that joins any two values by `join`, taps as well as columns. `start` and `flops`
    are those of `Fold`."""
    return Fold(
        start, join, flops, lambda xs: (reduce(join, xs),),
        lambda parts: reduce(join, (x for (x,) in parts)),
    )  # fmt: skip


def whole_maximum(kind: Ty) -> Fold:
    """The maximum of whole numbers of type `kind`, which are never NaN."""
    return _by(-(1 << kind.bits - 1) if kind.is_signed else 0, Val.max, 1.0)


MAXIMUM = Fold(float("-inf"), larger, 3.5, _largest, _largest_of)
SUM = _by(0.0, add, 2.0)


def fold_range(
    b: Builder, low: Val | int, high: Val | int, carried: Carried,
    body: Callable[[Val | int, Carried], Carried],
) -> Carried:  # fmt: skip
    """Emit a loop of `carried = body(index, carried)` over the indices [low, high); returns the
    last `carried`. A range known to have one index, or none, needs no loop."""
    if isinstance(low, int) and isinstance(high, int):
        if low >= high:
            return carried
        if high - low == 1:
            return body(low, carried)
    with b.loop(low, high, carry=carried) as loop:
        loop.next(body(loop.index, loop.vars))
    return loop.out
