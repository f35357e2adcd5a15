"""Constant weights packed to 24 bits: four weights in three 32-bit words.

If weights come from memory, their bytes determine the time. Each column of a weight matrix is
turned into 24-bit integers times a power of two that the column shares. This rounding errs less
than the sums in float32 do. Of four consecutive weights of a column (a k-group), three take the
upper 24 bits of one word each; the fourth is spread over the lower 8 bits of these words:

    word 0:  k      | bits 16-23 of k + 3
    word 1:  k + 1  | bits  8-15 of k + 3
    word 2:  k + 2  | bits  0-7  of k + 3

Words of neighbouring columns lie side by side: a vector of words covers as many columns as a vector
of weights, and nothing moves across lanes. A panel's words are followed by one row with the powers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.float_products import LARGE
from tinsmith.kernels.walk import Position, load_row

TOGETHER, WORDS = 4, 3
"""TOGETHER weights of a column are packed into WORDS words."""
BITS = 24  # of one weight
LEAST_POWER = -100  # the exponent of the power of two for columns of zeros
UNIT = 2.0**-31
"""A word as a 32-bit integer, times UNIT, times its column's power of two, is the weight."""
SMALLEST = 1e-20
"""The least size of the largest weight of a column (other than zeros): no power of two becomes
denormal."""
LEAST = 256 << 10  # bytes of weights; fewer seldom come from memory; estimated
EVEN, EVENLY = 2.0**-9, 2.0**-5
"""The least ratio of root mean squares, of a row of weights over the largest elements of the
columns. An element of the left operand multiplies one row, and rounding errs by up to half a unit
of 2^-23 of the column's largest element: relative to the row's weights that is at most 2^-14.8 in
the root mean square. EVENLY is for Winograd's convolutions, whose transforms amplify the error."""
STRETCH = 1 << 15  # elements that are packed at a time, so that they stay in cache; estimated


def unpacking(target: Target) -> float:
    """How many multiply-adds could be issued in the time that unpacking one vector of words takes:
    3, as many as its instructions, where these need the pipes of multiply-adds; less where other
    pipes help: 1 if one pipe multiplies, else 2 for vectors of fewer than 16 lanes. Estimated."""
    return 1.0 if target.pipes == 1 else 2.0 if target.lanes < 16 else 3.0


def unit(depth: int) -> float:
    """UNIT divided by the least power of two that is at least `depth`: the factor on words, in
    place of UNIT, where nothing bounds the left operand. It is so small that sums of `depth`
    products overflow only if their results do."""
    return UNIT / (1 << (depth - 1).bit_length())


def words(depth: int) -> int:
    """Rows of words that `depth` rows of weights take; `depth` is a multiple of 4."""
    return depth // TOGETHER * WORDS


def rows_of(depth: int, as_words: bool) -> int:
    """Rows of 32-bit elements that `depth` rows of weights take, as words or as float32."""
    return words(depth) if as_words else depth


def rows(depth: int) -> int:
    """Rows of a packed panel: its words, and one row of powers."""
    return words(depth) + 1


def need_words(site: Site, w: Array, depth: int, even: float = EVEN) -> None:
    """Raise Skip unless the weights `w` (k, n) may be packed as words, and gain by it: the target
    has multiply-adds, precision is not strict, `depth`, the rows that are packed together, is a
    multiple of 4, `w` has LEAST bytes or more, and `fits(w, even)`."""
    if not site.target.has_fma:
        raise Skip(f"{site.target.isa} unpacks words as slowly as memory gives whole weights")
    if site.is_strict:
        raise Skip(f"{site.precision} precision asks for the weights themselves")
    if depth % TOGETHER:
        raise Skip(f"{depth} rows are not a multiple of {TOGETHER}")
    if w.nbytes < LEAST:
        raise Skip(f"{w.nbytes} bytes of weights stay in caches")
    if not fits(w, even):
        raise Skip("some weights are small beside others, or tiny, huge or not finite")


def fits(w: Array, even: float = EVEN) -> bool:
    """Whether the weights (k, n) keep their precision: all are below LARGE, each column is 0
    or has an element of SMALLEST or more, and no row is small beside the columns' largest elements
    (by the ratio `even`, see `EVEN`)."""
    largest = np.maximum(np.max(w, axis=0), -np.min(w, axis=0))
    if not np.max(largest) < LARGE or np.any((largest > 0) & (largest < SMALLEST)):
        return False
    squares = np.einsum("kn,kn->k", w, w, dtype=np.float64)
    least = even**2 * np.square(largest, dtype=np.float64).sum()
    return bool(np.all((squares >= least) | (squares == 0)))


def pack(w: Array) -> Array:
    """Pack weights (..., depth, columns) to 24 bits each: (..., rows(depth), columns), first the
    words, then one row with each column's power of two. The dtype is float32, as of weights, but
    words are only bits; `depth` is a multiple of 4. What is not 0 does not become 0."""
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
    """Emit code that unpacks `count` rows of weights (a multiple of 4), whose words begin at `at`,
    a row of words every `row` elements. Yields each row of weights in order, as float32 vectors of
    `widths` columns side by side: q * 256 * `unit`, where q is a weight's 24-bit integer. With
    UNIT that is the weight divided by its column's power."""
    at = at.cast(I32)
    for first in range(0, words(count), WORDS):
        own = []
        for i in range(WORDS):
            own.append(load_row(at + (first + i) * row, widths))
            yield [_number(word & -256, unit) for word in own[-1]]
        yield [_number(_fourth(three), unit) for three in zip(*own, strict=True)]


def _fourth(three: Sequence[Val]) -> Val:
    """The fourth weight of a k-group, as a word, from its parts in the three words."""
    return reduce(or_, [_part(word, i) for i, word in enumerate(three)])


def _part(word: Val, i: int) -> Val:
    """The bits of the fourth weight that word i holds, moved to their place."""
    moved = word << (24 - 8 * i)
    return moved if i == 0 else moved & (0xFF << (24 - 8 * i))


def _number(word: Val, unit: float) -> Val:
    number = word.to("f32")
    return number if unit == 1.0 else number * unit


def line(at: Ptr, k: Val, row: Position, width: int) -> Val:
    """Emit code that unpacks one row of weights, number k, which only the run knows, as one vector
    of `width` columns: as `lines` yields with `unit` 1."""
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
    """Load, as vectors of `widths` columns, the factors that turn sums of products with words, as
    `lines` unpacked them with `unit`, into sums of products with weights: each column's power of
    two, times UNIT / unit. At `at` the panel begins: the words of `depth` rows of weights, then the
    row of powers, each row `row` elements after the one before."""
    found = load_row(at + (rows(depth) - 1) * row, widths)
    return [power if unit == UNIT else power * (UNIT / unit) for power in found]
