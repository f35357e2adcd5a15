"""What a convolution is, decoded once for all kernels that may compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Choice, Packed, Phase, Site, Skip
from tinsmith.kernels.layout import Halo, Layout, block_of
from tinsmith.kernels.window.geometry import Geometry, Widths, conv_geometry
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConvSite:
    """A convolution, or a transposed one, by weights that are constants.

    weights  as the operator has them: [outputs, inputs of a group, *taps], transposed convolutions'
             [inputs, outputs of a group, *taps]
    bias     one number for each output channel, or None
    """

    site: Site
    geo: Geometry
    weights: Array
    bias: Array | None

    @property
    def target(self) -> Target:
        return self.site.target

    @property
    def width(self) -> int:
        """Channels of a block."""
        return block_of(self.site.target)

    @property
    def blocks(self) -> int:
        """Blocks of all input channels."""
        return -(-self.geo.channels // self.width)

    @property
    def groups(self) -> int:
        return self.site.attr("group")

    @property
    def widths(self) -> Widths:
        geo, groups = self.geo, self.groups
        return Widths(groups, geo.channels // groups, geo.out_channels // groups)

    def time(self, flops: float, efficiency: float) -> float:
        """Seconds of `flops` operations at a share of the peak (`efficiency`), where input, output
        and weights are touched once."""
        return self.target.time(flops, self.geo.traffic(self.weights.size), efficiency)

    def packed_bias(self, pack: Callable[..., Array], *more: Any) -> list[Packed]:
        """The packed bias, made by `pack(bias, *more)`, as a list of one; an empty list if none."""
        return [] if self.bias is None else [Packed("bias", pack, (self.bias, *more))]

    def choice(
        self, cost: float, phases: tuple[Phase, ...], packed: Sequence[Packed],
        halo: Halo | None = None, **more: Any,
    ) -> Choice:  # fmt: skip
        """A choice that reads and writes blocks of channels. `halo`: that of the input, by default
        what its windows read; `more` are other fields of the `Choice`."""
        layout = Layout(self.width)
        read = Layout(self.width, self.geo.halo if halo is None else halo)
        reads = self.site.reads_first(read, layout)
        return Choice(cost, reads, (layout,), phases, tuple(packed), **more)


def conv_site(site: Site) -> ConvSite:
    """A Conv site decoded, or Skip where its weights or bias are no constants."""
    return constants_of(site, conv_geometry(site))


def dense_site(site: Site) -> ConvSite:
    """`conv_site` where every output is a sum over all channels, else Skip."""
    if site.attr("group") != 1:
        raise Skip(f"group is {site.attr('group')}")
    return conv_site(site)


def constants_of(site: Site, geo: Geometry) -> ConvSite:
    """A site of this geometry with its weights and bias, or Skip where these are no constants."""
    bias = site.const(2, "the bias") if site.has(2) else None
    return ConvSite(site, geo, site.const(1, "the weights"), bias)
