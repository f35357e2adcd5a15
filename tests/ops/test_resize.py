"""Resize, grid sampling and affine grids against the ONNX reference evaluator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.ops.checking import assert_static, check, close, normal, refused, types_of
from tinsmith.errors import DataError
from tinsmith.graph import Type
from tinsmith.ops import OPS
from tinsmith.ops.resize import COORDINATES, ROUNDINGS


def onnx(name: str, arrays: list[Any], **attrs: Any) -> Any:
    """The result of one ONNX node in the reference evaluator."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = helper.make_node(name, names, ["y"], **attrs)
    given = [(n, a) for n, a in zip(names, arrays, strict=True) if a is not None]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    return ReferenceEvaluator(model).run(None, dict(given))[0]


F32 = np.dtype(np.float32)
KNOWN = [c for c in COORDINATES if c not in ("tf_crop_and_resize", "tf_half_pixel_for_nn")]
"""What the evaluator knows, and needs no region."""
SIZES = [((1, 1, 4, 5), (1, 1, 7, 10)), ((1, 2, 6, 6), (1, 2, 3, 4)), ((2, 1, 1, 5), (2, 1, 3, 1))]
MODES = [
    *({"mode": "nearest", "nearest_mode": r} for r in ROUNDINGS),
    {"mode": "linear"},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "linear", "exclude_outside": 1},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "antialias": 1},
    {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
]


def ours(attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: bool(v) if k in ("antialias", "exclude_outside") else v for k, v in attrs.items()}


@pytest.mark.parametrize("transform", KNOWN)
@pytest.mark.parametrize("attrs", MODES)
@pytest.mark.parametrize(("shape", "sizes"), SIZES)
def test_sizes(shape, sizes, attrs, transform):
    x, want = normal(*shape), np.array(sizes)
    attrs = {**attrs, "coordinate_transformation_mode": transform}
    (y,) = check("Resize", x, None, None, want, consts=[3], **ours(attrs))
    assert_static("Resize", x, None, None, want, consts=[3], **ours(attrs))
    assert y.shape == sizes
    close(y, onnx("Resize", [x, None, None, want], **attrs), atol=1e-4)


@pytest.mark.parametrize("transform", KNOWN)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "scales", [(1, 1, 2, 3), (1, 1, 0.5, 0.6), (1, 1, 1.3, 0.8), (1, 1, 1, 2.5)]
)
def test_scales(scales, mode, transform):
    x, s = normal(1, 2, 5, 6), np.array(scales, np.float32)
    attrs = {"mode": mode, "coordinate_transformation_mode": transform}
    (y,) = check("Resize", x, None, s, consts=[2], **attrs)
    close(y, onnx("Resize", [x, None, s], **attrs), atol=1e-4)


TF_PLACES = [
    ("floor", 6, 3, [0, 0, 1, 1, 2, 2]),
    ("floor", 4, 7, [0, 2, 4, 6]),
    ("ceil", 6, 3, [1, 1, 2, 2, 2, 2]),
    ("round_prefer_floor", 5, 3, [0, 1, 1, 2, 2]),
    ("round_prefer_ceil", 5, 3, [0, 1, 2, 2, 2]),
    ("round_prefer_floor", 3, 6, [1, 3, 5]),
]


@pytest.mark.parametrize(("rounding", "out", "size", "places"), TF_PLACES)
def test_half_pixels_of_tensorflow(rounding, out, size, places):
    """The places (o + 0.5) / scale, rounded: what ONNX Runtime gives."""
    x = normal(1, 2, size)
    attrs = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": rounding}
    (y,) = check("Resize", x, None, None, np.array([1, 2, out]), consts=[3], **attrs)
    np.testing.assert_array_equal(y, x[:, :, places])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop(mode):
    x = normal(1, 1, 5, 6)
    roi = np.array([0, 0, 0.2, -0.31, 1, 1, 0.9, 0.6], np.float32)
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    arrays = [x, roi, None, np.array([1, 1, 4, 7])]
    (y,) = check("Resize", *arrays, consts=[3], **attrs)
    close(y, onnx("Resize", arrays, **attrs), atol=1e-4)
    assert (y == 9).any() and not (y == 9).all()


@pytest.mark.parametrize("rounding, want", [("floor", [1, 2, 2, 3, 3]), ("ceil", [2, 2, 3, 3, 4])])
def test_crop_in_the_precision_of_float32(rounding, want):
    """What ONNX Runtime gives; in double precision floor and ceil differ at whole places."""
    x, roi = np.arange(6, dtype=np.float32), np.array([0.3, 0.7], np.float32)
    y = OPS["Resize"](
        x, roi, None, np.array([5]), nearest_mode=rounding,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    assert y.tolist() == want


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [(2, 3), (3, 2), (-1, -2)])
def test_aspect_ratio(policy, axes):
    x, sizes = normal(1, 2, 4, 6), np.array([7, 8])
    attrs = {"axes": axes, "keep_aspect_ratio_policy": policy, "mode": "linear"}
    (y,) = check("Resize", x, None, None, sizes, consts=[3], **attrs)
    ratios = [s / x.shape[a] for s, a in zip(sizes, axes, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    assert y.shape == (1, 2, int(ratio * 4 + 0.5), int(ratio * 6 + 0.5))
    if axes == (2, 3):
        close(y, onnx("Resize", [x, None, None, sizes], **attrs), atol=1e-4)


def test_output_size_of_a_scale_is_counted_in_float32():
    """0.7 is not representable; 10 * 0.7 is 7 in float32, but less in float64."""
    s = np.array([0.7], np.float32)
    (y,) = check("Resize", normal(10), None, s, consts=[2])
    assert y.shape == (7,)


@pytest.mark.parametrize("attrs", MODES)
@pytest.mark.parametrize("policy", ["stretch", "not_larger"])
@pytest.mark.parametrize(("shape", "sizes"), [((4, 5), (0, 3)), ((4, 5), (3, 0)), ((0, 5), (0, 3))])
def test_nothing_is_the_result_of_a_size_of_zero(shape, sizes, policy, attrs):
    attrs = {**ours(attrs), "keep_aspect_ratio_policy": policy}
    (y,) = check("Resize", normal(*shape), None, None, np.array(sizes), consts=[3], **attrs)
    assert y.shape == (sizes if policy == "stretch" else (0, 0))


@pytest.mark.parametrize("attrs", MODES)
def test_nothing_cannot_be_interpolated(attrs):
    operands = [normal(0, 5), None, None, np.array((2, 3))]
    with pytest.raises(DataError, match="axis 0 has no elements"):
        OPS["Resize"](*operands, **ours(attrs))
    with refused("axis 0 has no elements", "2"):
        types_of("Resize", [Type(F32, (0, 5)), *operands[1:]], ours(attrs))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_other_types(dtype, mode):
    x = (normal(1, 1, 4, 4) * 60 + 60).clip(0, 120).astype(dtype)
    sizes = np.array([1, 1, 8, 8])
    (y,) = check("Resize", x, None, None, sizes, consts=[3], mode=mode)
    want = OPS["Resize"](x.astype(np.float64), None, None, sizes, mode=mode)
    if np.dtype(dtype).kind in "iu":
        want = np.clip(np.rint(want), np.iinfo(dtype).min, np.iinfo(dtype).max)
        close(y, want, atol=1)
    else:
        close(y, want, rtol=float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("attrs", "operands", "fragments"),
    [
        ({"mode": "bilinear"}, [None, None, np.array([4])], ["bilinear", "linear"]),
        ({}, [None, None, None], ["either scales or sizes"]),
        ({}, [None, np.ones(1, np.float32), np.array([4])], ["not both"]),
        ({}, [None, None, np.array([4, 4])], ["sizes has 2 numbers, 1 axes"]),
        ({}, [None, np.array([-1.0], np.float32), None], ["positive"]),
        (
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            [None, None, np.array([4])],
            ["needs roi"],
        ),
        ({"antialias": True}, [None, None, np.array([4])], ["antialias"]),
    ],
)
def test_refused(attrs, operands, fragments):
    with refused(*fragments):
        types_of("Resize", [Type(F32, (5,)), *operands], attrs)


def test_symbols_survive_at_scale_one():
    s = np.array([1, 1, 2, 2], np.float32)
    got = types_of("Resize", [Type(F32, ("N", 3, "H", 4)), None, s], {})[0].shape
    assert got is not None and got[:2] == ("N", 3) and got[2] != "H" and got[3] == 8


# ---- grids

MODE_NAMES = ["linear", "nearest", "cubic"]


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", MODE_NAMES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_grid_sample(mode, padding, align, rank):
    sizes = (5, 4, 3)[:rank]
    x = normal(2, 2, *sizes)
    grid = (normal(2, *(3, 2, 2)[:rank], rank, seed=3) * 1.2).astype(np.float32)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    (y,) = check("GridSample", x, grid, **{**attrs, "align_corners": bool(align)})
    if (mode, padding) != ("cubic", "border"):  # there ONNX Runtime and PyTorch differ from onnx
        close(y, onnx("GridSample", [x, grid], **attrs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("old", "new"), [("bilinear", "linear"), ("bicubic", "cubic")])
def test_old_mode_names(old, new):
    x, grid = normal(1, 1, 4, 4), normal(1, 2, 2, 2)
    one, two = (OPS["GridSample"](x, grid, mode=m) for m in (old, new))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_the_identity_grid_gives_the_image(mode):
    x = normal(2, 3, 4, 5)
    theta = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    (grid,) = check("AffineGrid", theta, np.array(x.shape), consts=[1])
    assert grid.shape == (2, 4, 5, 2)
    close(OPS["GridSample"](x, grid, mode=mode), x, atol=1e-4)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(rank, align):
    theta, size = normal(2, rank, rank + 1), np.array((2, 1, 3, 4, 2)[: rank + 2])
    (grid,) = check("AffineGrid", theta, size, consts=[1], align_corners=bool(align))
    close(grid, onnx("AffineGrid", [theta, size], align_corners=align), atol=1e-5)


def test_empty_grids():
    (y,) = check("GridSample", normal(0, 2, 4, 4), normal(0, 3, 3, 2))
    assert y.shape == (0, 2, 3, 3)


@pytest.mark.parametrize(
    ("shapes", "attrs", "fragments"),
    [
        ([(1, 1, 4, 4), (1, 2, 2, 3)], {}, ["3 numbers, 2 are needed"]),
        ([(1, 1, 4, 4), (1, 2, 2)], {}, ["rank 4", "grid has 3"]),
        ([(1, 1, 4, 4), (1, 2, 2, 2)], {"mode": "area"}, ["area"]),
        ([(1, 1, 4, 4), (1, 2, 2, 2)], {"padding_mode": "wrap"}, ["wrap", "reflection"]),
    ],
)
def test_grid_refused(shapes, attrs, fragments):
    with refused(*fragments):
        types_of("GridSample", [Type(F32, s) for s in shapes], attrs)


@pytest.mark.parametrize(
    ("transform", "rounding", "size", "scale", "want"),
    [
        ("half_pixel", "floor", 10, 0.6, [0, 2, 3, 5, 6, 8]),
        ("asymmetric", "floor", 8, 0.6, [0, 1, 3, 5]),
        ("half_pixel", "round_prefer_floor", 11, 1.3, [0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10]),
        ("half_pixel_symmetric", "floor", 3, 1.5, [0, 0, 1, 2]),
        ("asymmetric", "round_prefer_ceil", 7, 8 / 7, [0, 1, 2, 3, 4, 4, 5, 6]),
    ],
)
def test_the_nearest_at_a_tie_is_that_of_float32(transform, rounding, size, scale, want):
    """What ONNX Runtime gives; in double precision some of these fall to the other side."""
    x = np.arange(size, dtype=np.float32)
    y = OPS["Resize"](
        x, None, np.array([scale], np.float32), mode="nearest", nearest_mode=rounding,
        coordinate_transformation_mode=transform,
    )  # fmt: skip
    assert y.tolist() == want
