"""Operators of com.microsoft, compared with the formula of each in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.frontends.models import check, floats, model, ops, run
from tests.frontends.models import contrib as one

X, B = floats(2, 5, 6), floats(6, seed=1)
node = helper.make_node


def gelu(x: Any) -> Any:
    return (0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(np.float32)


def tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def normal(x: Any, eps: float) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


def rms(x: Any, eps: float) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


ACTIVATIONS: list[tuple[Any, ...]] = [
    ("Gelu", (X,), {}, gelu(X)),
    ("BiasGelu", (X, B), {}, gelu(X + B)),
    ("FastGelu", (X,), {}, tanh_gelu(X)),
    ("FastGelu", (X, B), {}, tanh_gelu(X + B)),
    ("QuickGelu", (X,), {}, X / (1 + np.exp(-1.702 * X))),
    ("QuickGelu", (X,), {"alpha": 2.0}, X / (1 + np.exp(-2 * X))),
]


@pytest.mark.parametrize("type, inputs, attrs, want", ACTIVATIONS)
def test_activations(type: str, inputs: Any, attrs: Any, want: Any) -> None:
    check(*one(type, *inputs, **attrs), expected=[want])


@pytest.mark.parametrize("bias", [None, floats(6, seed=7)], ids=["", "bias"])
@pytest.mark.parametrize("shift", [None, floats(6, seed=8)], ids=["", "shift"])
def test_skip_layer_normalization(bias: Any, shift: Any) -> None:
    skip = floats(2, 5, 6, seed=3)
    total = X + skip + (0 if bias is None else bias)
    want = normal(total, 1e-5) * B + (0 if shift is None else shift)
    proto, feeds = one("SkipLayerNormalization", X, skip, B, shift, bias, epsilon=1e-5)
    check(proto, feeds, expected=[want], rtol=1e-4)


def test_the_sum_of_a_skip_normalization_is_an_output() -> None:
    skip = floats(2, 5, 6, seed=3)
    for type, inputs, norm in (
        ("SkipLayerNormalization", (X, skip, B, None, None), normal),
        ("SkipSimplifiedLayerNormalization", (X, skip, B, None), rms),
    ):
        nodes = [
            node(type, ["x", "s", "b"], ["y", "", "", "sum"], domain="com.microsoft", epsilon=1e-5)
        ]
        feeds = {"x": inputs[0], "s": inputs[1], "b": inputs[2]}
        proto = model(nodes, feeds, ["y", "sum"], domains={"com.microsoft": 1})
        total = X + skip
        check(proto, feeds, expected=[norm(total, 1e-5) * B, total], rtol=1e-4)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_simplified_layer_normalization(domain: str) -> None:
    nodes = [node("SimplifiedLayerNormalization", ["x", "b"], ["y"], domain=domain, epsilon=1e-6)]
    proto = model(nodes, {"x": X, "b": B}, ["y"], domains={"com.microsoft": 1})
    check(proto, {"x": X, "b": B}, expected=[rms(X, 1e-6) * B], rtol=1e-4)


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.125])
def test_fused_matmul(left: int, right: int, alpha: float) -> None:
    a, b = floats(2, 3, 4), floats(2, 4, 5, seed=1)
    want = alpha * (a @ b)
    a = np.ascontiguousarray(a.swapaxes(1, 2)) if left else a
    b = np.ascontiguousarray(b.swapaxes(1, 2)) if right else b
    attrs = {"transA": left, "transB": right, "alpha": alpha}
    check(*one("FusedMatMul", a, b, **attrs), expected=[want.astype(np.float32)])


CONV: list[tuple[str, list[float], Any]] = [
    ("Relu", [], lambda v: np.maximum(v, 0)),
    ("LeakyRelu", [0.3], lambda v: np.where(v > 0, v, np.float32(0.3) * v)),
    ("Clip", [-0.5, 0.75], lambda v: np.clip(v, -0.5, 0.75)),
    ("HardSigmoid", [0.25, 0.4], lambda v: np.clip(np.float32(0.25) * v + np.float32(0.4), 0, 1)),
    ("Tanh", [], np.tanh),
    ("Sigmoid", [], lambda v: 1 / (1 + np.exp(-v))),
]


@pytest.mark.parametrize("activation, params, apply", CONV, ids=[c[0] for c in CONV])
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation: str, params: Any, apply: Any, added: bool) -> None:
    x, w, b = floats(1, 3, 6), floats(4, 3, 1, seed=1), floats(4, seed=2)
    z = floats(1, 4, 6, seed=3) if added else None
    y = np.einsum("mc,ncl->nml", w[..., 0], x) + b[:, None] + (0 if z is None else z)
    attrs: dict[str, Any] = {"activation": activation, "kernel_shape": [1]}
    if params:
        attrs["activation_params"] = params
    graph = check(*one("FusedConv", x, w, b, z, **attrs), expected=[apply(y)], rtol=1e-5)
    assert ops(graph)[-1] == activation


def test_fused_gemm() -> None:
    a, b, c = floats(2, 3), floats(4, 3, seed=1), floats(4, seed=2)
    y = 0.5 * (a @ b.T) + c
    attrs = {"transB": 1, "alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.25}
    check(*one("FusedGemm", a, b, c, **attrs), expected=[np.where(y > 0, y, 0.25 * y)])
    attrs = {"transB": 1, "alpha": 0.5, "activation": "HardSigmoid", "activation_beta": 0.25}
    check(*one("FusedGemm", a, b, c, **attrs), expected=[np.clip(0.2 * y + 0.25, 0, 1)])


SCALES = [np.array(v, np.float32) for v in (0.05, 0.04, 0.1)]
ZEROS = [np.array(v, np.uint8) for v in (120, 7, 130)]


def low(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def real(q: Any, i: int) -> Any:
    return (q.astype(np.float32) - ZEROS[i]) * SCALES[i]


def quantised(y: Any, i: int = 2) -> np.ndarray[Any, Any]:
    return np.clip(np.rint(y / SCALES[i]) + ZEROS[i], 0, 255).astype(np.uint8)


def near(proto: Any, feeds: Any, want: np.ndarray[Any, Any]) -> None:
    """Equal, but for one unit where the last bit of the scaled value decides."""
    (got,) = run(proto, feeds)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.abs(got.astype(int) - want).max() <= 1
    assert (got == want).mean() > 0.95


@pytest.mark.parametrize("type, f", [("QLinearAdd", np.add), ("QLinearMul", np.multiply)])
def test_quantised_arithmetic(type: str, f: Any) -> None:
    a, b = low(1, 2, 3, 4), low(2, 3, 1)
    inputs = (a, SCALES[0], ZEROS[0], b, SCALES[1], ZEROS[1], SCALES[2], ZEROS[2])
    near(*one(type, *inputs), quantised(f(real(a, 0), real(b, 1))))


QUANTISED: list[tuple[str, dict[str, Any], Any]] = [
    ("QLinearSigmoid", {}, lambda x: 1 / (1 + np.exp(-x))),
    ("QLinearLeakyRelu", {"alpha": 0.2}, lambda x: np.where(x < 0, np.float32(0.2) * x, x)),
    ("QLinearGlobalAveragePool", {}, lambda x: x.mean((2, 3), keepdims=True)),
]


@pytest.mark.parametrize("type, attrs, f", QUANTISED, ids=[q[0] for q in QUANTISED])
def test_quantised_functions(type: str, attrs: dict[str, Any], f: Any) -> None:
    x = low(1, 2, 3, 4, 5)
    inputs = (x, SCALES[0], ZEROS[0], SCALES[2], ZEROS[2])
    near(*one(type, *inputs, **attrs), quantised(f(real(x, 0))))


SOFTMAX = np.array([[0, 3, 60, 61, 64, 70], [255, 10, 254, 250, 251, 90]], np.uint8)
PROBABILITIES: list[tuple[float, int, list[list[int]]]] = [
    (1 / 256, 0, [[0, 0, 40, 45, 60, 110], [80, 0, 73, 49, 54, 0]]),
    (1 / 255, 0, [[0, 0, 40, 44, 60, 109], [80, 0, 72, 48, 54, 0]]),
    (0.0037, 7, [[7, 7, 50, 54, 71, 123], [92, 7, 84, 58, 64, 7]]),
    (0.3, 0, [[0, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0]]),
    (1.5, 7, [[7] * 6, [7] * 6]),
]
"""Scale, zero point and result of QLinearSoftmax for inputs with scale 0.1, from ONNX Runtime 1.32
without its optimisations. It multiplies by 1 / scale, rounded down."""


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("shift", [0, 128], ids=["uint8", "int8"])
@pytest.mark.parametrize("scale, zero, want", PROBABILITIES)
def test_quantised_softmax(scale: float, zero: int, want: Any, shift: int, axis: int) -> None:
    kind = np.int8 if shift else np.uint8
    x, y = ((a.astype(int) - shift).astype(kind) for a in (SOFTMAX, np.array(want)))
    x, y = (x.T, y.T) if axis == 0 else (x, y)
    numbers = np.float32(0.1), kind(0), np.float32(scale), kind(zero - shift)
    (got,) = run(*one("QLinearSoftmax", x, *map(np.asarray, numbers), axis=axis, opset=13))
    np.testing.assert_array_equal(got, y)


def test_quantised_concatenation() -> None:
    a, b = low(1, 2, 3), low(2, 2, 4)
    inputs = (SCALES[2], ZEROS[2], a, SCALES[0], ZEROS[0], b, SCALES[1], ZEROS[1])
    want = quantised(np.concatenate([real(a, 0), real(b, 1)], axis=1))
    near(*one("QLinearConcat", *inputs, axis=1), want)


def test_quantised_pooling() -> None:
    x = low(1, 2, 3, 4, 6)
    inputs = (x, SCALES[0], ZEROS[0], SCALES[2], ZEROS[2])
    want = real(x, 0).reshape(2, 3, 2, 2, 3, 2).mean((3, 5))
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    near(*one("QLinearAveragePool", *inputs, **attrs), quantised(want))


def test_quantised_choice() -> None:
    c, a, b = floats(3, 4) > 0, low(1, 2, 3, 4), low(2, 3, 1)
    inputs = (c, a, SCALES[0], ZEROS[0], b, SCALES[1], ZEROS[1], SCALES[2], ZEROS[2])
    near(*one("QLinearWhere", *inputs), quantised(np.where(c, real(a, 0), real(b, 1))))


@pytest.mark.parametrize("mask", [None, np.array([3, 5], np.int32)], ids=["", "mask"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_quantised_attention(mask: Any, unidirectional: int) -> None:
    """As Attention of the dequantised rows and weights."""
    x, w, bias = low(1, 2, 5, 8), low(2, 8, 24), floats(24)
    attrs = {"num_heads": 2, "unidirectional": unidirectional}
    quantised = (x, w, bias, SCALES[0], SCALES[1], mask, ZEROS[0], ZEROS[1])
    want = run(*one("Attention", real(x, 0), real(w, 1), bias, mask, **attrs))
    check(*one("QAttention", *quantised, **attrs), expected=want, rtol=1e-4)


@pytest.mark.parametrize("to_float", [False, True])
@pytest.mark.parametrize("flip", [0, 1])
def test_quantised_gemm(to_float: bool, flip: int) -> None:
    a, b, c = low(1, 4, 6), low(2, 6, 3), np.array([100, -200, 300], np.int32)
    y = real(a, 0) @ real(b, 1) + c * SCALES[0] * SCALES[1]
    b = np.ascontiguousarray(b.T) if flip else b
    inputs = [a, SCALES[0], ZEROS[0], b, SCALES[1], ZEROS[1], c]
    if to_float:
        check(*one("QGemm", *inputs, transB=flip), expected=[y.astype(np.float32)], rtol=1e-4)
    else:
        near(*one("QGemm", *inputs, SCALES[2], ZEROS[2], transB=flip), quantised(y))


@pytest.mark.parametrize("bias", [None, floats(3, seed=4)], ids=["", "bias"])
def test_integer_products(bias: Any) -> None:
    a, b = low(1, 4, 6), low(2, 6, 3)
    y = real(a, 0) @ real(b, 1) + (0 if bias is None else bias)
    inputs = (a, b, SCALES[0], SCALES[1], ZEROS[0], ZEROS[1], bias)
    check(*one("MatMulIntegerToFloat", *inputs), expected=[y.astype(np.float32)], rtol=1e-4)
    x = floats(4, 6)
    (got,) = run(*one("DynamicQuantizeMatMul", x, b, SCALES[1], ZEROS[1], bias))
    want = x @ real(b, 1) + (0 if bias is None else bias)
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
def test_lstm_of_bytes(directions: int, columns: bool) -> None:
    """An LSTM of the dequantised weights, that rounds x as a whole, and h at each step."""
    rng, sizes = np.random.default_rng(26), ((directions, 3, 16), (directions, 4, 16))
    w, r = (rng.integers(-128, 128, s).astype(np.int8) for s in sizes)
    shape = (directions, 16) if columns else (directions,)
    scales = [rng.uniform(0.002, 0.01, shape).astype(np.float32) for _ in "wr"]
    zeros = [rng.integers(-5, 6, shape).astype(np.int8) for _ in "wr"]
    x, bias = floats(5, 2, 3), floats(directions, 32)
    way = "bidirectional" if directions == 2 else "forward"
    attrs = {"hidden_size": 4, "direction": way}
    given = (x, w, r, bias, None, None, None, None, scales[0], zeros[0], scales[1], zeros[1])
    (got,) = run(*one("DynamicQuantizeLSTM", *given, weights=(1, 2, *range(8, 12)), **attrs))
    spread = (slice(None), None) if columns else (slice(None), None, None)
    real = [
        (v - z[spread].astype(np.float32)) * s[spread]
        for v, s, z in zip((w, r), scales, zeros, strict=True)
    ]
    for d in range(directions):
        want = rounded_lstm(x[::-1] if d else x, real[0][d], real[1][d], bias[d])
        np.testing.assert_allclose(got[:, d], want[::-1] if d else want, rtol=1e-5, atol=1e-6)


def rounded_lstm(x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """h of all steps of one direction, written out."""

    def rounded(v: np.ndarray) -> np.ndarray:
        high, low = max(v.max(), 0), min(v.min(), 0)
        scale = (np.float32(high - low) or np.float32(1)) / np.float32(255)
        zero = np.rint(-low / scale)
        return (np.clip(np.rint(v / scale) + zero, 0, 255) - zero) * scale

    h = c = np.zeros((x.shape[1], r.shape[0]), np.float32)
    found = []
    for step in rounded(x) @ w + np.add(*np.split(bias, 2)):
        i, o, f, g = np.split(step + rounded(h) @ r, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        found.append(h)
    return np.stack(found)


def test_inverse() -> None:
    x = floats(2, 3, 3)
    check(*one("Inverse", x), expected=[np.linalg.inv(x)], rtol=1e-4)
