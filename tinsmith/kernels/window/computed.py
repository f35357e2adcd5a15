"""Convolution by weights that are not constant: each run packs them, and then computes with a
kernel for constant weights.

That kernel's own packing function tells how: it only moves weights, and gets the numbers 1, 2, ...
in their place. A number in its result tells which weight belongs there; 0 is a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tinsmith.codegen.types import F32
from tinsmith.graph import Array, Graph
from tinsmith.kernels._kernel import (
    KERNELS,
    PLAIN,
    Choice,
    Emit,
    Phase,
    Site,
    Skip,
    Tier,
    kernel,
    packed_table,
)
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.transpose import transpose

PACKING = 5e-10  # seconds to pack one weight (estimated)
EARLIER = 64  # weights by which a line is prefetched before its use (estimated)
CONSTANT = (
    "conv_depthwise", "conv_direct", "conv_few_outputs", "conv_first_layer", "conv_grouped",
    "conv_plain",
)  # fmt: skip
"""Kernels of Conv whose packing only moves weights; that of Winograd's and Strassen's computes."""


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_computed(site: Site) -> list[Choice]:
    """Convolution by computed weights, packed at each run for a kernel of constant ones."""
    return _choices(site, CONSTANT)


@kernel("ConvTranspose", Tier.SHAPED, dtypes="float32")
def conv_transposed_computed(site: Site) -> list[Choice]:
    """Transposed convolution by computed weights, packed at each run."""
    return _choices(site, ("conv_transposed",))


def _choices(site: Site, kernels: Sequence[str]) -> list[Choice]:
    """The choices of `kernels` (names of rows) for constant weights, each with phases added that
    pack the weights of a run. Raises Skip if weights are constant, if there are none or 2^31 or
    more of them, or, with all reasons, if no kernel has a choice."""
    w = site.input(1)
    if w.const is not None:
        raise Skip("the weights are a constant")
    if not w.type.size or w.type.size >= 2**31:
        raise Skip(f"there are {w.type.size} weights")
    numbers = np.arange(1, w.type.size + 1, dtype=np.int32).reshape(w.dims)
    inputs = (site.inputs[0], Graph().const(numbers), *site.inputs[2:])
    found, reasons = [], []
    for name in kernels:
        try:
            offers = KERNELS[name].offer(replace(site, inputs=inputs))
        except Skip as why:
            reasons.append(f"{name}: {why}")
        else:
            found += [_packing(choice, name, block_of(site.target)) for choice in offers]
    if not found:
        raise Skip("; ".join(reasons))
    return found


def _packing(choice: Choice, name: str, width: int) -> Choice:
    """`choice`, which the kernel `name` made for weights that are numbers 1, 2, ..., changed for
    weights of the run: phases before its own pack them into scratch, in vectors of `width` lanes,
    where its own phases then read them. `choice` must use no scratch itself."""
    weights, *others = choice.packed
    numbers = weights.make().astype(np.int32)
    squares, vectors = _moves(numbers, width)
    size = 4 * (-(-numbers.size // width) + 1) * width
    assert not choice.scratch

    def compute(phase: Phase) -> Phase:
        def emit(em: Emit) -> None:
            phase.emit(replace(em, packed=(em.scratch.cast(F32), *em.packed[2:])))

        return replace(phase, emit=emit)

    moves = ((len(squares), _squares), (len(vectors), _vectors))
    reads = (choice.reads[0], PLAIN, *choice.reads[2:])
    return replace(
        choice, cost=choice.cost + PACKING * size / 4, reads=reads,
        phases=(
            *(Phase(n, partial(emit, width=width)) for n, emit in moves if n),
            *map(compute, choice.phases),
        ),
        packed=(packed_table("squares", squares), packed_table("vectors", vectors), *others),
        scratch=size, detail=f"{name}, {choice.detail}",
    )  # fmt: skip


def _moves(packed: Array, width: int) -> tuple[Array, Array]:
    """Two int32 tables of the copies that pack weights. `packed` is the packed array of the
    weights' numbers: 1, 2, ..., and 0 for a zero.

    A row of the first table is a square of weights w[first + i * step + j], with i and j below
    `width`. Its column j, for all i, is a vector of the packed array. The row has first, step, and
    for each j the packed element at which that vector begins; a missing column goes behind the
    packed array. A row of the second table is any other vector: the packed element at which it
    begins, and its weights' numbers.
    """
    lines = np.zeros(-(-packed.size // width) * width, np.int32)
    lines[: packed.size] = packed
    lines = lines.reshape(-1, width)
    step = lines[:, 1] - lines[:, 0]
    reach = lines[:, 0] + (width - 1) * step + width - 1
    even = (np.diff(lines) == step[:, None]).all(axis=1) & (lines[:, 0] > 0) & (step > 0)
    order = np.flatnonzero(even & (reach <= packed.max(initial=0)))
    order = order[np.lexsort((lines[order, 0], step[order]))]
    first, step = lines[order, 0], step[order]
    breaks = (np.diff(first, prepend=-1) != 1) | (np.diff(step, prepend=-1) != 0)
    since = np.arange(len(order)) - np.maximum.accumulate(
        np.where(breaks, np.arange(len(order)), 0)
    )
    starts = np.flatnonzero(since % width == 0)
    columns = np.full((len(starts), width), len(lines))
    columns[np.cumsum(since % width == 0) - 1, since % width] = order
    table = [first[starts, None] - 1, step[starts, None], columns * width]
    rest = np.setdiff1d(np.arange(len(lines)), order)
    vectors = np.hstack([rest[:, None] * width, lines[rest]])
    return np.hstack(table).astype(np.int32), vectors.astype(np.int32)


def _squares(em: Emit, width: int) -> None:
    """Emit the phase that packs the squares of `_moves`, of `width` by `width` weights: a tile is
    one square, whose lines are loaded, transposed and stored."""
    b, to, weights = em.b, em.scratch.cast(F32), em.input(1).pointer
    with b.loop(em.begin, em.end) as t:
        row = (em.packed[0] + t * (width + 2)).fixed()
        corner, step = weights + row.load().to("i64"), (row + 1).load().to("i64")
        places = [corner + step * i for i in range(width)]
        for place in places:
            (place + EARLIER).prefetch()
        rows = [place.load(width) for place in places]
        for i, column in enumerate(transpose(rows)):
            (to + (row + (2 + i)).load().to("i64")).store(column)


def _vectors(em: Emit, width: int) -> None:
    """Emit the phase that packs the other vectors of `_moves`, of `width` lanes: a tile is one
    vector, which is packed element by element."""
    b, to, weights = em.b, em.scratch.cast(F32), em.input(1).pointer
    with b.loop(em.begin, em.end) as t:
        row = (em.packed[1] + t * (width + 1)).fixed()
        line = (to + row.load().to("i64")).fixed()
        for i in range(width):
            number = (row + (1 + i)).load().to("i64")
            value = (weights + b.maximum(number - 1, 0)).load()
            (line + i).store((number > 0).select(value, 0.0))
