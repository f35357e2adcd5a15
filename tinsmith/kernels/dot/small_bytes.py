"""Few rows times small weights in whole numbers, where the machine multiplies bytes: weights go
into the products as they are stored, and need no conversion.

The elements of a row of A become fixed-point numbers, block by block; with 2^e > max |x| of a block

    x = (q2 65536 + q1 256 + q0) 2^(e - 22), rounded to the nearest, with digits from -128 to 127

so that a product by four weights is three products of four bytes, one for each digit. Sums are
exact in int32, and scaled in float32 once for each block. What A loses is at most 2^(e - 23): the
greatest element of a block keeps 22 bits of the 24 that float32 has.

A block in which A has an infinity or NaN contributes 0 this way, and is added in float32, weight by
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen import math
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.products import I8, PRODUCTS
from tinsmith.codegen.types import F32, I32, Ty
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.codes import BYTES, Blocks, blocks_of, vectors
from tinsmith.kernels.dot.small_few import WIDE, Few, Tile, few_rows, less_zeros, streamed
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.walk import Position

DIGITS = 3
"""Bytes of a fixed-point number."""
BITS = 22
"""Of a fixed-point number, besides its sign: three digits reach -2^23 - 32,896 to 2^23 - 32,897.
"""
LONGEST = 512
"""Elements of a block whose fixed-point numbers, of 23 bits with their sign, add up in 32."""
BIASED = 0x808080
"""Added to a number and taken off each byte of the sum, it leaves bytes from -128 to 127."""
SPARE = 8
"""Registers that are left for words, their bytes, and digits of A. Counted."""
MANTISSA, EXPONENTS = 23, 255
"""Of float32: where exponents begin, and that of infinities and NaN."""
FACTS = 4
"""Of a block of a row: the value of its last bit, the sum of its elements, and from where to where
they are to be multiplied in float32."""
Values = Sequence[Val]


@kernel("SmallMatMul", Tier.SHAPED, dtypes="float32")
def gemv_small_bytes(site: Site) -> Choice:
    """At most 4 rows, in fixed point, times small weights, as products of bytes."""
    target = site.target
    if not target.has_byte_products or PRODUCTS[target.byte_products].left.is_signed:
        raise Skip(f"{target.isa} does not multiply unsigned by signed bytes")
    if site.is_strict:
        raise Skip("fixed-point numbers have fewer digits than floats, and precision is strict")
    blocks, m = blocks_of(site, BYTES), few_rows(site)
    if blocks.code.is_float:
        raise Skip("weights are halves")
    if blocks.size > LONGEST:
        raise Skip(f"blocks of {blocks.size} weights, more than {LONGEST}")
    wide = max(1, min(WIDE, (target.registers - SPARE) // (DIGITS * m)))
    return streamed(site, _digits(blocks, m), wide, (DIGITS * m + 1) / 4)


def _digits(blocks: Blocks, rows: int) -> Few:
    """Rows of A are bytes: [row][digit][element]."""
    stride = DIGITS * _plane(blocks)
    return Few(blocks, rows, stride, _sums, _add, _scaled, _prepare, I8, FACTS)


def _plane(blocks: Blocks) -> int:
    """How many bytes lie between one digit of a row and the next; a vector may be written behind
    the last element."""
    return (blocks.padded // LINE + 2) * LINE


def _fold(b: Builder, size: int, lanes: int, start: Values, body: Callable[..., Values]) -> Values:
    """Emit `body(index, count, values) -> values` over `size` elements, `lanes` at a time; `count`
    of them are there."""
    whole = size // lanes * lanes
    if whole:
        with b.loop(0, whole, lanes, start) as loop:
            loop.next(body(loop.index, lanes, loop.vars))
        start = loop.out
    return body(whole, size - whole, start) if size > whole else start


def _prepare(em: Emit, few: Few, x: Ptr, to: Ptr, block: tuple[Position, int], facts: Ptr) -> None:
    """Write the digits of a block. Its last bit is worth 2^(e - 22), of which the exponent e comes
    from the bits of the greatest float; numbers below 2^-105 lose digits."""
    b, lanes, (first, size) = em.b, block_of(em.target), block
    none = b.zero(I32.x(lanes))

    def greatest(at: Position, count: int, found: Values) -> Values:
        bits = (x + at).load(lanes, count=count).bitcast(I32.x(lanes))
        return [found[0].max(bits & (1 << 31) - 1)]

    exponent = _fold(b, size, lanes, [none], greatest)[0].reduce("max") >> MANTISSA
    finite, exponent = exponent < EXPONENTS, exponent.max(BITS)
    least = ((exponent - (BITS - 1)) << MANTISSA).bitcast(F32)
    factor = ((EXPONENTS + BITS - 2 - exponent) << MANTISSA).bitcast(F32)

    def digits(at: Position, count: int, found: Values) -> Values:
        number = math.nearest((x + at).load(lanes, count=count) * factor.splat(lanes))
        biased = (number + BIASED) ^ BIASED
        for i in range(DIGITS):
            digit = biased >> 8 * i if i else biased
            (to + at + i * _plane(few.blocks)).store(digit.to("i8"))
        return [found[0] + number]

    total = _fold(b, size, lanes, [none], digits)[0].reduce("add").to("f32")
    least = finite.select(least, 0.0)
    begin = b.index(first).to("i32")
    end = finite.select(begin, begin + size)
    for i, fact in enumerate((least, total, begin.bitcast(F32), end.bitcast(F32))):
        (facts + i).store(fact)


def _sums(few: Few, widths: tuple[int, ...]) -> list[Ty]:
    """[row][digit][vector]."""
    return [I32.x(w) for _ in range(few.rows * DIGITS) for w in widths]


def _add(few: Few, tile: Tile, words: list[Val], row: int, sums: list[list[Val]]) -> None:
    group, n = few.blocks.code.group, len(words)
    step, mask = PRODUCTS[tile.words.b.target.byte_products].step, 0x0F0F0F0F
    for k in range(0, group, 4):
        parts = words
        if few.blocks.code.bits == 4:
            parts = [(w >> 4 if k else w) & mask for w in words]
        place = row * group + k
        chain = sums[place // 4 % len(sums)]
        for i in range(few.rows * DIGITS):
            digit = (tile.a + (i * _plane(few.blocks) + place)).cast(I32).load()
            wide = {w: digit.splat(w) for w in dict.fromkeys(tile.widths)}
            for j, part in enumerate(parts):
                at = i * n + j
                chain[at] = step(chain[at], part, wide[part.ty.lanes])


def _scaled(few: Few, tile: Tile, size: int, sums: list[Val], totals: Values) -> list[Val]:
    """`totals` + scale * (sums of the digits - zero point * sum of A's elements) * last bit."""
    n, scales = len(tile.widths), vectors(tile.words.cast(F32), tile.widths)
    found: list[Val] = []
    for i in range(few.rows):
        facts = tile.facts + i * few.blocks.count * FACTS
        least, total = facts.load(), (facts + 1).load()
        low, middle, high = (
            [s.to("f32") for s in sums[j * n : (j + 1) * n]]
            for j in range(i * DIGITS, (i + 1) * DIGITS)
        )
        mine = [h.fma(256.0, m).fma(256.0, x) for h, m, x in zip(high, middle, low, strict=True)]
        if few.blocks.shifted:
            mine = less_zeros(few.blocks, tile, mine, total)
        line = totals[i * n : (i + 1) * n]
        line = [
            s.fma(scale * least.splat(s.ty.lanes), t)
            for s, scale, t in zip(mine, scales, line, strict=True)
        ]
        found += _in_floats(few, tile, size, i, line)
    return found


def _in_floats(few: Few, tile: Tile, size: int, row: int, totals: Values) -> Values:
    """`totals` and the products of a block of one row in float32, if its facts ask for these."""
    b, blocks = tile.words.b, few.blocks
    code, width = blocks.code, sum(tile.widths)
    scales = vectors(tile.words.cast(F32), tile.widths)
    zeros = vectors(tile.words.cast(F32) + width, tile.widths) if blocks.zeros else None
    panel = (tile.words + -blocks.words(size) * width).fixed()
    line = (tile.x + row * blocks.depth).fixed()
    facts = (tile.facts + row * blocks.count * FACTS).cast(I32)
    begin, end = (b.index((facts + i).load().to("i64")) for i in (2, 3))
    with b.loop(begin, end, carry=totals) as loop:
        at = loop.index - begin
        place = (at % code.group).to("i32")
        shift = place % 4 * 8 + place // 4 * code.bits
        found = []
        for j, word in enumerate(vectors(panel + at // code.group * width, tile.widths)):
            raw = (word >> shift.splat(word.ty.lanes)) & ((1 << code.bits) - 1)
            zero = zeros[j] if zeros else None
            weight = blocks.weight(raw.to("f32"), 1, scales[j], zero)
            x = (line + loop.index).load().splat(word.ty.lanes)
            found.append(x.fma(weight, loop.vars[j]))
        loop.next(found)
    return loop.out
