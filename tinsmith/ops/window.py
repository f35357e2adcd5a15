"""Sliding windows of convolutions and pooling: output sizes, automatic padding, views of windows
and of taps. Spatial axes are the last ones, in any number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Window:
    """The geometry of windows that slide over an input: one number for each spatial axis.

    `begin` and `end` are the padding, also where `auto_pad` gives it (for an input size that is a
    symbol: the padding for multiples of the stride). `out` are the output sizes, symbols where the
    input's are.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[Dim, ...]

    @property
    def span(self) -> tuple[int, ...]:
        """How many elements a dilated window reaches over, for each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def spatial_attr(name: str, value: Any, count: int, default: int, least: int) -> tuple[int, ...]:
    """The `count` numbers of an attribute, from its value: a tuple, an int for all of them, or None
    for `default`. Raises TypeRuleError, with `name`, for another count, or numbers below `least`.
    """
    if value is None:
        return (default,) * count
    if isinstance(value, NUMBER):
        value = (value,) * count
    need(
        len(value) == count, f"{name} has {len(value)} numbers, {count} are needed: {tuple(value)}"
    )
    need(min(value, default=least) >= least, f"{name} {tuple(value)} must be at least {least}")
    return tuple(int(v) for v in value)


def window(
    sizes: Sequence[Dim], kernel: int | Sequence[int], stride: Any = None, pad: Any = None,
    dilation: Any = None, auto_pad: str = "NOTSET", ceil_mode: bool = False,
) -> Window:  # fmt: skip
    """The geometry of windows over an input of spatial `sizes`, by the attributes of a convolution
    or pooling. `pad` is all begins, then all ends. `auto_pad`, unless it is NOTSET, replaces it:
    VALID is no padding; SAME_UPPER and SAME_LOWER pad for ceil(size / stride) windows, the larger
    half at the end or at the begin. Raises TypeRuleError where they do not fit.

    With `ceil_mode` a last window that is partly outside counts, unless it starts in the padding
    after the input.
    """
    rank = len(sizes)
    kernel = spatial_attr("kernel", kernel, rank, 1, 1)
    stride = spatial_attr("stride", stride, rank, 1, 1)
    dilation = spatial_attr("dilation", dilation, rank, 1, 1)
    pads = spatial_attr("pad", pad, 2 * rank, 0, 0)
    need_one_of(AUTO_PADS, auto_pad=auto_pad)
    begin, end, out = [], [], []
    for i, (size, k, s, d) in enumerate(zip(sizes, kernel, stride, dilation, strict=True)):
        span = (k - 1) * d + 1
        if auto_pad.startswith("SAME"):
            fits = isinstance(size, str) or size > 0
            need(fits, f"a window of {span} does not fit into {size} on spatial axis {i}")
            missing = span - s if isinstance(size, str) else (-(-size // s) - 1) * s + span - size
            total = max(missing, 0)
            less, more = total // 2, total - total // 2
            b, e = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
            n: Dim = (size if s == 1 else fresh()) if isinstance(size, str) else -(-size // s)
        else:
            b, e = (0, 0) if auto_pad == "VALID" else (pads[i], pads[rank + i])
            n = _count(size, span, s, b, e, ceil_mode, i)
        begin.append(b)
        end.append(e)
        out.append(n)
    return Window(kernel, stride, dilation, tuple(begin), tuple(end), tuple(out))


def _count(size: Dim, span: int, s: int, b: int, e: int, ceil_mode: bool, axis: int) -> Dim:
    """The number of windows along one axis of `size`: of length `span`, at stride `s`, with padding
    b before and e after. Raises TypeRuleError if none fits."""
    if isinstance(size, str):
        return size if s == 1 and b + e == span - 1 else fresh()
    room = size + b + e - span
    need(
        room >= 0 or (ceil_mode and room + s > 0),
        f"a window of {span} does not fit into {size} + {b + e} of padding on spatial axis {axis}",
    )
    n = (-(-room // s) if ceil_mode else room // s) + 1
    if ceil_mode and (n - 1) * s >= size + b:
        n -= 1
    return n


def padded(x: Array, w: Window, fill: Any) -> Array:
    """x with w.begin elements of `fill` before each spatial axis, and after it w.end, or more where
    the last window needs more. Where nothing is added, x itself, not a copy."""
    rank = len(w.kernel)
    sizes = x.shape[-rank:] if rank else ()
    spans = zip(sizes, w.begin, w.end, w.span, w.stride, w.out, strict=True)
    after = [
        max(e, (int(n) - 1) * s + span - size - b) if int(n) else e
        for size, b, e, span, s, n in spans
    ]
    if not any(w.begin) and not any(after):
        return x
    widths = [(0, 0)] * (x.ndim - rank) + list(zip(w.begin, after, strict=True))
    return np.pad(x, widths, constant_values=fill)


def windows(x: Array, w: Window) -> Array:
    """All windows of a padded array [..., *spatial], as a read-only view [..., *out, *kernel]."""
    rank = len(w.kernel)
    lead, steps = x.ndim - rank, x.strides[x.ndim - rank :]
    shape = (*x.shape[:lead], *(int(n) for n in w.out), *w.kernel)
    moves = [a * s for a, s in zip(steps, w.stride, strict=True)]
    taps = [a * d for a, d in zip(steps, w.dilation, strict=True)]
    strides = (*x.strides[:lead], *moves, *taps)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def tap(x: Array, axis: int, offset: int, stride: int, count: int) -> Array:
    """The view of the elements that one tap of a kernel reads in all `count` windows along `axis`:
    from `offset` on, `stride` apart."""
    stop = offset + (count - 1) * stride + 1 if count else offset
    return x[(*(slice(None),) * axis, slice(offset, stop, stride))]


def taps(x: Array, w: Window) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For every tap of the kernel: (its place, the view [..., *out] of the elements that it reads
    in all windows of the padded array x)."""
    lead = x.ndim - len(w.kernel)
    for place in itertools.product(*map(range, w.kernel)):
        part = x
        for i, k in enumerate(place):
            part = tap(part, lead + i, k * w.dilation[i], w.stride[i], int(w.out[i]))
        yield place, part
