"""Resize, with every interpolation, coordinate transform and rounding of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import floor
from typing import Any

import numpy as np

from tinsmith.errors import DataError
from tinsmith.graph import Array, Dim, Node, Value
from tinsmith.ops._apart import Apart
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import axis_of, need_data, need_room
from tinsmith.ops.precision import is_float, widen
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import NUMBER, Size, same

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")
MIDDLE = 0.5 + 1e-6
"""Elements at this distance or less tie with the nearest one, as in ONNX Runtime."""


@op()
def Resize(
    x, roi=None, scales=None, sizes=None, *, mode="nearest",
    coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor",
    cubic_coeff_a=-0.75, exclude_outside=False, extrapolation_value=0.0, antialias=False, axes=None,
    keep_aspect_ratio_policy="stretch",
):  # fmt: skip
    """y[o] = x interpolated at t(o), one axis after the other; t is the coordinate transform

    scales (factors) or sizes (of y) have one number for each of `axes` (default: all axes of x).
    roi is read only for tf_crop_and_resize, which gives extrapolation_value outside of x. The
    attributes are those of ONNX's Resize.
    """
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    y, outside = widen(x) if mode != "nearest" else x, np.zeros((1,) * x.ndim, bool)
    if mode != "nearest" and not is_float(x.dtype):
        y = y.astype(np.float64 if x.dtype.itemsize > 2 else np.float32)
    wrong = unusable(*(None if a is None or not a.size else a for a in (scales, sizes)))
    need_data(not wrong, wrong)
    sampling = Sampling(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside,
        antialias, keep_aspect_ratio_policy,
    )  # fmt: skip
    tables = axis_tables(x.shape, (roi, scales, sizes), axes, sampling)
    dims = list(x.shape)
    for table in tables:
        dims[table.axis] = len(table.places)
        need_room(dims, y.dtype)
        if crop:
            shape = [1] * x.ndim
            shape[table.axis] = table.places.shape[0]
            outside = outside | table.outside.reshape(shape)
        if table.weights is None:
            y = y.take(table.places[:, 0], axis=table.axis)
        else:
            y = _weighted(y, table.places, table.weights, table.axis)
    if crop:
        y = np.where(outside, y.dtype.type(extrapolation_value), y)
    if y.dtype != x.dtype and not is_float(x.dtype):
        info = np.iinfo(x.dtype)
        y = np.clip(np.rint(y), info.min, info.max)
    return np.ascontiguousarray(y.astype(x.dtype, copy=False))


class Sampling(NamedTuple):
    """The attributes of a Resize that `axis_tables` needs, under their own names."""

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    exclude_outside: bool
    antialias: bool
    keep_aspect_ratio_policy: str


@dataclass(frozen=True)
class Table:
    """How a Resize computes along one axis, number `axis`: y[o] = sum over t of
    weights[o, t] * x[places[o, t]].

    places   [out, taps], indexes into the input
    weights  [out, taps], float64; None: the element at the one place is copied (nearest)
    outside  [out], whether the coordinate of an element lies outside of the input
    """

    axis: int
    places: Array
    weights: Array | None
    outside: Array

    @property
    def weighted(self) -> bool:
        return self.weights is not None

    @property
    def taps(self) -> int:
        return self.places.shape[1]


def axis_tables(
    dims: Sequence[int], given: Sequence[Array | None], axes: Sequence[int] | None, how: Sampling
) -> list[Table]:
    """The tables of all axes that a Resize changes; the Resize applies one after the other.

    `dims` are the input's; `given` are (roi, scales, sizes), None or empty where absent, with one
    number for each of `axes` (roi: all starts, then all ends). `axes` None means all. Raises
    BudgetExceeded, and DataError for an axis without elements that gets some.
    """
    (roi, scales, sizes), mode, transform = given, how.mode, how.coordinate_transformation_mode
    chosen = [a % len(dims) for a in (range(len(dims)) if axes is None else axes)]
    wanted = (
        [dims[a] for a in chosen],
        None if scales is None or not scales.size else [float(s) for s in scales],
        None if sizes is None or not sizes.size else sizes.tolist(),
        how.keep_aspect_ratio_policy,
    )
    tables = []
    crop = transform == "tf_crop_and_resize"
    each = zip(chosen, resized(*wanted), factors(*wanted), strict=True)
    for i, (axis, out, factor) in enumerate(each):
        size, ends = dims[axis], (0.0, 1.0)
        if roi is not None and crop:
            ends = float(roi[i]), float(roi[len(chosen) + i])
        if factor == 1 and out == size and ends == (0.0, 1.0):
            continue
        out = int(out)  # type: ignore[call-overload]
        need_room((out,), np.float64)
        if out and not size:
            raise DataError(
                f"axis {axis} has no elements, and {out} cannot be interpolated of none"
            )
        # Which of two neighbours is nearest at a tie is settled by float32 in other engines.
        kind = np.float32 if mode == "nearest" else np.float64
        at = coordinates(transform, out, factor, size, ends, kind)
        outside = (at < 0) | (at > size - 1)
        if mode == "nearest":
            tables.append(Table(axis, nearest(at, how.nearest_mode, size)[:, None], None, outside))
            continue
        shrink = min(factor, 1.0) if how.antialias and out else None
        places, weights = interpolation(
            at, mode, size, how.cubic_coeff_a, how.exclude_outside, shrink
        )
        tables.append(Table(axis, places, weights, outside))
    return tables


def _weighted(x: Array, places: Array, weights: Array, axis: int) -> Array:
    """Resize x along one axis: the sum over t of weights[:,t] * x.take(places[:,t], axis)."""
    shape = [1] * x.ndim
    shape[axis] = len(places)
    weights = weights.astype(x.dtype)
    total = None
    for t in range(places.shape[1]):
        term = x.take(places[:, t], axis=axis) * weights[:, t].reshape(shape)
        total = term if total is None else np.add(total, term, out=total)
    assert total is not None
    return total


def resized(
    dims: Sequence[Dim], scales: Sequence[float] | None, sizes: Sequence[int] | None, policy: str
) -> list[Dim]:
    """The output sizes of the resized axes, from their input sizes `dims` and scales or sizes. A
    size by a scale is floor(size * scale) in float32, as ONNX infers it. With `sizes` and a
    `policy` other than "stretch" all axes are resized by one factor (`factors`)."""
    if scales is not None:
        return [_scaled(d, s) for d, s in zip(dims, scales, strict=True)]
    assert sizes is not None
    if policy == "stretch":
        return list(sizes)
    if any(isinstance(d, str) for d in dims):
        return [fresh() for _ in dims]
    ratio = factors(dims, None, sizes, policy)[0]  # type: ignore[arg-type]
    return [floor(ratio * d + 0.5) for d in dims]  # type: ignore[operator]


def factors(
    dims: Sequence[int], scales: Sequence[float] | None, sizes: Sequence[int] | None, policy: str
) -> list[float]:
    """The scale factors of the resized axes: `scales`, or size / dim (0 for a dim of 0). Of the
    latter, with the policy "not_larger" all axes get the smallest, with "not_smaller" the largest.
    """
    if scales is not None:
        return list(scales)
    assert sizes is not None
    ratios = list(map(_ratio, dims, sizes))
    if policy == "stretch":
        return ratios
    return [(min if policy == "not_larger" else max)(ratios)] * len(ratios)


def _ratio(dim: int, size: int) -> float:
    """size / dim, the scale factor of a resized axis; 0.0 for a dim of 0."""
    if not dim:
        return 0.0
    whole = size // dim
    return float(whole) if same(whole * dim, size) else size / dim


def _scaled(dim: Dim, scale: float) -> Dim:
    if isinstance(dim, str):
        return dim if scale == 1 else fresh()
    times, parts = float(scale).as_integer_ratio()
    if isinstance(dim, Size) and dim * times < 1 << 24:  # the product is exact
        return dim * times // parts
    return floor(np.float32(dim) * np.float32(scale))


def coordinates(
    transform: str, out: int, factor: float, size: int, roi: tuple[float, float],
    kind: type[np.floating[Any]] = np.float64,
) -> Array:  # fmt: skip
    """The coordinate in the input (an axis of `size`) at which each of `out` output elements reads:
    [out] of float64, computed in the precision `kind`. `transform` is the Resize's
    coordinate_transformation_mode; `roi` is the crop of tf_crop_and_resize, (start, end) as
    fractions of the axis; size * factor, the resized length, may be fractional."""
    o, f, n = np.arange(out, dtype=kind), kind(factor), kind(size)
    one, half, length = kind(1), kind(0.5), kind(factor) * kind(size)
    if transform == "align_corners":
        return np.zeros(out) if length == 1 else (o * (n - one) / (length - one)).astype(float)
    if transform == "asymmetric":
        return (o / f).astype(float)
    if transform == "tf_crop_and_resize":
        o, last = (np.full(out, half), one) if length == 1 else (o, length - one)
        at = o * (kind(roi[1]) - kind(roi[0])) * (n - one) / last
        return (at + kind(roi[0]) * (n - one)).astype(float)
    if transform == "pytorch_half_pixel" and length == 1:
        return np.full(out, -0.5)
    if transform == "tf_half_pixel_for_nn":
        return ((o + half) / f).astype(float)
    at = (o + half) / f
    if transform == "half_pixel_symmetric":
        at = at + n * half * (one - kind(out) / length)
    return (at - half).astype(float)


def nearest(at: Array, rounding: str, size: int) -> Array:
    """The index that each coordinate is rounded to, clipped to [0, size): int64 [out]. `rounding`
    is the Resize's nearest_mode."""
    whole = {
        "round_prefer_floor": lambda a: np.ceil(a - MIDDLE),
        "round_prefer_ceil": lambda a: np.floor(a + MIDDLE),
        "floor": np.floor,
        "ceil": np.ceil,
    }[rounding](at)
    return np.clip(whole, 0, size - 1).astype(np.int64)


def interpolation(
    at: Array, mode: str, size: int, a: float, exclude_outside: bool, shrink: float | None
) -> tuple[Array, Array]:
    """What linear or cubic interpolation reads of an axis of `size` for each coordinate in `at`
    [out]: (places, weights), both [out, taps]. Places outside are clamped to the edges; with
    `exclude_outside` they get the weight 0, and the others are scaled to a sum of 1. `a` is the
    coefficient of cubic interpolation. Antialiasing widens the filter by 1 / `shrink` (None: not at
    all)."""
    below = np.floor(at)
    part = (at - below)[:, None]
    radius = 1 if mode == "linear" else 2
    first = 1 - radius if shrink is None else floor(-radius / shrink) + 1
    offsets = np.arange(first, 2 - first, dtype=np.float64)
    t = np.abs(offsets - part) * (1.0 if shrink is None else shrink)
    weights = np.clip(1 - t, 0, None) if mode == "linear" else np.where(t < 2, cubic(t, a), 0)
    if shrink is not None:
        weights /= weights.sum(axis=1, keepdims=True)
    places = below[:, None] + offsets
    if exclude_outside:
        weights = np.where((places >= 0) & (places < size), weights, 0)
        weights /= weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, size - 1).astype(np.int64), weights


def cubic(t: Array, a: float) -> Array:
    """The weights of elements at distances t in [0, 2] in cubic interpolation of coefficient a."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, far)


def unusable(scales: Array | None, sizes: Array | None) -> str:
    """A message for scales of a Resize (or, where they are None, sizes) that cannot be used: scales
    must be positive and finite, sizes not negative. "" if they can be used, or both are None."""
    if scales is not None:
        fit = bool(np.all((scales > 0) & (scales < np.inf)))
        return "" if fit else f"scales must be positive and finite: {scales}"
    fit = sizes is None or bool(np.all(sizes >= 0))
    return "" if fit else f"sizes must not be negative: {sizes}"


@Resize.type
def _(
    x, roi=None, scales=None, sizes=None, *, mode, coordinate_transformation_mode, nearest_mode,
    antialias, axes, keep_aspect_ratio_policy, **_,
):  # fmt: skip
    need_one_of(MODES, mode=mode)
    need_one_of(COORDINATES, coordinate_transformation_mode=coordinate_transformation_mode)
    need_one_of(ROUNDINGS, nearest_mode=nearest_mode)
    need_one_of(POLICIES, keep_aspect_ratio_policy=keep_aspect_ratio_policy)
    need(not (antialias and mode == "nearest"), "antialias needs mode linear or cubic")
    scales, sizes = unless_empty(scales), unless_empty(sizes)
    need((scales is None) != (sizes is None), "either scales or sizes is needed, and not both")
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    need(not crop or unless_empty(roi) is not None, "tf_crop_and_resize needs roi")
    if x.shape is None:
        return x.type
    rank = len(x.shape)
    chosen = [axis_of(a, rank, "axes") for a in (range(rank) if axes is None else axes)]
    shape: list[Dim] = list(x.shape)
    given = scales if scales is not None else sizes
    if given.shape is not None and isinstance(given.shape[0], NUMBER):
        what = "scales" if scales is not None else "sizes"
        need(
            given.shape[0] == len(chosen),
            f"{what} has {given.shape[0]} numbers, {len(chosen)} axes are resized",
        )
    if given.const is None:
        for axis in chosen:
            shape[axis] = fresh()
        return x.type.like(shape=tuple(shape))
    wrong = unusable(scales and scales.const, sizes and sizes.const)
    need(not wrong, wrong)
    outs = resized(
        [x.shape[a] for a in chosen],
        None if scales is None else [float(s) for s in scales.const],
        None if sizes is None else sizes.const.tolist(),
        keep_aspect_ratio_policy,
    )
    for axis, out in zip(chosen, outs, strict=True):
        none = x.shape[axis] == 0 and isinstance(out, NUMBER) and out != 0
        need(not none, f"axis {axis} has no elements, and {out} cannot be interpolated of none")
        shape[axis] = out
    return x.type.like(shape=tuple(shape))


def unless_empty(v: Value | None) -> Any:
    """An operand; None where it is absent, or empty, as ONNX's opset 11 writes an absent one."""
    return None if v is None or v.shape == (0,) else v


@Resize.apart
def _(node: Node) -> Apart:
    """The axes that keep their size and have no scale but 1; {} for tf_crop_and_resize."""
    x, scales = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or x.shape is None or node.coordinate_transformation_mode == "tf_crop_and_resize":
        return {}
    chosen = range(len(x.shape)) if node.axes is None else node.axes
    numbers = [] if scales is None or scales.const is None else scales.const.tolist()
    scaled = {a % len(x.shape) for a, s in zip_longest(chosen, numbers) if s != 1}
    sizes = zip(x.shape, node.output.shape or (), strict=False)
    return {d: (d,) for d, (n, m) in enumerate(sizes) if n == m and d not in scaled}
