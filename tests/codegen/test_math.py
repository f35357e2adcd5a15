"""The vector functions against float64, over every few thousandth float32 and awkward ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.codegen.vectors import compiled, every, ulp
from tests.kernels.harness import levels
from tinsmith.codegen import math as m
from tinsmith.codegen import wide
from tinsmith.codegen.functions import one_plus_exp_of_minus, sigmoid
from tinsmith.codegen.pieces import gelu

STEP = 8209


def erf64(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


UNARY = [  # function, reference, ulp
    (m.exp, np.exp, 1),
    (m.exp2, np.exp2, 1),
    (m.expm1, np.expm1, 1.5),
    (m.log, np.log, 1),
    (m.log1p, np.log1p, 1.5),
    (m.tanh, np.tanh, 2.5),
    (m.erf, erf64, 1.5),
    (wide.log2, np.log2, 0.51),
    (wide.log10, np.log10, 0.51),
    (wide.sinh, np.sinh, 0.51),
    (wide.cosh, np.cosh, 0.51),
    (wide.arcsinh, np.arcsinh, 0.51),
    (wide.arccosh, np.arccosh, 0.51),
    (wide.arctanh, np.arctanh, 0.51),
    (wide.arctan, np.arctan, 0.51),
    (wide.arcsin, np.arcsin, 0.51),
    (wide.arccos, np.arccos, 0.51),
    (wide.sin, np.sin, 0.51),
    (wide.cos, np.cos, 0.51),
    (wide.tan, np.tan, 0.51),
    (m.floor, np.floor, 0),
    (m.ceil, np.ceil, 0),
    (m.rint, np.rint, 0),
    (m.trunc, np.trunc, 0),
]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("row", UNARY, ids=lambda r: r[0].__name__)
def test_error(row, target):
    function, reference, bound = row
    x = every(STEP if target == "avx512" else 4 * STEP + 5)
    near = np.linspace(-20, 20, 20001, dtype=np.float32)
    x = np.concatenate([x, near])
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    got = compiled(function, ["float32"], "float32", target)(x)
    error = ulp(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"f({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("function", [m.floor, m.ceil, m.rint, m.trunc, m.erf, m.tanh])
def test_zero_keeps_its_sign(function, target):
    got = compiled(function, ["float32"], "float32", target)(np.float32([0.0, -0.0]))
    np.testing.assert_array_equal(np.signbit(got), [False, True])


@pytest.mark.parametrize("how", ["sum", "sigmoid", "swish"])
@pytest.mark.parametrize("target", levels())
def test_logistic(target, how):
    """1 + e^-x, and what is divided by it, over all of float32 and densely where it bends."""
    x = np.concatenate([every(STEP // 8), np.linspace(-88, 88, 400001, dtype=np.float32)])
    body, wide_of = {
        "sum": (one_plus_exp_of_minus, lambda x, d: d),
        "sigmoid": (sigmoid, lambda x, d: 1 / d),
        "swish": (lambda x: x / one_plus_exp_of_minus(x), lambda x, d: x / d),
    }[how]
    with np.errstate(all="ignore"):
        wide_x = x.astype(np.float64)
        want = wide_of(wide_x, 1 + np.exp(-wide_x))
        theirs = wide_of(x, 1 + np.exp(-x))
    got = compiled(body, ["float32"], "float32", target)(x)
    usual = ~(x < -88.67)  # e^-x is below 2^127.93
    error = ulp(got[usual], want[usual])
    assert error.max() <= (2 if how == "sum" else 3.1), x[usual][error.argmax()]
    overflows = x < -88.8
    np.testing.assert_array_equal(got[overflows], theirs[overflows])
    zero = x == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(theirs[zero]))
    near = ~(usual | overflows)
    if how == "sum":
        np.testing.assert_allclose(got[near], theirs[near], rtol=2e-6)
    else:
        assert (np.abs(got[near] - want[near]) <= 89 * 2.0**-128).all()  # 0 from the overflow on


@pytest.mark.parametrize("target", levels())
def test_gelu(target):
    x = np.concatenate([every(STEP * 4), np.linspace(-20, 20, 100001, dtype=np.float32)])
    x = x[~np.isneginf(x)]
    with np.errstate(all="ignore"):
        wide_x = x.astype(np.float64)
    want = 0.5 * wide_x * np.array([math.erfc(-v / 2**0.5) for v in wide_x])
    got = compiled(gelu, ["float32"], "float32", target)(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    with np.errstate(all="ignore"):
        error = np.abs(got - want) / np.maximum(1, np.abs(wide_x))
    assert np.nanmax(error[np.isfinite(x)]) <= 2e-7
    assert (got[x < -5.41] == 0).all() and (got[x > 5.41] == x[x > 5.41]).all()


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "function, reference, last, zero, rtol",
    [(m.exp2_below, np.exp2, -126, -126.5, 2e-7), (m.exp_below, np.exp, -87, -87, 1.2e-7)],
    ids=["exp2_below", "exp_below"],
)
def test_powers_without_denormal_numbers(function, reference, last, zero, rtol, target):
    x = -np.concatenate([np.abs(every(STEP * 4)), np.linspace(0, 130, 100001, dtype=np.float32)])
    got = compiled(function, ["float32"], "float32", target)(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    near = x >= last
    np.testing.assert_allclose(got[near], reference(x[near].astype(np.float64)), rtol=rtol)
    assert (got[x == 0] == 1).all()
    assert (got[x < zero] == 0).all() and (got[x < last] < reference(float(last))).all()


ODD = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, 1e-40, 1e38, -1e38, 16777217]
PAIRS = np.array(list(itertools.product([*ODD, np.inf, -np.inf, np.nan], repeat=2)), np.float32)


def _pairs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = np.exp(rng.uniform(-20, 20, 20000)).astype(np.float32)
    y = (rng.standard_normal(20000) * 3).astype(np.float32)
    return np.concatenate([PAIRS[:, 0], x, -x]), np.concatenate([PAIRS[:, 1], y, np.rint(y)])


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "function, reference",
    [
        (wide.power, np.power),
        (wide.arctan2, np.arctan2),
        (wide.fmod, np.fmod),
        (wide.remainder, np.remainder),
    ],
    ids=["power", "arctan2", "fmod", "remainder"],
)
def test_two_operands(function, reference, target):
    x, y = _pairs(np.random.default_rng(1))
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64), y.astype(np.float64))
        if reference is np.remainder:
            want = reference(x, y).astype(np.float64)
    got = compiled(function, ["float32"] * 2, "float32", target)(x, y)
    error = ulp(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= 0.51, (x[worst], y[worst], got[worst], want[worst])
    zero = (want == 0) & (np.abs(got) == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
