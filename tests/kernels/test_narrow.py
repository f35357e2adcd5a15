"""Weights of 24 bits: what words hold, which weights may be kept so, and that zeros stay zeros."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.harness import check, one_node, site_of
from tinsmith.codegen.target import level
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import KERNELS, Skip

AVX2 = level("avx2")


def unpacked(words):
    """The weights that (rows, columns) of words hold, in float64, by the page's definition."""
    *rows, powers = words
    powers = powers.astype(np.float64)
    found = []
    for k in range(0, len(rows), 3):
        three = [row.view(np.int32).astype(np.int64) for row in rows[k : k + 3]]
        fourth = sum((word & 0xFF) << shift for word, shift in zip(three, (16, 8, 0), strict=True))
        fourth = (fourth ^ 1 << 23) - (1 << 23)
        found += [word >> 8 for word in three] + [fourth]
    return np.array(found) * 2.0**-23 * powers


@given(st.integers(1, 6), st.integers(1, 9), st.integers(-80, 40), st.randoms())
def test_words_hold_the_weights(groups, columns, power, random):
    rng = np.random.default_rng(random.getrandbits(32))
    w = np.ldexp(rng.standard_normal((4 * groups, columns)), power).astype(np.float32)
    packed = narrow.pack(w)
    assert packed.shape == (3 * groups + 1, columns) and packed.dtype == np.float32
    most = np.abs(w).max(axis=0)
    assert np.all(np.abs(unpacked(packed) - w) <= 2.0**-22 * most)  # half a unit, or one at the top
    assert np.all((packed[-1] > most) & (packed[-1] <= 2 * most))


def test_short_numbers_and_zeros_stay_what_they_are():
    w = np.random.default_rng(0).integers(-100, 100, (8, 33)).astype(np.float32) / 64
    w[:, 5] = 0
    assert np.array_equal(unpacked(narrow.pack(w)), w)


def test_panels_are_packed_alike():
    w = np.random.default_rng(0).standard_normal((3, 2, 8, 16))
    each = np.stack([np.stack([narrow.pack(panel) for panel in row]) for row in w])
    np.testing.assert_array_equal(narrow.pack(w).view(np.int32), each.view(np.int32))


def offer(w, precision="default", k="gemv_narrow"):
    node = one_node("MatMul", [np.ones((1, len(w)), np.float32), w], consts=(1,))
    return KERNELS[k].offer(site_of(node, AVX2, precision))[0]


LARGE = np.random.default_rng(3).standard_normal((512, 256)).astype(np.float32)


def test_what_declines_says_why():
    assert "24 bits" in offer(LARGE).detail
    with pytest.raises(Skip, match="strict precision asks for the weights themselves"):
        offer(LARGE, "strict")
    with pytest.raises(Skip, match="511 rows are not a multiple of 4"):
        offer(LARGE[:511])
    with pytest.raises(Skip, match="bytes of weights stay in caches"):
        offer(LARGE[:64])
    for bad in (np.inf, np.nan, 1e20):
        w = LARGE.copy()
        w[7, 9] = bad
        with pytest.raises(Skip, match="small beside others, or some are not finite"):
            offer(w)


def test_rows_that_are_small_beside_others_decline():
    """What they meet may be as much larger, and then they count as much as the others."""
    w = LARGE.copy()
    w[3] *= 2.0**-6
    assert offer(w)
    w[3] *= 2.0**-6
    with pytest.raises(Skip, match="small beside others"):
        offer(w)
    w[3] = 0
    assert offer(w)


def test_the_cost_is_that_of_the_bytes():
    assert offer(LARGE).cost < 0.8 * offer(LARGE, k="gemv_packed").cost
    assert offer(LARGE).packed[0].nbytes < 0.76 * LARGE.nbytes


def test_an_infinity_meets_zeros_as_it_should():
    """Infinity times 0 is NaN: a weight of 0 is no small number."""
    w, x = LARGE.copy(), np.ones((2, 512), np.float32)
    w[10, ::2] = 0
    x[1, 10] = np.inf
    with np.errstate(invalid="ignore"):
        check("MatMul", [x, w], kernel="gemv_narrow", target="avx2", consts=(1,))


def test_large_inputs_do_not_overflow():
    """Words are large integers; sums of them would be infinite where those of weights are not."""
    x = np.full((1, 512), 1e33, np.float32)
    check("MatMul", [x, LARGE], kernel="gemv_narrow", target="avx2", consts=(1,), rtol=1e-4)


def test_unpacking_costs_more_where_all_pipes_multiply():
    one, two = (replace(level("avx512"), wide=wide) for wide in (1.0, 2.0))
    assert narrow.unpacking(one) < narrow.unpacking(two)
