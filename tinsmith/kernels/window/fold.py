"""What pooling does with the taps of a window: the maximum, the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.types import Ty
from tinsmith.records import dataclass

Carried = list[Val]
Part = tuple[Val, ...]


@dataclass(frozen=True)
class Fold:
    """What pooling does with the taps of a window: one by one, by `start` and `add`; or, unrolled,
    column by column, by `column` and `across`. `start` is the value of no taps."""

    start: float
    add: Callable[[Val, Val], Val]
    flops: float  # what one tap costs, in operations at the peak rate
    column: Callable[[Sequence[Val]], Part]  # the fold of one column of a window
    across: Callable[[Sequence[Part]], Val]  # the fold of columns


def larger(kept: Val, new: Val) -> Val:
    """The maximum; NaN wins, as in the reference."""
    best = (new > kept).select(new, kept)
    return new.is_nan().select(new, best)


def _largest(xs: Sequence[Val]) -> Part:
    """The fold of a column: (maximum of the numbers, mask of the lanes in which one is NaN). Two
    numbers are tested for NaN at once."""
    pairs = [xs[i].unordered(xs[min(i + 1, len(xs) - 1)]) for i in range(0, len(xs), 2)]
    return reduce(Val.max, xs), reduce(Val.__or__, pairs)


def _largest_of(parts: Sequence[Part]) -> Val:
    numbers, nans = zip(*parts, strict=True)
    return reduce(Val.__or__, nans).select(float("nan"), reduce(Val.max, numbers))


MAXIMUM = Fold(float("-inf"), larger, 3.5, _largest, _largest_of)


def whole_maximum(kind: Ty) -> Fold:
    """The maximum of whole numbers, which are never NaN."""
    start = -(1 << kind.bits - 1) if kind.is_signed else 0
    return Fold(
        start, Val.max, 1.0, lambda xs: (reduce(Val.max, xs),),
        lambda parts: reduce(Val.max, (x for (x,) in parts)),
    )  # fmt: skip


SUM = Fold(
    0.0, add, 2.0, lambda xs: (reduce(add, xs),), lambda parts: reduce(add, (x for (x,) in parts))
)


def fold_range(
    b: Builder, low: Val | int, high: Val | int, carried: Carried,
    body: Callable[[Val | int, Carried], Carried],
) -> Carried:  # fmt: skip
    """Emit `carried = body(index, carried)` for every index of [low, high), and return the last
    `carried`. No loop is emitted for a range known to have one index or none."""
    if isinstance(low, int) and isinstance(high, int):
        if low >= high:
            return carried
        if high - low == 1:
            return body(low, carried)
    with b.loop(low, high, carry=carried) as loop:
        loop.next(body(loop.index, loop.vars))
    return loop.out
