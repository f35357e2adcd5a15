"""Models with inputs for the operators that ONNX's own node cases do not show: those of
com.microsoft, most of ai.onnx.ml, and a few others."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.frontends.classical import CASES as CLASSICAL
from tests.frontends.classical import machine, regressor
from tests.frontends.models import contrib, floats, ml, model, one

X, ROW, IMAGE = floats(2, 6, 8), floats(8), floats(1, 4, 5, 5)
LAST = np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1))
PLACES = np.arange(16)[:, None] * 1e4 ** (-np.arange(2) / 2)
CIRCLE = np.cos(PLACES).astype(np.float32), np.sin(PLACES).astype(np.float32)


def low(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


A = (low(3, 4), np.float32(0.1), np.uint8(5))
"""Bytes with their scale and zero point."""
P = (low(1, 2, 4, 4), *A[1:])
OUT = np.float32(0.2), np.uint8(9)
IDS = np.array([[1, 2, 0]], np.int32)

_CONTRIB: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Attention": ((X, floats(8, 24), floats(24)), {"num_heads": 2}),
    "BiasAdd": ((X, ROW, X), {}),
    "BiasGelu": ((X, ROW), {}),
    "BiasSplitGelu": ((X, ROW), {}),
    "DequantizeLinear": (A, {}),
    "DynamicQuantizeLSTM": (
        (floats(5, 2, 3), low(1, 3, 16), low(1, 4, 16), floats(1, 32), None, None, None, None,
         *[np.full(1, 0.01, np.float32), np.full(1, 128, np.uint8)] * 2),
        {"hidden_size": 4, "weights": (1, 2, 8, 9, 10, 11)},
    ),
    "DynamicQuantizeMatMul": ((floats(3, 4), low(4, 5), *A[1:]), {}),
    "EmbedLayerNormalization": (
        (IDS, IDS, floats(5, 8), floats(4, 8), floats(3, 8), ROW, ROW), {"epsilon": 1e-5}
    ),
    "FastGelu": ((X, ROW), {}),
    "FusedConv": ((IMAGE, floats(3, 4, 3, 3)), {"activation": "Relu"}),
    "FusedGemm": ((floats(3, 4), floats(4, 5), floats(5)), {"activation": "Relu"}),
    "FusedMatMul": ((X, X), {"transB": 1}),
    "Gelu": ((X,), {}),
    "GroupNorm": ((LAST, floats(4), floats(4)), {"groups": 2, "activation": 1}),
    "GroupQueryAttention": (
        (X, floats(2, 6, 4), floats(2, 6, 4), floats(2, 1, 0, 4), floats(2, 1, 0, 4),
         np.array([5, 5], np.int32), np.array(6, np.int32), *CIRCLE),
        {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1},
    ),
    "Inverse": ((floats(2, 3, 3),), {}),
    "MatMulIntegerToFloat": ((A[0], low(4, 5), A[1], A[1], A[2], A[2]), {}),
    "MatMulNBits": (
        (floats(3, 32), low(5, 1, 16), floats(5)),
        {"K": 32, "N": 5, "bits": 4, "block_size": 32, "weights": (1, 2)},
    ),
    "MultiHeadAttention": ((X, X, X), {"num_heads": 2}),
    "NhwcConv": ((LAST, floats(3, 4, 3, 3)), {}),
    "NhwcFusedConv": ((LAST, floats(3, 4, 3, 3)), {"activation": "Relu"}),
    "NhwcMaxPool": ((low(2, 6, 6, 4),), {"kernel_shape": [2, 2]}),
    "QAttention": (
        (low(2, 6, 8), low(8, 24), floats(24), A[1], A[1], None, A[2], A[2]), {"num_heads": 2}
    ),
    "QGemm": ((*A, low(4, 5), *A[1:], np.arange(5, dtype=np.int32), *OUT), {}),
    "QLinearAdd": ((*A, *A, *OUT), {}),
    "QLinearAveragePool": ((*P, *OUT), {"kernel_shape": [2, 2]}),
    "QLinearConcat": ((*OUT, *A, *A), {"axis": 1}),
    "QLinearGlobalAveragePool": ((*P, *OUT), {}),
    "QLinearLeakyRelu": ((*A, *OUT), {}),
    "QLinearMul": ((*A, *A, *OUT), {}),
    "QLinearSigmoid": ((*A, *OUT), {}),
    "QLinearSoftmax": ((*A, *OUT), {"axis": -1, "opset": 13}),
    "QLinearWhere": ((floats(3, 4) > 0, *A, *A, *OUT), {}),
    "QuantizeLinear": ((floats(3, 4), *OUT), {}),
    "QuickGelu": ((X,), {}),
    "RotaryEmbedding": ((X, np.array([3]), *CIRCLE), {"num_heads": 2}),
    "SimplifiedLayerNormalization": ((X, ROW), {}),
    "SkipGroupNorm": ((LAST, floats(4), floats(4), LAST), {"groups": 2, "activation": 0}),
    "SkipLayerNormalization": ((X, X, ROW, ROW), {}),
    "SkipSimplifiedLayerNormalization": ((X, X, ROW), {}),
    "TransposeMatMul": ((X, X), {"transA": 1}),
}  # fmt: skip


_DEFAULT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "GlobalLpPool": ((IMAGE,), {}),
    "MaxRoiPool": (
        (IMAGE, np.array([[0, 0, 0, 4, 4]], np.float32)),
        {"pooled_shape": [2, 2], "spatial_scale": 1.0},
    ),
    "Multinomial": ((floats(2, 3),), {"sample_size": 4, "seed": 1.0}),
    "RandomNormal": ((), {"shape": [2, 3], "seed": 1.0}),
    "RandomNormalLike": ((X,), {"seed": 1.0}),
    "RandomUniform": ((), {"shape": [2, 3], "seed": 1.0}),
    "RandomUniformLike": ((X,), {"seed": 1.0}),
    "SimplifiedLayerNormalization": ((X, ROW), {}),
}


_HOLDERS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "ConcatFromSequence": (["s"], {"axis": 1}),
    "Optional": (["x"], {}),
    "SequenceAt": (["s", "i"], {}),
    "SequenceConstruct": (["x", "x"], {}),
    "SequenceEmpty": ([], {"dtype": 1}),
    "SequenceErase": (["s", "i"], {}),
    "SequenceLength": (["s"], {}),
}
"""Operators of sequences and optionals, with their inputs: x, a sequence of it twice, a place."""


def _held(name: str) -> Any:
    """A model of an operator of sequences, which a node before it makes of the input."""
    names, attrs = _HOLDERS[name]
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])] if "s" in names else []
    nodes.append(helper.make_node(name, names, ["y"], **attrs))
    return model(nodes, {"x": X}, ["y"], {"i": np.array(1)}), {"x": X}


def _gradient() -> Any:
    """The derivative of x * x, by ONNX's training operator."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["y"]),
        helper.make_node("Gradient", ["x"], ["d"], domain="ai.onnx.preview.training", xs=["x"],
                         y="y"),
    ]  # fmt: skip
    domains = {"ai.onnx.preview.training": 1}
    return model(nodes, {"x": X}, ["y", "d"], domains=domains), {"x": X}


def samples() -> dict[str, Any]:
    """Operator, with its domain -> models with their inputs."""
    found: dict[str, list[Any]] = {
        f"com.microsoft.{name}": [contrib(name, *map(_array, inputs), **attrs)]
        for name, (inputs, attrs) in _CONTRIB.items()
    }
    found |= {name: [_held(name)] for name in _HOLDERS}
    found |= {name: [one(name, *inputs, **attrs)] for name, (inputs, attrs) in _DEFAULT.items()}
    classical = [
        *CLASSICAL.values(),
        ml("Normalizer", floats(7, 4), norm="L2"),
        ml("CategoryMapper", np.array([4, 5]), cats_strings=["a", "b"], cats_int64s=[4, 5]),
        ml("FeatureVectorizer", floats(7, 4), floats(7, 2), inputdimensions=[4, 2]),
        ml("SVMClassifier", floats(7, 4), outs=2, **machine([3, 4])),
        ml("SVMRegressor", floats(7, 4), **regressor(5, "RBF")),
        ml("ZipMap", floats(7, 2), classlabels_int64s=[0, 1]),
    ]
    for proto, feeds in classical:
        name = f"ai.onnx.ml.{proto.graph.node[0].op_type}"
        found.setdefault(name, []).append((proto, feeds))
    found["ai.onnx.preview.training.Gradient"] = [_gradient()]
    return found


def _array(value: Any) -> Any:
    return None if value is None else np.asarray(value)
