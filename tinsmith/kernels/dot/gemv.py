"""A few rows times a constant matrix: the weights are read once, at the speed of memory."""

from __future__ import annotations

from tinsmith.kernels._kernel import Choice, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.matmul import FEW_ROWS, flat_rows, packed_choice, right_matrix
from tinsmith.kernels.dot.tiles import choose
from tinsmith.kernels.layout import block_of

PANELS = 8
"""Panels that a large matrix is cut into at least, so that threads share the stream."""


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def gemv_packed(site: Site) -> Choice:
    """At most 4 rows times a constant right operand, streamed in packed panels."""
    w = right_matrix(site)
    k, n = w.shape
    m = flat_rows(site, n)
    if m > FEW_ROWS:
        raise Skip(f"{m} rows: matmul_packed reuses the weights")
    vectors = -(-n // block_of(site.target))
    most = min(6, max(2, 8 // m))  # few streams of arithmetic keep up with memory better
    if w.nbytes >= 1 << 16:
        most = max(1, min(most, vectors // PANELS))
    return packed_choice(site, w, m, choose(site.target, m, n, k, False, most))
