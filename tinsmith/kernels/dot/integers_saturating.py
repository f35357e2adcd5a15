"""Matrix products of bytes by split weights (`dot/saturating.py`)."""

from __future__ import annotations

from tinsmith.kernels._kernel import Choice, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.batched import problem
from tinsmith.kernels.dot.integers import packed_product
from tinsmith.kernels.dot.integers_plan import constant_matrix
from tinsmith.kernels.dot.saturating import Rest, is_sparse_matrix, saturating_row
from tinsmith.kernels.dot.zeros import leaves_zeros
from tinsmith.kernels.layout import block_of
from tinsmith.sizes import Size


@kernel("MatMulInteger", Tier.SHAPED, dtypes="int8 uint8")
def matmul_integer_saturating(site: Site) -> Choice:
    """Register-tiled sums of two products in 16 bits, of constant weights split to fit; exact."""
    row, block = saturating_row(site.target), block_of(site.target)
    w, p = constant_matrix(site), problem(site)
    if w is None:
        raise Skip("the weights are not a constant matrix")
    if any(isinstance(n, Size) for n in (p.m, p.k, p.n)):
        raise Skip("it needs numbers for sizes")
    if p.k % block or p.n % block or p.m < block:
        raise Skip("rows or columns are no whole blocks, or there are less rows than lanes")
    if leaves_zeros(w, site.input(3).const if site.has(3) else None, row):
        raise Skip("zero points of weights are not 0")
    if not is_sparse_matrix(w):
        raise Skip("too many weights do not fit")
    return packed_product(site, row, rest=Rest(p.m, p.n, p.k, block))
