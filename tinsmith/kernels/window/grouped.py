"""Grouped convolution, in one of three ways.

Groups whose channels fill whole blocks are direct convolutions side by side (`direct`). Of smaller
groups, either as many as fill blocks are interleaved (`interleaved`), or each vector of outputs
reads the inputs of all groups that have a lane in it (`mixed`).
"""

from __future__ import annotations

from contextlib import suppress

from tinsmith.kernels._kernel import Choice, Site, Skip, Tier, kernel
from tinsmith.kernels.window.direct import direct
from tinsmith.kernels.window.interleaved import interleaved
from tinsmith.kernels.window.mixed import mixed
from tinsmith.kernels.window.site import conv_site


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_grouped(site: Site) -> list[Choice]:
    """Grouped convolution of any width, except depthwise."""
    conv = conv_site(site)
    widths, width = conv.widths, conv.width
    if widths.groups == 1:
        raise Skip("group is 1")
    if widths.inputs % width == 0 and widths.outputs % width == 0:
        return [direct(conv)]
    if widths.inputs == widths.outputs == 1:
        raise Skip("each channel is a group of its own, which conv_depthwise computes")
    found = []
    with suppress(Skip):
        found.append(interleaved(conv))
    return [*found, mixed(conv)]
