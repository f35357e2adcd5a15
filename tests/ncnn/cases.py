"""Layers of ncnn, each alone with several parameters: models, inputs, and what ncnn makes of them.

A case is "Type shapes; params; outputs": "Pooling 3x7x8; 0=1 1=3 2=2" has one input of 3 channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ncnn import more_cases
from tinsmith.formats.ncnn.param import Layer, read_param
from tinsmith.formats.ncnn.weights import draw_weights, write_weights

CONV = """
{0} {x}; 0=6 1=3 5=1 6={w}
{0} {x}; 0=6 1=3 3=2 4=1 5=1 6={w} 9=1
{0} {x}; 0=6 1=3 2=2 4=-233 5=1 6={w} 9=2 -23310=1,1.0e-01
{0} {x}; 0=6 1=3 3=2 4=-234 6={w} 9=3 -23310=2,-2.0e-01,3.0e-01
{0} {x}; 0=6 1=3 4=1 15=2 5=1 6={w} 9=4
{0} {x}; 0=6 1=3 5=1 6={w} 9=5
"""
BACK = """
{0} {x}; 0=6 1=3 5=1 6={w}
{0} {x}; 0=6 1=3 3=2 4=1 5=1 6={w} 9=1
{0} {x}; 0=6 1=3 3=2 18=1 5=1 6={w}
{0} {x}; 0=6 1=3 2=2 4=1 15=0 5=1 6={w}
"""
TEXT = """
AbsVal 3x4x5; 
BNLL 4x5; 
BatchNorm 7; 0=7 1=1e-3
BatchNorm 4x5; 0=4
BatchNorm 3x4x5; 0=3 1=1e-5
BatchNorm 3x2x4x5; 0=3 1=1e-5
Bias 3x4x5; 0=3
Bias 4x5; 0=4
Bias 5; 0=5
BinaryOp 3x4x5 3x4x5; 0=0
BinaryOp 3x4x5 3; 0=1
BinaryOp 3x4x5 5; 0=2
BinaryOp 3x4x5 3x4; 0=3
BinaryOp 4x5 4; 0=4
BinaryOp 5 4x5; 0=5
BinaryOp 3x4x5 1; 0=0
BinaryOp 3x1x5 1x4x5; 0=7
BinaryOp 3x2x4x5 3x2x4; 0=0
BinaryOp 3x2x4x5 3x2; 0=2
BinaryOp 3x2x4x5 3; 0=2
BinaryOp 3x2x4x5 5; 0=2
BinaryOp 3x4x5; 0=1 1=1 2=5.0e-01
BinaryOp 3x4x5; 0=7 1=1 2=5.0e-01
BinaryOp 3x4x5; 0=8 1=1 2=5.0e-01
BinaryOp 3x4x5; 0=9 1=1 2=1.5e+00
BinaryOp 3x4x5 3x4x5; 0=8
BinaryOp 3x4x5 3x4x5; 0=10
BinaryOp 3x4x5 3x4x5; 0=11
BinaryOp 3x4x5; 0=12 1=1 2=3.0e-01
BinaryOp 3x4x5; 0=13 1=1 2=3.0e-01
BinaryOp 3x4x5 3x4x5; 0=14
BinaryOp 3x4x5; 0=15 1=1 2=3.0e-01
BinaryOp 3x4x5; 0=16 1=1 2=3.0e-01
BinaryOp 3x4x5; 0=17 1=1 2=3.0e-01
BinaryOp 3x4x5; 0=18 1=1 2=3.0e-01
CELU 3x4x5; 0=5.0e-01
Cast 3x4x5; 0=1 1=1
Clip 3x4x5; 0=-2.0e-01 1=3.0e-01
Concat 3x4x5 2x4x5; 0=0
Concat 3x4x5 3x4x2; 0=-1
Concat 4x5 4x2; 0=1
CopyTo 3x6x7 2x4x5; 0=1 1=2 2=1
CopyTo 6x7 2x3; 0=1 1=2
CopyTo 9 3; 0=2
Crop 3x6x7; 0=1 1=2 2=1 3=4 4=3 5=2
Crop 3x6x7; 0=1 1=2 2=1 3=-233 4=-233 5=-233
Crop 3x6x7; 0=1 1=2 2=0 3=-233 4=-233 5=-233 6=1 7=1 8=1
Crop 3x6x7; -23309=2,1,-4 -23310=2,-233,-1 -23311=2,0,2
Crop 3x6x7; -23309=1,2 -23310=1,4 -23311=1,1
Crop 3x6x7 2x3x4; 0=1 1=2 2=1
Crop 6x7; 0=1 1=2 3=4 4=3
DetectionOutput 48 36 +2x48; 0=3 1=4.5e-01 2=10 3=20 4=1.0e-01
DetectionOutput 48 36 +2x48; 0=3 1=9.0e-01 2=4 3=6 4=0.5e-01
DetectionOutput 48 3x12 +12x4; 0=-233 1=4.5e-01 2=10 3=20 4=1.0e-01
Crop 9; 0=2 3=4
CumulativeSum 3x4x5; 0=0
CumulativeSum 3x4x5; 0=-1
CumulativeSum 4x5; 0=0
{conv2}
Convolution 4x9x10; 0=6 1=3 11=1 2=1 12=2 3=1 13=2 4=1 14=0 5=1 6=72 9=6 \
-23310=2,1.666667e-01,5.0e-01
Convolution 4x9x10; 0=6 1=1 5=1 6=24
Convolution 4x9x10; 0=6 1=3 4=1 18=5.0e-01 6=216
{dw2}
ConvolutionDepthWise 4x9x10; 0=8 1=3 4=1 5=1 6=144 7=2
{conv1}
ConvolutionDepthWise1D 4x11; 0=4 1=3 4=1 5=1 6=12 7=4
{conv3}
ConvolutionDepthWise3D 4x5x6x7; 0=4 1=3 4=1 5=1 6=108 7=4
{back2}
Deconvolution 4x5x6; 0=6 1=3 3=2 4=-233 20=10 21=9 5=1 6=216
Deconvolution 4x5x6; 0=6 1=3 3=2 4=-234 20=10 21=9 5=1 6=216
DeconvolutionDepthWise 4x5x6; 0=4 1=3 3=2 4=1 5=1 6=36 7=4
DeconvolutionDepthWise 4x5x6; 0=6 1=3 3=2 5=1 6=108 7=2
Deconvolution1D 4x7; 0=6 1=3 3=2 4=1 5=1 6=72
DeconvolutionDepthWise1D 4x7; 0=4 1=3 3=2 4=1 5=1 6=12 7=4
Deconvolution3D 3x4x3x5; 0=2 1=3 3=2 4=1 5=1 6=162
DeconvolutionDepthWise3D 2x4x3x5; 0=2 1=3 3=2 4=1 5=1 6=54 7=2
DeformableConv2D 4x6x7 18x6x7; 0=6 1=3 4=1 5=1 6=216
DeformableConv2D 4x6x7 18x6x7 9x6x7; 0=6 1=3 4=1 5=1 6=216
DeepCopy 3x4x5; 
Diag 5; 0=0
Diag 5; 0=2
Diag 5; 0=-1
Diag 6x4; 0=1
Diag 4x6; 0=-1
Dropout 3x4x5; 0=5.0e-01
ELU 3x4x5; 0=5.0e-01
Einsum 4x5 5x6; -23300=9,105,106,44,106,107,45,62,105,107
Eltwise 3x4x5 3x4x5; 0=0
Eltwise 3x4x5 3x4x5 3x4x5; 0=1
Eltwise 3x4x5 3x4x5; 0=1 -23301=2,5.0e-01,-2.0e+00
Eltwise 3x4x5 3x4x5; 0=2
Embed i7; 0=5 1=9 2=1 3=45
Erf 3x4x5; 
Exp 3x4x5; 0=-1.0 1=5.0e-01 2=1.0e-01
Exp 3x4x5; 0=2.0e+00 1=5.0e-01
ExpandDims 4x5; -23303=1,0
ExpandDims 4x5; -23303=1,-1
Flatten 3x4x5; 
Flip 3x4x5; -23300=2,0,2
Fold 12x20; 1=2 20=6 21=5
Fold 12x8; 1=2 3=2 4=1 20=6 21=2
GELU 3x4x5; 
GELU 3x4x5; 0=1
GLU 4x6x5; 0=0
GLU 4x6; 0=-1
GRU 6x5; 0=4 1=60
GRU 6x5; 0=4 1=60 2=1
GRU 6x5; 0=4 1=120 2=2
Gemm 4x5 5x6; 
Gemm 5x4 6x5; 0=5.0e-01 2=1 3=1
Gemm 4x5; 3=1 5=1 6=1 7=0 8=6 9=5 10=4 18=0
Gemm 4x5; 0=2.0e+00 1=5.0e-01 5=1 6=1 7=4 8=6 9=5 10=3
Gemm 5x6; 4=1 7=4 8=0 9=5 10=-1 14=1
Gemm 4x5 5x6 6; 1=5.0e-01
GridSample 3x6x7 4x5x2; 
GridSample 3x6x7 4x5x2; 0=2 1=2 2=1
GridSample 3x6x7 4x5x2; 0=3 1=3
GridSample 3x6x7 2x4x5; 3=1
GroupNorm 6x4x5; 0=2 1=6 2=1e-5
GroupNorm 6x5; 0=3 1=6 2=1e-5
HardSigmoid 3x4x5; 0=1.666667e-01
HardSwish 3x4x5; 0=1.666667e-01
InnerProduct 3x4x5; 0=6 1=1 2=360 9=1
InnerProduct 60; 0=6 1=1 2=360
InnerProduct 4x5; 0=6 1=1 2=30
InstanceNorm 3x4x5; 0=3 1=1e-5
InstanceNorm 3x4x5; 0=3 1=1e-5 2=0
Interp 3x4x5; 0=1 1=2.0e+00 2=2.0e+00
Interp 3x4x5; 0=1 3=7 4=9
Interp 3x4x5; 0=2 1=2.0e+00 2=2.0e+00
Interp 3x4x5; 0=2 3=7 4=3 6=1
Interp 3x4x5; 0=3 3=7 4=9
Interp 3x4x5; 0=3 3=7 4=9 6=1
Interp 3x4x5 2x7x9; 0=2 5=1
Interp 3x4x5; 0=2 9="*(0w,2),+(0h,3)"
Interp 4; 0=1 3=3 4=2
Interp 4x5; 0=2 3=1 4=9
Interp 4x5; 0=2 4=9
Interp 4x5; 0=1 2=2.0e+00
Interp 4x5; 0=3 3=1 4=9
LRN 7x4x5; 1=3 2=1.0e-01
LRN 3x6x7; 0=1 1=3 2=1.0e-01
LSTM 6x5; 0=4 1=80
LSTM 6x5; 0=4 1=80 2=1
LSTM 6x5; 0=4 1=160 2=2
LayerNorm 3x4x5; 0=5 1=1e-5
LayerNorm 3x4x5; 0=20 1=1e-5
LayerNorm 4x5; 0=5 1=1e-5 2=0
Log +3x4x5; 1=5.0e-01 2=1.0e-01
MVN 3x4x5; 0=1 2=1e-4
MVN 3x4x5; 0=1 1=1 2=1e-4
MVN 3x4x5; 0=0
MatMul 4x5 5x6; 
MatMul 4x5 6x5; 0=1
MatMul 3x4x5 3x5x6; 
MatMul 3x4x5 5x6; 
MatMul 5 5x6; 
MatMul 4x5 5; 
Mish 3x4x5; 
MultiHeadAttention 6x8; 0=8 1=2 2=64
MultiHeadAttention 6x8 5x8; 0=8 1=2 2=64
MultiHeadAttention 6x8 5x4 5x3; 0=8 1=2 2=64 3=4 4=3
MultiHeadAttention 6x8 6x6; 0=8 1=2 2=64 5=1
Noop 3x4x5; 
Normalize 3x4x5; 0=0 3=3
Normalize 3x4x5; 0=1 3=3 9=1
Normalize 3x4x5; 0=1 4=0 1=1 3=1 9=2
PReLU 3x4x5; 0=3
PReLU 3x4x5; 0=1
PReLU 4x5; 0=4
Packing 3x4x5; 
Padding 3x4x5; 0=1 1=2 2=3 3=1 5=5.0e-01
Padding 3x4x5; 0=1 1=2 2=3 3=1 4=1
Padding 3x4x5; 0=1 1=2 2=3 3=1 4=2
Padding 3x4x5; 0=1 1=2 2=3 3=1 7=1 8=2
Padding 3x4x5; 0=1 1=2 2=3 3=1 6=3
Padding 4x5; 0=1 1=0 2=2 3=1
Permute 4x5; 0=1
Permute 3x4x5; 0=1
Permute 3x4x5; 0=2
Permute 3x4x5; 0=3
Permute 3x4x5; 0=4
Permute 3x4x5; 0=5
Permute 2x3x4x5; 0=7
Permute 2x3x4x5; 0=16
Permute 2x3x4x5; 0=23
PixelShuffle 8x3x4; 0=2
PixelShuffle 8x3x4; 0=2 1=1
Pooling 3x7x8; 0=0 1=3 2=2
Pooling 3x7x8; 0=0 1=3 2=2 5=1 3=1
Pooling 3x7x8; 0=1 1=3 2=2 3=1
Pooling 3x7x8; 0=1 1=3 2=2 3=1 5=1 6=1
Pooling 3x7x8; 0=1 1=3 2=2 3=1 6=1
Pooling 3x7x8; 0=0 1=3 2=2 5=2
Pooling 3x7x8; 0=1 1=3 2=2 5=3
Pooling 3x7x8; 0=0 4=1
Pooling 3x7x8; 0=1 4=1
Pooling 3x7x8; 0=1 7=1 8=3 18=2
Pooling 3x7x8; 0=0 7=1 8=3 18=-233
Pooling 3x7x8; 0=0 7=1 8=3 18=4
Pooling 3x7x9; 0=1 7=1 8=3 18=2
Pooling 3x8x7; 0=1 7=1 8=3 18=2
Pooling1D 3x8; 0=0 1=3 2=2
Pooling1D 3x8; 0=1 4=1
Pooling1D 3x8; 0=1 7=1 8=3
Pooling3D 2x5x6x7; 0=1 1=3 2=2 3=1 5=1
Pooling3D 2x5x6x7; 0=0 4=1
Pooling3D 2x5x6x7; 0=1 7=1 8=3 18=4 28=2
Power +3x4x5; 0=2.0e+00 1=5.0e-01 2=1.0e-01
PriorBox 3x4x5 3x30x40; -23300=2,3.0e+00,6.0e+00 -23301=2,8.0e+00,9.0e+00 -23302=1,2.0e+00 \
9=-233 10=-233 13=5.0e-01
PriorBox 3x4x5 3x30x40; -23300=1,3.0e+00 -23302=2,2.0e+00,3.0e+00 7=0 8=1 9=-233 10=-233 \
13=5.0e-01 14=1
PriorBox 3x4x5; -23300=2,2.0e-01,3.0e-01 -23302=2,1.0e+00,2.0e+00 9=-233 10=-233 11=-233.0 \
12=-233.0 13=5.0e-01
Proposal 18x4x5 36x4x5 @64,80,1; 1=4 2=100 3=10 5=4; 1
PSROIPooling 24x9x10 @10,12,90,100; 0=2 1=3 2=6.25e-02 3=4
ROIPooling 3x9x10 @1,2,8,8; 0=2 1=2 2=1.0e+00
ROIAlign 3x9x10 @1,2,7,8; 0=3 1=2 2=1.0e+00 5=1
ROIAlign 3x9x10 @1,2,7,8; 0=3 1=2 2=5.0e-01 3=2 4=1 5=1
ROIAlign 3x9x10 @1,2,7,8; 0=3 1=3 2=5.0e-01 4=1 5=1
RMSNorm 4x5; 0=5 1=1e-5
RNN 6x5; 0=4 1=20
RNN 6x5; 0=4 1=40 2=2
ReLU 3x4x5; 
ReLU 3x4x5; 0=1.0e-01
Reduction 3x4x5; 0=0
Reduction 3x4x5; 0=3 1=0 -23303=2,1,2 5=1
Reduction 3x4x5; 0=4 1=0 -23303=1,0 4=1 5=1
Reduction 3x4x5; 0=8 1=0 -23303=1,-1 5=1 2=5.0e-01
Reduction 3x4x5; 0=10 1=0 -23303=1,1 5=1
Reduction 3x4x5; 0=1 4=1
Reduction 4x5; 0=6 1=0 -23303=1,0 5=1
Reorg 3x4x6; 0=2
Reorg 3x4x6; 0=2 1=1
Reshape 3x4x5; 0=10 1=6
Reshape 3x4x5; 0=-1
Reshape 3x4x5; 0=0 1=-1 2=2
Reshape 3x4x5; 0=5 1=2 11=2 2=3
Reshape 3x4x5; 6="*(0w,0h),0c"
RotaryEmbed 2x6x8 6x4 6x4; 
RotaryEmbed 2x6x8 6x4 6x4; 0=1
SDPA 2x6x8 2x5x8 2x5x4; 
SDPA 4x6x8 2x5x8 2x5x4 6x5; 5=1 6=2.0e-01
SELU 3x4x5; 
Scale 3x4x5; 0=3 1=1
Scale 3x4x5 3; 0=-233
Scale 4x5; 0=4
Shrink 3x4x5; 0=1.0e-01 1=2.0e-01
ShuffleChannel 6x4x5; 0=2
ShuffleChannel 6x4x5; 0=2 1=1
Sigmoid 3x4x5; 
Slice 6x4x5; -23300=2,-233,-233; 2
Slice 6x4x5; -23300=2,2,-233; 2
Slice 6x4x5; -23302=1,2 1=0; 2
Slice 6x4x5; -23300=2,1,3 1=1; 2
Slice 6x4x7; -23300=3,-233,2,-233 1=2; 3
Softmax 3x4x5; 0=0
Softmax 3x4x5; 0=1 1=1
Softmax 4x5; 0=1 1=1
Softmax 7; 0=0
Softplus 3x4x5; 
Spectrogram 64; 0=16 1=2 2=4 3=16 4=1
Spectrogram 64; 0=16 1=0 2=4 3=12 4=2 5=0 7=1
Spectrogram 64; 0=16 1=1 2=5 5=1 6=1 7=2
Spectrogram 64; 0=15 1=1 3=9 4=2 6=0
InverseSpectrogram 9x10x2; 0=16 1=0 2=4 3=16 4=1
InverseSpectrogram 9x10x2; 0=16 1=1 2=4 3=12 4=2 5=0 7=2
Split 3x4x5; ; 2
Squeeze 1x4x5; -23303=1,0
Squeeze 3x1x5; 1=1
StatisticsPooling 3x4x5; 
StatisticsPooling 3x4x5; 0=1
Swish 3x4x5; 
TanH 3x4x5; 
Threshold 3x4x5; 0=1.0e-01
Tile 3x4x5; 0=0 1=2
Tile 3x4x5; -23302=3,1,2,3
Unfold 3x5x6; 1=2
Unfold 3x5x6; 1=3 3=2 4=1 18=5.0e-01
Yolov3DetectionOutput 21x3x4; 0=2 1=3 2=3.0e-01 -23304=6,10.0,14.0,23.0,27.0,37.0,58.0 \
-23305=3,0.0,1.0,2.0 -23306=1,3.2e+01
YoloDetectionOutput 21x3x4; 0=2 1=3 2=2.0e-01 -23304=6,1.0,1.4,2.3,2.7,3.7,5.8
Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=2
Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=1 9=1
ConvolutionDepthWise 4x9x10; 0=4 1=3 4=1 5=1 6=36 7=4 8=1
InnerProduct 60; 0=6 1=1 2=360 8=2
"""


def lines() -> list[str]:
    made = {
        "conv2": CONV.format("Convolution", x="4x9x10", w=216),
        "dw2": CONV.replace("0=6", "0=4").replace("6={w}", "6={w} 7=4").format(
            "ConvolutionDepthWise", x="4x9x10", w=36),
        "conv1": CONV.format("Convolution1D", x="4x11", w=72),
        "conv3": CONV.format("Convolution3D", x="4x5x6x7", w=648),
        "back2": BACK.format("Deconvolution", x="4x5x6", w=216),
    }  # fmt: skip
    unary = "\n".join(f"UnaryOp {'+' if i in SIGNED else ''}3x4x5; 0={i}" for i in range(28))
    text = TEXT.format(**made) + more_cases.TEXT + unary
    return [line.strip() for line in text.splitlines() if line.strip()]


SIGNED = (5, 6, 8, 15, 17, 25, 27)
"""Operations of positive numbers, those from 1 on for 25."""


def inputs_of(line: str) -> list[np.ndarray[Any, Any]]:
    """Repeatable inputs: "+3x4" positive, "i7" indices, "@1,2" these numbers."""
    rng, found = np.random.default_rng(len(line)), []
    for word in line.split(";")[0].split()[1:]:
        if word.startswith("@"):
            found.append(np.float32(word[1:].split(",")))
            continue
        sizes = tuple(map(int, word.lstrip("+i").split("x")))
        x = (rng.random(sizes) * 2 - 1).astype(np.float32)
        x = (
            (np.abs(x) + (1.01 if "0=25" in line else 0.1)).astype(np.float32)
            if word[0] == "+"
            else x
        )
        found.append(rng.integers(0, 9, sizes).astype(np.int32) if word[0] == "i" else x)
    return found


def model_of(line: str) -> tuple[str, bytes]:
    """The .param and .bin of a case: Input layers, and the layer with random weights."""
    head, params, *count = (part.strip() for part in line.split(";"))
    type, outputs = head.split()[0], int(count[0]) if count and count[0] else 1
    inputs = inputs_of(line)
    rows = []
    for i, x in enumerate(inputs):
        names = {1: "0", 2: "1 0", 3: "2 1 0", 4: "2 11 1 0"}[x.ndim].split()
        sizes = " ".join(f"{n}={s}" for n, s in zip(names, x.shape, strict=True))
        rows.append(f"Input in{i} 0 1 in{i} {sizes}")
    tops = " ".join(f"out{i}" for i in range(outputs))
    bottoms = " ".join(f"in{i}" for i in range(len(inputs)))
    rows.append(f"{type} layer {len(inputs)} {outputs} {bottoms} {tops} {params}")
    text = f"7767517\n{len(rows)} {len(inputs) + outputs}\n" + "\n".join(rows) + "\n"
    layers: list[Layer] = read_param(memoryview(text.encode()), line)
    draw_weights(layers, 0, line)
    return text, b"".join(write_weights(layers))
