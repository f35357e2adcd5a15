"""Models that no library ships, in torch: recurrent nets, image to image, detection, dense."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


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


class Entry(nn.Module):
    """One entry of what a model returns as a dict."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Any) -> Any:
        return self.model(x)[self.name]


class Recurrent(nn.Module):
    """Recurrent layers and a dense head: [N, T, inputs] -> [N, T, outputs]."""

    def __init__(
        self, kind: str, inputs: int, hidden: int, layers: int, both: bool, outputs: int = 64
    ) -> None:
        super().__init__()
        make = getattr(nn, kind)
        self.rnn = make(inputs, hidden, layers, bidirectional=both, batch_first=True)
        self.head = nn.Linear(hidden * (1 + both), outputs)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x)[0])


class Tcn(nn.Module):
    """Eight residual blocks of dilated convolutions over time: [N, 64, T] -> [N, 128, T]."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv1d(64, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i),
                nn.BatchNorm1d(width),
                nn.PReLU(),
                nn.Conv1d(width, width, 1),
            )
            for i in range(8)
        )

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Espcn(nn.Module):
    """Super-resolution by three: convolutions with tanh, then pixels from channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 64, 5, 1, 2), nn.Tanh(), nn.Conv2d(64, 32, 3, 1, 1), nn.Tanh()),
            *(nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3)),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Edsr(nn.Module):
    """Super-resolution by two: eight residual blocks without norms."""

    def __init__(self, width: int = 64, blocks: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1)
            )
            for _ in range(blocks)
        )
        self.up = nn.Sequential(nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2))
        self.last = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        y = x
        for block in self.blocks:
            y = y + block(y)
        return self.last(self.up(x + y))


class Dcgan(nn.Module):
    """A generator of 64x64 images: five transposed convolutions."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [100, 8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = []
        for k, (i, o) in enumerate(pairwise(widths)):
            layers += [nn.ConvTranspose2d(i, o, 4, 2 if k else 1, 1 if k else 0, bias=False)]
            layers += [nn.BatchNorm2d(o), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Mlp(nn.Module):
    """Two hidden layers of 1,024."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()),
            nn.Linear(1024, 10),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class _Layer(nn.Module):
    """A transformer layer, norms first."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        n, t, width = x.shape
        y = self.before(x)
        shape = (n, t, self.heads, width // self.heads)
        q, k, v = (f(y).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) / shape[3] ** 0.5
        mixed = torch.softmax(scores, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Encoder(nn.Module):
    """Six transformer layers: [N, T, 256] -> [N, T, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_Layer(256, 4, 1024) for _ in range(6)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)
