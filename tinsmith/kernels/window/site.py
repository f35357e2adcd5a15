"""A convolution's geometry, weights and bias, decoded once for all kernels that may compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.codegen.target import Target
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Choice, Packed, Phase, Site, Skip
from tinsmith.kernels.layout import Halo, Layout, block_of
from tinsmith.kernels.window.geometry import Geometry, Widths, conv_geometry
from tinsmith.records import dataclass


@dataclass(frozen=True)
class ConvSite:
    """A convolution or transposed convolution with constant weights.

    weights  as the operator has them: [outputs, inputs of a group, *taps], of a transposed
             convolution [inputs, outputs of a group, *taps]
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
        """Channels of a block: the lanes of a vector."""
        return block_of(self.site.target)

    @property
    def blocks(self) -> int:
        """How many blocks the input channels fill, the last one perhaps in part."""
        return -(-self.geo.channels // self.width)

    @property
    def groups(self) -> int:
        return self.site.attr("group")

    @property
    def widths(self) -> Widths:
        geo, groups = self.geo, self.groups
        return Widths(groups, geo.channels // groups, geo.out_channels // groups)

    def time(self, flops: float, efficiency: float) -> float:
        """Estimated seconds of a kernel of `flops` operations at the share `efficiency` of the
        peak, which reads input and weights once and writes the output once."""
        return self.target.time(flops, self.geo.traffic(self.weights.size), efficiency)

    def packed_bias(self, pack: Callable[..., Array], *more: Any) -> list[Packed]:
        """A list of the packed bias, which `pack(bias, *more)` makes; empty if there is no bias."""
        return [] if self.bias is None else [Packed("bias", pack, (self.bias, *more))]

    def choice(
        self, cost: float, phases: tuple[Phase, ...], packed: Sequence[Packed],
        halo: Halo | None = None, **more: Any,
    ) -> Choice:  # fmt: skip
        """A `Choice` with these `phases` and `packed` arrays, and `cost` in seconds, that reads the
        input and writes the result in blocked layouts. `halo`: the halo of the input, None for what
        its windows read; `more`: further fields of the `Choice`."""
        layout = Layout(self.width)
        read = Layout(self.width, self.geo.halo if halo is None else halo)
        reads = self.site.reads_first(read, layout)
        return Choice(cost, reads, (layout,), phases, tuple(packed), **more)


def conv_site(site: Site) -> ConvSite:
    """The convolution of a Conv site. Raises Skip if its weights or bias are not constant."""
    return constants_of(site, conv_geometry(site))


def dense_site(site: Site) -> ConvSite:
    """The convolution of a Conv site, for kernels without groups. Raises Skip if there are several,
    or weights or bias are not constant."""
    if site.attr("group") != 1:
        raise Skip(f"group is {site.attr('group')}")
    return conv_site(site)


def constants_of(site: Site, geo: Geometry) -> ConvSite:
    """The convolution of a Conv or ConvTranspose site with the geometry `geo`. Raises Skip if its
    weights or bias are not constant."""
    bias = site.const(2, "the bias") if site.has(2) else None
    return ConvSite(site, geo, site.const(1, "the weights"), bias)
