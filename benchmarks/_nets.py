"""The panel's own three models, in torch: two recurrent nets and a U-Net."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Gru(nn.Module):
    """Two bidirectional GRU layers and a dense head: [N, T, 128] -> [N, T, 100]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(128, 256, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 100)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0])


class Lstm(nn.Module):
    """Two LSTM layers and a dense head: [N, T, 128] -> [N, T, 100]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 100)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0])


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Four levels of two convolutions each way, transposed convolutions up: 3 -> 2 channels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        down = [width, 2 * width, 4 * width, 8 * width]
        up = down[::-1]
        self.down = nn.ModuleList(
            [_double(i, o) for i, o in zip([3, *down[:-1]], down, strict=True)]
        )
        self.bottom = _double(down[-1], 2 * down[-1])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * c, c, 2, 2) for c in up])
        self.merge = nn.ModuleList([_double(2 * c, c) for c in up])
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat([grow(x), skip], 1))
        return self.out(x)
