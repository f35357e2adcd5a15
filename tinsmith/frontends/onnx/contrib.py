"""Importers of common operators of the domain com.microsoft (ONNX Runtime)."""

from __future__ import annotations

from typing import Any

from tinsmith.formats.onnx_names import POOL, RENAMED
from tinsmith.frontends.onnx.arithmetic import gemm_of
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.rows import renamed
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


@importer(_MS + "Inverse")
def inverse(call: Call) -> Result:
    return call.emit("Inverse", call[0])


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


@importer(_MS + "FusedMatMul", _MS + "TransposeMatMul")
def fused_matmul(call: Call) -> Result:
    a, b = (_transposed(call, _batch_last(call, call[i], side), f"trans{side}")
            for i, side in enumerate("AB"))  # fmt: skip
    return call.scaled(call.emit("MatMul", a, b), call.attr("alpha", 1.0))


def _batch_last(call: Call, x: Value, side: str) -> Value:
    """x, operand `side` ("A" or "B") of a FusedMatMul: if transBatchA or transBatchB is set,
    [R,*batch,C] transposed to [*batch,R,C]; raises Unsupported then for a rank unknown or below 3.
    """
    if not call.attr(f"transBatch{side}", 0):
        return x
    if x.rank is None or x.rank < 3:
        raise Unsupported(f"transBatch{side} needs an operand of a known rank of 3 or more")
    return call.emit("Transpose", x, perm=(*range(1, x.rank - 1), 0, x.rank - 1))


def _transposed(call: Call, x: Value, flag: str) -> Value:
    """x, with its last two axes exchanged if the attribute `flag` (a name) is set; raises
    Unsupported then for a rank unknown or below 2."""
    if not call.attr(flag, 0):
        return x
    if x.rank is None or x.rank < 2:
        raise Unsupported(f"{flag} needs an operand of a known rank of 2 or more")
    perm = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return call.emit("Transpose", x, perm=perm)


@importer(_MS + "EmbedLayerNormalization")
def embed_layer_norm(call: Call) -> Result:
    """Import EmbedLayerNormalization. Inputs: ids, segments, tables of words, positions and
    segments, scale, shift, mask, positions. Outputs: the layer norm of the sum of embeddings of
    words, positions and segments; `_lengths`, if the node names it; the sum."""
    ids, segments, mask, at = call[0], call.arg(1), call.arg(7), call.arg(8)
    total = call.emit("Gather", call[2], ids, axis=0)
    if at is None:
        count = call.emit("Shape", ids, start=1, end=2)
        places = call.emit("Slice", call[3], call.ints(0), count, call.ints(0))
    else:
        places = call.emit("Gather", call[3], at, axis=0)
    total = call.emit("Add", total, places)
    if segments is not None:
        total = call.emit("Add", total, call.emit("Gather", call[4], segments, axis=0))
    y = call.emit("LayerNorm", total, call[5], call.arg(6), eps=call.attr("epsilon", 1e-12))
    call.ignore("mask_index_type")
    return y, _lengths(call, ids, mask) if call.wants(1) else None, total


def _lengths(call: Call, ids: Value, mask: Value | None) -> Value:
    """[N]: the lengths of sequences `ids` [N,T], the sums of the rows of `mask` [N,T]; 0 without
    it."""
    if mask is None:
        count = call.emit("Shape", ids, start=0, end=1)
        return call.emit("ConstantOfShape", count, value=0, dtype="int32")
    return call.emit("Reduce", mask, call.ints(1), kind="sum", keepdims=False)


@importer(_MS + "BiasSplitGelu")
def bias_split_gelu(call: Call) -> Result:
    """Import BiasSplitGelu: a * Gelu(b), for the halves a and b of x + bias on the last axis."""
    total = call.emit("Add", call[0], call[1])
    left, right = call.emit("Split", total, axis=-1, num_outputs=2)
    return call.emit("Mul", left, call.emit("Gelu", right))


@importer(_MS + "BiasAdd")
def bias_add(call: Call) -> Result:
    return call.emit("Add", call.emit("Add", call[0], call[1]), call[2])


@importer(_MS + "GroupNorm", _MS + "SkipGroupNorm")
def group_norm(call: Call) -> Result:
    """Import GroupNorm, with a SiLU if `activation` is set. SkipGroupNorm does the same to s = x +
    skip + bias (inputs 3 and 4, each optional); s is its second output. x is [N, *spatial, C], or,
    with `channels_last` 0, [N, C, *spatial]."""
    x, bare = call[0], call.type == "GroupNorm"
    last = bool(call.attr("channels_last", 1))
    if not bare:
        for i in (3, 4):
            x = x if call.arg(i) is None else call.emit("Add", x, _row(call, call[i], last, x))
    y = _channels_first(call, x) if last else x
    attrs = {"groups": call.required("groups"), "eps": call.attr("epsilon", 1e-5)}
    y = call.emit("GroupNorm", y, call[1], call[2], **attrs)
    y = call.emit("Swish", y) if call.required("activation") else y
    y = _channels_last(call, y) if last else y
    return y if bare else (y, x)


def _row(call: Call, skip: Value, last: bool, x: Value) -> Value:
    """`skip`, [N,C] or [C], with axes of size 1 so that it broadcasts to the images x, [N,H,W,C] if
    `last`, else [N,C,H,W]. A skip of the rank of x stays. Raises Unsupported for other ranks."""
    if skip.rank == x.rank:
        return skip
    if skip.rank not in (1, 2) or x.rank != 4:
        raise Unsupported("its skip and bias must be pictures, rows or vectors")
    if skip.rank == 1:
        return skip if last else call.emit("Unsqueeze", skip, call.ints(1, 2))
    return call.emit("Unsqueeze", skip, call.ints(*((1, 2) if last else (2, 3))))


def _channels_first(call: Call, x: Value) -> Value:
    if x.rank is None:
        raise Unsupported("its input needs a known rank")
    return call.emit("Transpose", x, perm=(0, x.rank - 1, *range(1, x.rank - 1)))


def _channels_last(call: Call, x: Value) -> Value:
    if x.rank is None:
        raise Unsupported("its input needs a known rank")
    return call.emit("Transpose", x, perm=(0, *range(2, x.rank), 1))


@importer(_MS + "FusedConv", _MS + "NhwcConv", _MS + "NhwcFusedConv")
def fused_conv(call: Call) -> Result:
    """Import FusedConv, NhwcConv and NhwcFusedConv: a Conv with its weights, in the Nhwc ones of
    images [N,H,W,C]. Input 3, in the shape of the result, is added if given; then the attribute
    `activation`, if given, is applied."""
    call.ignore("kernel_shape")
    attrs, last = renamed(call, *RENAMED["Conv"]), "Nhwc" in call.type
    x = _channels_first(call, call[0]) if last else call[0]
    y = call.emit("Conv", x, call[1], call.arg(2), **attrs)
    y = _biased(call, _channels_last(call, y) if last else y, 3)
    return _activated(call, y, call.attr("activation"), call.attr("activation_params", []))


@importer(_MS + "NhwcMaxPool")
def channels_last_max_pool(call: Call) -> Result:
    y = call.emit("MaxPool", _channels_first(call, call[0]), **renamed(call, "MaxPool", POOL))
    return _channels_last(call, y)


@importer(_MS + "FusedGemm")
def fused_gemm(call: Call) -> Result:
    y = gemm_of(call, call[0], call[1], call.arg(2))
    params = [call.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return _activated(call, y, call.attr("activation"), params)


_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
}  # fmt: skip
"""Activations of fused operators: the attributes that their parameters are."""


def _activated(call: Call, x: Value, name: str | None, params: list[Any]) -> Value:
    """The activation `name` of x (None: x itself); `params` are values of its attributes in
    _ACTIVATIONS, in order, None for defaults. Raises Unsupported for an unknown one."""
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise Unsupported(f"its activation {name!r} is not supported")
    given = zip(_ACTIVATIONS[name], params, strict=False)
    return call.emit(name, x, **{n: v for n, v in given if v is not None})
