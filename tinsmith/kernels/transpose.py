"""Elements moved between vectors: transposes of squares, and any other choice of lanes."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.builder import Ptr, Val


def transpose(rows: Sequence[Val]) -> list[Val]:
    """Transpose V vectors of V lanes: result j has lane j of each. V is a power of two, vectors
    have at most 512 bits.

    First squares within 128-bit lanes are transposed, then whole 128-bit lanes are exchanged: each
    step is one shuffle instruction on x86.
    """
    lanes = len(rows)
    size = min(lanes, 128 // rows[0].ty.bits)
    assert rows[0].ty.lanes == lanes and lanes // size in (1, 2, 4), rows[0].ty
    groups = [_squares(rows[at : at + size], size) for at in range(0, lanes, size)]
    across = [_across([group[j] for group in groups], size) for j in range(size)]
    return [columns[q] for q in range(lanes // size) for columns in across]


def _squares(rows: Sequence[Val], size: int) -> list[Val]:
    """Transpose, in each 128-bit lane, the square of `size` rows by `size` elements, by
    interleaving pairs of rows."""
    lanes, half = rows[0].ty.lanes, size // 2
    for _ in range(size.bit_length() - 1):
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        rows = [
            a.shuffle(b, [q + i // 2 + i % 2 * lanes for q in range(start, lanes, size)
                          for i in range(size)])
            for a, b in pairs
            for start in (0, half)
        ]  # fmt: skip
    return list(rows)


def _lanes(a: Val, b: Val, pattern: Sequence[int], size: int) -> Val:
    """A vector of the 128-bit lanes, of `size` elements each, with the numbers in `pattern`: lanes
    of a are numbered first, then those of b."""
    return a.shuffle(b, [size * p + i for p in pattern for i in range(size)])


def _across(parts: Sequence[Val], size: int) -> list[Val]:
    """Transpose whole 128-bit lanes of `size` elements: result q is the q-th lane of every part,
    side by side. There are 1, 2 or 4 parts, of as many lanes each."""
    if len(parts) == 1:
        return list(parts)
    if len(parts) == 2:
        a, b = parts
        return [_lanes(a, b, pattern, size) for pattern in ((0, 2), (1, 3))]
    a, b, c, d = parts
    outer, inner = (0, 2, 4, 6), (1, 3, 5, 7)
    even, even2 = _lanes(a, b, outer, size), _lanes(c, d, outer, size)
    odd, odd2 = _lanes(a, b, inner, size), _lanes(c, d, inner, size)
    return [
        _lanes(even, even2, outer, size),
        _lanes(odd, odd2, outer, size),
        _lanes(even, even2, inner, size),
        _lanes(odd, odd2, inner, size),
    ]


def blend(vectors: Sequence[Val], picks: Sequence[Sequence[int]]) -> Val:
    """One vector, whose lane k is lane picks[j][k] of vectors[j]; -1 picks nothing. A lane that is
    picked from no vector is zero, one that is picked from several is the last of them."""
    width = vectors[0].ty.lanes
    filled = [any(p[k] >= 0 for p in picks) for k in range(width)]
    value, picked = vectors[0], list(picks[0])
    for other, pick in zip(vectors[1:], picks[1:], strict=True):
        mask = [width + q if q >= 0 else p for p, q in zip(picked, pick, strict=True)]
        value = value.shuffle(other, mask)
        picked = [k if m >= 0 else -1 for k, m in enumerate(mask)]
    if not all(filled):
        zero = value.b.zero(value.ty)
        return value.shuffle(zero, [p if p >= 0 else width for p in picked])
    return value if picked == list(range(width)) else value.shuffle(None, picked)


def joined(vectors: Sequence[Val]) -> list[Val]:
    """The lanes of vectors (their number is a power of two) interleaved: lane 0 of each, then lane
    1 of each, and so on, as equally many vectors.

    Pairs are interleaved first, then pairs of pairs, so that all shuffles share two patterns:
    constants for patterns take registers, even through surrounding loops.
    """
    if len(vectors) == 1:
        return list(vectors)
    width, found = vectors[0].ty.lanes, []
    for a, b in zip(joined(vectors[::2]), joined(vectors[1::2]), strict=True):
        for start in (0, width // 2):
            lanes = range(start, start + width // 2)
            found.append(a.shuffle(b, [q + side for q in lanes for side in (0, width)]))
    return found


def columns(x: Ptr, count: int, lanes: int) -> list[Val]:
    """Load `lanes` rows of `count` elements each, which lie at x one after the other, and give
    their columns: `count` vectors, with one element of each row."""
    vectors = [(x + i * lanes).load(lanes) for i in range(count)]

    def column(j: int) -> Val:
        places = [divmod(row * count + j, lanes) for row in range(lanes)]
        return blend(vectors, [[q if v == i else -1 for v, q in places] for i in range(count)])

    return list(map(column, range(count)))
