"""Fills LAYERS, the table of ncnn's layer types, by which files are read and written (`schema`
explains its rows). Other constants are text that several rows share."""

from __future__ import annotations

from tinsmith.formats.ncnn.schema import LARGEST, LAYERS, layer_type

__all__ = ["LARGEST", "LAYERS"]

_SIZE = "0 w=0, 1 h=0, 11 d=0, 2 c=0"
_ACT = "9 activation_type=0, 10 activation_params=[f]"
_INT8 = (
    "; R weight_scales num_output if int8_scale_term; R bottom_scale 1 if int8_scale_term"
    "; R top_scale 1 if int8_scale_term > 100"
)
_BIAS = "R bias num_output if bias_term"
_CONV_WEIGHTS = f"T weight weight_data_size if not dynamic_weight; {_BIAS} and not dynamic_weight"
_CONV_1 = (
    f"0 num_output=0, 1 kernel_w=0, 2 dilation_w=1, 3 stride_w=1, 4 pad_left=0, "
    f"15 pad_right=pad_left, 5 bias_term=0, 6 weight_data_size=0, {_ACT}"
)
_CONV_2 = (
    f"{_CONV_1}, 11 kernel_h=kernel_w, 12 dilation_h=dilation_w, 13 stride_h=stride_w, "
    "14 pad_top=pad_left, 16 pad_bottom=pad_top"
)
_CONV_3 = (
    f"{_CONV_2}, 21 kernel_d=kernel_w, 22 dilation_d=dilation_w, 23 stride_d=stride_w, "
    "24 pad_front=pad_left, 17 pad_behind=pad_front"
)
_FORWARD = "18 pad_value=0.0, 8 int8_scale_term=0, 19 dynamic_weight=0"
_BACK_1 = "18 output_pad_right=0, 20 output_w=0, 28 dynamic_weight=0"
_BACK_2 = (
    "18 output_pad_right=0, 19 output_pad_bottom=output_pad_right, 20 output_w=0, "
    "21 output_h=output_w, 28 dynamic_weight=0"
)
_BACK_3 = (
    "18 output_pad_right=0, 19 output_pad_bottom=output_pad_right, "
    "20 output_pad_behind=output_pad_right, 25 output_w=0, 26 output_h=output_w, "
    "27 output_d=output_w, 28 dynamic_weight=0"
)
_GROUPS = "7 group=1"
_ONE = "7 groups=1"
"""A parameter of layers with one group that pnnx writes and ncnn ignores."""
_DEPTHWISE_INT8 = (
    "; R weight_scales group if int8_scale_term in (1, 101)"
    "; R bottom_scale 1 if int8_scale_term in (1, 101)"
    "; R weight_scales 1 if int8_scale_term in (2, 102)"
    "; R bottom_scale 1 if int8_scale_term in (2, 102); R top_scale 1 if int8_scale_term > 100"
)
_POOL_1 = (
    "0 pooling_type=0, 1 kernel_w=0, 2 stride_w=1, 3 pad_left=0, 14 pad_right=pad_left, "
    "4 global_pooling=0, 5 pad_mode=0, 6 avgpool_count_include_pad=0, 7 adaptive_pooling=0, "
    "8 out_w=0"
)
_POOL_2 = (
    f"{_POOL_1}, 11 kernel_h=kernel_w, 12 stride_h=stride_w, 13 pad_top=pad_left, "
    "15 pad_bottom=pad_top, 18 out_h=out_w"
)
_POOL_3 = (
    f"{_POOL_2}, 21 kernel_d=kernel_w, 22 stride_d=stride_w, 23 pad_front=pad_left, "
    "16 pad_behind=pad_front, 28 out_d=out_w"
)
_AFFINE = "R scale {n} if affine; R shift {n} if affine"
_KERNEL = (
    "1 kernel_w=0, 11 kernel_h=kernel_w, 2 dilation_w=1, 12 dilation_h=dilation_w, 3 stride_w=1, "
    "13 stride_h=stride_w, 4 pad_left=0, 15 pad_right=pad_left, 14 pad_top=pad_left, "
    "16 pad_bottom=pad_top"
)
_DIRECTIONS = "(2 if direction == 2 else 1)"
_RECURRENT = "0 num_output=0, 1 weight_data_size=0, 2 direction=0, 8 int8_scale_term=0"


def _recurrent(gates: int, biases: int) -> str:
    """The third part of the row of a recurrent layer, its weights. `gates` and `biases` are the
    numbers of gates and of bias vectors of its cell."""
    d = _DIRECTIONS
    return (
        f"Q w weight_data_size; T b {d} * {biases} * num_output; "
        f"Q r {d} * {gates} * num_output * num_output; "
        f"R w_scales {d} * {gates} * num_output if int8_scale_term; "
        f"R r_scales {d} * {gates} * num_output if int8_scale_term"
    )


_BITS, _BLOCK = "(quantize_term // 100)", "(32 << quantize_term % 10)"


def _blocks(name: str, rows: str, columns: str, condition: str = "1") -> str:
    """The text in a row for the weights `name`, a matrix [rows, columns] that is there if
    `condition` holds (the last three are expressions). With quantize_term >= 400 its elements are
    bytes that hold integers of a few bits, each row padded to whole bytes."""
    return (
        f"Q {name} {rows} * {columns} if {condition} and quantize_term < 400; "
        f"Q {name} {rows} * (({columns} * {_BITS} + 7) // 8) "
        f"if {condition} and quantize_term >= 400"
    )


_ATTENDED = (
    ("q", "embed_dim", "(weight_data_size // embed_dim)"), ("k", "embed_dim", "kdim"),
    ("v", "embed_dim", "vdim"), ("out", "(weight_data_size // embed_dim)", "embed_dim"),
)  # fmt: skip
_ATTENTION = "; ".join(
    [
        *(f"{_blocks(n, rows, columns)}; R {n}_b {rows}" for n, rows, columns in _ATTENDED),
        *(f"R {n}_scales embed_dim if 0 < quantize_term < 400" for n in "qkv"),
        "R out_scales 1 if 0 < quantize_term < 400",
        *(
            f"R {n}_scales {r} * -(-{c} // {_BLOCK}) if quantize_term >= 400"
            for n, r, c in _ATTENDED
        ),
        *(
            f"R {n}_input {c} if quantize_term >= 400 and quantize_term // 10 % 10"
            for n, _, c in _ATTENDED
        ),
    ]
)
_DATA = "prod(n for n in (w, h, d, c) if n) "
_GEMM = (
    "0 alpha=1.0, 1 beta=1.0, 2 transA=0, 3 transB=0, 4 constantA=0, 5 constantB=0, 6 constantC=0, "
    "7 constantM=0, 8 constantN=0, 9 constantK=0, 10 constant_broadcast_type_C=0, 11 output_N1M=0, "
    "12 output_elempack=0, 13 output_elemtype=0, 14 output_transpose=0, 18 quantize_term=0, "
    "20 tile_M=0, 21 tile_N=0, 22 tile_K=0"
)
_GEMM_WEIGHTS = (
    "Q a constantM * constantK if constantA; "
    f"{_blocks('b', 'constantN', 'constantK', 'constantB')}; "
    "T c (1, constantM, constantM, constantM * constantN, constantN)[constant_broadcast_type_C]"
    " if constantC and constant_broadcast_type_C != -1; "
    "R a_scales constantM if constantA and 0 < quantize_term < 400; "
    "R b_scale 1 if constantB and 0 < quantize_term < 400; "
    f"R b_scales constantN * -(-constantK // {_BLOCK}) if quantize_term >= 400; "
    "R b_input constantK if quantize_term >= 400 and quantize_term // 10 % 10"
)
_EXPRESSIONS = '19 starts_expr="", 20 ends_expr="", 21 axes_expr=""'
_SPECTRUM = "3 winlen=n_fft, 4 window_type=0, 5 center=1, {pad}7 normalized=0{rest}"

TABLE = f"""
AbsVal 0
ArgMax 1 | 0 out_max_val=0, 1 topk=1
BatchNorm 2 | 0 channels=0, 1 eps=0.0 | R slope channels; R mean channels; R var channels; \
R bias channels
Bias 3 | 0 bias_data_size=0 | R bias bias_data_size
BNLL 4
Concat 5 | 0 axis=0
Convolution 6 | {_CONV_2}, {_ONE}, {_FORWARD} | {_CONV_WEIGHTS}{_INT8}
Crop 7 | 0 woffset=0, 1 hoffset=0, 13 doffset=0, 2 coffset=0, 3 outw=0, 4 outh=0, 14 outd=0, \
5 outc=0, \
6 woffset2=0, 7 hoffset2=0, 15 doffset2=0, 8 coffset2=0, 9 starts=[i], 10 ends=[i], \
11 axes=[i], {_EXPRESSIONS}
Deconvolution 8 | {_CONV_2}, {_ONE}, {_BACK_2} | {_CONV_WEIGHTS}
Dropout 9 | 0 scale=1.0
Eltwise 10 | 0 op_type=0, 1 coeffs=[f]
ELU 11 | 0 alpha=0.1
Embed 12 | 0 num_output=0, 1 input_dim=0, 2 bias_term=0, 3 weight_data_size=0, \
18 quantize_term=0 | \
Q weight weight_data_size; {_BIAS}; R weight_scale 1 if quantize_term
Exp 13 | 0 base=-1.0, 1 scale=1.0, 2 shift=0.0
Flatten 14
InnerProduct 15 | 0 num_output=0, 1 bias_term=0, 2 weight_data_size=0, 8 int8_scale_term=0, \
{_ACT} | \
T weight weight_data_size; {_BIAS}; R weight_scales num_output if int8_scale_term; \
R bottom_scale 1 if int8_scale_term
Input 16 | {_SIZE}
Log 17 | 0 base=-1.0, 1 scale=1.0, 2 shift=0.0
LRN 18 | 0 region_type=0, 1 local_size=5, 2 alpha=1.0, 3 beta=0.75, 4 bias=1.0
MemoryData 19 | {_SIZE}, 21 load_type=1 | R data {_DATA} if load_type == 1; \
T data {_DATA} if load_type != 1
MVN 20 | 0 normalize_variance=0, 1 across_channels=0, 2 eps=1e-4
Pooling 21 | {_POOL_2}
Power 22 | 0 power=1.0, 1 scale=1.0, 2 shift=0.0
PReLU 23 | 0 num_slope=0 | R slope num_slope
Proposal 24 | 0 feat_stride=16, 1 base_size=16, 2 pre_nms_topN=6000, 3 after_nms_topN=300, \
4 nms_thresh=0.7, 5 min_size=16
Reduction 25 | 0 operation=0, 1 reduce_all=1, 2 coeff=1.0, 3 axes=[i], 4 keepdims=0, 5 fixbug0=0
ReLU 26 | 0 slope=0.0
Reshape 27 | 0 w=-233, 1 h=-233, 11 d=-233, 2 c=-233, 6 shape_expr="", 12 in_batch_axis=233, \
13 out_batch_axis=233
ROIPooling 28 | 0 pooled_width=0, 1 pooled_height=0, 2 spatial_scale=1.0
Scale 29 | 0 scale_data_size=0, 1 bias_term=0 | \
R scale scale_data_size if scale_data_size != -233; \
R bias scale_data_size if bias_term and scale_data_size != -233
Sigmoid 30
Slice 31 | 0 slices=[i], 1 axis=0, 2 indices=[i]
Softmax 32 | 0 axis=0, 1 fixbug0=0
Split 33
SPP 34 | 0 pooling_type=0, 1 pyramid_height=1
TanH 35
Threshold 36 | 0 threshold=0.0
Tile 37 | 0 axis=0, 1 tiles=1, 2 repeats=[i]
RNN 38 | {_RECURRENT} | {_recurrent(1, 1)}
LSTM 39 | {_RECURRENT}, 3 hidden_size=num_output | \
Q w weight_data_size; T b {_DIRECTIONS} * 4 * hidden_size; \
Q r {_DIRECTIONS} * 4 * hidden_size * num_output; \
T p {_DIRECTIONS} * num_output * hidden_size if num_output != hidden_size; \
R w_scales {_DIRECTIONS} * 4 * hidden_size if int8_scale_term; \
R r_scales {_DIRECTIONS} * 4 * hidden_size if int8_scale_term
BinaryOp 40 | 0 op_type=0, 1 with_scalar=0, 2 b=0.0
UnaryOp 41 | 0 op_type=0
ConvolutionDepthWise 42 | {_CONV_2}, {_GROUPS}, {_FORWARD} | {_CONV_WEIGHTS}{_DEPTHWISE_INT8}
Padding 43 | 0 top=0, 1 bottom=0, 2 left=0, 3 right=0, 4 type=0, 5 value=0.0, \
6 per_channel_pad_data_size=0, \
7 front=0, 8 behind=0 | R values per_channel_pad_data_size
Squeeze 44 | 0 squeeze_w=0, 1 squeeze_h=0, 11 squeeze_d=0, 2 squeeze_c=0, 3 axes=[i]
ExpandDims 45 | 0 expand_w=0, 1 expand_h=0, 11 expand_d=0, 2 expand_c=0, 3 axes=[i]
Normalize 46 | 0 across_spatial=0, 4 across_channel=1, 1 channel_shared=0, 2 eps=0.0001, \
9 eps_mode=0, \
3 scale_data_size=0 | R scale scale_data_size
Permute 47 | 0 order_type=0
PriorBox 48 | 0 min_sizes=[f], 1 max_sizes=[f], 2 aspect_ratios=[f], 3 variance0=0.1, \
4 variance1=0.1, 5 variance2=0.2, \
6 variance3=0.2, 7 flip=1, 8 clip=0, 9 image_width=0, 10 image_height=0, 11 step_width=-233.0, \
12 step_height=-233.0, \
13 offset=0.0, 14 step_mmdetection=0, 15 center_mmdetection=0
DetectionOutput 49 | 0 num_class=0, 1 nms_threshold=0.05, 2 nms_top_k=300, 3 keep_top_k=100, \
4 confidence_threshold=0.5, \
5 variance0=0.1, 6 variance1=0.1, 7 variance2=0.2, 8 variance3=0.2
Interp 50 | 0 resize_type=0, 1 height_scale=1.0, 2 width_scale=1.0, 3 output_height=0, \
4 output_width=0, \
5 dynamic_target_size=0, 6 align_corner=0, 9 size_expr=""
DeconvolutionDepthWise 51 | {_CONV_2}, {_GROUPS}, {_BACK_2} | {_CONV_WEIGHTS}
ShuffleChannel 52 | 0 group=1, 1 reverse=0
InstanceNorm 53 | 0 channels=0, 1 eps=1e-3, 2 affine=1 | {_AFFINE.format(n="channels")}
Clip 54 | 0 min={LARGEST}, 1 max={-LARGEST}
Reorg 55 | 0 stride=1, 1 mode=0
YoloDetectionOutput 56 | 0 num_class=20, 1 num_box=5, 2 confidence_threshold=0.01, \
3 nms_threshold=0.45, 4 biases=[f]
Quantize 57 | 0 scale_data_size=1 | R scale scale_data_size
Dequantize 58 | 0 scale_data_size=1, 1 bias_data_size=0 | R scale scale_data_size; \
R bias bias_data_size
Yolov3DetectionOutput 59 | 0 num_class=20, 1 num_box=5, 2 confidence_threshold=0.01, \
3 nms_threshold=0.45, 4 biases=[f], \
5 mask=[f], 6 anchors_scale=[f]
PSROIPooling 60 | 0 pooled_width=7, 1 pooled_height=7, 2 spatial_scale=0.0625, 3 output_dim=0
ROIAlign 61 | 0 pooled_width=0, 1 pooled_height=0, 2 spatial_scale=1.0, 3 sampling_ratio=0, \
4 aligned=0, 5 version=0
Packing 62 | 0 out_elempack=1, 1 use_padding=0, 2 cast_from=0, 3 cast_to=0
Requantize 63 | 0 scale_in_size=1, 1 scale_out_size=1, 2 bias_size=0, 3 activation_type=0, \
4 activation_params=[f] | \
R scale_in scale_in_size; R scale_out scale_out_size; R bias bias_size
Cast 64 | 0 type_from=0, 1 type_to=0
HardSigmoid 65 | 0 alpha=0.2, 1 beta=0.5
SELU 66 | 0 alpha=1.67326324, 1 lambda=1.050700987
HardSwish 67 | 0 alpha=0.2, 1 beta=0.5
Noop 68
PixelShuffle 69 | 0 upscale_factor=1, 1 mode=0
DeepCopy 70
Mish 71
StatisticsPooling 72 | 0 include_stddev=0
Swish 73
Gemm 74 | {_GEMM} | {_GEMM_WEIGHTS}
GroupNorm 75 | 0 group=1, 1 channels=0, 2 eps=1e-3, 3 affine=1 | {_AFFINE.format(n="channels")}
LayerNorm 76 | 0 affine_size=0, 1 eps=1e-3, 2 affine=1 | {_AFFINE.format(n="affine_size")}
Softplus 77
GRU 78 | {_RECURRENT} | {_recurrent(3, 4)}
MultiHeadAttention 79 | 0 embed_dim=0, 1 num_heads=1, 2 weight_data_size=0, 3 kdim=embed_dim, \
4 vdim=embed_dim, 5 attn_mask=0, \
6 scale=0.0, 7 kv_cache=0, 18 quantize_term=0 | {_ATTENTION}
GELU 80 | 0 fast_gelu=0
Convolution1D 81 | {_CONV_1}, {_ONE}, 18 pad_value=0.0, 19 dynamic_weight=0 | {_CONV_WEIGHTS}
Pooling1D 82 | {_POOL_1}
ConvolutionDepthWise1D 83 | {_CONV_1}, {_GROUPS}, 18 pad_value=0.0, 19 dynamic_weight=0 | \
{_CONV_WEIGHTS}
Convolution3D 84 | {_CONV_3}, {_ONE}, 18 pad_value=0.0, 19 dynamic_weight=0 | {_CONV_WEIGHTS}
ConvolutionDepthWise3D 85 | {_CONV_3}, {_GROUPS}, 18 pad_value=0.0, 19 dynamic_weight=0 | \
{_CONV_WEIGHTS}
Pooling3D 86 | {_POOL_3}
MatMul 87 | 0 transB=0
Deconvolution1D 88 | {_CONV_1}, {_ONE}, {_BACK_1} | {_CONV_WEIGHTS}
DeconvolutionDepthWise1D 89 | {_CONV_1}, {_GROUPS}, {_BACK_1} | {_CONV_WEIGHTS}
Deconvolution3D 90 | {_CONV_3}, {_ONE}, {_BACK_3} | {_CONV_WEIGHTS}
DeconvolutionDepthWise3D 91 | {_CONV_3}, {_GROUPS}, {_BACK_3} | {_CONV_WEIGHTS}
Einsum 92 | 0 equation=[i]
DeformableConv2D 93 | {_CONV_2} | T weight weight_data_size; {_BIAS}
GLU 94 | 0 axis=0
Fold 95 | {_KERNEL}, 20 output_w=0, 21 output_h=output_w
Unfold 96 | {_KERNEL}, 18 pad_value=0.0
GridSample 97 | 0 sample_type=1, 1 padding_mode=1, 2 align_corner=0, 3 permute_fusion=0
CumulativeSum 98 | 0 axis=0
CopyTo 99 | 0 woffset=0, 1 hoffset=0, 13 doffset=0, 2 coffset=0, 9 starts=[i], 11 axes=[i]
Erf 100
Diag 101 | 0 diagonal=0
CELU 102 | 0 alpha=1.0
Shrink 103 | 0 bias=0.0, 1 lambd=0.5
RMSNorm 104 | 0 affine_size=0, 1 eps=1e-3, 2 affine=1 | R scale affine_size if affine
Spectrogram 105 | 0 n_fft=0, 1 power=0, 2 hoplen=0, {
    _SPECTRUM.format(pad="6 pad_type=2, ", rest=", 8 onesided=1")
}
InverseSpectrogram 106 | 0 n_fft=0, 1 returns=0, 2 hoplen=0, {_SPECTRUM.format(pad="", rest="")}
Flip 107 | 0 axes=[i]
SDPA 108 | 5 attn_mask=0, 6 scale=0.0, 7 kv_cache=0, 18 quantize_term=0
RotaryEmbed 109 | 0 interleaved=0
"""
for _row in TABLE.strip().splitlines():
    _head, *_told = (part.strip() for part in _row.split("|"))
    _name, _number = _head.split()
    LAYERS.pop(_name, None)  # left by an import that was interrupted
    layer_type(_name, *_told, number=int(_number))
