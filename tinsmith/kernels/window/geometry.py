"""The geometry of convolutions and poolings, always with three spatial axes.

Kernels are written once, for (depth, height, width). Leading axes that an operator lacks (depth,
and height for 1-D data) have extent 1, and distance 0 in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import Site, Skip, View
from tinsmith.kernels.layout import Halo, Spec
from tinsmith.ops.window import Window, window
from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, estimate

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution or pooling; triples are (depth, height, width).

    rank    spatial axes of the operator: 1 to 3
    size    extents of the input, `out` those of the output
    kernel  taps of a window on each axis
    begin   padding before the input: how far the first window begins before it
    """

    rank: int
    batch: int
    channels: int
    out_channels: int
    size: Triple
    out: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    begin: Triple
    most_after: Triple | None = None
    """An upper bound of `after` on each axis, for sizes that are free. None: windows reach equally
    far beyond the end in every call."""

    @property
    def is_free(self) -> bool:
        """Whether a spatial size of the input or output is known only in the call."""
        return any(isinstance(n, Size) for n in (*self.size, *self.out))

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def points(self) -> int:
        """Outputs of one channel, over the batch."""
        return self.batch * prod(self.out)

    def span(self, axis: int, outputs: Any = 1) -> Any:
        """How many neighbouring inputs along an axis the windows of `outputs` neighbouring outputs
        cover, from the first tap to the last. `outputs`: a number or a Val, as is the result."""
        gaps = (self.kernel[axis] - 1) * self.dilation[axis]
        return (outputs - 1) * self.stride[axis] + gaps + 1

    def taps_inside(
        self, axis: int, output: int, low: int = 0, high: int | None = None
    ) -> tuple[int, int]:
        """The taps [first, last) of an output, along one axis, that read input indices [low, high),
        by default any; (0, 0) if none does."""
        high = self.size[axis] if high is None else high
        begin, gap = output * self.stride[axis] - self.begin[axis], self.dilation[axis]
        first = -(-max(0, low - begin) // gap)
        last = min(self.kernel[axis], -(-max(0, high - begin) // gap))
        return (first, last) if first < last else (0, 0)

    @property
    def after(self) -> Triple:
        """How far the last window reaches beyond the input, or 0; an upper bound for free sizes."""
        reach = [self.span(i, self.out[i]) - self.size[i] - self.begin[i] for i in range(3)]
        return triple([
            most if isinstance(r, Size) and most is not None else int(max(0, r))
            for r, most in zip(reach, self.most_after or (None,) * 3, strict=True)
        ])  # fmt: skip

    @property
    def before(self) -> Triple:
        """How far the first window begins before the input; an upper bound for free sizes."""
        return triple([
            (k - 1) * d if isinstance(b, Size) else b
            for b, k, d in zip(self.begin, self.kernel, self.dilation, strict=True)
        ])  # fmt: skip

    @property
    def halo(self) -> Halo:
        """The halo that the windows read: (before, after) for each axis that the operator has."""
        return tuple(zip(self.before, self.after, strict=True))[3 - self.rank :]

    @property
    def is_pointwise(self) -> bool:
        return self.taps == 1 and set(self.stride) == {1} and not any(self.begin)

    @estimate
    def traffic(self, weights: int = 0) -> float:
        """Bytes of the input, the output and `weights` weights, all of float32."""
        values = self.channels * prod(self.size) + self.out_channels * prod(self.out)
        return 4.0 * (self.batch * values + weights)

    def place(self, index: Sequence[Any]) -> tuple[Any, ...]:
        """A tensor's index, without missing axes, from (n, block, depth, height, width)."""
        return (*index[:2], *index[5 - self.rank :])


@dataclass(frozen=True)
class Widths:
    """Input and output channels of one group, and how many groups there are."""

    groups: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Image:
    """The input of a convolution or pooling in memory. Its planes are channels of plain data, or
    blocks of channels. Distances are in elements:

    batch   from an image to the next
    plane   from a plane to the next
    step    from a pixel to the next along (depth, height, width)
    stride  from a window to the next along (depth, height, width)
    back    from a plane's first pixel to where its first window begins: negative for padding
    """

    pointer: Ptr
    batch: int
    plane: int
    step: Triple
    stride: Triple
    back: int

    def corner(self, n: Val | int, which: Val | int = 0, planes: int = 1) -> Ptr:
        """The address at which the first window of image n begins, in plane `which` * `planes`."""
        return self.pointer + n * self.batch + which * (planes * self.plane) + self.back

    def window(self, x: Ptr, d: Val | int, r: Val | int, c: Val | int) -> Ptr:
        """The address of window (d, r, c) of a plane whose first window begins at x."""
        return (x + d * self.stride[0] + r * self.stride[1] + c * self.stride[2]).fixed()


def image_of(view: View, geo: Geometry) -> Image:
    """The `Image` of `view`, the input of an operator with the geometry `geo`."""
    batch, plane, step = steps(view.spec)
    stride = triple([k * s for k, s in zip(geo.stride, step, strict=True)])
    back = -sum(p * s for p, s in zip(geo.begin, step, strict=True))
    return Image(view.pointer, batch, plane, step, stride, back)


def steps(spec: Spec) -> tuple[int, int, Triple]:
    """Strides of a tensor with 1 to 3 spatial axes, in elements: of the batch, of channels (or
    blocks of channels), and of (depth, height, width), with 0 for missing axes."""
    return spec.strides[0], spec.strides[1], triple(spec.strides[2:], 0)


def conv_geometry(site: Site) -> Geometry:
    """The geometry of a Conv site. Raises Skip for other than 1 to 3 spatial axes, and where there
    is nothing to compute."""
    x, w = site.input(0), site.input(1)
    attrs = [site.attr(name) for name in ("stride", "pad", "dilation", "auto_pad")]
    return _conv_geometry(x.dims, w.dims, *attrs)


@cached(1024)
def _conv_geometry(dims: tuple[int, ...], weights: tuple[int, ...], *attrs: Any) -> Geometry:
    return geometry_of(dims, weights[0], window(dims[2:], weights[2:], *attrs))


def pool_geometry(site: Site) -> tuple[Geometry, Window]:
    """The geometry of a pooling site, and its `Window` on the axes that it has. Raises Skip as
    `conv_geometry` does."""
    x = site.input(0)
    names = ("kernel", "stride", "pad", "dilation", "auto_pad", "ceil_mode")
    win = window(x.dims[2:], *(site.attr(name) for name in names))
    return geometry_of(x.dims, x.dims[1], win), win


def geometry_of(dims: tuple[int, ...], out_channels: int, win: Window) -> Geometry:
    """The geometry of an input of shape `dims` under the windows `win`, with `out_channels` output
    channels. Raises Skip as `conv_geometry` does."""
    rank = len(win.kernel)
    if not 1 <= rank <= 3:
        raise Skip(f"there are {rank} spatial axes")
    out: tuple[Any, ...] = win.out
    if 0 in (*dims, *out, out_channels):
        raise Skip("there is nothing to compute")
    return Geometry(
        rank, dims[0], dims[1], out_channels, triple(dims[2:]), triple(out), triple(win.kernel),
        triple(win.stride), triple(win.dilation), triple(win.begin, 0),
        triple([_reach(*row) for row in zip(win.end, win.stride, win.span, strict=True)], 0),
    )  # fmt: skip


def _reach(end: Number, stride: int, span: int) -> int:
    """An upper bound of how far the last window of an axis reaches beyond the input: by the padding
    `end`, plus less than a stride where the output size is rounded up. Padding that depends on a
    free size (`auto_pad`) is smaller than the window's extent `span`."""
    return (span - 1 if isinstance(end, Size) else end) + stride - 1


def triple(values: Sequence[int], fill: int = 1) -> Triple:
    """Three numbers: `values`, after as many `fill` as there are leading axes missing."""
    full = (fill,) * (3 - len(values)) + tuple(values)
    return (full[0], full[1], full[2])
