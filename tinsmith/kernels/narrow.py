"""Constant weights in three quarters of their bytes: four of 24 bits in three words of 32.

Where weights come from memory, their bytes are the time that they take. A column of weights becomes
whole numbers of 24 bits, times a power of two that they share: about as exact as float32, whose
sums round away more. Of four that follow each other in a column, three are the upper 24 bits of a
word each, and the fourth is in the lower 8 bits of all three:

    word 0:  k      | bits 16-23 of k + 3
    word 1:  k + 1  | bits  8-15 of k + 3
    word 2:  k + 2  | bits  0-7  of k + 3

Words of neighbouring columns are neighbours, so a vector of words is as many columns as a vector of
weights, and nothing moves across lanes. After the words of a panel comes a row of the powers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.moderate import LARGE
from tinsmith.kernels.walk import Position

Array = np.ndarray[Any, Any]

TOGETHER, WORDS = 4, 3
"""So many weights of a column are in so many words."""
BITS = 24  # of a weight
LEAST_POWER = -100  # of two, for columns of zeros
UNIT = 2.0**-31
"""What a word is a multiple of, in parts of its column's power of two."""
SMALLEST = 1e-20
"""Of the largest weights of columns that are not 0: no power of two is denormal."""
LEAST = 256 << 10  # bytes; fewer seldom come from memory
EVEN, EVENLY = 2.0**-9, 2.0**-5
"""The least root mean square of what one element of the left operand meets, beside that of the
columns' largest elements: what is rounded away, half a unit at most, is then 2^-14.8 of it or less,
in the root mean square. Evenly: of Winograd's convolutions, whose transforms amplify it."""
STRETCH = 1 << 15  # elements


def unpacking(target: Target) -> float:
    """Multiply-adds that could have been issued while a vector of words becomes weights: its three
    instructions go where those go, or beside them where a pipe has them to itself."""
    return 1.0 if target.pipes == 1 else 2.0 if target.lanes < 16 else 3.0


def unit(depth: int) -> float:
    """What a word counts where nothing bounds the left operand: sums over `depth` products overflow
    only where their results do."""
    return UNIT / (1 << (depth - 1).bit_length())


def words(depth: int) -> int:
    """Rows of words of `depth` rows of weights, a multiple of 4."""
    return depth // TOGETHER * WORDS


def rows_of(depth: int, as_words: bool) -> int:
    """Rows of four bytes a weight that `depth` rows of weights take, as words or as they are."""
    return words(depth) if as_words else depth


def rows(depth: int) -> int:
    """Rows of a panel: its words, and the powers."""
    return words(depth) + 1


def need_words(site: Site, w: Array, depth: int, even: float = EVEN) -> None:
    """Skip unless the weights `w` (k, n), whose sums run over multiples of `depth`, may be kept as
    words, and gain."""
    if not site.target.has_fma:
        raise Skip(f"{site.target.isa} unpacks words as slowly as memory gives whole weights")
    if site.precision != "default":
        raise Skip(f"{site.precision} precision asks for the weights themselves")
    if depth % TOGETHER:
        raise Skip(f"{depth} rows are not a multiple of {TOGETHER}")
    if w.nbytes < LEAST:
        raise Skip(f"{w.nbytes} bytes of weights stay in caches")
    if not fits(w, even):
        raise Skip("some weights are small beside others, or tiny, huge or not finite")


def fits(w: Array, even: float = EVEN) -> bool:
    """Whether the weights (k, n) keep what they hold: all are finite, and no row of them is small
    beside the largest elements of its columns (see `EVEN`)."""
    largest = np.maximum(np.max(w, axis=0), -np.min(w, axis=0))
    if not np.max(largest) < LARGE or np.any((largest > 0) & (largest < SMALLEST)):
        return False
    squares = np.einsum("kn,kn->k", w, w, dtype=np.float64)
    least = even**2 * np.square(largest, dtype=np.float64).sum()
    return bool(np.all((squares >= least) | (squares == 0)))


def pack(w: Array) -> Array:
    """(..., depth, columns) as words (..., rows(depth), columns), called float32 as the weights."""
    *lead, depth, columns = w.shape
    packed = np.empty((*lead, rows(depth), columns), np.int32)
    flat, out = w.reshape(-1, depth, columns), packed.reshape(-1, rows(depth), columns)
    step = max(1, STRETCH // (depth * columns))
    for at in range(0, len(flat), step):
        _pack(flat[at : at + step], out[at : at + step])
    return packed.view(np.float32)


def _pack(w: Array, out: Array) -> None:
    count, depth, columns = w.shape
    sizes = np.abs(w).reshape(count, -1, TOGETHER * columns)  # numpy is slow along short rows
    largest = np.max(np.max(sizes, axis=1).reshape(count, TOGETHER, columns), axis=1, keepdims=True)
    powers = np.maximum(np.frexp(largest)[1], LEAST_POWER)
    most = 1 << (BITS - 1)
    whole = w * np.ldexp(w.dtype.type(1), BITS - 1 - powers)
    np.clip(np.rint(whole, out=whole), 1 - most, most - 1, out=whole)
    np.copyto(whole, np.sign(w), where=whole == 0)  # infinity times what is not 0 is infinite
    fours = whole.astype(np.int32).reshape(count, depth // TOGETHER, TOGETHER, columns)
    upper, last = fours[:, :, :WORDS] << 8, fours[:, :, WORDS:]
    upper |= last >> np.array([16, 8, 0], np.int32).reshape(WORDS, 1) & 0xFF
    out[:, :-1] = upper.reshape(count, -1, columns)
    out[:, -1:] = np.ldexp(np.float32(1), powers).view(np.int32)


def lines(
    at: Ptr, count: int, row: int, widths: Sequence[int], unit: float = 1.0
) -> Iterator[list[Val]]:
    """The weights of `count` k, a multiple of 4, as vectors of `widths` columns; `row` columns make
    a row. A word, as a whole number of 32 bits, counts `unit`: with UNIT weights are parts of their
    columns' powers."""
    at = at.cast(I32)
    starts = [sum(widths[:j]) for j in range(len(widths))]
    places = list(zip(starts, widths, strict=True))
    for first in range(0, words(count), WORDS):
        own = []
        for i in range(WORDS):
            line = at + (first + i) * row
            own.append([(line + start).load(width) for start, width in places])
            yield [_number(word & -256, unit) for word in own[-1]]
        yield [_number(_fourth(three), unit) for three in zip(*own, strict=True)]


def _fourth(three: Sequence[Val]) -> Val:
    """The weight whose parts three words hold."""
    first, *others = [_part(word, i) for i, word in enumerate(three)]
    for part in others:
        first = first | part
    return first


def _part(word: Val, i: int) -> Val:
    """What word i holds of the fourth weight, in its place."""
    moved = word << (24 - 8 * i)
    return moved if i == 0 else moved & (0xFF << (24 - 8 * i))


def _number(word: Val, unit: float) -> Val:
    number = word.to("f32")
    return number if unit == 1.0 else number * unit


def line(at: Ptr, k: Val, row: Position, width: int) -> Val:
    """The weights of one k, as `lines` gives them."""
    at = at.cast(I32)
    first = at + k // TOGETHER * (WORDS * row)
    own = [(first + i * row).load(width) for i in range(WORDS)]
    place, word = k % TOGETHER, _fourth(own)
    assert isinstance(place, Val)
    for i in range(WORDS):
        word = place.eq(i).select(own[i] & -256, word)
    return _number(word, 1.0)


def powers(
    at: Ptr, depth: int, row: Position, widths: Sequence[int], unit: float = 1.0
) -> list[Val]:
    """What sums of the weights of a panel at `at` are multiplied by, for vectors of columns."""
    powers = at + (rows(depth) - 1) * row
    starts = [sum(widths[:j]) for j in range(len(widths))]
    found = [(powers + start).load(width) for start, width in zip(starts, widths, strict=True)]
    return [power if unit == UNIT else power * (UNIT / unit) for power in found]
