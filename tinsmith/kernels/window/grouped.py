"""Grouped convolution, by how the groups lie in the blocks.

Groups that fill whole blocks are direct convolutions side by side (`direct`), those that fill
halves of wide blocks use half vectors (`halves`); others share vectors (`mixed`). Narrow groups of
which several fill a vector have a kernel of their own (`narrow`).
"""

from __future__ import annotations

from tinsmith.kernels._kernel import Choice, Site, Tier, kernel
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.direct import direct
from tinsmith.kernels.window.geometry import conv_geometry, group_widths
from tinsmith.kernels.window.halves import halves
from tinsmith.kernels.window.mixed import mixed


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_grouped(site: Site) -> Choice:
    """Grouped convolution of any width."""
    geo = conv_geometry(site)
    widths, width = group_widths(site, geo), block_of(site.target)
    if widths.inputs % width == 0 and widths.outputs % width == 0:
        return direct(site, geo, widths.groups)
    if width == 16 and widths.inputs % 8 == 0 and widths.outputs % 8 == 0:
        return halves(site, geo, widths)
    return mixed(site, geo, widths)
