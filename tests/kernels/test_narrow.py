"""Weights of 24 bits: what words hold, which weights may be kept so, and that zeros stay zeros."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.harness import check, level_param, one_node, site_of
from tests.kernels.window_cases import machine_code, spills
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.ops import OPS
from tinsmith.plan import planner

BOTH = pytest.mark.parametrize("target", [level_param("avx512"), level_param("avx2")])


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


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(-80, 40), st.randoms())
def test_words_hold_the_weights(groups, columns, power, random):
    rng = np.random.default_rng(random.getrandbits(32))
    w = np.ldexp(rng.standard_normal((4 * groups, columns)), power).astype(np.float32)
    packed = narrow.pack(w)
    assert packed.shape == (3 * groups + 1, columns) and packed.dtype == np.float32
    most = np.abs(w).max(axis=0)
    assert np.all(np.abs(unpacked(packed) - w) <= 2.0**-22 * most)  # a unit, of what would be 0
    assert np.all((unpacked(packed) != 0) == (w != 0))
    assert np.all((packed[-1] > most) & (packed[-1] <= 2 * most))


def test_short_numbers_and_zeros_stay_what_they_are():
    w = np.random.default_rng(0).integers(-100, 100, (8, 33)).astype(np.float32) / 64
    w[:, 5] = 0
    assert np.array_equal(unpacked(narrow.pack(w)), w)


def test_panels_are_packed_alike():
    w = np.random.default_rng(0).standard_normal((3, 2, 8, 16))
    each = np.stack([np.stack([narrow.pack(panel) for panel in row]) for row in w])
    np.testing.assert_array_equal(narrow.pack(w).view(np.int32), each.view(np.int32))


def offer(w, precision="default", k="gemv_narrow", target="avx2"):
    node = one_node("MatMul", [np.ones((1, len(w)), np.float32), w], consts=(1,))
    return KERNELS[k].offer(site_of(node, level(target), precision))[0]


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
        with pytest.raises(Skip, match="tiny, huge or not finite"):
            offer(w)
    with pytest.raises(Skip, match="tiny, huge or not finite"):
        offer(LARGE * np.float32(1e-25))
    with pytest.raises(Skip, match="sse2 unpacks words as slowly"):
        offer(LARGE, target="sse2")


def test_rows_that_are_small_beside_others_decline():
    """What they meet may be as much larger, and then they count as much as the others."""
    w = LARGE.copy()
    w[3] *= 2.0**-6
    assert offer(w)
    for size in (2.0**-6, 1e-20):  # whose squares float32 does not hold
        w[3] *= size
        with pytest.raises(Skip, match="small beside others"):
            offer(w)
    w[3] = 0
    assert offer(w)


def test_the_cost_is_that_of_the_bytes():
    whole = offer(LARGE, k="gemv_packed", target="avx512")
    assert offer(LARGE, target="avx512").cost < 0.9 * whole.cost
    assert offer(LARGE).packed[0].nbytes < 0.76 * LARGE.nbytes


@BOTH
def test_an_infinity_meets_zeros_as_it_should(target):
    """Infinity times 0 is NaN: a weight of 0 is no small number."""
    w, x = LARGE.copy(), np.ones((2, 512), np.float32)
    w[10, ::2] = 0
    x[1, 10] = np.inf
    w[10, 1] *= 1e-8  # less than half a unit
    with np.errstate(invalid="ignore"):
        check("MatMul", [x, w], kernel="gemv_narrow", target=target, consts=(1,))


@BOTH
@pytest.mark.parametrize(("size", "most"), [(1.0, 1e35), (1e-2, 1e37), (1e-18, 3e38)])
def test_large_inputs_do_not_overflow(size, most, target):
    """Words are large integers; sums of them would be infinite where those of weights are not."""
    x, w = np.full((1, 512), most, np.float32), np.abs(LARGE) * np.float32(size)
    w[:, ::2] *= -1
    check("MatMul", [x, w], kernel="gemv_narrow", target=target, consts=(1,), rtol=1e-4)


def test_layers_alike_are_asked_each_whether_their_weights_fit(monkeypatch):
    """The second layer has the shapes of the first, but a row that is small."""
    monkeypatch.setattr(planner, "footprint", lambda graph: np.inf)  # as of a larger model
    g, small = Graph("two"), LARGE.copy()
    small[5] *= 1e-6
    x = g.input("x", Type(np.dtype(np.float32), (1, 512)))
    for name, w in (("a", LARGE), ("b", small)):
        g.outputs.append(g.add(OPS["MatMul"], x, g.const(w, name)).outputs[0])
    steps = planner.make_plan(g, level("avx512")).plan.steps
    assert [s.kernel for s in steps if "gemv" in s.kernel] == ["gemv_narrow", "gemv_packed"]


@pytest.mark.parametrize("rows", [1, 4])
def test_inner_loops_do_not_spill(rows):
    """With 32 registers; with 16, two of the words that make a fourth weight do."""
    arrays = [np.ones((rows, 512), np.float32), np.tile(LARGE, 4)]
    assert spills(machine_code("MatMul", arrays, {}, "gemv_narrow", "avx512")) == []
