"""Writes operators that are one ONNX node each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.formats.onnx_messages import code_of, type_proto
from tinsmith.formats.onnx_names import POOL, TABLE
from tinsmith.frontends.onnx.arithmetic import REDUCTIONS
from tinsmith.graph import SequenceType, Type
from tinsmith.ops.precision import is_half
from tinsmith.ops.quant import divided_in
from tinsmith.writers.onnx.row import ML, MS, Row, Write, row
from tinsmith.writers.rows import Inexpressible

_GATED = "activations activation_alpha activation_beta clip direction hidden_size layout"

SAME = (
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "And", "Or", "Xor", "Equal", "Less",
    "LessOrEqual", "Greater", "GreaterOrEqual", "PRelu", "Identity", "Squeeze", "Unsqueeze",
    "Slice", "Tile", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength",
    "SequenceConstruct", "OptionalGetElement", "OptionalHasElement",
)  # fmt: skip
"""Operators of the same name and without attributes; `onnx_names` has those for which importer and
writer agree."""

ROWS_OF_ONE: dict[str, tuple[str, str]] = {
    **{name: (name, "") for name in SAME},
    **{name: (name, "axis") for name in ("Softmax", "LogSoftmax", "Hardmax", "Concat")},
    "Reshape": ("Reshape", "allowzero"),
    "Pad": ("Pad", "mode"),
    "TopK": ("TopK", "axis largest sorted"),
    "DFT": ("DFT", "inverse onesided"),
    "STFT": ("STFT", "onesided"),
    "MaxPool": ("MaxPool", f"{POOL} storage_order"),
    "LpPool": ("LpPool", f"{POOL} p"),
    "BatchNorm": ("BatchNormalization", "epsilon=eps"),
    "GroupNorm": ("GroupNormalization", "num_groups=groups epsilon=eps"),
    "RMSNorm": ("RMSNormalization", "axis epsilon=eps"),
    "GridSample": ("GridSample", "mode padding_mode align_corners"),
    "RoiAlign": ("RoiAlign", "mode output_height output_width sampling_ratio spatial_scale "
                 "coordinate_transformation_mode"),
    "Resize": ("Resize", "coordinate_transformation_mode cubic_coeff_a extrapolation_value "
               "keep_aspect_ratio_policy mode nearest_mode antialias exclude_outside axes"),
    "RNN": ("RNN", _GATED),
    "GRU": ("GRU", f"{_GATED} linear_before_reset"),
    "SoftmaxCrossEntropyLoss": ("SoftmaxCrossEntropyLoss", "ignore_index reduction"),
    "SequenceEmpty": ("SequenceEmpty", "dtype"),
    "ConcatFromSequence": ("ConcatFromSequence", "axis new_axis"),
    "SplitToSequence": ("SplitToSequence", "axis keepdims"),
}  # fmt: skip
"""Our operator -> (ONNX operator, names of attributes as for `Row.given`)."""


def one_to_one(type: str, names: str) -> Write:
    return lambda r: r.end(type, *r.node.inputs, **r.given(names))


_EXPANDED = ("HardSwish", "Mod", "RotaryEmbedding", "SpaceToDepth", "Swish")
"""Operators that `expanded` writes, though the importer reads them as one to one."""
for _type, (_ours, _names) in TABLE.items():
    if _ours not in _EXPANDED:
        row.register(_ours, one_to_one(_type, _names))
for _ours, (_type, _text) in ROWS_OF_ONE.items():
    row.register(_ours, one_to_one(_type, _text))


# ---- element types, which ONNX has as numbers

_dequantize = one_to_one("DequantizeLinear", "output_dtype=dtype axis block_size")


@row("DequantizeLinear")
def dequantize(r: Row) -> None:
    """Write a DequantizeLinear, unless only LSTMs with the attribute `rounded` read it: these write
    its integer weights themselves (`_bytes`)."""
    uses = r.node.output.uses
    if not (uses and all(n.attrs.get("rounded") for n in uses)):
        _dequantize(r)


@row("LSTM")
def lstm(r: Row) -> None:
    given = r.given(f"{_GATED} input_forget")
    if not r.rounded:
        r.end("LSTM", *r.node.inputs, **given)
        return
    (w, *of_w), (back, *of_r) = _bytes(r, 1), _bytes(r, 2)
    more = [r[i] for i in range(3, 8)]
    r.end("DynamicQuantizeLSTM", r[0], w, back, *more, *of_w, *of_r, domain=MS, **given)


def _bytes(r: Row, at: int) -> tuple[Any, ...]:
    """Return (integer weights [direction, input, gates], scales, zero points) of input number `at`
    of an LSTM with `rounded`, if a DequantizeLinear of constants gives it. Raises Inexpressible for
    others."""
    v = r[at]
    node = None if v is None else v.producer
    given = [] if node is None else [None if v is None else v.const for v in node.inputs]
    if node is None or "dequantise" not in node.op.traits or len(given) < 3:
        raise Inexpressible(
            "it rounds what it multiplies, and its weights are no bytes with zero points"
        )
    w, *numbers = given
    if w is None or any(v is None or v.ndim != 3 for v in numbers):
        raise Inexpressible(
            "it rounds what it multiplies, and its weights have no scale for each output"
        )
    found = [v[..., 0] for v in numbers if v is not None]
    if all((v == v[:, :1]).all() for v in found):  # one for each direction: any zero point is taken
        found = [v[:, 0] for v in found]
    return w.transpose(0, 2, 1), *found


@row("Cast")
def cast(r: Row) -> None:
    saturate = None if r.saturate else 0
    mode = None if r.round_mode == "up" else r.round_mode
    r.end("Cast", r[0], to=code_of(r.to), saturate=saturate, round_mode=mode)


@row("BitCast")
def bit_cast(r: Row) -> None:
    r.end("BitCast", r[0], to=code_of(r.to))


@row("QuantizeLinear")
def quantize(r: Row) -> None:
    zero = r[2]
    kind = None if r.dtype is None or zero is not None else code_of(r.dtype)
    scale = r.node.operand(1)
    told = r.precision is not None or is_half(scale.dtype)  # without it, halves depend on the opset
    precision = code_of(divided_in(scale, r.precision)) if told else None
    r.end("QuantizeLinear", *r.node.inputs, output_dtype=kind, precision=precision,
          **r.given("axis block_size saturate"))  # fmt: skip


@row("ConstantOfShape")
def constant_of_shape(r: Row) -> None:
    r.end("ConstantOfShape", r[0], value=np.array([r.value], r.node.output.dtype))


@row("Optional")
def optional(r: Row) -> None:
    kind = None
    if r[0] is None:
        item = Type(np.dtype(r.dtype), None)
        kind = type_proto(SequenceType(item) if r.sequence else item)
    r.end("Optional", r[0], type=kind)


# ---- one operator of ours for several of ONNX


@row("Reduce")
def reduction(r: Row) -> None:
    r.end(REDUCTIONS[r.kind], r[0], r[1], **r.given("keepdims noop_with_empty_axes"))


@row("ArgReduce")
def arg_reduction(r: Row) -> None:
    names = "axis keepdims select_last_index=select_last"
    r.end("ArgMax" if r.kind == "max" else "ArgMin", r[0], **r.given(names))


@row("GlobalPool")
def global_pool(r: Row) -> None:
    type = {"mean": "GlobalAveragePool", "max": "GlobalMaxPool", "lp": "GlobalLpPool"}[r.kind]
    r.end(type, r[0], p=r.p if r.kind == "lp" else None)


@row("Clip")
def clip(r: Row) -> None:
    dtype = r.node.output.dtype
    bounds = [None if b is None else np.array(b, dtype) for b in (r.min, r.max)]
    r.end("Clip", r[0], *bounds)


@row("Split")
def split(r: Row) -> None:
    count = len(r.node.outputs) if r[1] is None else None
    r.end("Split", r[0], r[1], axis=r.axis or None, num_outputs=count)


@row("LayerNorm")
def layer_norm(r: Row) -> None:
    scale = r[1]
    ones: Any = scale
    if scale is None:
        rank = r.node.output.rank or 0
        sizes = [r.size(0, i, "the size that it normalises") for i in range(r.axis % rank, rank)]
        ones = np.ones(sizes, r.node.output.dtype)
    r.end("LayerNormalization", r[0], ones, r[2], **r.given("axis epsilon=eps"))


@row("Attention")
def attention(r: Row) -> None:
    """Write Attention. Our node has y, and of the other outputs (present key and value, scores)
    only those asked for; in ONNX each has its position, "" if it is left out."""
    names = (
        "scale softcap q_num_heads kv_num_heads qk_matmul_output_mode is_causal left_window_size "
        "right_window_size"
    )
    precision = None if r.softmax_precision is None else code_of(r.softmax_precision)
    y, *rest = r.outs
    scores = rest.pop() if r.with_qk else ""
    gives = [y, *(rest or ["", ""]), scores] if rest or scores else [y]
    r.put("Attention", *r.node.inputs, gives=gives, softmax_precision=precision,
          **r.given(names))  # fmt: skip


# ---- of other domains


@row("Inverse")
def inverse(r: Row) -> None:
    r.end("Inverse", r[0], domain=MS)


@row("ZipMap")
def zip_map(r: Row) -> None:
    name = "classlabels_strings" if isinstance(r.keys[0], str) else "classlabels_int64s"
    r.end("ZipMap", r[0], domain=ML, **{name: r.keys})


# ---- control flow


@row("If")
def if_(r: Row) -> None:
    r.end("If", r[0], then_branch=r.then_branch, else_branch=r.else_branch)


@row("Loop", "Scan", "SequenceMap")
def loop(r: Row) -> None:
    """Write a Loop, Scan or SequenceMap, without the values that its body captures: in ONNX a body
    reads them by their names."""
    given = {n: value for n, value in r.node.attrs.items() if n != "captured"}
    r.end(r.node.op.name, *r.node.inputs[: len(r.node.inputs) - r.captured], **given)


@row("Lookup")
def lookup(r: Row) -> None:
    _, keys, values, default = r.node.inputs
    given = {"keys_tensor": keys, "values_tensor": values, "default_tensor": default}
    arrays = {n: v.const for n, v in given.items() if v is not None}
    if any(a is None for a in arrays.values()):
        raise Inexpressible("its keys, values and default must be constants")
    arrays = {n: a.reshape(-1) for n, a in arrays.items() if a is not None}
    r.end("LabelEncoder", r[0], domain=ML, **arrays)
