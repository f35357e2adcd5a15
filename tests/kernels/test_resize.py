"""Resize on blocked and plain data against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels

rng = np.random.default_rng(0)
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def r(*dims: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(dims) * 100).astype(dtype)


def resize(x, sizes, *, axes=None, target="host", halo=0, **attrs):
    """Both layouts, where there are two."""
    axes = tuple(range(2, x.ndim)) if axes is None else axes
    arrays = (x, None, None, np.array(sizes, np.int64))
    attrs |= {"axes": axes}
    for pick in range(2 if x.dtype == np.float32 and min(axes) >= 2 and x.ndim <= 5 else 1):
        check(
            "Resize", arrays, attrs, kernel="resize_separable", consts=(3,), pick=pick,
            target=target, extra_halo=halo if pick else 0,
        )  # fmt: skip


SHAPES = {
    "double": ((2, 19, 5, 7), (10, 14)),
    "other": ((1, 3, 9, 4), (5, 11)),
    "one pixel": ((1, 20, 1, 1), (3, 4)),
    "to one pixel": ((1, 20, 3, 4), (1, 1)),
    "in bands": ((1, 2, 40, 6), (90, 23)),
    "no image": ((0, 3, 4, 4), (8, 9)),
    "one axis": ((1, 17, 6, 6), (6, 15)),
    "height": ((1, 17, 6, 40), (9, 40)),
    "line": ((2, 5, 9), (20,)),
    "volume": ((1, 18, 3, 2, 4), (5, 4, 7)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("shape", SHAPES)
def test_modes(shape, mode, target):
    dims, sizes = SHAPES[shape]
    if mode == "cubic" and len(dims) == 5:
        sizes = (dims[2], *sizes[1:])
    resize(r(*dims), sizes, mode=mode, target=target, halo=2)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest(coordinates, rounding):
    for sizes in ((10, 21), (3, 4), (7, 7)):
        resize(
            r(1, 6, 5, 7), sizes, coordinate_transformation_mode=coordinates,
            nearest_mode=rounding,
        )  # fmt: skip


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_interpolation(coordinates, mode):
    for sizes in ((10, 21), (3, 4), (1, 1)):
        resize(r(1, 6, 5, 7), sizes, coordinate_transformation_mode=coordinates, mode=mode)


def test_cubic_options():
    resize(r(1, 6, 5, 7), (9, 9), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=True)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode):
    resize(r(1, 6, 8, 9), (5, 7) if mode == "cubic" else (4, 5), mode=mode, antialias=True)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_channels_last(mode, target):
    resize(r(2, 5, 7, 21), (8, 11), axes=(1, 2), mode=mode, target=target)


def test_batch_and_channels_may_change():
    resize(r(2, 3, 4, 5), (3, 5, 4, 9), axes=(0, 1, 2, 3), mode="linear")


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "int16"])
def test_nearest_copies_other_types(dtype):
    resize(r(2, 3, 4, 5, dtype=dtype), (8, 7), mode="nearest")
    resize(r(2, 4, 5, 33, dtype=dtype), (8, 7), axes=(1, 2), mode="nearest")


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("times", [2, 3])
def test_rows_of_whole_multiples(times, dtype, target):
    for length in (16, 70):
        resize(r(1, 2, 3, length, dtype=dtype), (6, length * times), target=target,
               coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip


def test_scales_and_crops():
    x = r(1, 5, 6, 7)
    for scales in ((1, 1, 2.6, 0.7), (1, 1, 2, 2)):
        arrays = (x, None, np.array(scales, np.float32))
        check("Resize", arrays, {"mode": "linear"}, kernel="resize_separable", consts=(2,))
    roi = np.array([0, 0, 0.2, 0.3, 1, 1, 0.8, 0.9], np.float32)
    arrays = (x, roi, None, np.array([1, 5, 4, 4]))
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    check("Resize", arrays, attrs, kernel="resize_separable", consts=(1, 3), pick=1)
