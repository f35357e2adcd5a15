"""The operators of ONNX that correspond to one of ours, with their attributes' names: a table that
importer and writer share. Inputs and defaults are the same on both sides."""

from __future__ import annotations

PLAIN = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos",
    "Cosh", "Erf", "Exp", "Floor", "HardSwish", "IsNaN", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
    "Sqrt", "Tan", "Tanh", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Where", "Det", "Expand",
    "MatMul", "MatMulInteger", "NonZero", "Size", "StringConcat", "DynamicQuantizeLinear",
)  # fmt: skip
"""Operators without attributes, of the same names on both sides."""

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
"""Operator -> its attributes; all names are the same on both sides."""


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


_STEPS = {"strides": "stride", "pads": "pad", "dilations": "dilation"}
_WINDOW = {**_STEPS, **_same("auto_pad group")}

RENAMED: dict[str, tuple[str, dict[str, str]]] = {
    "Conv": ("Conv", _WINDOW),
    "ConvInteger": ("ConvInteger", _WINDOW),
    "QLinearConv": ("QLinearConv", _WINDOW),
    "QLinearMatMul": ("QLinearMatMul", {}),
    "DeformConv": ("DeformConv", {**_STEPS, **_same("group offset_group")}),
    "ConvTranspose": ("ConvTranspose", {**_WINDOW, **_same("output_padding output_shape")}),
    "MaxUnpool": ("MaxUnpool", {"kernel_shape": "kernel", "strides": "stride", "pads": "pad"}),
    "MeanVarianceNormalization": ("MeanVarianceNorm", {"axes": "axes"}),
    "LpNormalization": ("LpNorm", {"axis": "axis", "p": "p"}),
    "InstanceNormalization": ("InstanceNorm", {"epsilon": "eps"}),
    "Col2Im": ("Col2Im", {"dilations": "dilation", "pads": "pad", "strides": "stride"}),
    "MaxRoiPool": ("MaxRoiPool", _same("pooled_shape spatial_scale")),
}
"""ONNX operator -> (our operator, {ONNX's attribute: ours})."""


def table() -> dict[str, tuple[str, dict[str, str]]]:
    """The whole table: ONNX operator -> (our operator, {ONNX's attribute: ours})."""
    rows: dict[str, tuple[str, dict[str, str]]] = {name: (name, {}) for name in PLAIN}
    rows |= {name: (name, _same(attributes)) for name, attributes in SAME_NAMES.items()}
    return {**rows, **RENAMED}
