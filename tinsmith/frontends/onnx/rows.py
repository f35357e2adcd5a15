"""Operators that are one to one: ONNX operator -> ours, with the names of the attributes.

Both have the same inputs and the same defaults. What needs more has an importer function.
"""

from __future__ import annotations

from typing import Any

from tinsmith.frontends.onnx.call import IMPORTERS, Call, Importer, Result
from tinsmith.ops import OPS

PLAIN = """
Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cos Cosh Erf Exp Floor HardSwish IsNaN
Log Mish Neg Not Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh
BitwiseAnd BitwiseOr BitwiseXor Where
Det Expand MatMul MatMulInteger NonZero Size StringConcat DynamicQuantizeLinear
""".split()  # noqa: SIM905
"""Without attributes."""

SAME_NAMES = {
    "Celu": "alpha",
    "Elu": "alpha",
    "Gelu": "approximate",
    "HardSigmoid": "alpha beta",
    "IsInf": "detect_negative detect_positive",
    "LeakyRelu": "alpha",
    "Selu": "alpha gamma",
    "Shrink": "bias lambd",
    "Swish": "alpha",
    "ThresholdedRelu": "alpha",
    "BitShift": "direction",
    "Mod": "fmod",
    "CumSum": "exclusive reverse",
    "CumProd": "exclusive reverse",
    "Compress": "axis",
    "DepthToSpace": "blocksize mode",
    "Einsum": "equation",
    "Flatten": "axis",
    "Gather": "axis",
    "GatherElements": "axis",
    "GatherND": "batch_dims",
    "OneHot": "axis",
    "ReverseSequence": "batch_axis time_axis",
    "ScatterElements": "axis reduction",
    "ScatterND": "reduction",
    "Shape": "start end",
    "TensorScatter": "axis mode",
    "Transpose": "perm",
    "Trilu": "upper",
    "Unique": "axis sorted",
    "CenterCropPad": "axes",
    "NonMaxSuppression": "center_point_box",
    "AffineGrid": "align_corners",
    "LRN": "size alpha beta bias",
    "RegexFullMatch": "pattern",
    "StringNormalizer": "case_change_action is_case_sensitive locale stopwords",
    "StringSplit": "delimiter maxsplit",
    "NegativeLogLikelihoodLoss": "ignore_index reduction",
    "RotaryEmbedding": "interleaved num_heads rotary_embedding_dim",
    "TfIdfVectorizer": "max_gram_length max_skip_count min_gram_length mode ngram_counts "
    "ngram_indexes pool_int64s pool_strings weights",
}
"""Type -> attributes, which have the same names."""

_WINDOW = {"strides": "stride", "pads": "pad", "dilations": "dilation", "auto_pad": "auto_pad"}

RENAMED: dict[str, tuple[str, dict[str, str]]] = {
    "Conv": ("Conv", {**_WINDOW, "group": "group"}),
    "ConvInteger": ("ConvInteger", {**_WINDOW, "group": "group"}),
    "QLinearConv": ("QLinearConv", {**_WINDOW, "group": "group"}),
    "QLinearMatMul": ("QLinearMatMul", {}),
    "DeformConv": (
        "DeformConv",
        {
            "strides": "stride",
            "pads": "pad",
            "dilations": "dilation",
            "group": "group",
            "offset_group": "offset_group",
        },
    ),
    "ConvTranspose": (
        "ConvTranspose",
        {
            **_WINDOW,
            "group": "group",
            "output_padding": "output_padding",
            "output_shape": "output_shape",
        },
    ),
    "MaxUnpool": ("MaxUnpool", {"kernel_shape": "kernel", "strides": "stride", "pads": "pad"}),
    "MeanVarianceNormalization": ("MeanVarianceNorm", {"axes": "axes"}),
    "LpNormalization": ("LpNorm", {"axis": "axis", "p": "p"}),
    "InstanceNormalization": ("InstanceNorm", {"epsilon": "eps"}),
    "Col2Im": ("Col2Im", {"dilations": "dilation", "pads": "pad", "strides": "stride"}),
    "MaxRoiPool": (
        "MaxRoiPool",
        {"pooled_shape": "pooled_shape", "spatial_scale": "spatial_scale"},
    ),
}
"""Type -> our operator, and attributes with their names there."""

IGNORED = {
    "Conv": ("kernel_shape",),
    "ConvInteger": ("kernel_shape",),
    "QLinearConv": ("kernel_shape",),
    "ConvTranspose": ("kernel_shape",),
    "DeformConv": ("kernel_shape",),
}
"""Attributes that repeat what the inputs say."""


def one_to_one(op: str, names: dict[str, str]) -> Importer:
    """An importer that adds one node, with the attributes that are given, renamed."""

    def run(call: Call) -> Result:
        return call.emit(op, *call.inputs, **renamed(call, op, names))

    return run


def renamed(call: Call, op: str, names: dict[str, str]) -> dict[str, Any]:
    """The attributes that the node gives, under our names; flags as bool."""
    call.ignore(*IGNORED.get(call.type, ()))
    found = {}
    for theirs, ours in names.items():
        value = call.attr(theirs)
        if value is not None:
            flag = isinstance(OPS[op].attrs.get(ours), bool)
            found[ours] = bool(value) if flag else value
    return found


def table() -> dict[str, tuple[str, dict[str, str]]]:
    """All rows: type -> (our operator, attribute names)."""
    rows = {name: (name, {}) for name in PLAIN}
    rows |= {k: (k, {n: n for n in v.split()}) for k, v in SAME_NAMES.items()}
    return {**rows, **RENAMED}


for _type, (_op, _names) in table().items():
    IMPORTERS.register(_type, one_to_one(_op, _names))
