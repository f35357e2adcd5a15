"""Matrix products with a constant right operand, packed once."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr
from tinsmith.codegen.target import streamed
from tinsmith.codegen.types import F32
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Packed,
    Phase,
    Site,
    Skip,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.dot.panels import Grid, each_column_panel, each_row_panel, grid
from tinsmith.kernels.dot.skeleton import (
    DISTANCE,
    Ahead,
    Operands,
    buffer_bytes,
    finish_tile,
    product,
)
from tinsmith.kernels.dot.tiles import Columns, Tiling, choose
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.sharing import PARTS, by_positions
from tinsmith.kernels.walk import Position, copy, share
from tinsmith.records import dataclass
from tinsmith.sizes import Size, estimate, typical

FEW_ROWS = 4  # the most rows of products that the kernels of `gemv.py` compute; estimated
L1_WAYS = 8  # lines that a set of the first-level cache holds, on x86-64 of late
MOST_SHARES = 8
"""The most panels of rows among which the prefetching of a panel of weights is divided: each then
prefetches a cache line in four steps. Estimated."""
PREFETCHED_SUMS = 6
"""Weights are prefetched if each cache line of them meets so many multiply-adds or more: with
fewer, the loads themselves run far enough ahead, and prefetching costs up to a quarter of the
bandwidth. Set on Zen 4; the command was not recorded."""


def pack_columns(w: np.ndarray[Any, Any], columns: Columns) -> np.ndarray[Any, Any]:
    """Pack a (k, n) matrix: flat [panel][k][column of the panel], zeros in padding columns."""
    return np.concatenate([panels.reshape(-1) for panels in panels_of(w, columns)])


def pack_narrow(w: np.ndarray[Any, Any], columns: Columns) -> np.ndarray[Any, Any]:
    """Pack a (k, n) matrix as 24-bit weights (`narrow.pack`), panel after panel, flat."""
    return np.concatenate([narrow.pack(panels).reshape(-1) for panels in panels_of(w, columns)])


def panels_of(w: np.ndarray[Any, Any], columns: Columns) -> list[np.ndarray[Any, Any]]:
    """A (k, n) matrix as arrays [panel][k][column of the panel]: one of the full panels, one
    of the last panel (`columns.tail`), padded with zeros. Empty arrays are left out."""
    k = w.shape[0]
    body = columns.full * columns.size
    found = [w[:, :body].reshape(k, columns.full, columns.size).transpose(1, 0, 2)]
    if columns.tail:
        tail = np.zeros((1, k, sum(columns.tail)), w.dtype)
        tail[0, :, : w.shape[1] - body] = w[:, body:]
        found.append(tail)
    return [panels for panels in found if panels.size]


def right_matrix(site: Site) -> np.ndarray[Any, Any]:
    """The constant right operand as a (k, n) matrix. Raises Skip if it is not constant, is a
    vector, has batch dimensions, or has a higher rank than the left operand."""
    w = site.const(1, "the right operand")
    if w.ndim == 1:
        raise Skip("the right operand is a vector")
    if prod(w.shape[:-2]) != 1:
        raise Skip(f"the right operand has batch dimensions {w.shape[:-2]}")
    if w.ndim > max(2, site.input(0).rank or 0):
        raise Skip("the right operand has a higher rank than the left one")
    return w.reshape(w.shape[-2:])


def flat_rows(site: Site, n: int) -> int:
    """How many rows the left operand has, all dimensions but the last taken as one. Raises
    Skip if the output's shape is not (*leading dimensions, n), the result is empty, or n is 1."""
    left = site.input(0)
    lead = left.dims[:-1]
    if site.out.dims != (*lead, n):
        raise Skip(f"the output {site.out.dims} is not the product's shape {(*lead, n)}")
    m = prod(lead)
    if m == 0 or n == 0:
        raise Skip("the result is empty")
    if n == 1:
        raise Skip("one column: matvec folds the rows")
    return m


def few_rows(site: Site, n: int, otherwise: str) -> int:
    """How many rows the left operand has (`flat_rows`). Raises Skip also if these are more than
    FEW_ROWS (`otherwise`: the end of the reason, which kernel takes them), or only a call tells."""
    m = flat_rows(site, n)
    if isinstance(m, Size):
        raise Skip("the number of rows is known only in the call")
    if m > FEW_ROWS:
        raise Skip(f"{m} rows: {otherwise}")
    return m


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def matmul_packed(site: Site) -> Choice:
    """Register-tiled product of 5 rows or more by a constant matrix that is packed in panels."""
    w = right_matrix(site)
    k, n = w.shape
    m = flat_rows(site, n)
    if not isinstance(m, Size) and m <= FEW_ROWS:
        raise Skip(f"{m} rows: gemv_packed streams the weights")
    target = site.target
    return packed_choice(site, w, m, choose(target, m, n, k))


def spread_stride(k: int, rows: int) -> int:
    """How far apart, in elements, rows of k elements should lie so that `rows` of them stay
    in L1 together: k, or k and one cache line more. It is k if only a call tells k.

    Rows a multiple of 4 KiB apart compete for the same few lines of L1: each line is evicted before
    its 16 elements are used.
    """
    if isinstance(k, Size):
        return k
    step = k * 4
    if step % 64:
        return k
    places = 64 // gcd(step // 64, 64)
    return k if places * L1_WAYS >= rows + 3 else k + 16


def copy_rows(em: Emit, rows: int, k: int, stride: int, groups: int) -> None:
    """Emit the phase that copies the `rows` rows of A, of k elements each, to scratch, `stride`
    elements apart. A tile is one of `groups` groups of rows."""
    b = em.b
    a, to = em.input(0).pointer, em.scratch.cast(F32)
    with b.loop(em.begin, em.end) as t:
        lo, hi = share(t, groups, rows)
        copy_spread(b, a, k, to, stride, lo, hi)


def copy_spread(
    b: Builder, a: Ptr, k: int, to: Ptr, stride: int, lo: Position, hi: Position
) -> None:
    """Emit code that copies the rows [lo, hi) of the matrix at `a`, k elements each, to the same
    rows of `to`, which are `stride` elements apart."""
    with b.loop(lo, hi) as row:
        copy(b, (a + row * k).fixed(), (to + row * stride).fixed(), k, block_of(b.target))


UNHIDDEN = 0.5
"""Unpacking 24-bit weights adds this share of its time to a product; the rest passes while tiles
wait for loads. Set on Zen 4; the command was not recorded."""
EXPOSED = 0.4
"""The largest share of the time of reading weights from memory that prefetching does not hide. Set
on Zen 4; the command was not recorded."""


@dataclass(frozen=True)
class Stream:
    """Which packed weights the register tiles of a group of panels of columns prefetch.

    The group's weights come from memory when the first panel of rows is multiplied by them; later
    panels of rows find them in L2, and prefetch those of the next group meanwhile.

    ahead  elements from a tile's own weights to those that it prefetches
    share  how many consecutive panels of rows divide this prefetching among them
    rows   rows of a panel
    """

    ahead: int
    share: int
    rows: int

    def later(self, weights: Ptr, row: Position, panel: int) -> Ptr:
        """Return a pointer to what the tile whose first row is `row` prefetches: its share of the
        weights that lie `ahead` elements after its own panel, of `panel` elements at `weights`."""
        turn = (row + (self.rows - 1)) // self.rows % self.share
        return (weights + (self.ahead + turn * (panel // self.share))).fixed()


def stream_of(site: Site, tiling: Tiling, cells: Grid, high: int, near: bool) -> Stream | None:
    """Return what the tiles of a product prefetch; None if in a full tile a cache line of weights
    meets fewer than PREFETCHED_SUMS multiply-adds. `high`: rows of a packed panel; `near`: whether
    threads share rows rather than columns."""
    size = tiling.rows.size
    if size * max(1, LINE // block_of(site.target)) < PREFETCHED_SUMS:
        return None
    count = typical(tiling.rows.count)
    if cells.columns == 1 or count == 1:
        return Stream(DISTANCE, 1, size)
    panels = max(1, count // site.threads) if near else count
    share = min(MOST_SHARES, 1 << (panels.bit_length() - 1))
    group = -(-tiling.columns.count // cells.columns) * (1 if near else site.threads)
    return Stream(group * high * tiling.columns.size, share, size)


@estimate
def _seconds(site: Site, m: int, k: int, n: int, tiling: Tiling, nbytes: int, words: bool) -> float:
    """The estimated seconds of a product (m, k) x (k, n) on one core. Its packed weights,
    `nbytes` bytes, come from memory; `words`: they have 24 bits."""
    target = site.target
    busy = target.time(2.0 * m * n * k, 4.0 * m * (k + n), tiling.efficiency)
    if words:
        busy += UNHIDDEN * target.time(2.0 * narrow.unpacking(target) * n * k, 0)
    busy = max(busy, nbytes / target.l3_bandwidth)
    arriving = (1 - target.kept()) * nbytes / target.dram_bandwidth
    crowded = target.crowding(site.threads)
    return streamed(busy, arriving, tiling.rows.count, EXPOSED, crowded) + 1e-7


def packed_choice(
    site: Site, w: np.ndarray[Any, Any], m: int, tiling: Tiling, words: bool = False
) -> Choice:
    """The choice for `m` rows (`flat_rows`) times the constant matrix `w`, which is packed
    as float32 or, with `words`, as 24-bit weights."""
    k, n = w.shape
    high, moved = (narrow.rows(k) if words else k), narrow.rows_of(k, words)
    pack, fits, unit = pack_columns, None, None
    if words:
        pack, fits, unit = pack_narrow, narrow.fits, narrow.unit(k)
    nbytes, rows = 4 * high * tiling.columns.padded, typical(m)
    cost = _seconds(site, m, k, n, tiling, nbytes, words)
    cells = grid(site.target, tiling, high, cost)
    near = by_positions(
        site, site.input(0), 4.0 * rows * k, 2.0 * rows * n * k, (tiling.rows.count, cells.count),
        weights=nbytes,
    )  # fmt: skip
    stream = stream_of(site, tiling, cells, high, near)
    lead = len(site.out.dims) - 1
    stride = spread_stride(k, tiling.rows.size)
    copied = stride != k and n > 64
    a_row = stride if copied else k
    groups = min(rows, PARTS)

    def emit(em: Emit) -> None:
        b = em.b
        a = em.scratch.cast(F32) if copied else em.input(0).pointer
        weights = em.packed[0]
        buffer = em.workspace.cast(F32)

        def tile(row: Position, height: int, lo: Position, hi: Position) -> None:
            line = (a + row * a_row).fixed()

            def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
                right, size = (weights + c * (high * tiling.columns.size)).fixed(), sum(widths)
                at = Operands(line, a_row, right, size, k, unit=unit)
                if stream is not None:
                    later, step = stream.later(right, row, high * size), size * moved // k
                    at = replace(at, ahead=(Ahead(later, step, stream.share),))
                sums = product(b, at, height, widths, tiling.accumulators)
                finish_tile(em, sums, row, column, valid, buffer, (0, lead))

            each_column_panel(b, tiling.columns, lo, hi, panel)

        with b.loop(em.begin, em.end) as t:
            rlo, rhi = share(t % cells.rows, cells.rows, tiling.rows.count)
            clo, chi = share(t // cells.rows, cells.columns, tiling.columns.count)
            each_row_panel(b, tiling.rows, rlo, rhi, lambda row, h: tile(row, h, clo, chi))

    phases = one_phase(cells.count, emit, cells.rows if near else 0)
    if copied:
        phases = (Phase(groups, lambda em: copy_rows(em, m, k, stride, groups)), *phases)
    return Choice(
        cost=cost + (site.target.time(0, 8.0 * rows * k) if copied else 0),
        reads=site.reads((PLAIN, None), PLAIN), writes=(PLAIN,), phases=phases,
        packed=(Packed("w", pack, (w, tiling.columns), nbytes, fits),),
        workspace=buffer_bytes(site, tiling.rows.size, tiling.columns.size),
        scratch=4 * m * stride if copied else 0,
        detail=f"{tiling}{', rows copied apart' if copied else ''}{', 24 bits' if words else ''}",
    )  # fmt: skip
