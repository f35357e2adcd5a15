"""Train a small convolutional net on scikit-learn's 8x8 digits with numpy, and write it as ONNX.

    pip install tinsmith[train,images]
    python examples/digits/train.py

Writes digits.onnx, digits.npz (test images, labels, and the probabilities that numpy computes),
labels.txt and a few images beside this file. Deterministic; takes a minute or two.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PICTURES = ["zero", "three", "four", "seven", "nine"]


class Conv:
    """3x3 convolution with a border of zeros, then ReLU, then 2x2 max pooling, on [N, C, H, W]."""

    def __init__(self, inputs: int, outputs: int, rng: np.random.Generator) -> None:
        scale = np.sqrt(2 / (9 * inputs))
        weight = scale * rng.standard_normal((outputs, inputs, 3, 3))
        self.weights = [weight.astype(np.float32), np.zeros(outputs, np.float32)]
        self.gradients: list[Array] = []

    def forward(self, x: Array) -> Array:
        w, b = self.weights
        n, c, height, width = x.shape
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        taps = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        self.patches = taps.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, 9 * c)
        y = self.patches @ w.reshape(len(w), -1).T + b
        y = np.maximum(y, 0).reshape(n, height // 2, 2, width // 2, 2, len(w))
        pooled = y.max(axis=(2, 4), keepdims=True)
        # What a place contributed to the pooled maximum; where several tie, each gets its share.
        self.chosen = (y == pooled) & (y > 0)
        self.chosen = self.chosen / np.maximum(self.chosen.sum(axis=(2, 4), keepdims=True), 1)
        self.shape = x.shape
        return pooled[:, :, 0, :, 0].transpose(0, 3, 1, 2)

    def backward(self, dy: Array) -> Array:
        w, _ = self.weights
        n, c, height, width = self.shape
        spread = self.chosen * dy.transpose(0, 2, 3, 1)[:, :, None, :, None]
        spread = spread.reshape(n * height * width, len(w)).astype(np.float32)
        self.gradients = [(spread.T @ self.patches).reshape(w.shape), spread.sum(0)]
        dpatches = (spread @ w.reshape(len(w), -1)).reshape(n, height, width, c, 3, 3)
        dx = np.zeros((n, c, height + 2, width + 2), np.float32)
        for i in range(3):
            for j in range(3):
                part = dpatches[..., i, j].transpose(0, 3, 1, 2)
                dx[:, :, i : i + height, j : j + width] += part
        return dx[:, :, 1:-1, 1:-1]


class Dense:
    """y = flatten(x) @ w + b"""

    def __init__(self, inputs: int, outputs: int, rng: np.random.Generator) -> None:
        weight = np.sqrt(1 / inputs) * rng.standard_normal((inputs, outputs))
        self.weights = [weight.astype(np.float32), np.zeros(outputs, np.float32)]
        self.gradients: list[Array] = []

    def forward(self, x: Array) -> Array:
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.weights[0] + self.weights[1]

    def backward(self, dy: Array) -> Array:
        self.gradients = [self.x.T @ dy, dy.sum(0)]
        return (dy @ self.weights[0].T).reshape(self.shape)


Net = list[Conv | Dense]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def forward(net: Net, x: Array) -> Array:
    """Class probabilities, [N, 10]."""
    for layer in net:
        x = layer.forward(x)
    return softmax(x)


def shifted(x: Array, rng: np.random.Generator) -> Array:
    """Some images moved by a pixel, all of them blurred a little."""
    n, _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows = rng.choice(3, n, p=[0.1, 0.8, 0.1])[:, None, None] + np.arange(height)[:, None]
    columns = rng.choice(3, n, p=[0.1, 0.8, 0.1])[:, None, None] + np.arange(width)
    moved = padded[np.arange(n)[:, None, None], 0, rows, columns]
    across = (np.roll(moved, 1, 2) + np.roll(moved, -1, 2)) / 2
    both = (np.roll(across, 1, 1) + np.roll(across, -1, 1)) / 2
    amount = rng.uniform(0, 0.4, (n, 1, 1)).astype(np.float32)
    return (moved + amount * ((across + both) / 2 - moved))[:, None]


def train(x: Array, labels: Array, epochs: int, rng: np.random.Generator) -> Net:
    """Adam on the cross-entropy, with a learning rate that falls to zero along a cosine."""
    net: Net = [Conv(1, 16, rng), Conv(16, 32, rng), Dense(32 * 2 * 2, 10, rng)]
    weights = [w for layer in net for w in layer.weights]
    mean, power = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    batch, step = 64, 0
    steps = epochs * (len(x) // batch)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - batch + 1, batch):
            picked = order[start : start + batch]
            error = forward(net, shifted(x[picked], rng))
            error[np.arange(batch), labels[picked]] -= 1
            back = error / batch
            for layer in reversed(net):
                back = layer.backward(back)
            step += 1
            rate = 0.004 * (1 + np.cos(np.pi * step / steps)) / 2
            gradients = [g for layer in net for g in layer.gradients]
            for w, g, m, v in zip(weights, gradients, mean, power, strict=True):
                m += 0.1 * (g - m)
                v += 0.01 * (g * g - v)
                w -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.99**step)) + 1e-8)
    return net


def save_onnx(net: Net, path: Path) -> None:
    """Input `image` [N, 1, 8, 8] with values from 0 to 1, output `probabilities` [N, 10]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, x = [], [], "image"
    for i, layer in enumerate(net):
        names = [f"layer{i}.weight", f"layer{i}.bias"]
        weights += [
            numpy_helper.from_array(w, name) for w, name in zip(layer.weights, names, strict=True)
        ]
        if isinstance(layer, Conv):
            at = f"conv{i}"
            same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
            nodes += [
                helper.make_node("Conv", [x, *names], [at], at, **same),
                helper.make_node("Relu", [at], [f"relu{i}"], f"relu{i}"),
                helper.make_node(
                    "MaxPool",
                    [f"relu{i}"],
                    [f"pool{i}"],
                    f"pool{i}",
                    kernel_shape=[2, 2],
                    strides=[2, 2],
                ),
            ]
            x = f"pool{i}"
        else:
            nodes += [
                helper.make_node("Flatten", [x], ["features"], "flatten"),
                helper.make_node("Gemm", ["features", *names], ["scores"], "dense"),
                helper.make_node("Softmax", ["scores"], ["probabilities"], "softmax", axis=-1),
            ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
        weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="tinsmith-examples"
    )
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


def save_pictures(x: Array, labels: Array, probabilities: Array, folder: Path) -> None:
    """For each name of PICTURES, the test image of that digit of which the net is most certain."""
    from PIL import Image

    for name in PICTURES:
        digit = NAMES.index(name)
        certain = np.where(labels == digit, probabilities[:, digit], -1)
        pixels = np.rint(255 * x[int(certain.argmax()), 0]).astype(np.uint8)
        Image.fromarray(pixels.repeat(8, 0).repeat(8, 1)).save(folder / f"{name}.png")


def main() -> None:
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    digits: Any = load_digits()
    x, labels = (digits.images[:, None] / 16).astype(np.float32), digits.target
    rng = np.random.default_rng(0)
    order = rng.permutation(len(x))
    held, kept = order[:360], order[360:]
    net = train(x[kept], labels[kept], options.epochs, rng)
    probabilities = forward(net, x[held])
    accuracy = (probabilities.argmax(1) == labels[held]).mean()
    print(f"{accuracy:.1%} of {len(held)} test images right")
    save_onnx(net, options.out / "digits.onnx")
    save_pictures(x[held], labels[held], probabilities, options.out)
    few = slice(0, 100)
    np.savez_compressed(
        options.out / "digits.npz",
        image=x[held][few],
        label=labels[held][few],
        probabilities=probabilities[few],
    )
    (options.out / "labels.txt").write_text("\n".join(NAMES) + "\n")


if __name__ == "__main__":
    main()
