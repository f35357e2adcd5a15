"""Products and convolutions of bytes on matrix registers: the kernels of `dot/integers.py` and
`window/integers.py`, with the row `tdpbusd` of the table of products."""

from __future__ import annotations

from tinsmith.codegen.products import PRODUCTS
from tinsmith.kernels._kernel import Choice, Site, Tier, kernel
from tinsmith.kernels.dot.integers import packed_product
from tinsmith.kernels.window.integers import byte_conv

ROW = PRODUCTS["tdpbusd"]


@kernel("MatMulInteger", Tier.SHAPED, dtypes="int8 uint8", isas="amx", numbers=True)
def matmul_integer_amx(site: Site) -> Choice:
    """Products of bytes on matrix registers, exact in int32, with zero points."""
    return packed_product(site, ROW)


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8", isas="amx", numbers=True)
def conv_integer_amx(site: Site) -> Choice:
    """Direct convolution of bytes on matrix registers, exact in int32, with zero points."""
    return byte_conv(site, ROW)
