"""Files of public projects, against what their operators mean, written in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.models import floats
from tests.real import real_file

Feeds = dict[str, Any]


def masked_attention(q: Any, k: Any, v: Any, attn_mask: Any) -> Any:
    """A mask of integers is added to the scores."""
    weights = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(2) + attn_mask)
    return weights / weights.sum(-1, keepdims=True) @ v


def bike_sharing(**numbers: Any) -> Any:
    """Eight whole numbers, each one-hot among the categories at its place."""
    firsts, counts = (1, 0, 1, 0, 0, 0, 0, 1), (4, 2, 12, 24, 2, 7, 2, 4)
    places = zip("13254768", firsts, counts, strict=True)
    rows = [np.arange(count) + first == numbers[name] for name, first, count in places]
    return np.hstack(rows)[None].astype(np.float32)


COEFFICIENTS = [[0.38574114, 1.3805406], [-2.13145, -0.9928048], [0.6427745, -1.7489388]]
INTERCEPTS = [0.2496292, 0.5820278, -0.94161665]


def iris(float_input: Any) -> list[Any]:
    """Twelve coefficients for two features and three classes: the first six are used."""
    scores = 1 / (1 + np.exp(-(float_input @ np.array(COEFFICIENTS).T + INTERCEPTS)))
    rows = scores / scores.sum(1, keepdims=True)
    return [scores.argmax(1), [dict(enumerate(row)) for row in rows]]


IMAGE = floats(2, 3, 4, 3)
FILES: dict[str, tuple[Feeds, Callable[..., Any]]] = {
    "attention_attention_attn_mask_int": (
        {**{n: floats(1, 1, 2, 2, seed=i) for i, n in enumerate("qkv")},
         "attn_mask": np.array([[0, 5], [-3, 1]], np.int32)},
        masked_attention,
    ),
    "constant_of_shape_constant_of_shape": (
        {"input1": np.array([2, 3, 2])}, lambda input1: np.full(input1, 1.125, np.float32),
    ),
    "datasets_logreg_iris": ({"float_input": floats(3, 2)}, iris),
    "expand_expand_scalar": (
        {"input_scalar": np.array(7), "shape": np.array([2, 2])},
        lambda input_scalar, shape: np.full(shape, input_scalar),
    ),
    "make_test_op_ops_Unsqueeze_var_13": (
        {"Unsqueeze_var_input": floats(2, 3, 4, 5, 6, 7), "onnx::Unsqueeze_1": np.array(0)},
        lambda **feeds: feeds["Unsqueeze_var_input"][None],
    ),
    "slice_slice_1d_tensor": (
        {"input": floats(4, 5, 6), "starts": np.array([-3, 0]), "ends": np.array([3, -2])},
        lambda input, starts, ends: input[-3:3, 0:-2],
    ),
    "tests_data_upsample": (
        {"up_sampling2d_input:0": IMAGE},
        lambda **feeds: IMAGE.repeat(2, 1).repeat(2, 2),
    ),
    "tests_utils_models_coreml_OneHotEncoder_BikeSharing": (
        {n: np.array([v]) for n, v in zip("13254768", (2, 1, 12, 23, 0, 3, 9, 1), strict=True)},
        bike_sharing,
    ),
    "unsqueeze_unsqueeze_runtime_axes": (
        {"x": floats(3, 4, 5).astype(np.float64), "axis": np.array([0])},
        lambda x, axis: x[None, None, ..., None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore::tinsmith.errors.ModelWarning")
def test_real_files(name: str, backend: str) -> None:
    feeds, want = FILES[name]
    net = ts.compile(real_file("onnx", f"{name}.onnx"), backend=backend)
    got = net.run([feeds[i] for i in net.inputs])
    expected = want(**feeds)
    for a, b in zip(got, expected if isinstance(expected, list) else [expected], strict=True):
        if isinstance(b, list):
            assert [row.keys() for row in a] == [row.keys() for row in b]
            a, b = ([list(row.values()) for row in rows] for rows in (a, b))
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
