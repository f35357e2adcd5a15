"""Products of float32 as bfloat16, in vectors, where `precision="bfloat16"` allows it."""

from __future__ import annotations

from tinsmith.codegen.products import VECTORS, Product
from tinsmith.kernels._kernel import Choice, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.batched import problem
from tinsmith.kernels.dot.integers import packed_product
from tinsmith.kernels.dot.integers_plan import constant_matrix
from tinsmith.kernels.dot.zeros import Side
from tinsmith.kernels.float_products import float_product


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def matmul_bfloat16(site: Site) -> Choice:
    """Products of operands that are rounded to bfloat16 when they are packed; sums are float32."""
    row = float_product(site, VECTORS, constant_matrix(site))  # others are packed in the run
    if problem(site).n == 1:
        raise Skip("one column: matvec folds the rows")
    return packed_product(site, row, sides(row))


def sides(row: Product) -> tuple[Side, Side]:
    """How A and B are packed for `row`: as its element types, without zero points."""
    return Side(0, None, 1, row.left, True), Side(1, None, 1, row.right, True)
