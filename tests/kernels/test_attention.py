"""Fused attention against numpy: shared heads, masks, causality, both ranks, epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, prepare, site_of
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip

RNG = np.random.default_rng(19)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


SIZES = [  # batch, heads, key heads, queries, keys, e, f
    (1, 2, 2, 5, 7, 8, 8), (2, 3, 1, 49, 49, 32, 32),
    (1, 4, 2, 33, 70, 20, 24), (1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 7, 7, 3, 7),
]  # fmt: skip


def operands(size: tuple) -> list[np.ndarray]:
    n, h, g, q, k, e, f = size
    return [rand(n, h, q, e), rand(n, g, k, e), rand(n, g, k, f)]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["plain", "rank 3", "causal", "capped", "bool mask", "epilogue"])
def test_forms(target: str, size: tuple, form: str) -> None:
    n, h, g, q, k, e, f = size
    arrays: list[np.ndarray] = operands(size)
    attrs: dict = {}
    epilogue: list[tuple] = []
    if form == "rank 3":
        arrays = [rand(n, q, h * e), rand(n, k, g * e), rand(n, k, g * f)]
        attrs = {"q_num_heads": h, "kv_num_heads": g}
    elif form == "causal":
        attrs = {"is_causal": True, "scale": 0.3}
    elif form == "capped":
        arrays.append(rand(q, k))
        attrs = {"softcap": 2.0}
    elif form == "bool mask":
        mask = RNG.random((n, 1, q, k)) > 0.4
        mask[0, 0, 0] = False
        arrays.append(mask)
    elif form == "epilogue":
        epilogue = [("Add", rand(n, h, q, f)), ("Gelu",)]
    check("Attention", arrays, attrs, kernel="attention", target=target, epilogue=epilogue)


@pytest.mark.parametrize("target", levels())
def test_powers_that_would_be_denormal_are_zero(target: str) -> None:
    q, k, v = operands((1, 1, 1, 9, 20, 16, 16))
    mask = np.zeros((9, 20), "f4")
    mask[:, 3:] = -100  # e^-100 is a denormal number
    v[..., :3, :], v[..., 3:, :] = 0, 1e30
    arrays = [0 * q, k, v, mask]
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    bench = prepare(one_node("Attention", arrays), feeds, "attention", target)
    bench.run()
    assert not bench.outputs[0][0].any()


@pytest.mark.parametrize("target", levels())
def test_rows_without_keys_give_zero(target: str) -> None:
    mask = np.where(RNG.random((2, 1, 20)) > 0.5, 0, -np.inf).astype("f4")
    mask[1] = -np.inf
    check(
        "Attention", [*operands((1, 2, 2, 9, 20, 16, 16)), mask], kernel="attention", target=target
    )


@pytest.mark.parametrize(
    ("more", "attrs", "why"),
    [
        ([None, rand(1, 2, 3, 8), rand(1, 2, 3, 8)], {}, "past_key"),
        ([], {"left_window_size": 2}, "left_window_size"),
        ([], {"with_qk": True}, "with_qk"),
        ([rand(5, 4)], {}, "does not cover all keys"),
    ],
)
def test_declines(more: list, attrs: dict, why: str) -> None:
    node = one_node("Attention", [*operands(SIZES[0]), *more], attrs)
    with pytest.raises(Skip, match=why):
        KERNELS["attention"].offer(site_of(node, level("avx2")))
