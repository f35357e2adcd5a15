"""Few rows times constant weights of 8 or 4 bits, as products of bytes: weights are multiplied as
they are stored.

Each element x of a row of A becomes a fixed-point number of three signed bytes ("digits"). For a
block with 2^e > max |x|:

    x = (q2 65536 + q1 256 + q0) 2^(e - 22), rounded to the nearest, with digits from -128 to 127

Four elements times four weights are then three products of four bytes, one for each digit. Sums
are exact in int32, and are scaled in float32 once for each block. An element of A changes by at
most 2^(e - 23): the greatest of a block keeps 22 of float32's 24 bits.

A block of A with an infinity or NaN contributes 0 this way; its products are computed in float32
instead, weight by weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen import math
from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import I8, PRODUCTS
from tinsmith.codegen.types import F32, I32
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.codes import BYTES, Blocks, blocks_of
from tinsmith.kernels.dot.small_few import WIDE, FewRows, Tile, less_zeros, rows_of, streamed
from tinsmith.kernels.fold import fold_whole
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.walk import Position, load_row

DIGITS = 3
"""Bytes of a fixed-point number."""
BITS = 22
"""Bits of a fixed-point number without its sign. Three digits hold them: they reach from
-2^23 - 32,896 to 2^23 - 32,897."""
LONGEST = 512
"""The most elements of a block: so many fixed-point numbers, of 23 bits each, add up in 32."""
BIASED = 0x808080
"""(q + BIASED) ^ BIASED has the digits of q, from -128 to 127, as its three bytes."""
SPARE = 8
"""Registers that are not used for sums, but for words, their bytes, and digits of A. Counted."""
MANTISSA, EXPONENTS = 23, 255
"""Of float32: the bits of a mantissa, and the exponent of infinities and NaN."""
FACTS = 4
"""Numbers that are kept of each block of a row of A: the value of its last bit, 2^(e - 22); the sum
of its fixed-point numbers; and the first k and last k + 1 of the elements that must be multiplied
in float32 (all of them, or none)."""
Values = Sequence[Val]


@kernel("SmallMatMul", Tier.SHAPED, dtypes="float32")
def gemv_small_bytes(site: Site) -> Choice:
    """At most 4 rows, in fixed point, times weights of 4 or 8 bits, as products of bytes."""
    target = site.target
    if not target.has_byte_products or PRODUCTS[target.byte_products].left.is_signed:
        raise Skip(f"{target.isa} does not multiply unsigned by signed bytes")
    if site.is_strict:
        raise Skip("fixed-point numbers have fewer digits than floats, and precision is strict")
    blocks, m = blocks_of(site, BYTES), rows_of(site)
    if blocks.code.is_float:
        raise Skip("weights are halves")
    if blocks.size > LONGEST:
        raise Skip(f"blocks of {blocks.size} weights, more than {LONGEST}")
    wide = max(1, min(WIDE, (target.registers - SPARE) // (DIGITS * m)))
    few = _Digits(blocks, m, DIGITS * _plane(blocks), FACTS, elem=I8, total=I32, parts=DIGITS)
    return streamed(site, few, wide, (DIGITS * m + 1) / 4)


def _plane(blocks: Blocks) -> int:
    """The bytes from one of the DIGITS planes of a row to the next: a plane has one digit
    (byte) of each element, and room for a vector that is written behind the last element."""
    return (blocks.padded // LINE + 2) * LINE


class _Digits(FewRows):
    """The arithmetic of this module. Prepared rows of A are bytes, [row][digit][element]; their
    facts are FACTS."""

    def prepare(self, em: Emit, x: Ptr, to: Ptr, block: tuple[Position, int], facts: Ptr) -> None:
        """Write the block in fixed point. The bits of the greatest |x| tell the exponent e. It is
        at least -104, so smaller numbers lose digits."""
        b, lanes, (first, size) = em.b, block_of(em.target), block
        none = b.zero(I32.x(lanes))

        def greatest(at: Position, count: int, found: Values) -> Values:
            bits = (x + at).load(lanes, count=count).bitcast(I32.x(lanes))
            return [found[0].max(bits & (1 << 31) - 1)]

        exponent = fold_whole(b, size, lanes, [none], greatest)[0].reduce("max") >> MANTISSA
        finite, exponent = exponent < EXPONENTS, exponent.max(BITS)
        least = ((exponent - (BITS - 1)) << MANTISSA).bitcast(F32)
        factor = ((EXPONENTS + BITS - 2 - exponent) << MANTISSA).bitcast(F32)

        def digits(at: Position, count: int, found: Values) -> Values:
            number = math.nearest((x + at).load(lanes, count=count) * factor.splat(lanes))
            biased = (number + BIASED) ^ BIASED
            for i in range(DIGITS):
                digit = biased >> 8 * i if i else biased
                (to + at + i * _plane(self.blocks)).store(digit.to("i8"))
            return [found[0] + number]

        total = fold_whole(b, size, lanes, [none], digits)[0].reduce("add").to("f32")
        least = finite.select(least, 0.0)
        begin = b.index(first).to("i32")
        end = finite.select(begin, begin + size)
        for i, fact in enumerate((least, total, begin.bitcast(F32), end.bitcast(F32))):
            (facts + i).store(fact)

    def add(self, tile: Tile, words: list[Val], row: int, sums: list[list[Val]]) -> None:
        group, n = self.blocks.code.group, len(words)
        step, mask = PRODUCTS[tile.words.b.target.byte_products].step, 0x0F0F0F0F
        for k in range(0, group, 4):
            parts = words
            if self.blocks.code.bits == 4:
                parts = [(w >> 4 if k else w) & mask for w in words]
            place = row * group + k
            chain = sums[place // 4 % len(sums)]
            for i in range(self.rows * DIGITS):
                digit = (tile.a + (i * _plane(self.blocks) + place)).cast(I32).load()
                wide = {w: digit.splat(w) for w in dict.fromkeys(tile.widths)}
                for j, part in enumerate(parts):
                    at = i * n + j
                    chain[at] = step(chain[at], part, wide[part.ty.lanes])

    def scaled(self, tile: Tile, size: int, sums: Values, totals: Values) -> list[Val]:
        """Add scale * (s - zero point * sum of A's numbers) * value of A's last bit to `totals`,
        where s = 65536 s2 + 256 s1 + s0 of the sums of digits; then `_in_floats`."""
        n, scales = len(tile.widths), load_row(tile.words.cast(F32), tile.widths)
        found: list[Val] = []
        for i in range(self.rows):
            facts = tile.facts + i * self.blocks.count * FACTS
            least, total = facts.load(), (facts + 1).load()
            low, middle, high = (
                [s.to("f32") for s in sums[j * n : (j + 1) * n]]
                for j in range(i * DIGITS, (i + 1) * DIGITS)
            )
            mine = [
                h.fma(256.0, m).fma(256.0, x) for h, m, x in zip(high, middle, low, strict=True)
            ]
            if self.blocks.shifted:
                mine = less_zeros(self.blocks, tile, mine, total)
            line = totals[i * n : (i + 1) * n]
            line = [
                s.fma(scale * least.splat(s.ty.lanes), t)
                for s, scale, t in zip(mine, scales, line, strict=True)
            ]
            found += _in_floats(self.blocks, tile, size, i, line)
        return found


def _in_floats(blocks: Blocks, tile: Tile, size: int, row: int, totals: Values) -> Values:
    """The `totals` of row number `row`, plus its products by a block of `size` elements in
    float32, if the block's facts say that these are needed."""
    b, code, width = tile.words.b, blocks.code, sum(tile.widths)
    scales = load_row(tile.words.cast(F32), tile.widths)
    zeros = load_row(tile.words.cast(F32) + width, tile.widths) if blocks.zeros else None
    panel = (tile.words + -blocks.words(size) * width).fixed()
    line = (tile.x + row * blocks.depth).fixed()
    facts = (tile.facts + row * blocks.count * FACTS).cast(I32)
    begin, end = (b.index((facts + i).load().to("i64")) for i in (2, 3))
    with b.loop(begin, end, carry=totals) as loop:
        at = loop.index - begin
        place = (at % code.group).to("i32")
        shift = place % 4 * 8 + place // 4 * code.bits
        found = []
        for j, word in enumerate(load_row(panel + at // code.group * width, tile.widths)):
            raw = (word >> shift.splat(word.ty.lanes)) & ((1 << code.bits) - 1)
            zero = zeros[j] if zeros else None
            weight = blocks.weight(raw.to("f32"), 1, scales[j], zero)
            x = (line + loop.index).load().splat(word.ty.lanes)
            found.append(x.fma(weight, loop.vars[j]))
        loop.next(found)
    return loop.out
