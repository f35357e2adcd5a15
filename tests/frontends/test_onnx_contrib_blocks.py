"""com.microsoft's products with weights in blocks of a few bits, and images channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.models import check, floats, run
from tests.frontends.models import contrib as one
from tinsmith.errors import ImportFailed
from tinsmith.frontends import load

Array = np.ndarray[Any, Any]


def put(numbers: Array, bits: int) -> Array:
    """Rows of numbers as rows of bytes, the first number in the lowest bits."""
    per = 8 // bits
    wide = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per)))
    parts = wide.reshape(len(wide), -1, per).astype(np.uint32) << (np.arange(per) * bits)
    return parts.sum(axis=2).astype(np.uint8)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rows, columns, block", [(64, 5, 32), (72, 6, 16), (40, 3, 32)])
@pytest.mark.parametrize("zeros", ["none", "integers", "floats"])
@pytest.mark.parametrize("biased", [False, True])
def test_matmul_of_few_bits(
    bits: int, rows: int, columns: int, block: int, zeros: str, biased: bool
) -> None:
    rng = np.random.default_rng(bits + rows)
    blocks = -(-rows // block)
    whole = rng.integers(0, 1 << bits, (columns, blocks * block))
    scale = rng.random((columns, blocks)).astype(np.float32)
    zero = rng.integers(0, 1 << bits, (columns, blocks))
    given: Any = {
        "none": None, "integers": put(zero, bits).reshape(-1), "floats": zero.astype(np.float32)
    }[zeros]  # fmt: skip
    zero = np.full_like(zero, 1 << (bits - 1)) if zeros == "none" else zero
    w = (whole.reshape(columns, blocks, block) - zero[..., None]) * scale[..., None]
    x, bias = floats(3, rows), floats(columns, seed=4) if biased else None
    want = x @ w.reshape(columns, -1)[:, :rows].T.astype(np.float32)
    want = want if bias is None else want + bias
    packed = put(whole, bits).reshape(columns, blocks, -1)
    fixed = [i for i, a in enumerate((x, packed, scale, given, None, bias)) if i and a is not None]
    proto, feeds = one("MatMulNBits", x, packed, scale.reshape(-1), given, None, bias,
                       weights=fixed, K=rows, N=columns, bits=bits, block_size=block)  # fmt: skip
    graph = check(proto, feeds, expected=[want], rtol=1e-4)
    kinds = {v.dtype.name for v in graph.constants()}
    assert (f"uint{bits}" in kinds) == (zeros != "floats")
    net = ts.compile(load(proto), cache=False)
    np.testing.assert_allclose(net(x), want, rtol=1e-4, atol=1e-4)
    assert not [s.name for s in net.program().plan.steps if s.kind == "reference"]


def test_an_order_of_the_rows_is_refused() -> None:
    x, w = floats(1, 32), np.zeros((2, 1, 16), np.uint8)
    scale, order = np.ones(2, np.float32), np.ones(32, np.int32)
    proto, feeds = one("MatMulNBits", x, w, scale, None, order, weights=(1, 2, 4),
                       K=32, N=2, bits=4, block_size=32)  # fmt: skip
    with pytest.raises(ImportFailed, match="g_idx does not name one of 1 blocks"):
        run(proto, feeds)


@pytest.mark.parametrize("zeros", ["none", "integers", "floats"])
def test_rows_that_name_their_block(zeros: str) -> None:
    rng = np.random.default_rng(5)
    rows, columns, block, blocks = 72, 6, 16, 5
    whole = rng.integers(0, 16, (columns, blocks * block))
    scale = rng.random((columns, blocks)).astype(np.float32)
    zero = rng.integers(0, 16, (columns, blocks))
    given: Any = {
        "none": None, "integers": put(zero, 4).reshape(-1), "floats": zero.astype(np.float32)
    }[zeros]  # fmt: skip
    zero = np.full_like(zero, 8) if zeros == "none" else zero
    order = rng.integers(0, blocks, rows).astype(np.int32)
    w = (whole[:, :rows] - zero[:, order]) * scale[:, order]
    x = floats(3, rows)
    packed = put(whole, 4).reshape(columns, blocks, -1)
    arrays = (x, packed, scale.reshape(-1), given, order)
    fixed = [i for i, a in enumerate(arrays) if i and a is not None]
    proto, feeds = one("MatMulNBits", *arrays, weights=fixed, K=rows, N=columns, bits=4,
                       block_size=block)  # fmt: skip
    check(proto, feeds, expected=[x @ w.T.astype(np.float32)], rtol=1e-4)


# ---- channels last, and others

IMAGE = floats(2, 6, 7, 8)


@pytest.mark.parametrize("type", ["NhwcConv", "NhwcFusedConv"])
def test_conv_with_channels_last(type: str) -> None:
    w, b = floats(4, 8, 3, 3, seed=1), floats(4, seed=2)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(IMAGE, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), axis=(1, 2)
    )
    want = np.einsum("nhwcij,mcij->nhwm", windows, w) + b
    attrs: dict[str, Any] = {"pads": [1] * 4, "kernel_shape": [3, 3]}
    if type == "NhwcFusedConv":
        z = floats(2, 6, 7, 4, seed=3)
        proto = one(type, IMAGE, w, b, z, activation="Relu", **attrs)
        check(*proto, expected=[np.maximum(want + z, 0)], rtol=1e-4)
    else:
        check(*one(type, IMAGE, w, b, **attrs), expected=[want], rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_max_pool_with_channels_last(dtype: type[Any]) -> None:
    x = np.random.default_rng(0).integers(0, 100, (2, 7, 6, 5)).astype(dtype)
    edge = np.iinfo(dtype).min
    wide = np.pad(x, ((0, 0), (1, 0), (1, 1), (0, 0)), constant_values=edge)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 2), axis=(1, 2))
    want = windows[:, ::2, ::1].max((-2, -1))
    attrs = {"kernel_shape": [3, 2], "pads": [1, 1, 0, 1], "strides": [2, 1]}
    check(*one("NhwcMaxPool", x, **attrs), expected=[want])


def gelu(x: Array) -> Array:
    import math

    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def test_operators_of_diffusion_models() -> None:
    x, b, skip = floats(2, 3, 8), floats(8, seed=1), floats(2, 3, 8, seed=2)
    left, right = np.split(x + b, 2, axis=2)
    want = (left * gelu(right)).astype(np.float32)
    check(*one("BiasSplitGelu", x, b), expected=[want], rtol=1e-5)
    check(*one("BiasAdd", x, b, skip), expected=[x + b + skip])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", [None, "image", "row"])
def test_group_norm(last: int, activation: int, skip: str | None) -> None:
    x, scale, shift, bias = IMAGE, floats(8, seed=1), floats(8, seed=2), floats(8, seed=3)
    added = floats(2, 6, 7, 8, seed=4) if skip == "image" else floats(2, 8, seed=4)
    total = x
    if skip is not None:
        total = x + (added if skip == "image" else added[:, None, None]) + bias
    parts = total.reshape(2, 42, 4, 2).astype(np.float64)
    mean, var = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(total.shape) * scale + shift
    y = y / (1 + np.exp(-y)) if activation else y
    order = (0, 1, 2, 3) if last else (0, 3, 1, 2)
    x, y, total = (np.ascontiguousarray(t.transpose(order)) for t in (x, y, total))
    added = np.ascontiguousarray(added.transpose(order)) if skip == "image" else added
    attrs = {"groups": 4, "activation": activation, "channels_last": last}
    if skip is None:
        proto, feeds = one("GroupNorm", x, scale, shift, **attrs)
        check(proto, feeds, expected=[y.astype(np.float32)], rtol=1e-4)
    else:
        proto, feeds = one("SkipGroupNorm", x, scale, shift, added, bias, outs=2, **attrs)
        check(proto, feeds, expected=[y.astype(np.float32), total], rtol=1e-4)


@pytest.mark.parametrize("side", ["A", "B"])
def test_products_with_the_batch_inside(side: str) -> None:
    a, b = floats(2, 3, 4), floats(2, 4, 5, seed=1)
    want = a @ b
    a = np.ascontiguousarray(a.transpose(1, 0, 2)) if side == "A" else a
    b = np.ascontiguousarray(b.transpose(1, 0, 2)) if side == "B" else b
    check(*one("FusedMatMul", a, b, **{f"transBatch{side}": 1}), expected=[want])
