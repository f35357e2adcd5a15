"""Convolutions of float32 rounded to bfloat16, in vectors, if `precision="bfloat16"` allows it."""

from __future__ import annotations

from tinsmith.codegen.products import VECTORS
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Choice, Packed, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.bfloat16 import sides
from tinsmith.kernels.float_products import float_product
from tinsmith.kernels.window.integers import packed_conv, plan_of
from tinsmith.kernels.window.integers_plan import Cut, by_group
from tinsmith.kernels.window.site import conv_site
from tinsmith.kernels.window.weights import padded_bias


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_bfloat16(site: Site) -> Choice:
    """Direct convolution of inputs and weights rounded to bfloat16, with sums in float32."""
    conv = conv_site(site)
    row = float_product(site, VECTORS, conv.weights)
    plan = plan_of(site, conv.geo, row, *sides(row))
    if plan.cut.groups != conv.groups:
        raise Skip("groups share blocks, where an infinity would reach others than its own")
    return packed_conv(site, plan, Packed("start", _pack_start, (conv.bias, plan.cut)))


def _pack_start(bias: Array | None, cut: Cut) -> Array:
    """The bias as what sums begin with, [cut.groups][cut.columns]: 0 in padding, and everywhere if
    `bias` is None."""
    return by_group(padded_bias(bias, cut.groups * cut.outputs), cut)
