"""Importers of Fourier transforms, also of short-time ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.complex import (
    complex_of,
    conjugate,
    joined,
    magnitude,
    parted,
    scaled,
    squares,
    takes,
)
from tinsmith.frontends.pnnx.expression import floats
from tinsmith.frontends.pnnx.images import padded
from tinsmith.frontends.pnnx.layers import each_size
from tinsmith.frontends.pnnx.node import Complex, PnnxNode
from tinsmith.frontends.spectra import overlapped
from tinsmith.graph import Value

NORMS = ("backward", "ortho", "forward")
FORWARD, INVERSE = {"backward": 0.0, "ortho": -0.5, "forward": -1.0}, {
    "backward": 0.0, "ortho": 0.5, "forward": 1.0
}  # fmt: skip
"""PyTorch's norm -> p: our DFT of n elements is multiplied by n^p. Our forward transform is a sum,
the inverse one a mean."""


class _Transform:
    """Fourier transforms along several axes, one after the other. `factor` is the product of their
    factors by the norm: the caller multiplies the result by it."""

    def __init__(self, node: PnnxNode, norm: Any) -> None:
        self.node, self.norm, self.factor = node, norm or "backward", 1.0
        if self.norm not in NORMS:
            raise Unsupported(f"its norm {norm!r} is not one of {', '.join(NORMS)}")

    def run(self, x: Any, axis: int, size: Any, inverse: bool, onesided: bool, power: float) -> Any:
        """The transform of x along one axis, cut or padded to n = `size` elements (None: all): a
        Complex, or with `inverse` and `onesided` a Value. Multiplies `factor` by n^power."""
        real = x.real if isinstance(x, Complex) else x
        if power:
            count = size or self.node.size(real, axis)
            count = 2 * (count - 1) if inverse and onesided and not size else count
            self.factor *= float(count) ** power
        node = self.node
        whole = joined(node, x) if isinstance(x, Complex) else node.emit("Unsqueeze", x, [-1])
        y = node.emit(
            "DFT", whole, None if size is None else node.const(size, np.int64),
            node.const(axis, np.int64), inverse=inverse, onesided=onesided,
        )  # fmt: skip
        return node.emit("Squeeze", y, [-1]) if inverse and onesided else parted(node, y)

    def each(self, x: Any, axes: Sequence[int], sizes: Sequence[Any], inverse: bool) -> Any:
        """The complex transform of x along all `axes`, each cut or padded to its size in `sizes`
        (None: as it is), without the norm's factor (`factor`)."""
        power = (INVERSE if inverse else FORWARD)[self.norm]
        for axis, size in zip(axes, sizes, strict=True):
            x = self.run(x, axis, size, inverse, False, power)
        return x


@takes(
    *(
        f"torch.fft.{kind}{end}"
        for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for end in ("", "2", "n")
    )
)
def transform(
    node: PnnxNode, input: Any, *, n: Any = None, s: Any = None, dim: Any = None, norm: Any = None
) -> Any:
    name = node.type.rpartition(".")[2]
    kind = name[: re.match("[ihr]*fft", name).end()]  # type: ignore[union-attr]
    x: Any = input if isinstance(input, Complex) else floats(node, input)
    real = x.real if isinstance(x, Complex) else x
    sizes = [n] if name == kind else [None if v == -1 else v for v in each_size(s or ())]
    if dim is not None:
        dims = each_size(dim)
    elif name == kind:
        dims = (-1,)
    else:
        dims = range(-(2 if name.endswith("2") else len(sizes) or node.rank(real)), 0)
    sizes = sizes or [None] * len(dims)
    if len(sizes) != len(dims):
        raise Unsupported(f"it has {len(sizes)} sizes for {len(dims)} axes")
    axes = [node.axis(real, d) for d in dims]
    work = _Transform(node, norm)
    y = _kinds(work, kind, x, axes, sizes)
    return scaled(node, y, work.factor)


def _kinds(work: _Transform, kind: str, x: Any, axes: list[int], sizes: list[Any]) -> Any:
    """The transform `kind` ("rfft", "ihfft", ...) of x along `axes`, not yet multiplied by
    `work.factor`. Real transforms are along the last of the axes, complex ones along the others."""
    node, norm = work.node, work.norm
    last, size, others = axes[-1], sizes[-1], (axes[:-1], sizes[:-1])
    if kind in ("rfft", "ihfft"):
        if isinstance(x, Complex):
            raise Unsupported("it takes real numbers")
        powers = FORWARD if kind == "rfft" else {k: v - 1 for k, v in INVERSE.items()}
        y = work.run(x, last, size, False, True, powers[norm])
        y = y if kind == "rfft" else conjugate(node, y)
        return work.each(y, *others, inverse=kind == "ihfft")
    z = complex_of(node, x)
    if kind in ("irfft", "hfft"):
        z = work.each(z, *others, inverse=kind == "irfft")
        z = z if kind == "irfft" else conjugate(node, z)
        powers = INVERSE if kind == "irfft" else {k: v + 1 for k, v in FORWARD.items()}
        return work.run(z, last, size, True, True, powers[norm])
    return work.each(x, axes, sizes, inverse=kind == "ifft")


# ---- windows in time


def _window(node: PnnxNode, window: Any, n: int, length: int | None) -> Any:
    """The window as an array [n] of float32: `window` (None: `length` ones, or n), with zeros on
    both sides. Raises Unsupported if it is computed, or does not fit."""
    if isinstance(window, Value):
        if window.const is None:
            raise Unsupported("its window is computed")
        window = window.const
    length = (length or n) if window is None else len(window)
    if not isinstance(n, int) or not 0 < length <= n:
        raise Unsupported(f"its window of {length} does not fit transforms of {n} elements")
    node.spend(4 * n)
    if window is None:
        window = np.ones(length, np.float32)
    before = (n - length) // 2
    return np.pad(np.asarray(window, np.float32), (before, n - length - before))


def spectrum(
    node: PnnxNode, x: Value, w: Any, hop: int | None, pads: Sequence[str], onesided: Any
) -> Complex:
    """The short-time Fourier transform of x [..., time] with the window w [n] at every `hop`
    elements (None: n / 4): [..., frequencies, windows], n / 2 + 1 frequencies, or n if `onesided`
    is False. Before, x is padded by n / 2 at both ends for each mode in `pads`."""
    n = len(w)
    rank = node.rank(x)
    lead = x.shape[:-1] if x.shape is not None else ()
    last = 0 if rank == 2 else node.size(x, rank - 1)
    x = node.emit("Reshape", floats(node, x), node.ints(-1, last))
    for mode in pads:
        x = padded(node, x, (n // 2, n // 2), mode, None)
    y = node.emit(
        "STFT", node.emit("Unsqueeze", x, [-1]), node.const(hop or n // 4, np.int64),
        None if (w == 1).all() else node.const(w), node.const(n, np.int64),
        onesided=onesided is not False,
    )  # fmt: skip
    z = parted(node, node.emit("Transpose", y, perm=(0, 2, 1, 3)))
    if rank == 2:
        return z
    if not all(isinstance(d, int) for d in lead):
        raise Unsupported("it needs known sizes of the axes before that of time")
    bins = n // 2 + 1 if onesided is not False else n
    return Complex(*(node.emit("Reshape", v, [*lead, bins, -1]) for v in (z.real, z.imag)))


@takes("torch.stft")
def stft(
    node: PnnxNode, input: Value, window: Any = None, *, n_fft: int, hop_length: Any = None,
    win_length: Any = None, center: bool = True, pad_mode: str = "reflect",
    normalized: Any = False, onesided: Any = True, return_complex: Any = None,
    align_to_window: Any = None,
) -> Any:  # fmt: skip
    w = _window(node, window, n_fft, win_length)
    y = spectrum(node, input, w, hop_length, [pad_mode] * bool(center), onesided)
    y = scaled(node, y, _factor(normalized, w))
    return y if return_complex else joined(node, y)


def _factor(normalized: Any, w: Any) -> float:
    """The factor of spectra under the window w [n], by `normalized`: 1 / |w| for "window", n^-0.5
    for another true value, else 1."""
    if normalized == "window":
        return float((w.astype(np.float64) ** 2).sum()) ** -0.5
    return len(w) ** -0.5 if normalized else 1.0


@takes("torchaudio.functional.spectrogram")
def spectrogram(
    node: PnnxNode, waveform: Value, window: Any = None, *, n_fft: int, hop_length: Any = None,
    win_length: Any = None, power: Any = None, pad: int = 0, center: bool = True,
    pad_mode: str = "reflect", normalized: Any = False, onesided: Any = True,
) -> Any:  # fmt: skip
    w = _window(node, window, n_fft, win_length)
    x = waveform
    if pad:
        x = node.emit("Pad", x, node.ints(pad, pad), None, node.ints(node.rank(x) - 1))
    y = spectrum(node, x, w, hop_length, [pad_mode] * bool(center), onesided)
    y = scaled(node, y, _factor(normalized, w))
    if power is None:
        return y
    if power not in (1, 2):
        size = magnitude(node, y)
        return node.emit("Pow", size, node.number(power, size))
    return (magnitude if power == 1 else squares)(node, y)


@takes("torch.istft", "torchaudio.functional.inverse_spectrogram")
def inverse(
    node: PnnxNode, input: Any = None, window: Any = None, *, spectrogram: Any = None, n_fft: int,
    hop_length: Any = None, win_length: Any = None, center: bool = True, normalized: Any = False,
    onesided: Any = True, length: Any = None, pad: int = 0, return_complex: Any = None,
) -> Any:  # fmt: skip
    z = input if spectrogram is None else spectrogram
    z = z if isinstance(z, Complex) else parted(node, z)
    w, hop = _window(node, window, n_fft, win_length), hop_length or n_fft // 4
    rank = node.rank(z.real)
    lead = [node.size(z.real, i) for i in range(rank - 2)]
    bins, frames = (node.size(z.real, i) for i in (rank - 2, rank - 1))
    half = bins == n_fft // 2 + 1 and onesided is not False
    if (bins != n_fft and not half) or (half and return_complex) or frames < 1:
        raise Unsupported(f"a spectrum of {bins} frequencies is not of {n_fft} elements")
    budget.check("constants", 4 * n_fft * frames, f"the windows of {node.label!r}")
    rows = [node.emit("Reshape", v, [prod(lead), bins, frames]) for v in (z.real, z.imag)]
    y = node.emit(
        "DFT", joined(node, Complex(*rows)), node.const(n_fft, np.int64), node.const(1, np.int64),
        inverse=True, onesided=half,
    )  # fmt: skip
    scale = node.const((w / _factor(normalized, w)).reshape(1, -1, 1).astype(np.float32))
    begin = n_fft // 2 if center else 0
    total = (frames - 1) * hop + n_fft
    wanted = total - 2 * begin if length is None else length + 2 * pad
    ends = (begin + pad, begin + wanted - pad) if length is not None else (begin, begin + wanted)

    def signal(part: int) -> Value:
        pieces = node.emit("Gather", y, node.const(part, np.int64), axis=3)
        found = overlapped(node, node.emit("Mul", pieces, scale), w, hop, frames)
        if wanted > total - begin:
            found = node.emit("Pad", found, node.ints(0, 0, 0, wanted - total + begin))
        found = node.slice(found, node.ints(ends[0]), node.ints(ends[1]), [1])
        return node.emit("Reshape", found, [*lead, -1])

    return Complex(signal(0), signal(1)) if return_complex else signal(0)
