"""Importers of the common operators of the domain com.microsoft, by composition."""

from __future__ import annotations

from typing import Any

from tinsmith.frontends.onnx.arithmetic import gemm_of, scaled
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.rows import RENAMED, renamed
from tinsmith.graph import Value

_MS = "com.microsoft."


@importer(_MS + "Gelu", _MS + "BiasGelu")
def gelu(call: Call) -> Result:
    return call.emit("Gelu", _biased(call, call[0], 1))


@importer(_MS + "FastGelu")
def fast_gelu(call: Call) -> Result:
    return call.emit("Gelu", _biased(call, call[0], 1), approximate="tanh")


@importer(_MS + "QuickGelu")
def quick_gelu(call: Call) -> Result:
    return call.emit("Swish", call[0], alpha=call.attr("alpha", 1.702))


def _biased(call: Call, x: Value, index: int) -> Value:
    bias = call.arg(index)
    return x if bias is None else call.emit("Add", x, bias)


@importer(_MS + "SkipLayerNormalization")
def skip_layer_norm(call: Call) -> Result:
    total = _biased(call, call.emit("Add", call[0], call[1]), 4)
    eps = call.attr("epsilon", 1e-12)
    if not (call.used(1) or call.used(2)):
        return call.emit("LayerNorm", total, call[2], call.arg(3), eps=eps), None, None, total
    stats = call.emit("LayerNorm", total, call[2], call.arg(3), eps=eps, with_stats=True)
    return *stats, total


@importer(_MS + "SkipSimplifiedLayerNormalization")
def skip_rms_norm(call: Call) -> Result:
    total = _biased(call, call.emit("Add", call[0], call[1]), 3)
    y = call.emit("RMSNorm", total, call[2], eps=call.attr("epsilon", 1e-12))
    return y, None, None, total


@importer("SimplifiedLayerNormalization", _MS + "SimplifiedLayerNormalization")
def rms_norm(call: Call) -> Result:
    call.ignore("stash_type")
    axis, eps = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    return call.emit("RMSNorm", call[0], call[1], axis=axis, eps=eps)


@importer(_MS + "FusedMatMul", _MS + "TransposeMatMul")
def fused_matmul(call: Call) -> Result:
    if call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        raise Unsupported("it transposes batches, which is not supported")
    a, b = (_transposed(call, call[i], f"trans{side}") for i, side in enumerate("AB"))
    return scaled(call, call.emit("MatMul", a, b), call.attr("alpha", 1.0))


def _transposed(call: Call, x: Value, flag: str) -> Value:
    """`x` with its last two axes exchanged, if the attribute `flag` says so."""
    if not call.attr(flag, 0):
        return x
    if x.rank is None or x.rank < 2:
        raise Unsupported(f"{flag} needs an operand of a known rank of 2 or more")
    perm = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return call.emit("Transpose", x, perm=perm)


@importer(_MS + "FusedConv")
def fused_conv(call: Call) -> Result:
    call.ignore("kernel_shape")
    attrs = renamed(call, "Conv", RENAMED["Conv"][1])
    y = _biased(call, call.emit("Conv", call[0], call[1], call.arg(2), **attrs), 3)
    return _activated(call, y, call.attr("activation"), call.attr("activation_params", []))


@importer(_MS + "FusedGemm")
def fused_gemm(call: Call) -> Result:
    y = gemm_of(call, call[0], call[1], call.arg(2))
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    params = [call.attr(n) for n in names if call.attr(n) is not None]
    return _activated(call, y, call.attr("activation"), params)


_ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Relu": ("Relu", ()),
    "Tanh": ("Tanh", ()),
    "Sigmoid": ("Sigmoid", ()),
    "LeakyRelu": ("LeakyRelu", ("alpha",)),
    "Elu": ("Elu", ("alpha",)),
    "HardSigmoid": ("HardSigmoid", ("alpha", "beta")),
    "Clip": ("Clip", ("min", "max")),
}


def _activated(call: Call, x: Value, name: str | None, params: list[Any]) -> Value:
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise Unsupported(f"its activation {name!r} is not supported")
    op, names = _ACTIVATIONS[name]
    return call.emit(op, x, **dict(zip(names, params, strict=False)))
