"""The operators of ONNX that correspond to one of ours, with their attributes' names: a table that
importer and writer share. Inputs and defaults are the same on both sides."""

from __future__ import annotations

PLAIN = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos",
    "Cosh", "Erf", "Exp", "Floor", "HardSwish", "IsNaN", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
    "Sqrt", "Tan", "Tanh", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Where", "Det", "Expand",
    "MatMul", "MatMulInteger", "NonZero", "Range", "Size", "StringConcat", "DynamicQuantizeLinear",
)  # fmt: skip
"""Operators without attributes, of the same names on both sides."""

SAME_NAMES = {
    "Bernoulli": "dtype seed",
    "Celu": "alpha",
    "Elu": "alpha",
    "EyeLike": "dtype k",
    "Gelu": "approximate",
    "HardSigmoid": "alpha beta",
    "ImageDecoder": "pixel_format",
    "IsInf": "detect_negative detect_positive",
    "LeakyRelu": "alpha",
    "Multinomial": "dtype sample_size seed",
    "RandomNormal": "dtype shape mean scale seed",
    "RandomNormalLike": "dtype mean scale seed",
    "RandomUniform": "dtype shape low high seed",
    "RandomUniformLike": "dtype low high seed",
    "Selu": "alpha gamma",
    "Shrink": "bias lambd",
    "SpaceToDepth": "blocksize mode",
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

_STEPS = "strides=stride pads=pad dilations=dilation"
_WINDOW = f"{_STEPS} auto_pad group"
POOL = f"{_STEPS} auto_pad ceil_mode kernel_shape=kernel"
"""The attributes of all poolings, as for `pairs_of`."""

RENAMED: dict[str, tuple[str, str]] = {
    "Conv": ("Conv", _WINDOW),
    "ConvInteger": ("ConvInteger", _WINDOW),
    "QLinearConv": ("QLinearConv", _WINDOW),
    "QLinearMatMul": ("QLinearMatMul", ""),
    "DeformConv": ("DeformConv", f"{_STEPS} group offset_group"),
    "ConvTranspose": ("ConvTranspose", f"{_WINDOW} output_padding output_shape"),
    "AveragePool": ("AveragePool", f"{POOL} count_include_pad"),
    "MaxUnpool": ("MaxUnpool", "kernel_shape=kernel strides=stride pads=pad"),
    "MeanVarianceNormalization": ("MeanVarianceNorm", "axes"),
    "LpNormalization": ("LpNorm", "axis p"),
    "InstanceNormalization": ("InstanceNorm", "epsilon=eps"),
    "Col2Im": ("Col2Im", "dilations=dilation pads=pad strides=stride"),
    "MaxRoiPool": ("MaxRoiPool", "pooled_shape spatial_scale"),
    "HannWindow": ("HannWindow", "output_datatype=dtype periodic"),
    "HammingWindow": ("HammingWindow", "output_datatype=dtype periodic"),
    "BlackmanWindow": ("BlackmanWindow", "output_datatype=dtype periodic"),
    "MelWeightMatrix": ("MelWeightMatrix", "output_datatype=dtype"),
}
"""ONNX operator -> (our operator, its attributes as for `pairs_of`). `dtype` of ours is an element
type, which ONNX has as a number."""


TABLE: dict[str, tuple[str, str]] = {
    **{name: (name, "") for name in PLAIN},
    **{name: (name, attributes) for name, attributes in SAME_NAMES.items()},
    **RENAMED,
}
"""The whole table, in the form of `RENAMED`."""
