"""Convolution and transposed convolution, of any spatial rank."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim, Type, Value, agree
from tinsmith.ops._apart import images
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import dtypes_at, need_axes, need_same
from tinsmith.ops._weights import Weights
from tinsmith.ops.precision import widen
from tinsmith.ops.window import AUTO_PADS, Window, padded, spatial_attr, taps, window, windows
from tinsmith.sizes import NUMBER

COLUMN_BYTES = 32 << 20
"""How much the im2col matrix of a convolution may take; larger ones are made in parts."""


@op("anchor", "narrows", "window")
def Conv(
    x, w, b=None, *, stride=None, pad=None, dilation=None, group=1, auto_pad="NOTSET"
):  # fmt: skip
    """y[n,m,o] = b[m] + sum over c, k of x[n, c, o*stride + k*dilation - pad] * w[m,c,k]

    x [N,C,*spatial], 0 outside; w [M,C/group,*kernel], b [M]; o and k are places on all spatial
    axes, c a channel of the group of m; pad is all begins, then all ends.
    """
    win = window(x.shape[2:], w.shape[2:], stride, pad, dilation, auto_pad)
    y = conv_sums(widen(x), widen(w), win, group)
    if b is not None:
        y += widen(b).reshape(-1, *(1,) * (y.ndim - 2))
    return y.astype(x.dtype, copy=False)


def conv_sums(x: Array, w: Array, win: Window, group: int) -> Array:
    """Compute a convolution without bias, in the dtype of x: x [N,C,*spatial], not yet padded, and
    w [M,C/group,*kernel] give [N,M,*win.out]."""
    n, m = x.shape[0], w.shape[0]
    out = tuple(int(d) for d in win.out)
    y = np.zeros((n, m, *out), x.dtype)
    if not y.size or not w.size:
        return y
    x = padded(x, win, 0)
    if w.shape[1] == 1 and group > 1:
        _depthwise(x, w, win, y)
        return y
    a = w.reshape(group, m // group, -1)
    if prod(win.kernel) == 1 and set(win.stride) == {1}:
        y[:] = (a @ x.reshape(n, group, x.shape[1] // group, -1)).reshape(y.shape)
        return y
    rank = len(out)
    view = windows(x, win)  # N C out... kernel...
    order = (0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
    rows = max(1, COLUMN_BYTES // (a.shape[2] * group * x.itemsize * max(1, prod(out[1:]))))
    for i in range(n):
        for start in range(0, out[0], rows):
            part = view[i][:, start : start + rows]
            columns = part.transpose(order).reshape(group, a.shape[2], -1)
            y[i][:, start : start + rows] = (a @ columns).reshape(m, -1, *out[1:])
    return y


def _depthwise(x: Array, w: Array, win: Window, y: Array) -> None:
    if w.shape[0] != x.shape[1]:
        x = np.repeat(x, w.shape[0] // x.shape[1], axis=1)
    one = (1,) * len(win.kernel)
    for place, part in taps(x, win):
        y += part * w[(slice(None), 0, *place)].reshape(-1, *one)


def check_conv(x: Value, w: Value, b: Value | None, group: int, transposed: bool = False) -> None:
    """Raise TypeRuleError if the shapes of x [N,C,*spatial], w [M,C/group,*kernel] (transposed:
    [C,M/group,*kernel]) and b [M] are known not to fit. `need_same` checks element types."""
    need(group >= 1, f"group must be at least 1, it is {group}")
    for name, v in (("x", x), ("w", w)):
        need_axes(v, 3, f"{name}, [N,C,*spatial],")
    if x.shape is not None and w.shape is not None:
        need(len(x.shape) == len(w.shape), f"x has rank {len(x.shape)}, but w has {len(w.shape)}")
        have, m = x.shape[1], w.shape[0]
        if transposed:
            m, wants = w.shape[1], w.shape[0]
            if isinstance(wants, NUMBER):
                need(wants % group == 0, f"group {group} does not divide the {wants} channels of w")
        else:
            wants = w.shape[1] * group if isinstance(w.shape[1], NUMBER) else w.shape[1]
            if isinstance(m, NUMBER):
                need(m % group == 0, f"group {group} does not divide the {m} outputs of w")
        need(agree(wants, have), f"w wants {wants} channels, x has {have}")
        if b is not None and b.shape is not None:
            outs = m * group if transposed and isinstance(m, NUMBER) else m
            need(len(b.shape) == 1, f"b needs rank 1, it has {len(b.shape)}")
            ok = agree(b.shape[0], outs)
            need(ok, f"b has {b.shape[0]} elements, the output has {outs} channels")


def conv_shape(
    x: Value, w: Value, *, stride: Any, pad: Any, dilation: Any, auto_pad: str = "NOTSET", **_: Any
) -> tuple[Dim, ...] | None:
    """The output shape (N, M, *out) of a convolution, by its attributes; None where neither x nor w
    has a known rank. Sizes that are not known are symbols. TypeRuleError for attributes that do not
    fit."""
    if x.shape is None or w.shape is None:
        rank = x.rank or w.rank
        if rank is None:
            return None
        n = x.shape[0] if x.shape else fresh()
        m = w.shape[0] if w.shape else fresh()
        return (n, m, *(fresh() for _ in range(rank - 2)))
    kernel = w.shape[2:]
    if not all(isinstance(k, NUMBER) for k in kernel):
        return (x.shape[0], w.shape[0], *(fresh() for _ in kernel))
    sizes = [int(k) for k in kernel]
    win = window(x.shape[2:], sizes, stride, pad, dilation, auto_pad)
    return (x.shape[0], w.shape[0], *win.out)


@Conv.type
def _(x, w, b=None, *, group, **attrs):
    check_conv(x, w, b, group)
    need_same(x, w, b)
    return Type(x.dtype, conv_shape(x, w, **attrs))


def conv_flops(x: Value, w: Value, b: Value | None = None, **attrs: Any) -> float:
    """The number of arithmetic operations of a convolution whose operands have static types."""
    shape = conv_shape(x, w, **attrs)
    assert shape is not None
    points = prod(int(d) for d in shape)
    return points * (2 * prod(w.dims[1:]) + (b is not None))


Conv.cost(conv_flops)
Conv.factors = dtypes_at(0, 1)
Conv.weights = Weights((1,), 0, data=(0,), bias=2)


# ---- transposed


@op("anchor", "window")
def ConvTranspose(
    x, w, b=None, *, stride=None, pad=None, dilation=None, group=1, output_padding=None,
    output_shape=None, auto_pad="NOTSET",
):  # fmt: skip
    """y[n,m,o] = b[m] + sum of x[n,c,i] * w[c,m,k] over c, i, k: o = i*stride + k*dilation - pad

    x [N,C,*spatial], w [C,M/group,*kernel], b [M]. output_shape gives the spatial sizes of y, from
    which pad follows; without it, output_padding makes y larger at the end of each axis.
    """
    win = transposed_window(
        x.shape[2:], w.shape[2:], stride, pad, dilation, output_padding, output_shape, auto_pad
    )
    out = tuple(int(d) for d in win.out)
    wide, n, (c, per_group) = widen(x), x.shape[0], w.shape[:2]
    m, rank = per_group * group, len(out)
    ends = zip(x.shape[2:], win.stride, win.span, win.begin, out, strict=True)
    full = [max((i - 1) * s + span, lead + o) for i, s, span, lead, o in ends]
    y = np.zeros((n, m, *full), wide.dtype)
    if x.size and w.size:
        a = widen(w).reshape(group, c // group, -1).swapaxes(1, 2)
        sums = (a @ wide.reshape(n, group, c // group, -1)).reshape(n, m, *win.kernel, *x.shape[2:])
        scatter = Window(win.kernel, win.stride, win.dilation, win.begin, win.end, x.shape[2:])
        for place, part in taps(y, scatter):
            part += sums[(slice(None), slice(None), *place)]
    places = (slice(lead, lead + o) for lead, o in zip(win.begin, out, strict=True))
    y = y[(slice(None), slice(None), *places)]
    if b is not None:
        y = y + widen(b).reshape(-1, *(1,) * rank)
    return np.ascontiguousarray(y.astype(x.dtype, copy=False))


def transposed_window(
    sizes: Sequence[Dim], kernel: Sequence[int], stride: Any = None, pad: Any = None,
    dilation: Any = None, output_padding: Any = None, output_shape: Any = None,
    auto_pad: str = "NOTSET",
) -> Window:  # fmt: skip
    """The geometry of a transposed convolution of an input of spatial `sizes`, by its attributes.
    `begin` and `end` of the result are how much is cut from the ends of the unpadded output. Raises
    TypeRuleError."""
    rank = len(sizes)
    kernel = spatial_attr("kernel", tuple(kernel), rank, 1, 1)
    stride = spatial_attr("stride", stride, rank, 1, 1)
    dilation = spatial_attr("dilation", dilation, rank, 1, 1)
    extra = spatial_attr("output_padding", output_padding, rank, 0, 0)
    pads = spatial_attr("pad", pad, 2 * rank, 0, 0)
    need_one_of(AUTO_PADS, auto_pad=auto_pad)
    wanted = None
    if output_shape is not None:
        wanted = spatial_attr("output_shape", tuple(output_shape)[-rank:], rank, 1, 0)
    begin, end, out = [], [], []
    for i, size in enumerate(sizes):
        s = stride[i]
        excess = (kernel[i] - 1) * dilation[i] + 1 + extra[i] - s  # of the full sum over size * s
        n: Dim
        if wanted is None and not auto_pad.startswith("SAME"):
            b, e = (0, 0) if auto_pad == "VALID" else (pads[i], pads[rank + i])
            if isinstance(size, NUMBER):
                left = size * s + excess - b - e
                need(left >= 0, f"padding {b} + {e} exceeds the full sum on spatial axis {i}")
                n = left
            else:
                n = size if s == 1 and excess == b + e else fresh()
        else:
            if wanted is not None:
                n = wanted[i]
            elif isinstance(size, NUMBER):
                n = size * s
            else:
                n = size if s == 1 else fresh()
            whole = isinstance(n, NUMBER) and isinstance(size, NUMBER)
            total = max(0, size * s + excess - n if whole else excess)
            less, more = total // 2, total - total // 2
            b, e = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
        begin.append(b)
        end.append(e)
        out.append(n)
    return Window(kernel, stride, dilation, tuple(begin), tuple(end), tuple(out))


@ConvTranspose.type
def _(x, w, b=None, *, stride, pad, dilation, group, output_padding, output_shape, auto_pad):
    check_conv(x, w, b, group, transposed=True)
    need_same(x, w, b)
    rank = x.rank or w.rank
    if rank is None:
        return Type(x.dtype, None)
    n = x.shape[0] if x.shape else fresh()
    m = w.shape[1] if w.shape else fresh()
    m = m * group if isinstance(m, NUMBER) else m if group == 1 else fresh()
    if x.shape is None or w.shape is None or not all(isinstance(k, NUMBER) for k in w.shape[2:]):
        return Type(x.dtype, (n, m, *(fresh() for _ in range(rank - 2))))
    kernel = [int(k) for k in w.shape[2:]]
    win = transposed_window(
        x.shape[2:], kernel, stride, pad, dilation, output_padding, output_shape, auto_pad
    )
    return Type(x.dtype, (n, m, *win.out))


ConvTranspose.cost(lambda x, w, *_, **__: 2 * x.type.size * prod(w.dims[1:]))
ConvTranspose.weights = Weights((1,), 1, data=(0,), bias=2)
Conv.apart(images)
ConvTranspose.apart(images)
