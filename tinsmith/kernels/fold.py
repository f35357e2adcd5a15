"""Folding rows of elements to one element each: sums, products, extremes.

`fold_row` folds one contiguous row along the lanes of vectors, in several independent chains, and
takes any length. `short_rows` are those that would not fill a vector: each lane holds another row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from tinsmith.codegen.builder import Builder, Ptr
from tinsmith.codegen.types import F32, Ty
from tinsmith.codegen.values import Val
from tinsmith.kernels.emit import Emit
from tinsmith.kernels.transpose import columns
from tinsmith.kernels.walk import Position, finish_run
from tinsmith.records import dataclass
from tinsmith.sizes import Size

CHAINS = 4  # independent accumulators of a fold
FoldStep = Callable[[Position, int, "Val | None", list[Val]], Sequence[Val]]
"""step(position, lanes, mask, accumulators) -> accumulators: folds the `lanes` elements from a
position on into accumulators of as many lanes, one for each fold. Masked loads give zeros in lanes
that are off: a step whose fold has another identity replaces them (`keep`)."""


@dataclass(frozen=True)
class Fold:
    """An associative function of two numbers, named `how` (see `combine`), and its identity: the
    number that changes no other."""

    how: str
    identity: float


SUM, PRODUCT = Fold("add", 0.0), Fold("mul", 1.0)
MAX, MIN = Fold("max", float("-inf")), Fold("min", float("inf"))
LARGEST = Fold("largest", float("-inf"))
"""MAX in shorter code: of NaN and a number, either may be the result."""


def combine(fold: Fold, x: Val, y: Val) -> Val:
    """x and y folded to one, lane by lane; MAX and MIN give NaN where either is NaN."""
    if fold.how == "add":
        return x + y
    if fold.how == "mul":
        return x * y
    if fold.how == "largest":
        return x.max(y)
    better = (x > y if fold.how == "max" else x < y).select(x, y)  # y where either is NaN
    return x.is_nan().select(x, better) if x.ty.is_float else better


def across(fold: Fold, value: Val) -> Val:
    """All lanes of a vector folded to one element."""
    return value.halved(partial(combine, fold))


def keep(mask: Val | None, value: Val, otherwise: float) -> Val:
    """`value` in lanes where the mask is on (None: in all), else the number `otherwise`."""
    return value if mask is None else mask.select(value, otherwise)


SHORT = 8
"""The most vectors of a row that becomes code without a loop, whose values stay in registers: half
of the 16 of AVX2 (estimated)."""


def is_short(n: int, lanes: int) -> bool:
    return not isinstance(n, Size) and n <= SHORT * lanes


class Remembered:
    """A row in memory that a kernel passes over several times, with its vectors kept in registers:
    if `short`, a vector at a constant position is loaded once at most, and what is stored there
    stays in a register until `flush`. Otherwise, and at positions that are a Val, `load` and
    `store` go to memory."""

    def __init__(self, row: Ptr, short: bool = True) -> None:
        self.row, self.short = row, short
        self._seen: dict[tuple[int, int], Val] = {}

    def load(self, at: Position, size: int, mask: Val | None = None) -> Val:
        if not isinstance(at, int):
            return (self.row + at).load(size, mask)
        if (at, size) not in self._seen:
            value = (self.row + at).load(size, mask)
            if not self.short:
                return value
            self._seen[at, size] = value
        return self._seen[at, size]

    def store(self, at: Position, value: Val) -> None:
        if self.short and isinstance(at, int):
            self._seen[at, value.ty.lanes] = value
        else:
            (self.row + at).store(value)

    def flush(self) -> None:
        """Store what is still kept in registers, so that it can be loaded at other positions."""
        for (at, _), value in self._seen.items():
            (self.row + at).store(value)
        self._seen.clear()


def each_part(
    b: Builder, n: int, lanes: int, body: Callable[[Position, int, Val | None], None]
) -> None:
    """Emit `body(position, lanes, mask)` for vectors that cover positions 0 .. n - 1: the same
    vectors as in `fold_row`, so that `body` finds what a `Remembered` row keeps."""
    full, rest = divmod(n, lanes)
    if isinstance(full, Size) or full > SHORT:
        with b.loop(0, full * lanes, lanes) as i:
            body(i, lanes, None)
    else:
        for i in range(full):
            body(i * lanes, lanes, None)
    for at, size, mask in b.pieces(rest, lanes):
        body(full * lanes + at, size, mask)


def fold_row(
    b: Builder, n: int, lanes: int, folds: Sequence[Fold], step: FoldStep, chains: int = CHAINS,
    ty: Ty = F32,
) -> list[Val]:  # fmt: skip
    """Emit the folds of a row of n elements of type `ty`, and return one scalar for each of
    `folds`. `step` folds the elements of one vector (`FoldStep`), in turn into up to `chains` sets
    of accumulators, so that additions need not wait for each other. n may be a free size. Rows of
    few vectors become code without loops: positions are ints, and each vector has its own set."""
    full, rest = n // lanes, n % lanes
    width = len(folds)
    if isinstance(full, int):
        chains = full if width * full <= SHORT else min(chains, full)
        chains = max(1, chains)

    def fresh(size: int) -> list[Val]:
        return [b.const(f.identity, ty.x(size)) for f in folds]

    accs = [v for _ in range(chains) for v in fresh(lanes)]

    def several(at: Position, count: int, accs: list[Val]) -> list[Val]:
        accs = list(accs)
        for c in range(count):
            mine = slice(c * width, (c + 1) * width)
            accs[mine] = step(at + c * lanes, lanes, None, accs[mine])
        return accs

    rounds, left = full // chains, full % chains
    if not isinstance(rounds, int) or rounds > 1:
        every = [f for _ in range(chains) for f in folds]
        accs = _rounds(b, every, accs, (rounds, chains * lanes), lambda i, v: several(i, chains, v))
    elif rounds:
        accs = several(0, chains, accs)
    at = rounds * chains * lanes
    if not isinstance(left, int):
        with b.loop(at, full * lanes, lanes, accs[:width]) as loop:
            loop.next(several(loop.index, 1, loop.vars))
        accs[:width] = loop.out
    else:
        accs = several(at, left, accs)
    tails: list[list[Val]] = []
    for at, size, mask in b.pieces(rest, lanes):
        if size == lanes:
            accs[:width] = step(full * lanes, lanes, mask, accs[:width])
        else:
            tails.append(list(step(full * lanes + at, size, mask, fresh(size))))
    found = []
    for k, fold in enumerate(folds):
        whole = [] if tails and not full else [_pairwise(fold, accs[k::width])]
        totals = [across(fold, v) for v in (*whole, *(t[k] for t in tails))]
        found.append(reduce(partial(combine, fold), totals))
    return found


def fold_whole(
    b: Builder, n: int, lanes: int, start: Sequence[Val],
    step: Callable[[Position, int, Sequence[Val]], Sequence[Val]],
) -> Sequence[Val]:  # fmt: skip
    """Emit a loop over n elements, `lanes` at a time, and return the values that it carries:
    `values = step(position, count, values)`, from `start` on. `count` is less than `lanes` for the
    last elements, which `step` takes in a vector of `lanes`, too."""
    whole = n // lanes * lanes
    if whole:
        with b.loop(0, whole, lanes, start) as loop:
            loop.next(step(loop.index, lanes, loop.vars))
        start = loop.out
    return step(whole, n - whole, start) if n > whole else start


LONG = 1024
"""The most rounds whose elements are added to one sum; the sums of such turns are then added. n
additions of equal numbers to one sum may lose n / 2^24 of it, in turns (LONG + n / LONG) / 2^24."""


def _rounds(
    b: Builder, folds: Sequence[Fold], accs: list[Val], size: tuple[int, int],
    body: Callable[[Val, list[Val]], list[Val]],
) -> list[Val]:  # fmt: skip
    """Emit a loop of `accs = body(position, accs)`, and return the last accumulators; `folds` has
    the fold of each. `size` is (rounds, elements of a round).

    If all folds are SUM, more than LONG rounds are made in turns (see `LONG`). If only a call tells
    the rounds, they are always made so, but only with at most CHAINS accumulators: turns take twice
    as many registers.
    """
    rounds, length = size
    few = rounds <= LONG if isinstance(rounds, int) else len(folds) > CHAINS
    if few or not all(f is SUM for f in folds):
        with b.loop(0, rounds * length, length, accs) as loop:
            loop.next(body(loop.index, loop.vars))
        return loop.out
    with b.loop(0, rounds * length, LONG * length, accs) as turn:
        end = b.minimum(turn.index + LONG * length, rounds * length)
        fresh = [b.const(f.identity, v.ty) for f, v in zip(folds, accs, strict=True)]
        with b.loop(turn.index, end, length, fresh) as loop:
            loop.next(body(loop.index, loop.vars))
        pairs = zip(folds, turn.vars, loop.out, strict=True)
        turn.next([combine(f, x, y) for f, x, y in pairs])
    return turn.out


def _pairwise(fold: Fold, values: list[Val]) -> Val:
    """All values folded to one: the first half with the second half, until one is left."""
    while len(values) > 1:
        half = (len(values) + 1) // 2
        values = [combine(fold, x, y) for x, y in zip(values, values[half:], strict=False)] + (
            values[half - 1 : half] if len(values) % 2 else []
        )
    return values[0]


# ---- short rows

LONGEST = 8
"""Elements of a row up to which taking columns out of vectors pays (estimated: a column of n takes
n - 1 shuffles)."""


@dataclass(frozen=True)
class ShortRows:
    """`count` rows of `length` elements each, without gaps in memory. A unit of work folds `lanes`
    rows at once, each to one number, in a lane of its own. `count` is at least `lanes`. If `lanes`
    does not divide it, the last unit begins earlier, at row count - lanes, and computes some rows
    once more."""

    count: int
    length: int
    lanes: int

    @property
    def units(self) -> int:
        return -(-self.count // self.lanes)

    @property
    def overlap(self) -> bool:
        """Whether the last unit computes rows of the unit before once more."""
        return self.count % self.lanes > 0

    def emit(self, em: Emit, unit: Position, fold: Callable[[list[Val]], Val]) -> None:
        """Emit one unit: load its rows of input 0, finish `fold(columns)` to output 0. `columns[j]`
        is a vector of element j of each row; the result has one lane for each row."""
        first = em.b.minimum(unit * self.lanes, self.count - self.lanes)
        x = (em.input(0).pointer + first * self.length).fixed()
        finish_run(em, fold(columns(x, self.length, self.lanes)), 0, first, None)


def short_rows(count: int, length: int, lanes: int) -> ShortRows | None:
    """The rows as `ShortRows`; None if they are longer than LONGEST or fewer than `lanes`, a size
    is free, or vectors have one lane."""
    free = isinstance(count, Size) or isinstance(length, Size)
    if free or length > LONGEST or lanes == 1 or count < lanes:
        return None
    return ShortRows(count, length, lanes)
