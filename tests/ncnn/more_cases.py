"""More layers for `cases`: parameters that files seldom have, and ncnn takes in its own way."""

TEXT = """
BinaryOp 3x3 3; 0=1
BinaryOp 3x3x3 3; 0=1
BinaryOp 3x4x4 3x4; 0=1
BinaryOp 3x4x5 1x1; 0=0
Convolution 4x9x10; 0=6 1=3 4=-233 18=5.0e-01 6=216
Convolution 4x9x10; 0=6 1=4 3=3 4=-234 18=-1.0e+00 5=1 6=384
Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=2 18=5.0e-01
Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=2 18=-2.7e+00
ConvolutionDepthWise 4x9x10; 0=4 1=3 4=-233 6=36 7=4 8=1 18=2.0e+01
Convolution 4x9x10 6x4x3x3; 0=6 1=3 3=2 4=-233 18=5.0e-01 19=1
Convolution1D 4x11 6x4x3 6; 0=6 1=3 4=1 5=1 18=5.0e-01 19=1
Convolution 4x9x10 6x4x3x3; 0=6 1=3 19=1
Convolution 4x9x10 6x4x3x3 6; 0=6 1=3 4=1 5=1 19=1 9=1
ConvolutionDepthWise 4x9x10 4x1x3x3 4; 0=4 1=3 5=1 7=4 19=1
Convolution1D 4x11 6x4x3 6; 0=6 1=3 5=1 19=1
Crop 3x6x7; 19="1,0" 20="-(0h,1),-233" 21="1,2"
Deconvolution 4x5x6 4x6x3x3 6; 0=6 1=3 3=2 5=1 28=1
DeconvolutionDepthWise 4x5x6 4x1x3x3 4; 0=4 1=3 3=2 5=1 7=4 28=1
DeconvolutionDepthWise 4x5x6 4x3x3x3; 0=6 1=3 3=2 7=2 28=1
Deconvolution1D 4x7 4x6x3; 0=6 1=3 28=1
DeconvolutionDepthWise1D 4x7 4x3x3; 0=6 1=3 7=2 28=1
Deconvolution1D 4x7; 0=6 1=3 3=2 4=-233 20=13 5=1 6=72
Embed i7; 0=5 1=9 2=1 3=45 18=2
ExpandDims 4x5; 2=1
ExpandDims 5; -23303=2,0,2
GLU 4x3; 0=1
GLU 5x4; 0=0
GRU 6x5 2x4; 0=4 1=120 2=2; 2
Gemm 4x5 5x6 4; 0=2.0e+00 1=5.0e-01
Gemm 4x5 5x6; 11=1
InstanceNorm 4x5; 0=4 1=1e-5
InstanceNorm 5; 0=5 1=1e-5
Interp 3x4x5; 0=1 1=1.5e+00 2=7.0e-01
Interp 2x80x7; 0=1 3=24 4=7
Interp 1x2x3; 0=1 3=82 4=123
Interp 1x2x3; 0=1 1=4.1e+01 2=1.0e+00
Interp 3x80; 0=1 4=24 3=1
Interp 3x4x5; 0=2 1=1.5e+00 2=7.0e-01
Interp 3x4x5; 0=3 1=1.5e+00 2=7.0e-01
Interp 3x10x10; 0=2 1=7.0e-01 2=7.0e-01
Interp 3x4x5; 0=3 1=1.5e+00 2=2.3e+00 6=1
Interp 4x5; 0=2 3=1 2=1.5e+00
InverseSpectrogram 8x10x2; 0=15 1=1 4=1
InverseSpectrogram 8x10x2; 0=15 1=0 4=2
InverseSpectrogram 16x10x2; 0=16 1=0 4=2
LRN 7x4x5; 1=4 2=1.0e-01
LRN 5x6; 1=3 2=1.5e+00
LRN 6; 1=5 2=2.0e+00 3=5.0e-01 4=2.0e+00
LayerNorm 4x5; 0=20 1=1e-2 2=0
LayerNorm 2x3x4x5; 0=20 1=1e-5
LayerNorm 2x3x4x5; 0=60 1=1e-5
RMSNorm 4x5; 0=20 1=1e-2 2=0
LRN 3x6x7; 0=1 1=4 2=1.0e-01
LSTM 6x5; 0=3 1=80 3=4
LSTM 6x5; 0=3 1=80 2=1 3=4
LSTM 6x5; 0=3 1=160 2=2 3=4
LSTM 6x5 1x3 1x4; 0=3 1=80 3=4; 3
LSTM 6x5 1x3 1x4; 0=3 1=80 2=1 3=4; 3
LSTM 6x5 2x3 2x4; 0=3 1=160 2=2 3=4; 3
LSTM 6x5 2x4 2x4; 0=4 1=160 2=2; 3
MultiHeadAttention 6x8 2x3x4 2x3x4; 0=8 1=2 2=64 7=1; 3
MultiHeadAttention 6x8 6x9 2x3x4 2x3x4; 0=8 1=2 2=64 5=1 7=1; 3
MultiHeadAttention 6x8 5x8 2x3x4 2x3x4; 0=8 1=2 2=64 7=1; 3
MultiHeadAttention 6x8 5x8 6x3 2x3x4 2x3x4; 0=8 1=2 2=64 5=1 7=1; 3
Permute 5; 0=1
Pooling 3x6x6; 0=1 1=1 2=2 6=1
Pooling 3x7x8; 0=1 1=2 2=4 6=1
ROIAlign 3x9x10 @1,2,7,8; 0=3 1=2 2=1.0e+00
ROIAlign 3x9x10 @1,2,7,8; 0=3 1=2 2=5.0e-01 3=2
ROIAlign 3x9x10 @-2,-1,8,7; 0=3 1=2 4=1
ROIAlign 20x9x10 @-2,-1,8,7; 0=3 1=2 3=3
ROIAlign 3x9x10 @5,5,5,5; 0=2 1=2 2=1.0e+00
Yolov3DetectionOutput 21x3x4 21x6x8; 0=2 1=3 2=3.0e-01 3=3.0e-01 \
-23304=12,10.0,14.0,23.0,27.0,37.0,58.0,81.0,82.0,135.0,169.0,344.0,319.0 \
-23305=6,3.0,4.0,5.0,0.0,1.0,2.0 -23306=2,3.36e+01,1.68e+01
Convolution3D 2x4x6x5; 0=2 1=2 4=-234 6=32
ConvolutionDepthWise3D 2x4x6x4; 0=2 1=2 12=1 4=-234 6=16 7=2
ConvolutionDepthWise 1x7x1; 0=3 1=2 11=1 3=4 13=4 4=-234 5=1 6=6 7=1
Gemm 3x6 3x6 3; 3=1
Gemm 9x7 9x7 7; 2=1
Interp 1x4x5; 0=2 1=1.2e+00 2=2.0e+00
Interp 1x40x5; 0=2 1=1.02e+00 2=2.0e+00
Interp 1x4x5; 0=2 1=2.0e+00 2=1.1e+00
Interp 1x4x5; 0=3 1=1.2e+00 2=1.1e+00
Interp 4x5; 0=3 1=1.2e+00 2=1.1e+00
Interp 4x5; 0=2 1=1.2e+00 2=1.1e+00
Interp 7; 0=1 1=2.0e+00 2=5.0e+00
Interp 1x5x4; 0=1 9="3,round(/(0h,2))"
Interp 1x9x4; 0=1 9="3,round(/(0h,2))"
Interp 1x5x4; 0=1 9="3,exp(log(0h))"
Interp 1x5x4; 0=1 9="3,erf(0h)"
Interp 3x4x5; 0=1 9="1"
LRN 4x5; 0=1 1=3
LRN 6; 0=1 1=4
MVN 4x5; 0=1 1=1 2=1e-4
MVN 5; 0=1
MVN 2x3x4x5; 0=1
Normalize 4; 0=0 4=1 1=1 2=1e-4 9=1 3=1
Normalize 3x5; 0=0 4=1 1=1 2=1e-4 9=1 3=1
Normalize 3x5; 0=1 4=0 1=0 2=1e-4 9=1 3=3
Pooling 2x1x2; 0=0 1=4 11=4 2=4
Pooling 3x7x8; 0=1 7=1 8=600 18=2
Pooling 3x7x8; 0=0 7=1 8=9 18=31
Pooling1D 2x2; 0=0 1=4 2=4
Pooling1D 3x800; 0=1 7=1 8=513
Pooling3D 2x5x8x12; 0=0 1=2 5=3
Slice 4; -23300=3,-233,-233,-233 1=-1; 3
Tile 4x5; -23302=3,2,1,3
Tile 8x9x6; -23302=4,2,1,1,3
"""
