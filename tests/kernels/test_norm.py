"""Normalisations against numpy: runs of any length, operands that broadcast, epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip

VECTORS = levels()[:3]
"""Without the scalar level, whose code is that of sse2; the broadest tests run it too."""

RNG = np.random.default_rng(17)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


LAYERS = [  # x, axis, scale, shift
    ((5,), 0, (5,), (5,)), ((3, 7), -1, (7,), None), ((3, 9, 96), 2, (96,), (96,)),
    ((3, 5, 33), 1, (33,), (5, 1)), ((2, 3, 5), -1, None, None), ((2, 3, 1), -1, (1,), (1,)),
    ((2, 3, 4, 5), 2, (2, 1, 1, 5), (5,)),
]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(("shape", "axis", "scale", "shift"), LAYERS)
def test_layer_norm(target: str, shape: tuple, axis: int, scale: tuple, shift: tuple) -> None:
    arrays = [rand(*shape) + 3, *(None if s is None else rand(*s) for s in (scale, shift))]
    check("LayerNorm", arrays, {"axis": axis}, kernel="layer_norm", target=target, consts=(1, 2))


@pytest.mark.parametrize("target", VECTORS)
def test_layer_norm_with_statistics(target: str) -> None:
    arrays = [rand(2, 3, 50), rand(50), rand(50)]
    check("LayerNorm", arrays, {"with_stats": True}, kernel="layer_norm", target=target)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(
    ("shape", "axis", "scale"),
    [((3, 7), -1, (7,)), ((3, 5, 33), 1, (5, 33)), ((2, 4, 70), 2, (70,))],
)
def test_rms_norm(target: str, shape: tuple, axis: int, scale: tuple) -> None:
    check("RMSNorm", [rand(*shape), rand(*scale)], {"axis": axis}, kernel="rms_norm", target=target)


IMAGES = [(2, 3, 5), (1, 4, 7, 9), (2, 8, 3, 1), (3, 6, 1, 1)]


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("shape", IMAGES)
def test_images(target: str, shape: tuple) -> None:
    c = shape[1]
    arrays = [rand(*shape), rand(c), rand(c)]
    check("InstanceNorm", arrays, kernel="instance_norm", target=target)
    for groups in {1, c, 2 if c % 2 == 0 else 1}:
        check("GroupNorm", arrays, {"groups": groups}, kernel="group_norm", target=target)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm(target: str, p: int) -> None:
    x = rand(3, 4, 21)
    x[1, 2] = 0
    check("LpNorm", [x], {"p": p}, kernel="lp_norm", target=target)


@pytest.mark.parametrize("target", VECTORS)
def test_lp_norm_of_denormals(target: str) -> None:
    check("LpNorm", [rand(3, 21) * np.float32(1e-40)], {"p": 1}, kernel="lp_norm", target=target)


def test_lp_norm_declines_inner_axes() -> None:
    site = site_of(one_node("LpNorm", [rand(3, 4, 5)], {"axis": 1}), level("avx2"))
    with pytest.raises(Skip, match="not the last"):
        KERNELS["lp_norm"].offer(site)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 9), (2, 4, 33, 1)])
@pytest.mark.parametrize("extra", ["whole", "last", "outer", "scattered"])
def test_epilogues(target: str, shape: tuple, extra: str) -> None:
    n, c, _, w = shape
    array = rand(
        *{"whole": shape, "last": (w,), "outer": (n, 1, 1, 1), "scattered": (1, c, 1, w)}[extra]
    )
    more = {"target": target, "epilogue": [("Add", array), ("Relu",)]}
    check("LayerNorm", [rand(*shape), rand(w), rand(w)], kernel="layer_norm", **more)
    check("LayerNorm", [rand(*shape), rand(w), None], {"axis": 1}, kernel="layer_norm", **more)
    check("GroupNorm", [rand(*shape), rand(c), rand(c)], {"groups": 1}, kernel="group_norm", **more)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 19), (2, 33, 1), (1, 7, 64)])
def test_results_that_are_stored_as_bytes(target: str, shape: tuple, dtype: str) -> None:
    tail = [("Mul", np.full((), 30, np.float32)), ("Round",), ("Add", np.full((), 7, np.float32)),
            ("Cast", None, {"to": dtype})]  # fmt: skip
    w = shape[-1]
    check("LayerNorm", [rand(*shape), rand(w), rand(w)], kernel="layer_norm", target=target,
          epilogue=tail)  # fmt: skip
    for axis in (-1, 1):
        check("Softmax", [rand(*shape)], {"axis": axis}, kernel="softmax", target=target,
              epilogue=tail)  # fmt: skip
