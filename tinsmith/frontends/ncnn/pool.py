"""Importers of pooling, and of short-time Fourier transforms."""

from __future__ import annotations

from math import fmod
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Result, known, layer, pick, rank, shape
from tinsmith.frontends.ncnn.window import pads, same_padding, spatial
from tinsmith.frontends.nodes import bins_of
from tinsmith.frontends.spectra import overlapped
from tinsmith.graph import Array, Value

KEEP = -233
MOST_APART = 512
"""The most bins along an axis that are reduced by a node each; more are gathered to one array."""


@layer("Pooling", "Pooling1D", "Pooling3D")
def pooling(node: Node) -> Result:
    x, letters = node[0], spatial(node.type)
    mean = node.attr("pooling_type") == 1
    node.ignore(*(n for n in node.values if n not in ("pooling_type", "shapes", "featmask")))
    if node.attr("pooling_type") not in (0, 1):
        raise Unsupported(f"its pooling_type {node.attr('pooling_type')} is not known")
    if rank(x) != len(letters) + 1:
        raise Unsupported(f"its input has {rank(x)} axes, not {len(letters) + 1}")
    if node.attr("global_pooling"):
        y = node.emit("GlobalPool", x, kind="mean" if mean else "max")
        return node.reshaped(y, -1)
    if node.attr("adaptive_pooling"):
        return _adaptive(node, x, letters, mean)
    return _windows(node, x, letters, mean)


def _windows(node: Node, x: Value, letters: tuple[str, ...], mean: bool) -> Value:
    """x pooled by windows: their mean, or without `mean` their maximum. The layer's `pad_mode` says
    how x is padded: 1 by its paddings; 0 by more at the end, too, so that windows cover all
    elements; 2 and 3 as SAME_UPPER and SAME_LOWER. Raises Unsupported."""
    n = len(letters)
    kernel = tuple(node.attr(f"kernel_{a}") for a in letters)
    stride = tuple(node.attr(f"stride_{a}") for a in letters)
    mode, pad = node.attr("pad_mode"), pads(node, letters)
    attrs: dict[str, Any] = {"kernel": kernel, "stride": stride}
    include = bool(node.attr("avgpool_count_include_pad"))
    if mode in (2, 3):
        attrs |= same_padding(x, letters, kernel, stride, lower=mode == 3)
        include = True  # this padding counts
    elif mode == 0:
        sizes = shape(x)[2:]
        tails = [
            int(fmod(size + pad[i] + pad[n + i] - kernel[i], stride[i]))
            if isinstance(size, int)
            else None
            for i, size in enumerate(sizes)
        ]
        if None in tails:  # only the run tells
            if any(pad[n + i] + stride[i] > kernel[i] and stride[i] > 1 for i in range(n)):
                raise Unsupported(
                    f"windows of {kernel} with strides {stride} and a padding of {pad} may begin "
                    "behind the end, and only the run tells sizes: give them by input_shapes"
                )
            if mean and include and any(s > 1 for s in stride):
                raise Unsupported(
                    f"its average counts what is added at the end for windows of {kernel} with "
                    f"strides {stride}, and only the run tells sizes: give them by input_shapes"
                )
            attrs |= {"pad": pad, "ceil_mode": any(s > 1 for s in stride)}
        else:
            more = [stride[i] - t if t else 0 for i, t in enumerate(tails) if t is not None]
            attrs["pad"] = (*pad[:n], *(pad[n + i] + more[i] for i in range(n)))
    else:
        attrs["pad"] = pad
    if not mean:
        return _largest(node, x, attrs)
    if mode in (2, 3) and any(pad):
        raise Unsupported(
            f"it has a padding {pad} beside one that keeps the size (pad_mode {mode})"
        )
    if include:
        x, attrs = _far_padded(node, x, attrs, 0.0)
    elif _is_far(attrs):
        raise Unsupported(f"its padding {attrs['pad']} holds windows of {kernel} without elements")
    return node.emit("AveragePool", x, count_include_pad=include, **attrs)


def _is_far(attrs: dict[str, Any]) -> bool:
    """Whether `attrs`, of our pooling, have a padding as large as the kernel or larger, which our
    operators do not take."""
    return any(p >= k for p, k in zip(attrs.get("pad", ()), attrs["kernel"] * 2, strict=False))


def _far_padded(
    node: Node, x: Value, attrs: dict[str, Any], value: float
) -> tuple[Value, dict[str, Any]]:
    """(x, attrs) of a pooling; for padding that `_is_far`, x padded by a node with `value`, and
    attributes without padding."""
    if not _is_far(attrs):
        return x, attrs
    pad = attrs["pad"]
    return node.padded(x, pad, value), attrs | {"pad": (0,) * len(pad)}


def _largest(node: Node, x: Value, attrs: dict[str, Any]) -> Value:
    """A MaxPool of x. A window of padding alone gives the least float32 number, as in ncnn."""
    x, attrs = _far_padded(node, x, attrs, float(np.finfo(np.float32).min))
    return node.emit("MaxPool", x, **attrs)


def _adaptive(node: Node, x: Value, letters: tuple[str, ...], mean: bool) -> Value:
    """Adaptive pooling of x to the sizes out_w, out_h, ... (-233: that of x): bin i of m along an
    axis of n elements goes from floor(i n / m) to ceil((i + 1) n / m). One pooling if all bins are
    of one size, else one axis after the other, if need be bin by bin."""
    sizes, wanted_sizes = shape(x)[2:], [node.attr(f"out_{a}") for a in letters]
    pairs = [(n, n if m == KEEP else m) for n, m in zip(sizes, wanted_sizes, strict=True)]
    if all(isinstance(n, int) and m > 0 and n % m == 0 for n, m in pairs):
        k = tuple(n // m for n, m in pairs)
        return node.emit("AveragePool" if mean else "MaxPool", x, kernel=k, stride=k)
    for axis, letter in enumerate(letters, 2):
        size, wanted = shape(x)[axis], node.attr(f"out_{letter}")
        if wanted in (KEEP, size):
            continue
        if wanted < 1:
            raise Unsupported(f"its out_{letter} is {wanted}")
        if not isinstance(size, int):
            x = _adaptive_free(node, x, axis, wanted, mean)
            continue
        if size % wanted == 0:
            k = tuple(size // wanted if a == axis else 1 for a in range(2, rank(x) + 1))
            op = "AveragePool" if mean else "MaxPool"
            x = node.emit(op, x, kernel=k, stride=k)
            continue
        bins = bins_of(size, wanted)
        if wanted > MOST_APART:
            x = _gathered(node, x, axis, bins, mean)
        else:
            x = node.binned(x, axis, bins, "mean" if mean else "max")
    return x


def _gathered(node: Node, x: Value, axis: int, bins: list[tuple[int, int]], mean: bool) -> Value:
    """x with `axis` reduced to `bins`, pairs (begin, end), as by `SourceNode.binned`, in a few
    nodes: elements are gathered to rows of one length, in which shorter bins repeat their last
    element (in a mean it counts once). Raises BudgetExceeded for too large constants."""
    low, high = np.array(bins).T
    budget.check("constants", 12 * len(bins) * int((high - low).max()), f"{node.label!r}")
    places = low[:, None] + np.arange((high - low).max())
    last = high[:, None] - 1
    rows = node.emit("Gather", x, node.const(np.minimum(places, last)), axis=axis)
    ends = node.ints(axis + 1)
    if not mean:
        return node.emit("Reduce", rows, ends, kind="max", keepdims=False)
    shares = (
        1
        / (high - low)[:, None]
        / np.where(places < last, 1, places.shape[1] - (last - low[:, None]))
    )
    factors = shares.reshape(*shares.shape, *(1,) * (rank(x) - axis)).astype(np.float32)
    return node.emit("Reduce", node.emit("Mul", rows, factors), ends, kind="sum", keepdims=False)


def _adaptive_free(node: Node, x: Value, axis: int, count: int, mean: bool) -> Value:
    """Adaptive pooling of x to `count` bins along an axis whose size n is known only in the run:
    element j is in bin i where i n < (j + 1) count and j count < (i + 1) n."""
    n = node.emit("Squeeze", node.dim(x, axis), node.ints(0))
    zero, one = node.const(0, np.int64), node.const(1, np.int64)
    j = node.emit("Unsqueeze", node.emit("Range", zero, n, one), node.ints(1))
    i = np.arange(count)[None]
    behind = node.emit("Mul", node.emit("Add", j, one), node.const(count, np.int64))
    begun = node.emit("Greater", behind, node.emit("Mul", node.const(i), n))
    before = node.emit("Mul", j, node.const(count, np.int64))
    inside = node.emit(
        "And", begun, node.emit("Less", before, node.emit("Mul", node.const(i + 1), n))
    )
    order = list(range(rank(x) + 1))
    order[axis], order[-1] = order[-1], order[axis]
    x = node.emit("Transpose", x, perm=tuple(order))
    if mean:
        ones = node.emit("Cast", inside, to="float32")
        sizes = node.emit("Reduce", ones, node.ints(0), kind="sum", keepdims=True)
        y = node.emit("MatMul", x, node.emit("Div", ones, sizes))
    else:
        least = node.number(float("-inf"), x)
        some = node.emit("Where", inside, node.emit("Unsqueeze", x, node.ints(-1)), least)
        y = node.emit("Reduce", some, node.ints(-2), kind="max", keepdims=False)
    return node.emit("Transpose", y, perm=tuple(order))


@layer("SPP")
def pyramid(node: Node) -> Result:
    """Import SPP (spatial pyramid pooling): `pyramid_height` poolings, to 1, 2, 4, ... windows
    along each axis, joined to one vector."""
    x, mean = node[0], node.attr("pooling_type") == 1
    c, h, w = known(x, "it")
    parts = []
    height = node.attr("pyramid_height")
    if not 0 < height < 16:
        raise Unsupported(f"its pyramid_height is {height}")
    for level in range(height):
        bins = 1 << level
        kernel = -(-h // bins), -(-w // bins)
        rest = kernel[0] * bins - h, kernel[1] * bins - w
        pad = ((rest[0] + 1) // 2, (rest[1] + 1) // 2)
        pad = (*pad, rest[0] - pad[0], rest[1] - pad[1])
        attrs = {"kernel": kernel, "stride": kernel, "pad": pad}
        y = node.emit("AveragePool", x, **attrs) if mean else _largest(node, x, attrs)
        parts.append(node.reshaped(y, c * bins * bins))
    return node.emit("Concat", *parts, axis=1)


# ---- spectra


PAD_MODES = ("constant", "edge", "reflect")
"""The modes of our Pad, by ncnn's pad_type."""
WINDOWS = {0: 1.0, 1: 0.5, 2: 0.54}
"""window_type (rectangle, Hann, Hamming) -> a in the window a - (1 - a) * cos(2 pi i / n)."""


def window_of(n: int, length: int, kind: int) -> Array:
    """The window function of ncnn's window_type `kind`: `length` elements, with zeros on both sides
    up to `n` elements."""
    first = WINDOWS[kind]
    i = np.arange(length)
    w = np.ones(length) if kind == 0 else first - (1 - first) * np.cos(2 * np.pi * i / length)
    before = (n - length) // 2
    return np.pad(w, (before, n - length - before)).astype(np.float32)


def normal_of(kind: int, w: Array, n: int) -> float:
    """The factor of a spectrum of n elements under the window w. `kind` is ncnn's parameter
    `normalized`: 0 gives 1.0, 1 gives 1 / sqrt(n), 2 gives 1 / sqrt(sum of w^2). Raises Unsupported
    for others."""
    return pick(
        (1.0, n**-0.5, float((w.astype(np.float64) ** 2).sum()) ** -0.5), kind, "normalized"
    )


def _window(node: Node, n: int) -> Array:
    length, kind = node.attr("winlen"), node.attr("window_type")
    budget.check("constants", 16 * n * n, f"the transform of {node.label!r}")
    if kind not in WINDOWS or not 0 < length <= n:
        raise Unsupported(f"its window {kind} of {length} elements is not known")
    return window_of(n, length, kind)


@layer("Spectrogram")
def spectrogram(node: Node) -> Result:
    x, n, power = node[0], node.attr("n_fft"), node.attr("power")
    hop = node.attr("hoplen") or n // 4
    w = _window(node, n)
    mode = pick(PAD_MODES, node.attr("pad_type"), "pad_type")
    if node.attr("center"):
        x = node.emit("Pad", x, node.ints(0, n // 2, 0, n // 2), mode=mode)
    signal = node.emit("Unsqueeze", x, node.ints(2))
    y = node.emit(
        "STFT", signal, node.const(hop, np.int64), node.const(w), node.const(n, np.int64),
        onesided=bool(node.attr("onesided")),
    )  # fmt: skip
    y = node.scaled(y, normal_of(node.attr("normalized"), w, n))
    if power == 0:
        return node.emit("Transpose", y, perm=(0, 2, 1, 3))
    kind = "l2" if power == 1 else "sumsquare"
    size = node.emit("Reduce", y, node.ints(3), kind=kind, keepdims=False)
    return node.emit("Transpose", size, perm=(0, 2, 1))


@layer("InverseSpectrogram")
def inverse_spectrogram(node: Node) -> Result:
    """Import InverseSpectrogram (inverse short-time Fourier transform): for each part that it
    `returns` a product with the matrix of the inverse transform, times the window, then
    overlap-add."""
    x, n, returns = node[0], node.attr("n_fft"), node.attr("returns")
    hop = node.attr("hoplen") or n // 4
    w = _window(node, n)
    bins, frames, two = known(x, "it")
    if two != 2 or bins not in (n, n // 2 + 1) or returns not in (0, 1, 2):
        raise Unsupported(f"a spectrum of {(bins, frames, two)} is not of {n} elements")
    k, t = np.arange(bins)[:, None], np.arange(n)
    # of a half, bins but the first and n / 2 stand for two, whose imaginary parts cancel out
    single = (k == 0) | (2 * k == n) | (bins == n)
    angle, each = 2 * np.pi * k * t / n, np.where(single, 1 / n, 2 / n)
    alone = np.where(single, each, 0)
    parts = {
        "real": (each * np.cos(angle), -each * np.sin(angle)),
        "imaginary": (alone * np.sin(angle), alone * np.cos(angle)),
    }
    rows = node.reshaped(node.emit("Transpose", x, perm=(0, 2, 1, 3)), frames, 2 * bins)

    def summed(part: str) -> Value:
        matrix = (
            np.stack(parts[part], 1).reshape(2 * bins, n)
            * w
            / normal_of(node.attr("normalized"), w, n)
        )
        pieces = node.emit("MatMul", rows, matrix.astype(np.float32))
        pieces = node.emit("Transpose", pieces, perm=(0, 2, 1))
        return overlapped(node, pieces, w, hop, frames)

    found = [
        summed(part) for part in list(parts)[slice(returns - 1, returns) if returns else slice(2)]
    ]
    if node.attr("center"):
        ends = node.ints(n // 2), node.ints(-(n // 2)), node.ints(1)
        found = [node.emit("Slice", y, *ends) for y in found]
    if len(found) == 1:
        return found[0]
    return node.emit("Concat", *(node.emit("Unsqueeze", v, node.ints(2)) for v in found), axis=2)
