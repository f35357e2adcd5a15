"""Importers of pooling, normalisation, resizing, recurrent and quantised operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.formats.onnx_names import POOL
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.rows import renamed
from tinsmith.graph import Value
from tinsmith.ops.precision import is_half
from tinsmith.ops.resize import unless_empty


@importer("MaxPool")
def max_pool(call: Call) -> Result:
    attrs = renamed(call, "MaxPool", f"{POOL} storage_order")
    return call.emit("MaxPool", call[0], with_indices=call.wants(1), **attrs)


@importer("LpPool")
def lp_pool(call: Call) -> Result:
    attrs = renamed(call, "LpPool", POOL)
    return call.emit("LpPool", call[0], p=int(call.attr("p", 2)), **attrs)


@importer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call) -> Result:
    if call.type == "GlobalLpPool":
        return call.emit("GlobalPool", call[0], kind="lp", p=int(call.attr("p", 2)))
    return call.emit("GlobalPool", call[0], kind="max" if "Max" in call.type else "mean")


@importer("BatchNormalization")
def batch_norm(call: Call) -> Result:
    eps = call.attr("epsilon", 1e-5)
    call.ignore("momentum", "is_test", "consumed_inputs")
    if call.attr("training_mode", 0):
        return _batch_norm_of_batch(call, eps)
    if any(call.used(i) for i in range(1, 5)):
        raise Unsupported("it is in training mode: only inference is supported")
    values = [call[i] for i in range(5)]
    spare = (call.const(np.zeros(0, np.float32)),) * (len(call.outputs) - 1)
    if call.attr("spatial", 1):
        return call.emit("BatchNorm", *values, eps=eps), *spare
    x, scale, shift, mean, var = values  # one statistic for each element of [C, ...]
    deviation = call.emit("Sqrt", call.emit("Add", var, call.number(eps, var)))
    y = call.emit("Div", call.emit("Sub", x, mean), deviation)
    return call.emit("Add", call.emit("Mul", y, scale), shift), *spare


def _batch_norm_of_batch(call: Call, eps: float) -> Result:
    """Import a batch normalisation in training mode: by the statistics of its input. (Models that
    normalise their weights in each run are exported so.) Outputs: y and, if the node has them,
    running mean and variance. Raises Unsupported for an unknown rank."""
    x, scale, shift, mean, var = (call[i] for i in range(5))
    if x.rank is None:
        raise Unsupported("it is in training mode, and the rank of its input is not known")
    axes = call.ints(0, *range(2, x.rank))

    def averaged(v: Value, keepdims: bool) -> Value:
        return call.emit("Reduce", v, axes, kind="mean", keepdims=keepdims)

    off = call.emit("Sub", x, averaged(x, True))
    now = averaged(x, False), averaged(call.emit("Mul", off, off), False)
    y = call.emit("BatchNorm", x, scale, shift, *now, eps=eps)
    momentum = call.attr("momentum", 0.9)

    def running(before: Value, new: Value) -> Value:
        kept = call.emit("Mul", before, call.number(momentum, before))
        return call.emit("Add", kept, call.emit("Mul", new, call.number(1 - momentum, new)))

    pairs = zip((mean, var), now, range(1, len(call.outputs)), strict=False)
    return y, *(running(before, new) for before, new, _ in pairs)


@importer("LayerNormalization")
def layer_norm(call: Call) -> Result:
    call.ignore("stash_type")  # the reference computes statistics in float32 at least
    axis, eps = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    stats = call.wants(1) or call.wants(2)
    return call.emit("LayerNorm", *call.inputs, axis=axis, eps=eps, with_stats=stats)


@importer(
    "RMSNormalization", "SimplifiedLayerNormalization",
    "com.microsoft.SimplifiedLayerNormalization",
)  # fmt: skip
def rms_norm(call: Call) -> Result:
    call.ignore("stash_type")
    axis, eps = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    return call.emit("RMSNorm", call[0], call[1], axis=axis, eps=eps)


@importer("GroupNormalization")
def group_norm(call: Call) -> Result:
    call.ignore("stash_type")
    x, scale, shift = call[0], call[1], call[2]
    groups = call.required("num_groups")
    if call.opset < 21:
        scale, shift = (_by_channel(call, x, v, groups) for v in (scale, shift))
    return call.emit("GroupNorm", x, scale, shift, groups=groups, eps=call.attr("epsilon", 1e-5))


def _by_channel(call: Call, x: Value, per_group: Value, groups: int) -> Value:
    """`per_group` [groups], each element repeated for the channels of its group: [C], for x
    [N,C,...]. Raises Unsupported if C is unknown."""
    channels = x.shape[1] if x.shape is not None else None
    if not isinstance(channels, int):
        raise Unsupported("before opset 21 it needs a known number of channels")
    if per_group.const is not None:
        call.scope.shared.model.spend(channels * per_group.dtype.itemsize, repr(call.label))
        return call.const(np.repeat(per_group.const, channels // groups))
    column = call.emit("Unsqueeze", per_group, call.ints(1))
    tiled = call.emit("Tile", column, call.ints(1, channels // groups))
    return call.emit("Reshape", tiled, call.ints(-1))


_RESIZE = (
    "coordinate_transformation_mode cubic_coeff_a extrapolation_value keep_aspect_ratio_policy "
    "mode nearest_mode antialias exclude_outside axes"
)


@importer("Resize")
def resize(call: Call) -> Result:
    if call.opset < 11:
        return _legacy_resize(call, call[1])
    attrs = renamed(call, "Resize", _RESIZE)
    crops = attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = call.arg(1) if crops else None
    scales, sizes = (unless_empty(call.arg(i)) for i in (2, 3))
    if (scales is None) == (sizes is None):
        raise Unsupported("it needs either scales or sizes")
    return call.emit("Resize", call[0], roi, scales, sizes, **attrs)


@importer("Upsample")
def upsample(call: Call) -> Result:
    if call.opset >= 9:
        return _legacy_resize(call, call[1])
    scales = call.attr("scales")
    if scales is None:  # opset 1
        scales = [1.0, 1.0, call.required("height_scale"), call.required("width_scale")]
    return _legacy_resize(call, call.const(scales, np.float32))


def _legacy_resize(call: Call, scales: Value) -> Value:
    """Emit a Resize by `scales` as in opset 10 and Upsample: coordinates are x / scale, for
    "nearest" rounded up along axes that shrink and down along others."""
    mode = call.attr("mode", "nearest")
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode)
    attrs = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest":
        return call.emit("Resize", call[0], None, scales, **attrs)
    x, given, one = call[0], scales.const, call.number(1, scales)
    for op, bound, rounding in (("Min", np.minimum, "ceil"), ("Max", np.maximum, "floor")):
        part = call.emit(op, scales, one) if given is None else call.const(bound(given, one.const))
        last = rounding == "floor" and x is call[0]
        if last or part.const is None or bool((part.const != 1).any()):
            x = call.emit("Resize", x, None, part, nearest_mode=rounding, **attrs)
    return x


@importer("GridSample")
def grid_sample(call: Call) -> Result:
    mode, padding = call.attr("mode", "linear"), call.attr("padding_mode", "zeros")
    return call.emit(
        "GridSample", call[0], call[1], padding_mode=padding,
        mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
        align_corners=bool(call.attr("align_corners", 0)),
    )  # fmt: skip


@importer("RoiAlign")
def roi_align(call: Call) -> Result:
    shift = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    attrs = call.given("mode", "output_height", "output_width", "sampling_ratio", "spatial_scale")
    transform = call.attr("coordinate_transformation_mode", shift)
    return call.emit("RoiAlign", *call.inputs, coordinate_transformation_mode=transform, **attrs)


@importer("RNN", "GRU", "LSTM")
def recurrent(call: Call) -> Result:
    return recurrent_of(call, call.type, list(call.inputs))


def recurrent_of(call: Call, kind: str, inputs: list[Value | None], **more: Any) -> Result:
    """Emit a recurrent layer `kind` ("LSTM", "GRU", "RNN") over `inputs`, in ONNX's order, with the
    attributes of `call`, and `more` of our operator. Raises Unsupported if the hidden size is
    unknown."""
    names = ("activations", "activation_alpha", "activation_beta", "clip", "direction", "layout")
    attrs = call.given(*names)
    call.ignore("output_sequence")
    hidden = call.attr("hidden_size")
    if hidden is None:
        shape = None if inputs[2] is None else inputs[2].shape
        if shape is None or not isinstance(shape[-1], int):
            raise Unsupported("its hidden_size is neither given nor known from R")
        hidden = shape[-1]
    if kind == "GRU":
        attrs["linear_before_reset"] = call.attr("linear_before_reset", 0)
    if kind == "LSTM":
        attrs["input_forget"] = call.attr("input_forget", 0)
    return call.emit(kind, *inputs, hidden_size=hidden, **attrs, **more)


@importer("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize(call: Call) -> Result:
    """Import QuantizeLinear. The result has the type of the zero point or of `output_dtype`, which
    must agree if both are given; uint8 without either. Before opset 23, since which the type of the
    scale is that of the division, halves are divided in float32, as ONNX Runtime does."""
    attrs = call.given("axis", "block_size")
    if not call.attr("saturate", 1):
        attrs["saturate"] = False
    attrs |= {"dtype": call.dtype("output_dtype"), "precision": call.dtype("precision")}
    if call.opset < 23 and is_half(call[1].dtype):
        attrs["precision"] = "float32"
    return call.emit("QuantizeLinear", *call.inputs, **attrs)


@importer("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize(call: Call) -> Result:
    attrs = call.given("axis", "block_size") | {"dtype": call.dtype("output_dtype")}
    return call.emit("DequantizeLinear", *call.inputs, **attrs)


@importer("SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> Result:
    return call.emit(
        "SoftmaxCrossEntropyLoss", *call.inputs, with_log_prob=call.wants(1),
        **call.given("ignore_index", "reduction"),
    )  # fmt: skip


_ATTENTION = (
    "scale", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode",
    "left_window_size", "right_window_size",
)  # fmt: skip


@importer("Attention")
def attention(call: Call) -> Result:
    """Import Attention. Present keys and values, and scores, are computed only if the node names
    them. A mask of integers is added to the scores."""
    present, scores = call.wants(1) or call.wants(2), call.wants(3)
    mask = call.arg(3)
    if mask is not None and mask.dtype.kind in "iu":
        call.inputs[3] = call.emit("Cast", mask, to=call[0].dtype.name)
    y = call.emit(
        "Attention", *call.inputs, is_causal=bool(call.attr("is_causal", 0)),
        softmax_precision=call.dtype("softmax_precision"), with_present=present, with_qk=scores,
        **call.given(*_ATTENTION),
    )  # fmt: skip
    if scores and not present:
        return y[0], None, None, y[1]
    return y
