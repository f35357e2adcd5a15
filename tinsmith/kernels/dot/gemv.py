"""A few rows times a constant matrix: the weights are read once, at the speed of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Choice, Site, Tier, kernel
from tinsmith.kernels.dot.matmul import few_rows, packed_choice, right_matrix
from tinsmith.kernels.dot.tiles import Tiling, choose
from tinsmith.kernels.layout import block_of

PANELS = 8
"""The fewest panels that a large matrix is cut into, so that threads can share them. Estimated."""

WIDE = 6  # the most vectors of columns of a register tile; estimated


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def gemv_packed(site: Site) -> Choice:
    """At most 4 rows times a constant right operand, streamed in packed panels."""
    w = right_matrix(site)
    return packed_choice(site, w, *_cut(site, w))


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def gemv_narrow(site: Site) -> Choice:
    """At most 4 rows times a large constant right operand, streamed as 24 bits a weight."""
    w = right_matrix(site)
    # Words of three rows are kept until they have made the fourth.
    m, tiling = _cut(site, w, 4 if site.target.registers >= 32 else 2)
    narrow.need_words(site, w, len(w))
    return packed_choice(site, w, m, tiling, words=True)


def _cut(site: Site, w: np.ndarray[Any, Any], widest: int = WIDE) -> tuple[int, Tiling]:
    """The number of rows, and how rows and columns are cut into register tiles of at most `widest`
    vectors. Raises Skip unless there are `few_rows`."""
    k, n = w.shape
    m = few_rows(site, n, "matmul_packed reuses the weights")
    vectors = -(-n // block_of(site.target))
    most = min(widest, max(2, 8 // m))  # few streams of arithmetic keep up with memory better
    if w.nbytes >= 1 << 16:
        most = max(1, min(most, vectors // PANELS))
    return m, choose(site.target, m, n, k, False, most)
