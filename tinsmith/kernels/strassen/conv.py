"""Pointwise convolutions by Strassen's method: the rows are pixels of channel-blocked images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, View, kernel
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.strassen.choice import choice_of, shapes
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.geometry import Geometry, steps
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.window.weights import padded_bias

APART = 1.03
"""The factor on the cost for channels of a pixel that do not lie side by side, and for weights that
take more cache than those of a direct convolution. Estimated."""


@kernel("Conv", Tier.SHAPED, dtypes="float32", numbers=True)
def conv_strassen(site: Site) -> list[Choice]:
    """Pointwise convolution by Strassen's method: seven products for eight, or 49 for 64."""
    conv = dense_site(site)
    geo, w, lanes = conv.geo, conv.weights, conv.width
    if geo.taps != 1 or any(geo.begin) or any(geo.after):
        raise Skip("only pointwise convolutions without padding are matrix products")
    more = [Packed("bias", padded_bias, (conv.bias, geo.out_channels))]
    found = [
        choice_of(site, w, shape, Layout(lanes), lambda em: PixelEnds(em, geo), more)
        for shape in shapes(site, geo.points, w, levels=(1, 2), unit=lanes)
    ]
    return [replace(choice, cost=APART * choice.cost) for choice in found]


class PixelEnds:
    """`Ends` whose rows are pixels of blocked images, numbered through batch and spatial axes."""

    def __init__(self, em: Emit, geo: Geometry) -> None:
        self.em, self.geo, self.input = em, geo, em.input(0)
        self.lanes = block_of(em.target)
        _, self.step, _ = steps(self.input.spec, geo.rank)
        self.reads_even = set(geo.stride) == {1} and _is_even(self.input, geo)
        self.writes_even = all(_is_even(v, geo) for v in (em.outs[0], *em.extras))

    def source(self, row: Position) -> Ptr:
        geo = self.geo
        if self.reads_even:
            n, pixel = self._image(row)
            return self.input.at(n) + pixel * self.lanes
        n, *place = self._place(row)
        strided = [p * s for p, s in zip(place, geo.stride, strict=True)]
        return self.input.at(n, 0, *strided[3 - geo.rank :])

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        em = self.em
        scales, bias = ((em.packed[i] + column).fixed() for i in (2, 3))
        if self.writes_even:
            n, pixel = self._image(row)
            place = [0, 0, pixel]
        else:
            n, *place = self._place(row)
        sink = Sink(em, self.geo).at(n, em.b.index(column) // self.lanes, *place)
        for o, value in enumerate(values):
            scale, more = ((p + o * self.lanes).load(self.lanes) for p in (scales, bias))
            sink.put(value.fma(scale, more), 0, o, 0, 0, 0)

    def _image(self, row: Position) -> tuple[Position, Position]:
        """The image in which a row's pixel lies, and the pixel's number in it."""
        if self.geo.batch == 1:
            return 0, row
        pixels = prod(self.geo.out)
        return row // pixels, row % pixels

    def _place(self, row: Position) -> tuple[Position, Position, Position, Position]:
        """The image, and the output indices (depth, height, width) of a row's pixel."""
        n, pixel = self._image(row)
        deep, high, wide = self.geo.out
        line = pixel // wide
        return n, (line // high if deep > 1 else 0), line % high, pixel % wide


def _is_even(view: View, geo: Geometry) -> bool:
    """Whether neighbouring pixels are one vector apart throughout an image."""
    strides = steps(view.spec, geo.rank)[2]
    want = (prod(geo.out[1:]), geo.out[2], 1)
    width = view.spec.layout.block
    return all(o == 1 or s == f * width for o, s, f in zip(geo.out, strides, want, strict=True))
