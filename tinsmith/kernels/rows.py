"""Walking tensors row by row: what elementwise kernels and layout copies have in common.

A row is the innermost axis after merging (see `places.merged`); the axes around it are counted by
one flat number, so that a tile may be any range of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from tinsmith.codegen.builder import Builder, Ptr, Val

Position = Val | int
Axis = tuple[int, int]  # extent, and the dimension whose stride is the axis's


def share(part: Position, parts: int, count: int) -> tuple[Position, Position]:
    """The range of `count` units that is one of `parts` about equal parts."""
    if parts == 1:
        return 0, count
    return part * count // parts, (part + 1) * count // parts


def run(b: Builder, lo: Position, hi: Position, body: Callable[[Position], None]) -> None:
    """A loop over [lo, hi) that vanishes where it is known to run once or never."""
    if isinstance(lo, int) and isinstance(hi, int) and hi - lo <= 1:
        if hi > lo:
            body(lo)
        return
    with b.loop(lo, hi) as i:
        body(i)


@contextmanager
def blocks(b: Builder, count: Position, size: int) -> Iterator[Position]:
    """The starts of blocks that cover `count` elements, which are no fewer than the `size` of one:
    the last may overlap another."""
    if isinstance(count, int) and count == size:
        yield 0
        return
    with b.loop(0, (count + (size - 1)) // size) as k:
        yield b.minimum(k * size, count - size)


def places(row: Position, outer: Sequence[Axis]) -> list[tuple[int, Position]]:
    """The (dimension, index) pairs of a flat row number within the outer axes."""
    found: list[tuple[int, Position]] = []
    for k in range(len(outer) - 1, -1, -1):
        extent, d = outer[k]
        if k == 0:
            found.append((d, row))
        else:
            found.append((d, row % extent))
            row = row // extent
    return found


def moved(p: Ptr, strides: Sequence[int], index: Sequence[tuple[int, Position]]) -> Ptr:
    """The address after steps along some dimensions."""
    constant = 0
    for d, i in index:
        if isinstance(i, int):
            constant += i * strides[d]
        elif strides[d]:
            p = p + i * strides[d]
    return p + constant


def extent(axes: Sequence[Axis]) -> int:
    return prod(e for e, _ in axes)
