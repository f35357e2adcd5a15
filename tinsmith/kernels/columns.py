"""Col2Im: overlapping blocks summed into an image, tap by tap."""

from __future__ import annotations

from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.move.strided import emit_fill
from tinsmith.kernels.walk import Position
from tinsmith.ops.columns import steps_of

MOST = 64
"""Taps of a block at most: each has a loop of its own in the code (estimated)."""
STEP = 1.2e-9
"""Seconds of one sum, where vectors cannot be used (estimated)."""


@kernel("Col2Im", Tier.VECTOR, dtypes="float32")
def col2im(site: Site) -> Choice:
    """Overlapping blocks summed to planes, tap by tap.

    Each plane is cleared, then the elements that all blocks have at one tap are added to it. Images
    have one or two axes, blocks at most MOST elements; the sizes of both are constants.
    """
    site.need_no_epilogue("it has no epilogue")
    image = [int(v) for v in site.const(1, "the size of the image").reshape(-1)]
    block = [int(v) for v in site.const(2, "the size of the blocks").reshape(-1)]
    rank, y = len(image), site.out
    if rank > 2 or prod(block) > MOST or not y.type.size:
        raise Skip(f"the image is {image}, the blocks are {block}")
    stride, pad, dilation = steps_of(rank, *map(site.attr, ("stride", "pad", "dilation")))
    counts, axes = [], []
    for a in range(rank):
        padded = image[a] + pad[a] + pad[rank + a]
        counts.append((padded - dilation[a] * (block[a] - 1) - 1) // stride[a] + 1)
        offsets = [k * dilation[a] - pad[a] for k in range(block[a])]
        axes.append([_span(at, stride[a], image[a], counts[a]) for at in offsets])
    if rank == 1:
        image, stride, counts = [1, *image], (1, *stride), [1, *counts]
        axes = [[(0, 1, 0)], *axes]
    size, points, taps = prod(image), prod(counts), prod(block)
    planes = y.type.size // size

    def emit(em: Emit) -> None:
        b, source = em.b, em.input(0)
        with b.loop(em.begin, em.end) as plane:
            out = (em.outs[0].pointer + plane * size).fixed()
            x = (source.pointer + plane * (taps * points)).fixed()
            emit_fill(b, b.zero(out.elem), out, 0, size, block_of(em.target))
            for i, rows in enumerate(axes[0]):
                for j, columns in enumerate(axes[1]):
                    tap = (x + (i * len(axes[1]) + j) * points).fixed()
                    _add(em, tap, out, rows, columns, (counts[1], image[1]), stride)

    sums = planes * taps * points
    cost = 1e-6 + site.target.time(0, y.type.nbytes + 4 * sums) + sums * STEP
    return Choice(cost, (PLAIN, None, None), (PLAIN,), one_phase(planes, emit))


def _span(offset: int, stride: int, size: int, count: int) -> tuple[int, int, int]:
    """Find which of `count` blocks along an axis have a certain tap inside an image of `size`
    elements; block k has it at `offset` + k * `stride`. Return (first block, last block + 1, place
    of the first block's tap)."""
    first = max(0, -(offset // stride))
    last = min(count, -(-(size - offset) // stride))
    return first, max(first, last), offset + first * stride


def _add(
    em: Emit, tap: Ptr, out: Ptr, rows: tuple[int, int, int], columns: tuple[int, int, int],
    widths: tuple[int, int], stride: tuple[int, ...],
) -> None:  # fmt: skip
    """Emit code that adds the elements that all blocks of a plane have at one tap, which begin at
    `tap`, to the plane at `out`. Of (down, across): `rows` and `columns`, from `_span`, and
    `stride`, the distance of blocks. `widths`: blocks in a row of blocks, elements in a row of the
    image."""
    b, lanes = em.b, block_of(em.target)
    (first, last, row), (left, right, column) = rows, columns
    count = right - left
    if last <= first or not count:
        return
    with b.loop(0, last - first) as r:
        come = (tap + (r * widths[0] + (first * widths[0] + left))).fixed()
        to = (out + (r * (stride[0] * widths[1]) + (row * widths[1] + column))).fixed()

        def sums(i: Position, lanes: int, mask: Val | None) -> None:
            here = to + i * stride[1]
            here.store(here.load(lanes, mask) + (come + i).load(lanes, mask), mask)

        b.vectors(count, lanes if stride[1] == 1 else 1, sums)
