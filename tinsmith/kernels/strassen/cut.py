"""How a product is cut into register tiles, so that little code does: tiles of one size if it can.

Unlike a convolution's tiles, these begin and end with sums that lie in memory.
"""

from __future__ import annotations

import functools

from tinsmith.codegen.target import Target
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.tiles import MOST_VECTORS, Panels, Pieces, cut, fits

ENDS = 2.5  # issue slots for each accumulator of a tile: sums that come and go
VARIANT = 0.015  # the share of time that more code, for tiles of one more size, has to save
AGAIN = 0.02  # the share of time that reading X takes for a panel of one vector
STREAM = 24  # bytes a cycle that weights come with

__all__ = ["Panels", "Pieces", "panels", "pieces", "slots"]


def slots(target: Target, found: Pieces, vectors: int, steps: int) -> float:
    """Issue slots of one product of `steps` channels: a half's pixels for a panel."""
    total = 0.0
    for count, size in found:
        if target.pipes == 1:
            loads, least, pipes = 0.5 * size + vectors, 5.0, 1.0
        else:
            loads, least, pipes = 1.0 * (size + vectors), 9.0, 2.0
        stream = pipes * vectors * 4 * block_of(target) / STREAM
        step = max(size * vectors, loads, least, stream)
        total += count * (step * steps + (6 + ENDS * size * vectors if steps else 0))
    return total


@functools.lru_cache(maxsize=4096)
def pieces(target: Target, half: int, vectors: int, steps: int) -> Pieces:
    """The best cut of `half` pixels into tiles."""
    found = []
    for most in range(1, min(half, 26) + 1):
        if not fits(target, most, vectors):
            break
        tiles = cut(half, most)
        score = slots(target, tiles, vectors, steps) * (1 + VARIANT * (len(tiles) - 1))
        found.append((score, -most, tiles))
    return min(found)[2]


@functools.lru_cache(maxsize=1024)
def panels(target: Target, height: int, half: int, steps: int) -> Panels:
    """The best cut of `height` output vectors into panels."""
    width, found = block_of(target), []
    for vectors in range(1, min(height, MOST_VECTORS) + 1):
        if not fits(target, 1, vectors):
            break
        count, rest = divmod(height, vectors)
        whole = pieces(target, half, vectors, steps)
        cost, variants = count * slots(target, whole, vectors, steps), len(whole)
        if rest:
            last = pieces(target, half, rest, steps)
            cost, variants = cost + slots(target, last, rest, steps), variants + len(last)
        score = cost * (1 + VARIANT * (variants - 1) + AGAIN / vectors)
        found.append((score, -vectors, Panels(count, (width,) * vectors, (width,) * rest, cost)))
    return min(found, key=lambda f: f[:2])[2]
