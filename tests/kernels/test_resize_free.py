"""Resize to sizes that only a call tells: one program, and what it gives is the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.free import Found, compare
from tests.kernels.harness import levels
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.ops.resize import COORDINATES, ROUNDINGS

COMPUTED = [name for name in COORDINATES if name != "tf_crop_and_resize"]
NAMES = ("n", "h", "w", "oh", "ow")
CALLS = (
    (2, 20, 30, 31, 47), (1, 5, 7, 12, 9), (1, 7, 5, 1, 1), (2, 1, 1, 4, 3), (1, 9, 9, 9, 9),
    (3, 2, 33, 5, 64), (1, 40, 50, 13, 17), (0, 4, 4, 6, 6), (1, 4, 4, 0, 5),
)  # fmt: skip
"""Batch, height and width before, and after."""


def resized(
    mode: str, scales: Sequence[float] | None = None, channels: int = 3, dtype: str = "float32",
    **attrs: Any,
) -> Graph:  # fmt: skip
    """x of n images, resized to the size of t or by scales."""
    graph = Graph("resized")
    x = graph.input("x", Type(np.dtype(dtype), ("n", channels, "h", "w")))
    t = graph.input("t", Type(np.dtype(np.float32), ("oh", "ow")))
    sizes = OPS["Shape"](t) if scales is None else None
    of = None if scales is None else np.float32(scales)
    y = OPS["Resize"](x, None, of, sizes, axes=(2, 3), mode=mode, **attrs)
    graph.outputs = [OPS["Max"](y, np.array(9, dtype)), OPS["Relu"](t)]
    return graph


def called(
    graph: Graph, calls: Sequence[Sequence[int]] = CALLS, target: str = "host", seed: int = 0
) -> Found:
    x, rng = graph.inputs[0], np.random.default_rng(seed)

    def feed(s: Mapping[str, int]) -> dict[str, Any]:
        image = rng.standard_normal((s["n"], x.type.shape[1], s["h"], s["w"])) * 100
        return {
            "x": image.astype(x.dtype),
            "t": rng.standard_normal((s["oh"], s["ow"])).astype(np.float32),
        }

    found = compare(graph, [dict(zip(NAMES, c, strict=True)) for c in calls], feed, target=target)
    assert "Part" not in found.reference
    empty = sum(not all(c) for c in calls)  # results without elements are no step's
    assert found.reference.count("Resize") <= empty
    return found


@pytest.mark.parametrize("coordinates", COMPUTED)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_coordinates(mode: str, coordinates: str) -> None:
    found = called(resized(mode, coordinate_transformation_mode=coordinates))
    assert found.calls == len(CALLS) and found.programs


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_channels_in_blocks(mode: str, target: str) -> None:
    assert called(resized(mode, channels=19), target=target).calls == len(CALLS)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_roundings(rounding: str) -> None:
    called(resized("nearest", nearest_mode=rounding))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64"])
def test_other_types(dtype: str) -> None:
    called(resized("nearest", dtype=dtype))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_filters(mode: str) -> None:
    # Not far smaller: there is code for few taps only.
    calls = ((2, 20, 30, 31, 47), (1, 9, 9, 9, 9), (1, 12, 9, 9, 8), (3, 2, 33, 5, 64),
             (2, 20, 30, 16, 24))  # fmt: skip
    called(resized(mode, antialias=True), calls)
    called(resized(mode, exclude_outside=True))


@pytest.mark.parametrize("scales", [(1.5, 0.5), (0.75, 2.0), (1.0, 2.5), (1.3, 0.7)])
def test_scales(scales: tuple[float, float]) -> None:
    for mode in ("nearest", "linear"):
        found = called(resized(mode, scales, antialias=mode == "linear"))
        assert found.calls == len(CALLS)


@pytest.mark.parametrize("coordinates", COMPUTED)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_what_is_not_finite_stays_where_an_axis_does_not_change(
    mode: str, coordinates: str
) -> None:
    """As the definition has it, which leaves such an axis alone."""
    graph = resized(mode, coordinate_transformation_mode=coordinates)

    def feed(s: Mapping[str, int]) -> dict[str, Any]:
        image = np.ones((s["n"], 3, s["h"], s["w"]), np.float32)
        image[0, 0, 2, 3], image[0, 1, 4, 1], image[0, 2, 6, :] = np.nan, np.inf, -np.inf
        return {"x": image, "t": np.ones((s["oh"], s["ow"]), np.float32)}

    calls = ((2, 20, 30, 31, 47), (1, 9, 8, 9, 8), (1, 9, 8, 12, 8), (2, 9, 8, 9, 17))
    assert compare(graph, [dict(zip(NAMES, c, strict=True)) for c in calls], feed).calls == 4


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    calls=st.lists(st.tuples(st.integers(1, 3), *[st.integers(1, 70)] * 4), min_size=3, max_size=6),
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    coordinates=st.sampled_from(COMPUTED),
)
def test_drawn_sizes(calls: Any, mode: str, coordinates: str) -> None:
    called(resized(mode, coordinate_transformation_mode=coordinates), calls)
