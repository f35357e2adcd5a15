"""Operators of ONNX that are one to one with ours, and the names of their attributes: one table for
the importer and the writer. The inputs and the defaults are the same on both sides."""

from __future__ import annotations

PLAIN = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos",
    "Cosh", "Erf", "Exp", "Floor", "HardSwish", "IsNaN", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
    "Sqrt", "Tan", "Tanh", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Where", "Det", "Expand",
    "MatMul", "MatMulInteger", "NonZero", "Size", "StringConcat", "DynamicQuantizeLinear",
)  # fmt: skip
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


def table() -> dict[str, tuple[str, dict[str, str]]]:
    """All rows of names that importer and writer share: ONNX operator -> (our operator, {ONNX's
    attribute: ours})."""
    rows: dict[str, tuple[str, dict[str, str]]] = {name: (name, {}) for name in PLAIN}
    rows |= {k: (k, {n: n for n in v.split()}) for k, v in SAME_NAMES.items()}
    return {**rows, **RENAMED}
