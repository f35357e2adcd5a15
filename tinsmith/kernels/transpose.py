"""Transposes of V x V squares held in V vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.builder import Val


def transpose(rows: Sequence[Val]) -> list[Val]:
    """The columns of V vectors of V lanes; V is 4, 8 or 16.

    4 x 4 squares within 128-bit lanes first, then whole 128-bit lanes: each step is one shuffle
    instruction on x86.
    """
    lanes = len(rows)
    assert lanes in (4, 8, 16) and rows[0].ty.lanes == lanes, rows[0].ty
    quads = lanes // 4
    groups = [_quads(rows[4 * g : 4 * g + 4]) for g in range(quads)]
    columns: list[Val] = [rows[0]] * lanes
    for j in range(4):
        for q, column in enumerate(_across([g[j] for g in groups])):
            columns[4 * q + j] = column
    return columns


def _pick(a: Val, b: Val, pattern: Sequence[int]) -> Val:
    """A shuffle that does the same in every 128-bit lane: 0..3 from a, 4..7 from b."""
    lanes = a.ty.lanes
    return a.shuffle(
        b, [q + (p if p < 4 else lanes + p - 4) for q in range(0, lanes, 4) for p in pattern]
    )


def _quads(rows: Sequence[Val]) -> list[Val]:
    """Transpose the 4 x 4 square in each 128-bit lane of four vectors."""
    a, b, c, d = rows
    low, high = _pick(a, b, (0, 4, 1, 5)), _pick(a, b, (2, 6, 3, 7))
    low2, high2 = _pick(c, d, (0, 4, 1, 5)), _pick(c, d, (2, 6, 3, 7))
    return [
        _pick(low, low2, (0, 1, 4, 5)),
        _pick(low, low2, (2, 3, 6, 7)),
        _pick(high, high2, (0, 1, 4, 5)),
        _pick(high, high2, (2, 3, 6, 7)),
    ]


def _lanes(a: Val, b: Val, pattern: Sequence[int]) -> Val:
    """Whole 128-bit lanes picked from a and b."""
    return a.shuffle(b, [4 * p + i for p in pattern for i in range(4)])


def _across(parts: Sequence[Val]) -> list[Val]:
    """Lane q of each part, side by side, for every q."""
    if len(parts) == 1:
        return list(parts)
    if len(parts) == 2:
        a, b = parts
        return [_lanes(a, b, (0, 2)), _lanes(a, b, (1, 3))]
    a, b, c, d = parts
    even, even2 = _lanes(a, b, (0, 2, 4, 6)), _lanes(c, d, (0, 2, 4, 6))
    odd, odd2 = _lanes(a, b, (1, 3, 5, 7)), _lanes(c, d, (1, 3, 5, 7))
    return [
        _lanes(even, even2, (0, 2, 4, 6)),
        _lanes(odd, odd2, (0, 2, 4, 6)),
        _lanes(even, even2, (1, 3, 5, 7)),
        _lanes(odd, odd2, (1, 3, 5, 7)),
    ]
