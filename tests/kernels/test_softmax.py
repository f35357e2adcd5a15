"""Softmax and log-softmax against numpy, along every axis, with extreme values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, prepare

VECTORS = levels()[:3]
"""Without the scalar level, whose code is that of sse2; the broadest tests run it too."""

RNG = np.random.default_rng(13)
OPS = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def rand(*shape: int) -> np.ndarray:
    return 4 * RNG.standard_normal(shape).astype("f4")


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kernel", list(OPS))
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1,), 0), ((5, 7), -1), ((5, 7), 0), ((2, 3, 49), 2), ((2, 3, 49), 1), ((2, 5, 4, 9), 1),
     ((2, 1000), 1), ((3, 16, 1, 1), 1), ((1, 33), 0)],
)  # fmt: skip
def test_axes(target: str, kernel: str, shape: tuple, axis: int) -> None:
    check(OPS[kernel], [rand(*shape)], {"axis": axis}, kernel=kernel, target=target)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("kernel", list(OPS))
def test_extreme_values(target: str, kernel: str, axis: int) -> None:
    x = rand(6, 20, 19) * 100
    x[1, 2, 3], x[2, 3, 4] = -np.inf, np.nan
    x[3, :, 5] = x[3, 5, :] = -np.inf
    x[4, 19, 18] = np.inf
    with np.errstate(all="ignore"):
        check(OPS[kernel], [x], {"axis": axis}, kernel=kernel, target=target)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("axis", [-1, 1])
def test_what_a_mask_takes_away_is_zero(target: str, axis: int) -> None:
    """Not a denormal number: products with those take a hundred times as long."""
    x = rand(6, 20, 19)
    x[:, ::2, ::3] -= 120
    node = one_node("Softmax", [x], {"axis": axis})
    bench = prepare(node, {"x0": x}, "softmax", target)
    bench.run()
    y = bench.outputs[0][0]
    assert (y == 0).any() and (y[y != 0] >= np.finfo(np.float32).tiny).all()


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3, 5, 19), -1), ((2, 3, 5, 19), 1), ((2, 3, 21, 1), 2)]
)
def test_epilogues(target: str, shape: tuple, axis: int) -> None:
    for extra in (rand(*shape), rand(shape[-1]), rand(shape[0], 1, 1, 1), rand(1, 3, 1, shape[-1])):
        check("Softmax", [rand(*shape)], {"axis": axis}, kernel="softmax", target=target,
              epilogue=[("Mul", extra)])  # fmt: skip
