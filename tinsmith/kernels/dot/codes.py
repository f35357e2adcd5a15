"""Small weights: how they lie packed, and how vectors of words become vectors of weights.

Weights of 8 and 4 bits are whole numbers with a scale, and perhaps a zero point, for each block of
k of each column; weights of 16 bits are floats. A **word** holds `group` consecutive k of one
column (four bytes, eight nibbles, or one number of 8 or 16 bits), and words of neighbouring columns
lie side by side, so that nothing moves across lanes. A panel is a sequence of blocks: the words of
a block, one row with its scales, and one with its zero points if these are not all one number.

Nibbles lie so that a mask makes four bytes of them: the first four are the low ones of a word's
bytes, the next four the high ones.

As a float, what is decoded first is a **raw** weight: the stored number as it lies in its word,
times a power of two that only its place in the word determines. The left operand is divided by that
once, before all products (`Code.powers`), so that a weight takes a mask, a conversion, a
multiply-add and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import BF16, F32, I32, Ty
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.memo import is_weights
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]

LONGEST = 256
"""Elements of k after which sums are scaled and added up, at most: what zero points shift them by
stays small beside float32's digits. Estimated."""


@dataclass(frozen=True)
class Code:
    """How weights of one element type are stored: each number plus `bias`, in `bits` bits; a word,
    of type `word`, holds `group` of them. Where these are several, what is stored has no sign."""

    bits: int
    word: Ty
    group: int = 1
    bias: int = 0

    @property
    def is_float(self) -> bool:
        return self.word.is_half

    @property
    def number(self) -> int:
        """How many words a scale or a zero point, which is a float32, takes."""
        return F32.nbytes // self.word.nbytes

    def shift(self, place: int) -> int:
        """The bit of a word that the weight in one place of it begins at."""
        return 8 * (place % 4) + self.bits * (place // 4)

    @property
    def powers(self) -> list[float]:
        """For each place of a word: the power of two by which a raw weight there is too large."""
        return [2.0 ** self.shift(i) for i in range(self.group - 1)] + [1.0]

    def raw(self, word: Val, place: int) -> Val:
        """Decode the weights in one place of a vector of words, to float32, without undoing what is
        cheaper later: each is (the number + `bias`) times `powers[place]`."""
        if self.group == 1:
            return word.to("f32") if self.is_float else word.to("i32").to("f32")
        if place == self.group - 1:
            high = Val(word.b, word.ty.of("u32"), word.ref) >> (32 - self.bits)
            return high.to("i32").to("f32")
        return (word & (((1 << self.bits) - 1) << self.shift(place))).to("f32")


CODES = {
    "int8": Code(8, Ty("i8")),
    "uint8": Code(8, Ty("i8"), bias=-128),
    "int4": Code(4, I32, 8, 8),
    "uint4": Code(4, I32, 8, 0),
    "float16": Code(16, Ty("f16")),
    "bfloat16": Code(16, BF16),
}
"""For what computes in float32."""
BYTES = {**CODES, "int8": Code(8, I32, 4, 128), "uint8": Code(8, I32, 4, 0)}
"""For what multiplies four bytes at a time."""


@dataclass(frozen=True)
class Blocks:
    """How the `depth` weights of each column are cut into blocks that have one scale: `full` blocks
    of `size` weights, then one of `rest` (0: none).

    zeros  whether each block has zero points of its own, in a row behind its scales
    zero   otherwise: the zero point of all, plus the code's bias
    parts  how many of these blocks a block of the model is cut into
    """

    code: Code
    depth: int
    size: int
    zero: float
    zeros: bool
    parts: int = 1

    @property
    def full(self) -> int:
        return self.depth // self.size

    @property
    def rest(self) -> int:
        return self.depth % self.size

    @property
    def count(self) -> int:
        return self.full + bool(self.rest)

    @property
    def padded(self) -> int:
        """Elements of k with those that fill the last word."""
        return self.words(self.depth) * self.code.group

    @property
    def shifted(self) -> bool:
        """Whether sums of stored numbers are not those of weights."""
        return self.zeros or self.zero != 0

    @property
    def around(self) -> int:
        """How many rows of float32 (scales, and zero points where there are such) lie behind the
        words of a block."""
        return 0 if self.code.is_float else 1 + self.zeros

    def words(self, elements: int) -> int:
        return -(-elements // self.code.group)

    def rows(self, elements: int) -> int:
        """How many rows of words a block of so many elements of k takes, with its scales and zero
        points."""
        return self.words(elements) + self.around * self.code.number

    @property
    def height(self) -> int:
        """How many rows of words a packed panel has, those of scales included."""
        return self.full * self.rows(self.size) + (self.rows(self.rest) if self.rest else 0)

    def weight(self, raw: Val, power: float, scale: Val, zero: Val | None) -> Val:
        """(raw / power - zero point) * scale: weights from raw ones, rounded once, by the
        product."""
        x = raw if power == 1 else raw * (1 / power)
        if zero is not None:
            x = x - zero
        elif self.zero:
            x = x - self.zero
        return x * scale


def blocks_of(site: Site, codes: Mapping[str, Code] = CODES) -> Blocks:
    """How the weights of a SmallMatMul are stored and cut into blocks. Raises Skip where they,
    their scale or zero point are not constant, `codes` lacks their type, or a block ends within a
    word."""
    w, block = site.const(1, "the weights"), site.attr("block_size")
    code = codes.get(w.dtype.name)
    if code is None:
        raise Skip(f"no kernel decodes weights of {w.dtype}")
    depth = w.shape[0]
    if code.is_float:
        return Blocks(code, depth, depth, 0.0, False)
    site.const(2, "the scale")
    zero = site.const(3, "the zero point") if site.has(3) else None
    whole = min(block or depth, depth)
    size = whole
    if size > LONGEST:
        shorter = range(LONGEST, 0, -code.group)
        size = next((n for n in shorter if not block or whole % n == 0), size)
    if size < depth and size % code.group:
        raise Skip(f"blocks of {size} end within a word of {code.group}")
    zeros = np.zeros(1) if zero is None else zero.astype(np.float64).reshape(-1)
    one = (zero is None or not is_weights(zero)) and bool((zeros == zeros[0]).all())
    first = float(zeros[0]) + code.bias if one else 0.0
    return Blocks(code, depth, size, first, not one, -(-whole // size))


def pack(
    w: Array, scale: Array | None, zero: Array | None, plan: Blocks, columns: Columns
) -> Array:
    """Weights w (k, n) as one flat array of words, panel after panel (see the module). `scale` and
    `zero`, where blocks have such rows, are (blocks of the model, n)."""
    code, at, found = plan.code, 0, []
    dtype = np.dtype(f"i{code.word.nbytes}")
    body, size = columns.full * columns.size, columns.size
    for first, last, width in ((0, body, size), (body, w.shape[1], sum(columns.tail))):
        if first == last:
            continue
        count = -(-(last - first) // width)
        panels = np.zeros((count, plan.height * width), dtype)
        for i in range(plan.count):
            words = _words(w[i * plan.size : (i + 1) * plan.size, first:last], code)
            _put(panels, at, words, width)
            at += len(words) * width
            for numbers, bias in ((scale, 0), (zero, code.bias))[: plan.around]:
                assert numbers is not None
                row = numbers[i // plan.parts, first:last].astype(np.float32) + np.float32(bias)
                _put(panels.view(np.float32), at // code.number, row[None], width)
                at += code.number * width
        found.append(panels.reshape(-1))
        at = 0
    return np.concatenate(found)


def _put(panels: Array, at: int, rows: Array, width: int) -> None:
    """Write `rows`, [row][column], into `panels`, [panel][word], whose rows have `width` columns: a
    panel's columns of all rows to its words from `at` on. Padding of the tail's panel stays 0."""
    count, columns = rows.shape
    if columns == len(panels) * width:
        sink = panels[:, at : at + count * width].reshape(len(panels), count, width)
        assert np.shares_memory(sink, panels)
        sink[...] = rows.reshape(count, len(panels), width).transpose(1, 0, 2)
    else:
        panels[0, at : at + count * width].reshape(count, width)[:, :columns] = rows


def _words(w: Array, code: Code) -> Array:
    """Weights (k, columns) as words (k / group, rounded up; columns): `group` consecutive k in one
    word, the first in its lowest bits, zeros beyond the last."""
    if code.is_float:
        return w.view(np.int16)
    if code.group == 1:
        return (w.astype(np.int16) + code.bias).astype(np.int8) if code.bias else w
    stored = np.zeros((-(-len(w) // code.group) * code.group, w.shape[1]), np.uint8)
    stored[: len(w)] = w.astype(np.int16) + code.bias
    stored = stored.reshape(-1, code.group, w.shape[1])
    found = np.zeros((len(stored), w.shape[1]), np.uint32)
    for place in range(code.group):
        found |= stored[:, place].astype(np.uint32) << np.uint32(code.shift(place))
    return found.view(np.int32)


def vectors(at: Ptr, widths: Sequence[int]) -> list[Val]:
    """Load the row at a pointer as vectors of `widths` lanes, side by side."""
    found, offset = [], 0
    for width in widths:
        found.append((at + offset).load(width))
        offset += width
    return found
