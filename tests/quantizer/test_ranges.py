"""Ranges of activations: every method on distributions whose best range is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinsmith.errors import CalibrationError, QuantizeError
from tinsmith.ops.quant import spread
from tinsmith.quantizer.ranges import METHODS, TAIL
from tinsmith.quantizer.scales import Scale, of_range, of_weights
from tinsmith.quantizer.statistics import BINS, Statistics

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal((40, 500)).astype(np.float32)
OUTLIER = np.concatenate([NORMAL, np.full((1, 500), 0, np.float32)])
OUTLIER[-1, 0] = 60.0


def seen(x: Array, parts: int = 4) -> Statistics:
    """Statistics of an array that comes in parts."""
    found = Statistics("x", 1)
    for part in np.array_split(x, parts):
        found.look(part)
    for part in np.array_split(x, parts):
        found.count(part)
    return found


def loss(x: Array, ends: tuple[float, float], symmetric: bool = False) -> float:
    scale = of_range(*ends, symmetric, "x")
    return float(np.square(scale.real(scale.quantised(x)) - x).mean())


def test_means_are_of_the_channels_that_came_last() -> None:
    found = Statistics("x", 1)
    for channels in (4, 3, 3):
        found.look(np.full((2, channels, 5), channels, np.float32))
    np.testing.assert_allclose(found.means, [3.0, 3.0, 3.0])


@pytest.mark.parametrize("parts", [1, 4, 41])
def test_statistics_do_not_depend_on_how_data_come(parts: int) -> None:
    one, many = seen(OUTLIER, 1), seen(OUTLIER, parts)
    assert (one.low, one.high, one.number) == (many.low, many.high, OUTLIER.size)
    np.testing.assert_array_equal(one.histogram, many.histogram)
    np.testing.assert_allclose(many.means, OUTLIER.mean(axis=0), rtol=1e-6, atol=1e-6)
    assert one.histogram.sum() + one.zeros == OUTLIER.size
    assert one.sizes.sum() == np.count_nonzero(OUTLIER)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("positive", [False, True])
def test_ranges_lie_within_the_data_and_lose_little(name: str, positive: bool) -> None:
    x = np.abs(NORMAL) if positive else NORMAL
    low, high = METHODS[name].choose(seen(x))
    assert min(float(x.min()), 0) <= low < high <= float(x.max())
    assert not positive or low >= 0
    whole = 10 * np.log10(float(np.square(x).mean()) / loss(x, (low, high)))
    assert whole > 25, f"{whole:.1f} dB"


@pytest.mark.parametrize("name", ["percentile", "kl", "tensorrt", "aciq", "entropy"])
def test_methods_cut_off_what_lies_far_out(name: str) -> None:
    low, high = METHODS[name].choose(seen(OUTLIER))
    assert high < 30
    body = OUTLIER[:-1]
    assert loss(body, (low, high)) < loss(body, METHODS["minmax"].choose(seen(OUTLIER)))


def test_mse_is_the_best_of_all_by_squares() -> None:
    losses = {name: loss(OUTLIER, m.choose(seen(OUTLIER))) for name, m in METHODS.items()}
    assert losses["mse"] <= 1.05 * min(losses.values())


def test_percentile_cuts_the_tail_that_it_says() -> None:
    x = RNG.standard_normal(400_000).astype(np.float32).reshape(4, -1)
    low, high = METHODS["percentile"].choose(seen(x))
    outside = float(((x < low) | (x > high)).mean())
    assert 0.2 * TAIL < outside < 1.5 * TAIL


def by_definition(sizes: Array) -> int:
    """ncnn's threshold, bin by bin: the definition in plain loops."""
    best, least = BINS, np.inf
    for bins in range(128, BINS):
        p = sizes[:bins].copy()
        p[-1] += sizes[bins:].sum()
        width = bins / 128
        q = np.zeros(bins)
        for level in range(128):
            start, end = level * width, (level + 1) * width
            parts = {
                i: min(end, i + 1) - max(start, i)
                for i in range(int(start), min(int(np.ceil(end)), bins))
            }
            full = sum(part for i, part in parts.items() if sizes[i] > 0)
            mass = sum(part * sizes[i] for i, part in parts.items())
            for i, part in parts.items():
                if sizes[i] > 0 and full > 0:
                    q[i] += part * mass / full
        p, q = p / p.sum(), q / q.sum()
        p, q = np.maximum(p, 1e-4), np.maximum(q, 1e-4)
        found = float(np.sum(p * np.log(p / q)))
        if found < least:
            best, least = bins, found
    return best


def test_kl_is_ncnns_definition() -> None:
    from tinsmith.quantizer.ranges import _threshold

    x = np.concatenate([RNG.laplace(size=3000), [12.0]]).astype(np.float32)[None]
    sizes = seen(x, 1).sizes
    assert _threshold(sizes, smooth=True) == by_definition(sizes)


@pytest.mark.parametrize("name", METHODS)
def test_few_different_values_keep_their_whole_range(name: str) -> None:
    """Sixteen grey values: entropy over 2,048 bins of which sixteen are filled says nothing."""
    x = RNG.integers(0, 17, (50, 64)).astype(np.float32) / 16
    _, high = METHODS[name].choose(seen(x))
    assert high > (0.6 if name == "aciq" else 0.9)


def test_what_is_not_finite_is_refused_by_name() -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(CalibrationError, match="'x' is not finite"):
            Statistics("x", 1).look(np.array([[1.0, wrong]], np.float32))


@pytest.mark.parametrize("low, high", [(0.0, 0.0), (0.0, np.inf), (-np.inf, 1.0), (np.nan, 1.0)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_scales_that_are_none_are_refused(low: float, high: float, symmetric: bool) -> None:
    with pytest.raises(QuantizeError, match="scales are positive and finite"):
        of_range(low, high, symmetric, "x")


@pytest.mark.parametrize("low, high", [(-3, 5), (0, 5), (1, 5), (-4, -1), (-1e-3, 2e5)])
def test_zero_is_a_whole_number_and_ends_are_reached(low: float, high: float) -> None:
    x = np.array([low, 0.0, high], np.float32)
    scale = of_range(low, high, False, "x")
    real = scale.real(scale.quantised(x))
    assert real[1] == 0
    np.testing.assert_allclose(real, x, atol=float(scale.scale) * 0.51)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_are_within_half_a_step(bits: int, axis: int | None) -> None:
    w = RNG.standard_normal((6, 5, 3, 3)).astype(np.float32) * np.array([1, 10, 100, 0, 1, 1])[
        :, None, None, None
    ].astype(np.float32)
    scale = of_weights(w, axis, bits)
    assert scale.scale.size == (1 if axis is None else w.shape[axis])
    off = np.abs(scale.real(scale.quantised(w)) - w)
    assert np.all(off <= spread(scale.scale, w.shape, scale.axis, 0) * 0.501)
    assert scale.quantised(w).dtype.name == f"int{bits}"
    best = of_weights(w, axis, bits, best=True)
    error = [float(np.square(s.real(s.quantised(w)) - w).sum()) for s in (best, scale)]
    assert error[0] <= error[1]


def test_a_scale_of_each_type_reads_back_what_it_wrote() -> None:
    for zero in (np.uint8(7), np.int8(0)):
        scale = Scale(np.float32(0.1).reshape(()), np.asarray(zero))
        low, high = scale.ends
        q = np.arange(low, high + 1).astype(scale.zero.dtype)
        np.testing.assert_array_equal(scale.quantised(scale.real(q)), q)
