"""Shapes of convolutions and pools that several kernels are tested on."""

from __future__ import annotations

from tests.kernels.window_cases import conv, conv_transposed

PAD = (1, 1, 1, 1)

FEW = {
    "one output": conv(1, 16, 1, (5, 6), (3, 3), pad=(1, 1, 1, 1)),
    "pointwise": conv(2, 35, 2, (7, 5), (1, 1)),
    "9x9": conv(1, 20, 2, (11, 12), (9, 9), pad=(4, 4, 4, 4), bias=False),
    "stride, dilation": conv(2, 8, 2, (13, 14), (3, 2), stride=(2, 3), dilation=(2, 1)),
    "one pixel": conv(1, 64, 2, (1, 1), (1, 1)),
    "1-D": conv(1, 24, 1, (19,), (5,), pad=(2, 2)),
    "3-D": conv(1, 17, 2, (4, 3, 5), (2, 3, 3), pad=(1, 1, 1, 0, 1, 1)),
}

FIRST = {
    "no padding, read in place": conv(1, 3, 16, (5, 5), (3, 3)),
    "batch, odd": conv(2, 3, 37, (17, 19), (3, 3), pad=(1, 1, 1, 1)),
    "7x7 stem": conv(1, 3, 64, (20, 20), (7, 7), stride=(2, 2), pad=(3, 3, 3, 3)),
    "one channel": conv(1, 1, 24, (6, 6), (5, 5), pad=(2, 2, 2, 2)),
    "one pixel": conv(3, 2, 80, (1, 1), (1, 1)),
    "1-D": conv(1, 3, 70, (9,), (3,), pad=(1, 1)),
    "3-D": conv(
        2, 2, 20, (4, 5, 6), (2, 3, 3), pad=(0, 1, 1, 1, 1, 1), stride=(1, 2, 1), bias=False
    ),
    "seven channels, far padding": conv(
        1, 7, 20, (40, 33), (3, 3), pad=(0, 0, 5, 7), dilation=(2, 3)
    ),
    "padding beyond the image": conv(1, 3, 8, (2, 3), (5, 5), pad=(4, 4, 4, 4)),
    "same": conv(1, 3, 33, (15, 16), (3, 3), stride=(2, 2), auto_pad="SAME_UPPER"),
}

GROUPED = {
    "two of 32": conv(1, 64, 96, (6, 7), (3, 3), group=2, pad=PAD),
    "pointwise, four of 16": conv(2, 64, 64, (5, 5), (1, 1), group=4),
    "32 of 4": conv(1, 128, 128, (9, 9), (3, 3), group=32, pad=PAD),
    "8 wide": conv(2, 40, 40, (9, 10), (3, 3), group=5, pad=PAD, stride=(2, 2)),
    "24 wide": conv(1, 72, 72, (7, 7), (3, 3), group=3, pad=PAD),
    "40 wide": conv(1, 80, 80, (6, 5), (3, 3), group=2, pad=PAD, bias=False),
    "56 wide": conv(1, 168, 168, (5, 4), (3, 3), group=3, pad=PAD),
    "100 wide": conv(1, 300, 300, (3, 3), (1, 1), group=3),
    "6 wide": conv(1, 18, 18, (5, 5), (3, 3), group=3, pad=PAD),
    "3 to 5": conv(1, 12, 20, (5, 5), (2, 3), group=4, dilation=(1, 2)),
    "2 wide": conv(1, 34, 34, (6, 6), (3, 3), group=17, pad=PAD),
    "multiplier 2": conv(2, 19, 38, (7, 7), (3, 3), group=19, pad=PAD),
    "multiplier 3": conv(1, 10, 30, (7, 7), (3, 3), group=10, pad=PAD),
    "multiplier 16": conv(1, 5, 80, (5, 5), (3, 3), group=5, pad=PAD),
    "8 to 4": conv(1, 32, 16, (5, 6), (3, 3), group=4, pad=PAD),
    "4 to 8": conv(1, 16, 32, (5, 6), (3, 3), group=4, pad=PAD),
    "1-D": conv(1, 16, 16, (11,), (9,), group=4, pad=(4, 4)),
    "3-D": conv(1, 16, 16, (4, 3, 5), (2, 3, 3), group=2, pad=(0, 1, 1, 1, 1, 1)),
}

TRANSPOSED = {
    "2x2 stride 2": conv_transposed(1, 20, 33, (5, 6), (2, 2), stride=(2, 2)),
    "3x3 stride 2": conv_transposed(
        2, 16, 16, (5, 4), (3, 3), stride=(2, 2), pad=(1, 1, 1, 1), output_padding=(1, 1)
    ),
    "4x4 stride 2": conv_transposed(1, 19, 24, (6, 6), (4, 4), stride=(2, 2), pad=(1, 1, 1, 1)),
    "stride 1": conv_transposed(1, 16, 16, (5, 5), (3, 3), pad=(1, 0, 1, 2), bias=False),
    "kernel below the stride": conv_transposed(
        1, 8, 8, (4, 3), (1, 2), stride=(3, 4), output_padding=(1, 2)
    ),
    "16x16 stride 8": conv_transposed(1, 5, 7, (3, 3), (16, 16), stride=(8, 8), pad=(4,) * 4),
    "dilated": conv_transposed(1, 16, 9, (5, 6), (3, 3), stride=(2, 3), dilation=(2, 2)),
    "dilated, coprime": conv_transposed(1, 16, 9, (5, 6), (3, 2), stride=(2, 2), dilation=(3, 3)),
    "wanted shape": conv_transposed(
        1, 16, 16, (5, 5), (3, 3), stride=(2, 2), output_shape=(10, 9), auto_pad="SAME_LOWER"
    ),
    "1-D": conv_transposed(2, 12, 20, (7,), (5,), stride=(3,), pad=(2, 1)),
    "3-D": conv_transposed(1, 8, 8, (3, 2, 4), (2, 3, 2), stride=(2, 1, 2)),
    "groups": conv_transposed(1, 32, 64, (4, 4), (2, 2), stride=(2, 2), group=2),
    "narrow groups": conv_transposed(1, 24, 36, (4, 5), (3, 3), stride=(2, 2), group=6),
    "depthwise": conv_transposed(2, 21, 21, (4, 3), (4, 4), stride=(2, 2), pad=(1,) * 4, group=21),
    "one pixel": conv_transposed(1, 64, 32, (1, 1), (4, 4)),
    "pad beyond the kernel": conv_transposed(1, 8, 8, (9, 9), (2, 2), pad=(3, 3, 2, 2)),
}

TRANSPOSED_FEW = {
    "as wide as the stride": conv_transposed(1, 20, 1, (5, 19), (2, 2), stride=(2, 2)),
    "4x4 stride 2": conv_transposed(2, 16, 3, (6, 6), (4, 4), stride=(2, 2), pad=PAD),
    "9x9 stride 3": conv_transposed(1, 7, 1, (9, 21), (9, 9), stride=(3, 3), pad=(3,) * 4),
    "9x9 stride 2": conv_transposed(
        1, 5, 2, (6, 19), (9, 9), stride=(2, 2), pad=(4,) * 4, output_padding=(1, 1)
    ),
    "frames, channels in parts": conv_transposed(2, 130, 1, (61,), (48,), stride=(12,)),
    "frames, taps of unequal counts": conv_transposed(1, 20, 1, (35,), (50,), stride=(20,)),
    "long, in parts": conv_transposed(1, 40, 1, (900,), (16,), stride=(8,), pad=(3, 5)),
    "stride 1": conv_transposed(1, 6, 5, (5, 17), (3, 3), pad=(1, 0, 1, 2), bias=False),
    "kernel below the stride": conv_transposed(
        1, 5, 4, (4, 9), (1, 1), stride=(3, 4), pad=(2, 2, 1, 1), output_padding=(2, 3)
    ),
    "dilated": conv_transposed(1, 3, 2, (5, 9), (3, 3), stride=(2, 3), dilation=(2, 2)),
    "dilated, coprime": conv_transposed(1, 3, 2, (5, 9), (3, 2), stride=(2, 2), dilation=(3, 3)),
    "wanted shape": conv_transposed(
        1, 4, 3, (5, 9), (3, 3), stride=(2, 2), output_shape=(10, 17), auto_pad="SAME_LOWER"
    ),
    "3-D": conv_transposed(
        1, 4, 2, (3, 2, 17), (2, 3, 3), stride=(2, 1, 2), output_padding=(1, 0, 1)
    ),
    "groups": conv_transposed(2, 9, 6, (4, 17), (3, 3), stride=(2, 2), group=3, pad=PAD),
    "frames, 4 taps": conv_transposed(2, 40, 1, (61,), (64,), stride=(16,)),
    "frames in parts, 2 taps": conv_transposed(2, 70, 1, (900,), (16,), stride=(8,), pad=(3, 5)),
    "3x3 of rows": conv_transposed(2, 24, 3, (13, 21), (6, 9), stride=(2, 3), pad=(2, 3, 1, 0)),
    "one pixel": conv_transposed(1, 33, 2, (1, 1), (4, 4)),
    "pad beyond the kernel": conv_transposed(1, 3, 3, (9, 19), (2, 2), pad=(3, 3, 2, 2)),
}

POOLS = {
    "2x2": ((1, 16, 6, 6), dict(kernel=(2, 2), stride=(2, 2))),
    "3x3 stem": ((1, 20, 11, 11), dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))),
    "batch, odd": ((2, 19, 7, 9), dict(kernel=(3, 2), stride=(1, 2), pad=(1, 0, 1, 1))),
    "dilated": (
        (1, 8, 12, 13),
        dict(kernel=(3, 3), stride=(2, 1), pad=(2, 2, 2, 2), dilation=(2, 2)),
    ),
    "wide": ((1, 5, 13, 13), dict(kernel=(13, 13), stride=(1, 1), pad=(6, 6, 6, 6))),
    "ceil": ((1, 18, 8, 8), dict(kernel=(3, 3), stride=(2, 2), ceil_mode=True)),
    "ceil, padded": (
        (1, 4, 9, 10),
        dict(kernel=(3, 3), stride=(3, 3), pad=(1, 1, 1, 1), ceil_mode=True),
    ),
    "same": ((1, 33, 7, 7), dict(kernel=(2, 2), stride=(2, 2), auto_pad="SAME_LOWER")),
    "1-D": ((3, 12, 17), dict(kernel=(4,), stride=(3,), pad=(1, 2))),
    "3-D": ((1, 9, 5, 6, 7), dict(kernel=(3, 2, 3), stride=(2, 2, 1), pad=(1, 0, 1, 1, 0, 1))),
    "one pixel": ((1, 16, 1, 1), dict(kernel=(1, 1))),
    "many": ((2, 40, 30, 31), dict(kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1))),
}
