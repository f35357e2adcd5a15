"""Train five small nets on scikit-learn's 8x8 digits with PyTorch, and write them as ONNX.

    pip install torch onnxscript scikit-learn
    python examples/quantize/train.py

Writes residual.onnx, depthwise.onnx, squeeze.onnx, transformer.onnx and gru.onnx beside this file,
calibration.npz and test.npz: images, and their labels. Deterministic on
one machine; takes a few minutes. docs/quantize.md tells what quantising does to these nets.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

TRAIN, CALIBRATE = 1000, 200
"""How many of the 1,797 images train, and how many calibrate; the others test."""


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    """A convolution with a border of zeros, and its batch normalisation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(inputs, outputs, 3, stride), conv(outputs, outputs)
        self.short = conv(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


class Separable(nn.Module):
    """A depthwise convolution and a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depth, self.point = conv(inputs, inputs, 3, stride, inputs), conv(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.point(F.relu(self.depth(x))))


class Squeeze(nn.Module):
    """An inverted residual with hard-swish and squeeze-and-excite."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.up, self.depth = conv(channels, wide, 1), conv(wide, wide, 3, 1, wide)
        self.down = conv(wide, channels, 1)
        self.less, self.more = nn.Conv2d(wide, wide // 4, 1), nn.Conv2d(wide // 4, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardswish(self.depth(F.hardswish(self.up(x))))
        gate = self.more(F.relu(self.less(F.adaptive_avg_pool2d(y, 1))))
        return x + self.down(y * F.hardsigmoid(gate))


class Transformer(nn.Module):
    """Attention over the eight rows of an image."""

    def __init__(self, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.into, self.places = nn.Linear(8, width), nn.Parameter(torch.randn(8, width) * 0.1)
        self.layers = nn.ModuleList(Encoder(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.into(image.squeeze(1)) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1)).softmax(-1)


class Encoder(nn.Module):
    """Attention and two dense layers, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out, self.first = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, rows, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, rows, width)
        x = x + self.out(mixed)
        return x + self.second(F.gelu(self.first(self.between(x))))


class Rows(nn.Module):
    """A GRU over the eight rows of an image."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        _, last = self.gru(image.squeeze(1))
        return self.head(last[0]).softmax(-1)


class Pooled(nn.Module):
    """Convolutions, the mean of every channel, and a dense layer."""

    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image).mean((2, 3))).softmax(-1)


def nets() -> dict[str, nn.Module]:
    """The nets, by the names of their files."""
    residual = nn.Sequential(
        conv(1, 12), nn.ReLU(), Residual(12, 12, 1), Residual(12, 20, 2), Residual(20, 20, 1)
    )
    depthwise = nn.Sequential(
        conv(1, 24), nn.ReLU(), Separable(24, 32, 1), Separable(32, 48, 2), Separable(48, 48, 1)
    )
    squeeze = nn.Sequential(
        conv(1, 16, 3, 2), nn.Hardswish(), Squeeze(16, 48), Squeeze(16, 48), conv(16, 32, 1),
        nn.Hardswish(),
    )  # fmt: skip
    return {
        "residual": Pooled(residual, 20),
        "depthwise": Pooled(depthwise, 48),
        "squeeze": Pooled(squeeze, 32),
        "transformer": Transformer(),
        "gru": Rows(),
    }


def train(net: nn.Module, x: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """Adam on the cross-entropy, with images that are moved by up to a pixel."""
    steps = epochs * -(-len(x) // 64)
    step = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    course = torch.optim.lr_scheduler.OneCycleLR(step, 6e-3, total_steps=steps)
    net.train()
    for _ in range(epochs):
        for picked in torch.randperm(len(x)).split(64):
            moved = F.pad(x[picked], (1, 1, 1, 1))
            i, j = torch.randint(0, 3, (2,)).tolist() if torch.rand(()) < 0.3 else (1, 1)
            chances = net(moved[:, :, i : i + 8, j : j + 8])
            loss = F.nll_loss(torch.log(chances + 1e-9), labels[picked])
            step.zero_grad()
            loss.backward()
            step.step()
            course.step()
    net.eval()


def spread(net: nn.Module) -> None:
    """Scale the channels between the layers of separable convolutions by factors from 0.1 to 10,
    and back: the net computes the same, but the ranges of its channels differ a hundred times, as
    they do in nets that were trained long."""
    blocks = [m for m in net.modules() if isinstance(m, Separable)]
    with torch.no_grad():
        for block in blocks:
            _scale(block.depth, block.point)
        for before, after in pairwise(blocks):
            _scale(before.point, after.depth)


def _scale(first: nn.Module, second: nn.Module) -> None:
    """Channels between two normalised convolutions: more out of the first, less in the second."""
    norm, weight = first[1], second[0].weight
    factors = 10 ** torch.linspace(-1, 1, len(norm.weight))[torch.randperm(len(norm.weight))]
    norm.weight *= factors
    norm.bias *= factors
    weight /= factors[:, None, None, None] if second[0].groups > 1 else factors[:, None, None]


def strip(path: Path) -> None:
    """Drop what the exporter notes of each node's source: most of the bytes of a small file."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for info in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        info.ClearField("metadata_props")
    del model.graph.value_info[:]
    onnx.save(model, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--only", nargs="*", help="names of nets")
    options = parser.parse_args()
    from sklearn.datasets import load_digits

    folder, data = Path(__file__).parent, load_digits()
    order = np.random.default_rng(0).permutation(len(data.images))
    images, labels = data.images[order].astype(np.uint8), data.target[order].astype(np.uint8)
    x = torch.from_numpy(images.astype(np.float32)[:, None] / 16)
    y = torch.from_numpy(labels.astype(np.int64))
    end = TRAIN + CALIBRATE
    for file, part in (("calibration", slice(TRAIN, end)), ("test", slice(end, None))):
        held = {"image": x[part].numpy(), "labels": labels[part]}
        np.savez_compressed(folder / f"{file}.npz", **held)
    for name, net in nets().items():
        if options.only and name not in options.only:
            continue
        torch.manual_seed(0)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        train(net, x[:TRAIN], y[:TRAIN], options.epochs)
        if name == "depthwise":
            spread(net)
        with torch.no_grad():
            right = (net(x[end:]).argmax(1) == y[end:]).double().mean().item()
        path = folder / f"{name}.onnx"
        free = ({0: torch.export.Dim("N")},)
        torch.onnx.export(
            net, (x[:2],), path, input_names=["image"], output_names=["probabilities"],
            dynamo=True, external_data=False, dynamic_shapes=free, verbose=False,
        )  # fmt: skip
        strip(path)
        print(f"{name}: {100 * right:.2f} % of the test images, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
