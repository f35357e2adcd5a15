"""Fourier transforms, window functions and mel filters, computed in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value, dtype_of
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import (
    FLOATS,
    INTS,
    NUMBERS,
    axis_of,
    const_int,
    dtype_attr,
    give_rule,
    length_of,
    need_data,
    need_dtype,
    need_rank,
    need_room,
    need_same,
    scalar,
)
from tinsmith.sizes import NUMBER


def _complex(x: Any) -> Any:
    """x without its last axis, which has the parts of a number: size 1 (real) gives float64, size 2
    (real, imaginary) complex128. Raises DataError for another size."""
    need_data(x.shape[-1] in (1, 2), f"the last axis of {list(x.shape)} is not 1 or 2")
    wide = x.astype(np.float64)
    return wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]


def _pair(y: Any) -> Any:
    return np.stack([y.real, y.imag], axis=-1)


def _parts(x: Value) -> Dim:
    """The size of the last axis of x, whose rank is known. TypeRuleError if it is not 1 or 2."""
    assert x.shape is not None
    parts = x.shape[-1]
    need(parts in (1, 2) or isinstance(parts, str), f"the last axis of {x.type} is not 1 or 2")
    return parts


@op()
def DFT(x, dft_length=None, axis=None, *, inverse=False, onesided=False):
    """y[k] = sum of x[n] * e^(-2 pi i k n / N) along `axis` (default -2), N = dft_length

    The last axis holds the parts of complex numbers: [real, imaginary], or [real] for a real x.
    x is cut, or padded with zeros, to N along `axis`. With `inverse` the exponent has the other
    sign, and the sum is divided by N. With `onesided` the forward transform of a real x gives only
    k = 0 .. N // 2, and the inverse takes these and gives a real y. Default N: the size of
    `axis`; for the onesided inverse 2 * (size - 1).
    """
    place = -2 if axis is None else scalar(axis)
    place = place + x.ndim if place < 0 else place
    size = x.shape[place]
    if dft_length is not None:
        size = scalar(dft_length)
    elif inverse and onesided:
        size = 2 * (size - 1)
    need_data(size > 0, f"a transform of {size} elements")
    need_room((*x.shape[:place], size, *x.shape[place + 1 :]), np.complex128)
    signal = _complex(x)
    if inverse and onesided:
        return np.fft.irfft(signal, n=size, axis=place)[..., None].astype(x.dtype)
    if inverse:
        return _pair(np.fft.ifft(signal, n=size, axis=place)).astype(x.dtype)
    transform = np.fft.rfft if onesided else np.fft.fft
    return _pair(transform(signal, n=size, axis=place)).astype(x.dtype)


@DFT.type
def _(
    x: Value, dft_length: Value | None, axis: Value | None, *, inverse: bool, onesided: bool
) -> Type:
    need_dtype(x, FLOATS, "x")
    if x.shape is None:
        return Type(x.dtype, None)
    rank = len(x.shape)
    need(rank >= 2, f"x is {x.type}; it must have rank 2 or more, the last axis 1 or 2")
    parts = _parts(x)
    if onesided:
        wrong = 1 if inverse else 2
        need(parts != wrong, f"this onesided transform cannot take {wrong} part(s): {x.type}")
    out = 1 if inverse and onesided else 2
    place = -2 if axis is None else const_int(axis)
    if place is None:
        return Type(x.dtype, (*(fresh() for _ in range(rank - 1)), out))
    place = axis_of(place, rank)
    need(place != rank - 1, "the last axis holds the parts of a number; choose another")
    size: Dim | None = x.shape[place] if dft_length is None else const_int(dft_length)
    if dft_length is None and inverse and onesided:
        size = 2 * (size - 1) if isinstance(size, NUMBER) else None
    need(not isinstance(size, int) or size > 0, f"a transform of {size} elements")
    if onesided and not inverse:
        size = size // 2 + 1 if isinstance(size, NUMBER) else None
    dims = [*x.shape[:-1], out]
    dims[place] = fresh() if size is None else size
    return Type(x.dtype, tuple(dims))


@op()
def STFT(signal, frame_step, window=None, frame_length=None, *, onesided=True):
    """y[b, f, k] = sum of w[n] * signal[b, f * step + n] * e^(-2 pi i k n / N), n < N

    signal is [B, L, 1] or, complex, [B, L, 2]; y is [B, frames, K, 2], K = N // 2 + 1 if onesided,
    else N. N is frame_length, else the length of the window, else L.
    """
    step = scalar(frame_step)
    size = signal.shape[1] if window is None else window.shape[0]
    size = size if frame_length is None else scalar(frame_length)
    frames = (signal.shape[1] - size) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(size)
    pieces = _complex(signal)[:, places]
    if window is not None:
        pieces = pieces * window.astype(np.float64)
    transform = np.fft.rfft if onesided else np.fft.fft
    return _pair(transform(pieces, axis=-1)).astype(signal.dtype)


@STFT.type
def _(
    signal: Value, frame_step: Value, window: Value | None, frame_length: Value | None, *,
    onesided: bool,
) -> Type:  # fmt: skip
    need_dtype(signal, FLOATS, "signal")
    need_dtype(frame_step, INTS, "frame_step")
    need_rank(signal, 3, "signal")
    need_same(signal, window)
    size: Dim | None = None
    if frame_length is not None:
        size = const_int(frame_length)
        if window is not None and size is not None:
            need(length_of(window) in (None, size), f"the window is not of frame_length {size}")
    elif window is not None:
        size = length_of(window)
    elif signal.shape is not None:
        size = signal.shape[1]
    if signal.shape is None:
        return Type(signal.dtype, (fresh(), fresh(), fresh(), 2))
    batch, length, _ = signal.shape
    parts = _parts(signal)
    need(not (onesided and parts == 2), "a complex signal has no onesided transform")
    step = const_int(frame_step)
    need(step is None or step >= 1, f"frame_step is {step}")
    frames: Dim = fresh()
    if isinstance(length, NUMBER) and isinstance(size, NUMBER) and step is not None:
        need(size <= length, f"frames of {size} are longer than the signal {signal.type}")
        frames = (length - size) // step + 1
    bins: Dim = fresh()
    if isinstance(size, NUMBER):
        bins = size // 2 + 1 if onesided else size
    elif size is not None and not onesided:
        bins = size
    return Type(signal.dtype, (batch, frames, bins, 2))


# ---- windows


def _cosines(size: Any, dtype: str, periodic: bool, weights: tuple[float, ...]) -> Any:
    count = scalar(size)
    need_room((count,), np.float64)
    period = count if periodic else count - 1
    angle = 2 * np.pi * np.arange(count) / max(period, 1)
    total = sum(w * np.cos(i * angle) for i, w in enumerate(weights))
    return np.asarray(total, np.float64).astype(dtype_of(dtype))


@op()
def HannWindow(size, *, dtype="float32", periodic=True):
    """y[n] = 1/2 - 1/2 cos(2 pi n / N), N = size, or size - 1 where not periodic"""
    return _cosines(size, dtype, periodic, (0.5, -0.5))


@op()
def HammingWindow(size, *, dtype="float32", periodic=True):
    """y[n] = 25/46 - 21/46 cos(2 pi n / N), N = size, or size - 1 where not periodic"""
    return _cosines(size, dtype, periodic, (25 / 46, -21 / 46))


@op()
def BlackmanWindow(size, *, dtype="float32", periodic=True):
    """y[n] = 0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N), N as for HannWindow"""
    return _cosines(size, dtype, periodic, (0.42, -0.5, 0.08))


def _window_rule(size: Value, *, dtype: str, periodic: bool) -> Type:
    need_dtype(size, INTS, "size")
    count = const_int(size)
    need(count is None or count >= 0, f"size is {count}")
    return Type(dtype_attr(dtype), (fresh() if count is None else count,))


give_rule(_window_rule, HannWindow, HammingWindow, BlackmanWindow)


@op()
def MelWeightMatrix(
    num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz, *, dtype="float32"
):
    """y[dft_length // 2 + 1, num_mel_bins]: triangular filters from a spectrum to mel bands

    Band m rises from edge m to edge m + 1 and falls to edge m + 2. The num_mel_bins + 2 edges
    are (upper - lower) / (num_mel_bins + 2) apart on the scale mel(f) = 2595 log10(1 + f / 700)
    and are rounded down to bins of sample_rate / (dft_length + 1) hertz.
    """
    bands, length = int(scalar(num_mel_bins)), int(scalar(dft_length))
    low, high = (2595 * np.log10(1 + scalar(f) / 700) for f in (lower_edge_hertz, upper_edge_hertz))
    need_room((length // 2 + 1, bands + 2), np.float64)
    mel = low + np.arange(bands + 2) * (high - low) / (bands + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    edge = ((length + 1) * hertz // scalar(sample_rate)).astype(np.int64)
    left, top, right = edge[:-2], edge[1:-1], edge[2:]
    bins = np.arange(length // 2 + 1)[:, None]
    rise = np.where(top > left, (bins - left) / np.maximum(top - left, 1), bins >= top)
    fall = (right - bins) / np.maximum(right - top, 1)
    up = (bins >= left) & (bins < top)
    down = (bins > top) & (bins < right)
    y = np.where(up, rise, np.where(down, fall, bins == top))
    return np.asarray(y, np.float64).astype(dtype_of(dtype))


@MelWeightMatrix.type
def _(
    num_mel_bins: Value, dft_length: Value, sample_rate: Value, lower_edge_hertz: Value,
    upper_edge_hertz: Value, *, dtype: str,
) -> Type:  # fmt: skip
    for v in (num_mel_bins, dft_length, sample_rate):
        need_dtype(v, INTS, v.name)
    for v in (lower_edge_hertz, upper_edge_hertz):
        need_dtype(v, NUMBERS, v.name)
    bands, length = const_int(num_mel_bins), const_int(dft_length)
    return Type(
        dtype_attr(dtype),
        (fresh() if length is None else length // 2 + 1, fresh() if bands is None else bands),
    )
