"""Weights of 16, 8 or 4 bits: how they are packed, and how vectors of them are decoded.

Weights of 8 and 4 bits are whole numbers with a scale, and perhaps a zero point, for each block of
k of each column; weights of 16 bits are floats. A **word** holds `group` consecutive k of one
column (four bytes, eight numbers of 4 bits, or one of 8 or 16 bits). Words of neighbouring columns
lie side by side, so that nothing moves across lanes. A packed panel is a sequence of blocks; a
block is rows of words, one row of scales, and, unless all zero points are equal, one row of these.

Numbers of 4 bits: the first four of a word are the low halves of its bytes, the next four the high
halves, so that one mask turns a word into four bytes.

To be decoded as a float, a weight is first masked out of its word, but not shifted. This **raw**
weight is the stored number times a power of two, which depends on the place in the word alone. The
left operand is divided by these powers once, before all products (`Code.powers`), so that a weight
takes a mask, a conversion and a multiply-add.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.codegen.types import BF16, F32, I32, Ty
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.dot.matmul import panels_of
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.memo import is_weights
from tinsmith.records import dataclass

LONGEST = 256
"""The most elements of k whose products by stored numbers are summed before the sum is scaled and
corrected for the zero point: in longer sums the correction would cost digits. Estimated."""


@dataclass(frozen=True)
class Code:
    """How weights of one element type are stored: each as (number + `bias`), in `bits` bits. A
    word, of type `word`, holds `group` of them; if that is several, `bias` makes them unsigned."""

    bits: int
    word: Ty
    group: int = 1
    bias: int = 0

    @property
    def is_float(self) -> bool:
        """Whether weights are float16 or bfloat16, which have no scales."""
        return self.word.is_half

    @property
    def number(self) -> int:
        """How many words take as much memory as one float32, the type of scales and zero points."""
        return F32.nbytes // self.word.nbytes

    def shift(self, place: int) -> int:
        """At which bit of a word the weight at `place` (0 to `group` - 1) begins."""
        return 8 * (place % 4) + self.bits * (place // 4)

    @property
    def powers(self) -> list[float]:
        """For each place of a word: the factor by which a raw weight exceeds the stored number. It
        is 1 at the last place, which a shift decodes."""
        return [2.0 ** self.shift(i) for i in range(self.group - 1)] + [1.0]

    def raw(self, word: Val, place: int) -> Val:
        """Decode raw weights, (number + `bias`) * `powers[place]`, at one place of a vector of
        words."""
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
"""How weights are stored for kernels that compute in float32, by element type."""
BYTES = {**CODES, "int8": Code(8, I32, 4, 128), "uint8": Code(8, I32, 4, 0)}
"""The same for kernels that multiply four bytes at a time."""


@dataclass(frozen=True)
class Blocks:
    """How the `depth` weights of each column are cut into blocks that have one scale: `full` blocks
    of `size` weights, then one of `rest` (0: none).

    zeros  whether each block has zero points of its own, in a row after its scales
    zero   if not `zeros`: the zero point of all weights, plus the code's bias
    parts  how many of these blocks make one block of the model, which may be longer
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
        """`depth`, rounded up to whole words."""
        return self.words(self.depth) * self.code.group

    @property
    def shifted(self) -> bool:
        """Whether a zero point or the code's `bias` must be subtracted from stored numbers."""
        return self.zeros or self.zero != 0

    @property
    def around(self) -> int:
        """Rows of float32 after the words of a block: 0, 1 (scales), or 2 (with zero points)."""
        return 0 if self.code.is_float else 1 + self.zeros

    def words(self, elements: int) -> int:
        """How many words (of type `code.word`, without scales) hold that many elements of k."""
        return -(-elements // self.code.group)

    def rows(self, elements: int) -> int:
        """How many rows of words, scales and zero points included, so many elements of k take."""
        return self.words(elements) + self.around * self.code.number

    @property
    def height(self) -> int:
        """How many rows of words a packed panel takes, with all scales and zero points."""
        return self.full * self.rows(self.size) + (self.rows(self.rest) if self.rest else 0)

    def weight(self, raw: Val, power: float, scale: Val, zero: Val | None) -> Val:
        """Weights from raw ones: (raw / power - zero point) * scale. `zero`: the vector of zero
        points, plus the code's bias, if blocks have their own. Only the last product rounds."""
        x = raw if power == 1 else raw * (1 / power)
        if zero is not None:
            x = x - zero
        elif self.zero:
            x = x - self.zero
        return x * scale


def blocks_of(site: Site, codes: Mapping[str, Code] = CODES) -> Blocks:
    """How the weights of a SmallMatMul are stored and cut into blocks. Raises Skip if they, their
    scale or zero point are not constant, `codes` lacks their type, or blocks split words."""
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
    `zero` are (blocks of the model, n); None where blocks have no such row."""
    rows: list[Array] = []
    for i in range(plan.count):
        rows.append(_words(w[i * plan.size : (i + 1) * plan.size], plan.code))
        for numbers, bias in ((scale, 0), (zero, plan.code.bias))[: plan.around]:
            assert numbers is not None
            rows.append(numbers[i // plan.parts, None].astype(np.float32) + np.float32(bias))

    def joined(*panels: Array) -> Array:
        """Arrays [panel][row][column] of all `rows`, joined along rows of words."""
        count, _, width = panels[0].shape
        words = [p.view(f"i{plan.code.word.nbytes}").reshape(count, -1, width) for p in panels]
        return np.concatenate(words, axis=1).reshape(-1)

    return np.concatenate(list(map(joined, *(panels_of(r, columns) for r in rows))))


def _words(w: Array, code: Code) -> Array:
    """Weights (k, columns) as words (k / group rounded up, columns): `group` consecutive k in one
    word, the first in its lowest bits, zeros beyond the last k."""
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
