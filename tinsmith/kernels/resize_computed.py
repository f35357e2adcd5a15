"""Tables of a resize along axes whose sizes only a call tells: computed when the step begins.

The formulas are those of `ops/resize.coordinates`, `nearest` and `interpolation`, in the same
precision and order, so that the same elements are read as where sizes are known.
"""

from __future__ import annotations

from functools import reduce
from math import floor as whole_below

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import ceil, floor
from tinsmith.codegen.types import F32, F64
from tinsmith.kernels.walk import Position, run
from tinsmith.ops.resize import MIDDLE, Sampling
from tinsmith.records import dataclass
from tinsmith.sizes import Number

ROUNDED = {
    "round_prefer_floor": lambda a: ceil(a - MIDDLE),
    "round_prefer_ceil": lambda a: floor(a + MIDDLE), "floor": floor, "ceil": ceil,
}  # fmt: skip


@dataclass(frozen=True)
class Computed:
    """The table of a resize along `axis`, as `ops/resize.Table`, where its extents before (`size`)
    or after (`out`) are free. `factor` is the scale that the model gives; None: out / size."""

    axis: int
    size: Number
    out: Number
    factor: float | None
    how: Sampling

    @property
    def weighted(self) -> bool:
        return self.how.mode != "nearest"

    @property
    def shrinks(self) -> bool:
        """Whether antialiasing widens the filter: it is asked for, and results are fewer than
        elements (by `factor`, if given)."""
        less = self.out < self.size if self.factor is None else self.factor < 1
        return self.how.antialias and less

    @property
    def first(self) -> int:
        """The first tap, relative to the element at or below a coordinate: 0 or less. Where a free
        ratio widens the filter, the program holds for all ratios that need as many taps."""
        radius = 1 if self.how.mode == "linear" else 2
        if not self.shrinks:
            return 1 - radius
        if self.factor is not None:
            return whole_below(-radius / self.factor) + 1
        return int(-(radius * self.size) // self.out) + 1

    @property
    def taps(self) -> int:
        return 2 - 2 * self.first if self.weighted else 1

    def emit(self, b: Builder, places: Ptr, weights: Ptr) -> None:
        """Emit code that writes the table: int64 places and float32 weights, [out, taps] both. If
        `factor` is None and a call has `out` = `size`, all taps are the element itself, so that
        neighbours, which may be NaN, are not read."""
        last = b.const(self.size, F64) - 1.0
        first, taps = self.first, self.taps
        stays = b.index(self.out).eq(b.index(self.size)) if self.factor is None else None

        def element(i: Position) -> None:
            at, own = self._coordinate(b, b.index(i)), b.index(i).to("f64")
            if not self.weighted:
                found = [ROUNDED[self.how.nearest_mode](at)]
            else:
                below = floor(at)
                found = [below + float(k) for k in range(first, first + taps)]
                shares = self._shares(at - below, found, last)
                for k, share in enumerate(shares):
                    share = share if stays is None else stays.select(1 / taps, share)
                    (weights + b.index(i) * taps + k).store(share.to("f32"))
            if stays is not None:
                found = [stays.select(own, place) for place in found]
            to = (places + b.index(i) * taps).fixed()
            for k, place in enumerate(found):
                (to + k).store(place.max(0.0).min(last).truncated("i64"))

        run(b, 0, self.out, element)

    def _factor(self, b: Builder) -> Val:
        if self.factor is not None:
            return b.const(self.factor, F64)
        return b.const(self.out, F64) / b.const(self.size, F64)

    def _coordinate(self, b: Builder, i: Val) -> Val:
        """The coordinate in the input, in elements, as float64, from which result i is computed."""
        kind = F64 if self.weighted else F32
        transform = self.how.coordinate_transformation_mode
        o, f, n = i.to(kind.kind), self._factor(b).to(kind.kind), b.const(self.size, kind)
        length = f * n
        if transform == "align_corners":
            at = length.eq(1.0).select(0.0, o * (n - 1.0) / (length - 1.0))
        elif transform == "asymmetric":
            at = o / f
        elif transform == "tf_half_pixel_for_nn":
            at = f.eq(1.0).select(o, (o + 0.5) / f)  # what does not change is not moved
        else:
            at = (o + 0.5) / f
            if transform == "half_pixel_symmetric":
                at = at + n * 0.5 * (1.0 - b.const(self.out, kind) / length)
            at = at - 0.5
        if transform == "pytorch_half_pixel":
            at = length.eq(1.0).select(-0.5, at)
        return at.to("f64")

    def _shares(self, part: Val, places: list[Val], last: Val) -> list[Val]:
        """The weights of the elements at `places` of one coordinate, which lies `part` after the
        element at or below it; `last` is the last place."""
        b, how = part.b, self.how
        shares = []
        for k in range(len(places)):
            t = (float(self.first + k) - part).abs()
            t = t * self._factor(b) if self.shrinks else t
            shares.append((1.0 - t).max(0.0) if how.mode == "linear" else _cubic(t, how))
        if how.exclude_outside:
            shares = [
                ((p >= 0.0) & (p <= last)).select(s, 0.0)
                for p, s in zip(places, shares, strict=True)
            ]
        if how.exclude_outside or self.shrinks:
            total = reduce(Val.__add__, shares)
            shares = [s / total for s in shares]
        return shares


def _cubic(t: Val, how: Sampling) -> Val:
    a = how.cubic_coeff_a
    near = (t * (a + 2) - (a + 3)) * t * t + 1.0
    far = ((t * a - 5 * a) * t + 8 * a) * t - 4 * a
    return (t <= 1.0).select(near, (t < 2.0).select(far, 0.0))
