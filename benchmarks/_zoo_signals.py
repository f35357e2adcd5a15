"""Small networks on sound, series and text in plain torch, by architectures that no library ships.
NETS names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks._nets import Recurrent, Tcn
from benchmarks._zoo_tables import dense


class WaveNet(nn.Module):
    """Gated causal convolutions of growing dilation, whose skips are added up."""

    def __init__(self, w: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.first, self.depth = nn.Conv1d(1, w, 1), depth
        self.gated = nn.ModuleList(nn.Conv1d(w, 2 * w, 2, dilation=2**k) for k in range(depth))
        self.out = nn.ModuleList(nn.Conv1d(w, 2 * w, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(w, w, 1), nn.ReLU(), nn.Conv1d(w, 256, 1))

    def forward(self, x: Any) -> Any:
        x, total = self.first(x), 0
        for k in range(self.depth):
            value, gate = self.gated[k](F.pad(x, (2**k, 0))).chunk(2, 1)
            on, skip = self.out[k](torch.tanh(value) * torch.sigmoid(gate)).chunk(2, 1)
            x, total = x + on, total + skip
        return self.head(total)


class ConvTasNet(nn.Module):
    """Two voices apart: a learned transform, masks of dilated depthwise convolutions, and back."""

    def __init__(self, w: int = 64, inner: int = 48) -> None:
        super().__init__()
        self.take, self.give = nn.Conv1d(1, w, 16, 8), nn.ConvTranspose1d(w, 1, 16, 8)
        self.shrink, self.masks = nn.Conv1d(w, inner, 1), nn.Conv1d(inner, 2 * w, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(inner, 2 * inner, 1), nn.PReLU(), nn.GroupNorm(1, 2 * inner)),
                nn.Conv1d(2 * inner, 2 * inner, 3, 1, 2**k, 2**k, groups=2 * inner),
                *(nn.PReLU(), nn.GroupNorm(1, 2 * inner), nn.Conv1d(2 * inner, inner, 1)),
            )
            for k in range(4)
        )

    def forward(self, x: Any) -> Any:
        code = F.relu(self.take(x))
        y = self.shrink(code)
        for block in self.blocks:
            y = y + block(y)
        masks = torch.sigmoid(self.masks(y)).view(-1, code.shape[1], code.shape[2])
        return self.give(masks * code)


class HifiGan(nn.Module):
    """Sound from a mel spectrogram: transposed convolutions with residual blocks between."""

    def __init__(self, w: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(40, w, 7, 1, 3), nn.Conv1d(w // 4, 1, 7, 1, 3)
        self.up = nn.ModuleList(nn.ConvTranspose1d(w >> k, w >> (k + 1), 8, 4, 2) for k in range(2))
        self.mix = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(c, c, 3, 1, d, d) for d in (1, 3, 5)) for c in (w // 2, w // 4)
        )

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for up, mix in zip(self.up, self.mix, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            for layer in mix:
                x = x + layer(F.leaky_relu(x, 0.1))
        return torch.tanh(self.last(F.leaky_relu(x)))


class DeepSpeech(nn.Module):
    """Letters of a spectrogram: convolutions over time and pitch, two bidirectional GRU layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 16, (11, 5), 2, (5, 2)), nn.BatchNorm2d(16), nn.Hardtanh(0, 20)),
            *(nn.Conv2d(16, 16, (11, 5), (2, 1), (5, 2)), nn.BatchNorm2d(16), nn.Hardtanh(0, 20)),
        )
        self.rnn = nn.GRU(128, 96, 2, bidirectional=True, batch_first=True)
        self.norm, self.head = nn.BatchNorm1d(192), nn.Linear(192, 29)

    def forward(self, x: Any) -> Any:
        y = self.net(x).flatten(1, 2).transpose(1, 2)
        y = self.norm(self.rnn(y)[0].transpose(1, 2)).transpose(1, 2)
        return F.log_softmax(self.head(y), -1)


class QuartzNet(nn.Module):
    """Speech by separable convolutions over time in residual blocks."""

    def __init__(self, w: int = 96) -> None:
        super().__init__()
        self.first = self.part(40, w, 11, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(self.part(w, w, k), self.part(w, w, k, last=True)) for k in (13, 17, 21)
        )
        self.sides = nn.ModuleList(
            nn.Sequential(nn.Conv1d(w, w, 1), nn.BatchNorm1d(w)) for _ in range(3)
        )
        self.head = nn.Conv1d(w, 29, 1)

    @staticmethod
    def part(i: int, o: int, size: int, stride: int = 1, last: bool = False) -> nn.Sequential:
        layers = [nn.Conv1d(i, i, size, stride, size // 2, groups=i), nn.Conv1d(i, o, 1)]
        return nn.Sequential(*layers, nn.BatchNorm1d(o), nn.Identity() if last else nn.ReLU())

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block, side in zip(self.blocks, self.sides, strict=True):
            x = F.relu(block(x) + side(x))
        return self.head(x)


class Keywords(nn.Module):
    """Words in a second of sound: separable convolutions on cepstra (DS-CNN)."""

    def __init__(self, w: int = 64) -> None:
        super().__init__()
        first = [nn.Conv2d(1, w, (10, 4), 2, (4, 1)), nn.BatchNorm2d(w), nn.ReLU()]
        rest = [self.part(w) for _ in range(4)]
        self.net = nn.Sequential(*first, *rest, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(w, 12)

    @staticmethod
    def part(w: int) -> nn.Sequential:
        deep = [nn.Conv2d(w, w, 3, 1, 1, groups=w), nn.BatchNorm2d(w), nn.ReLU()]
        return nn.Sequential(*deep, nn.Conv2d(w, w, 1), nn.BatchNorm2d(w), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.head(self.net(x))


class Conformer(nn.Module):
    """Half a dense layer, attention, a gated depthwise convolution, and the other half."""

    def __init__(self, w: int = 64) -> None:
        super().__init__()
        self.dense = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.SiLU(), nn.Linear(4 * w, w))
            for _ in range(2)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(w) for _ in range(3))
        self.attention = nn.MultiheadAttention(w, 4, batch_first=True)
        self.wide, self.narrow = nn.Conv1d(w, 2 * w, 1), nn.Conv1d(w, w, 1)
        deep = nn.Conv1d(w, w, 15, 1, 7, groups=w)
        self.deep = nn.Sequential(deep, nn.BatchNorm1d(w), nn.SiLU())

    def forward(self, x: Any) -> Any:
        x = x + 0.5 * self.dense[0](x)
        y = self.norm[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.wide(self.norm[1](x).transpose(1, 2)), 1)
        x = x + self.narrow(self.deep(y)).transpose(1, 2)
        return self.norm[2](x + 0.5 * self.dense[1](x))


class NBeats(nn.Module):
    """A series is explained block by block; what is left goes on, the forecasts add up."""

    def __init__(self, back: int = 48, ahead: int = 12) -> None:
        super().__init__()
        self.back, self.blocks = back, nn.ModuleList(
            dense(back, 64, 64, back + ahead) for _ in range(4)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        total = 0
        for block in self.blocks:
            y = block(x)
            x, total = x - y[:, : self.back], total + y[:, self.back :]
        return total


class TextCnn(nn.Module):
    """Sentences by the strongest of convolutions over three, four and five words."""

    def __init__(self, w: int = 48, vocab: int = 100) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, w)
        self.layers, self.head = (
            nn.ModuleList(nn.Conv1d(w, 32, k) for k in (3, 4, 5)),
            nn.Linear(96, 5),
        )

    def forward(self, ids: Any) -> Any:
        x = self.table(ids).transpose(1, 2)
        return self.head(torch.cat([F.relu(f(x)).amax(2) for f in self.layers], 1))


NETS: dict[str, Callable[[], nn.Module]] = {
    "wavenet": WaveNet, "conv_tasnet": ConvTasNet, "hifigan": HifiGan, "deepspeech2": DeepSpeech,
    "quartznet": QuartzNet, "ds_cnn": Keywords, "conformer": Conformer, "tcn": lambda: Tcn(64),
    "bilstm": lambda: Recurrent("LSTM", 64, 64, 2, True), "nbeats": NBeats, "textcnn": TextCnn,
}  # fmt: skip
