"""A detector in the manner of one-stage networks: a CSP backbone, a pyramid, three heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """A convolution with batch norm and SiLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class _Bottleneck(nn.Module):
    def __init__(self, width: int, residual: bool) -> None:
        super().__init__()
        self.layers, self.residual = (
            nn.Sequential(conv(width, width), conv(width, width, 3)),
            residual,
        )

    def forward(self, x: Any) -> Any:
        return x + self.layers(x) if self.residual else self.layers(x)


class _Stage(nn.Module):
    """Two branches, one of them through `count` bottlenecks, joined again."""

    def __init__(self, inputs: int, outputs: int, count: int, residual: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.left, self.right, self.join = (
            conv(inputs, half),
            conv(inputs, half),
            conv(2 * half, outputs),
        )
        self.layers = nn.Sequential(*(_Bottleneck(half, residual) for _ in range(count)))

    def forward(self, x: Any) -> Any:
        return self.join(torch.cat([self.layers(self.left(x)), self.right(x)], 1))


class _Pyramid(nn.Module):
    """Maxima over three sizes, joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = conv(width, width // 2), conv(2 * width, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Any) -> Any:
        parts = [self.before(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.after(torch.cat(parts, 1))


class Detector(nn.Module):
    """[N, 3, H, W] -> [N, boxes, 85], H and W multiples of 32."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()
        self.near = nn.Sequential(
            *(conv(3, w, 5, 2), conv(w, 2 * w, 3, 2), _Stage(2 * w, 2 * w, 1)),
            *(conv(2 * w, 4 * w, 3, 2), _Stage(4 * w, 4 * w, 2)),
        )
        self.middle = nn.Sequential(conv(4 * w, 8 * w, 3, 2), _Stage(8 * w, 8 * w, 3))
        self.far = nn.Sequential(
            conv(8 * w, 16 * w, 3, 2), _Stage(16 * w, 16 * w, 1), _Pyramid(16 * w)
        )
        self.lift_far, self.lift_middle = conv(16 * w, 8 * w), conv(8 * w, 4 * w)
        self.up_middle = _Stage(16 * w, 8 * w, 1, False)
        self.up_near = _Stage(8 * w, 4 * w, 1, False)
        self.sink_near, self.sink_middle = conv(4 * w, 4 * w, 3, 2), conv(8 * w, 8 * w, 3, 2)
        self.down_middle = _Stage(8 * w, 8 * w, 1, False)
        self.down_far = _Stage(16 * w, 16 * w, 1, False)
        self.heads = nn.ModuleList(nn.Conv2d(c, 255, 1) for c in (4 * w, 8 * w, 16 * w))

    def forward(self, x: Any) -> Any:
        near = self.near(x)
        middle = self.middle(near)
        lifted = self.lift_far(self.far(middle))
        raised = functional.interpolate(lifted, scale_factor=2)
        between = self.lift_middle(self.up_middle(torch.cat([raised, middle], 1)))
        raised = functional.interpolate(between, scale_factor=2)
        first = self.up_near(torch.cat([raised, near], 1))
        second = self.down_middle(torch.cat([self.sink_near(first), between], 1))
        third = self.down_far(torch.cat([self.sink_middle(second), lifted], 1))
        return torch.cat(
            [self._boxes(h(f)) for h, f in zip(self.heads, (first, second, third), strict=True)], 1
        )

    @staticmethod
    def _boxes(y: Any) -> Any:
        n, _, high, wide = y.shape
        y = y.view(n, 3, 85, high, wide).permute(0, 1, 3, 4, 2)
        return torch.sigmoid(y.reshape(n, -1, 85))
