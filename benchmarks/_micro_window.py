"""Convolutions and pools of well-known networks, for `python -m benchmarks.micro`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.harness import one_node
from tinsmith.graph import Node


@dataclass(frozen=True)
class Case:
    """A square convolution or pool: channels -> outputs, image size, kernel, stride, groups."""

    kernel: str
    channels: int
    outputs: int
    size: int
    window: int
    stride: int = 1
    groups: int = 1
    pad: int | None = None
    dilation: int = 1

    @property
    def op(self) -> str:
        return {
            "conv_transposed": "ConvTranspose",
            "conv_transposed_few": "ConvTranspose",
            "pool_max": "MaxPool",
            "pool_average": "AveragePool",
            "global_pool": "GlobalPool",
        }.get(self.kernel, "Conv")

    def __str__(self) -> str:
        groups = f" g{self.groups}" if self.groups > 1 else ""
        apart = f" d{self.dilation}" if self.dilation > 1 else ""
        shape = f"{self.channels}>{self.outputs} @{self.size}"
        return f"{shape} {self.window}x{self.window} s{self.stride}{groups}{apart}"

    def node(self) -> Node:
        arrays, attrs = self.arrays()
        return one_node(self.op, arrays, attrs, (1, 2))

    def arrays(self) -> tuple[list[np.ndarray], dict[str, Any]]:
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        x = normal(1, self.channels, self.size, self.size)
        window, stride = (self.window,) * 2, (self.stride,) * 2
        pad = (self.window // 2 * self.dilation if self.pad is None else self.pad,) * 4
        if self.op == "GlobalPool":
            return [x], {"kind": "mean"}
        if self.op.endswith("Pool"):
            return [x], {"kernel": window, "stride": stride, "pad": pad}
        if self.op == "ConvTranspose":
            w = normal(self.channels, self.outputs // self.groups, *window)
            attrs = {"stride": stride, "pad": (0,) * 4, "group": self.groups}
            return [x, w, normal(self.outputs)], attrs
        w = normal(self.outputs, self.channels // self.groups, *window)
        attrs = {"stride": stride, "pad": pad, "group": self.groups}
        attrs["dilation"] = (self.dilation,) * 2
        return [x, w, normal(self.outputs)], attrs


def cases() -> Iterator[Case]:
    for c, k, size, window, stride in (
        (64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1),
        (64, 128, 56, 3, 2), (128, 256, 28, 3, 2), (256, 512, 14, 3, 2), (64, 64, 224, 3, 1),
        (32, 32, 256, 3, 1), (48, 192, 27, 5, 1),
        (64, 64, 56, 1, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (256, 128, 56, 1, 1),
        (128, 512, 28, 1, 1), (512, 128, 28, 1, 1), (256, 1024, 14, 1, 1), (1024, 256, 14, 1, 1),
        (512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1), (256, 512, 56, 1, 2), (24, 144, 56, 1, 1),
        (144, 24, 56, 1, 1), (96, 576, 14, 1, 1), (960, 160, 7, 1, 1), (2048, 1000, 1, 1, 1),
    ):  # fmt: skip
        yield Case("conv_direct", c, k, size, window, stride)
        yield Case("conv_amx", c, k, size, window, stride)
    for k, size, window, stride in (
        (32, 224, 3, 2),
        (64, 224, 7, 2),
        (64, 224, 3, 1),
        (32, 256, 3, 1),
    ):
        yield Case("conv_first_layer", 3, k, size, window, stride)
    for c, k, size, apart in ((64, 64, 56, 2), (256, 256, 28, 2), (512, 512, 28, 4)):
        yield Case("conv_direct", c, k, size, 3, dilation=apart)
    for size in (224, 112, 56, 28):
        for c in (32, 64, 128, 256, 512):
            if 2 * 9 * c * c * size * size < 8e9:
                yield Case("winograd", c, c, size, 3)
                yield Case("winograd_amx", c, c, size, 3)
    for window in (3, 5, 7):
        for c, size in ((32, 112), (96, 112), (144, 56), (192, 28), (384, 14), (960, 7)):
            yield Case("conv_depthwise", c, c, size, window, groups=c)
    for c, size, window in ((96, 112, 3), (144, 56, 3), (576, 14, 3), (144, 56, 5)):
        yield Case("conv_depthwise", c, c, size, window, 2, c)
    yield Case("conv_depthwise", 384, 384, 28, 3, groups=384, dilation=2)
    for kernel, c, size, window, stride, groups in (
        ("conv_grouped", 128, 56, 3, 1, 32), ("conv_grouped", 256, 28, 3, 1, 32),
        ("conv_grouped", 64, 56, 3, 2, 8), ("conv_grouped", 256, 28, 1, 1, 32),
        ("conv_grouped", 512, 14, 3, 1, 32), ("conv_grouped", 1024, 7, 3, 1, 32),
        ("conv_grouped", 168, 28, 3, 1, 7), ("conv_grouped", 240, 14, 3, 1, 6),
        ("conv_grouped", 240, 28, 1, 1, 3),
    ):  # fmt: skip
        yield Case(kernel, c, c, size, window, stride, groups)
    for c, k, size, window, stride in (
        (512, 256, 32, 2, 2), (128, 64, 128, 2, 2), (256, 128, 16, 4, 2), (64, 32, 56, 3, 2),
        (21, 21, 16, 16, 8),
    ):  # fmt: skip
        yield Case("conv_transposed", c, k, size, window, stride)
    for c, k, size, window, stride, groups in (
        (56, 1, 128, 9, 2, 1), (56, 1, 128, 9, 3, 1), (56, 1, 128, 9, 4, 1), (64, 1, 160, 2, 2, 1),
        (64, 3, 32, 4, 2, 1), (64, 64, 56, 4, 2, 64), (192, 3, 14, 16, 16, 1),
    ):  # fmt: skip
        yield Case("conv_transposed_few", c, k, size, window, stride, groups)
    for c, k, size, window in ((64, 2, 224, 3), (64, 2, 256, 1), (32, 3, 224, 9), (64, 4, 28, 3)):
        yield Case("conv_few_outputs", c, k, size, window)
    yield Case("pool_max", 64, 64, 112, 3, 2)
    yield Case("pool_max", 256, 256, 56, 2, 2, pad=0)
    yield Case("pool_max", 192, 192, 28, 3, 1)
    yield Case("pool_max", 512, 512, 20, 5, 1)
    yield Case("pool_average", 128, 128, 28, 2, 2, pad=0)
    yield Case("pool_average", 192, 192, 28, 3, 1)
    yield Case("global_pool", 2048, 2048, 7, 1)
    yield Case("global_pool", 96, 96, 112, 1)
