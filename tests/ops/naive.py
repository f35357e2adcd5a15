"""Convolutions by their definition, one multiplication after the other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def per_axis(value: Any, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else list(value)


def naive_conv(x, w, b=None, stride=1, pad=0, dilation=1, group=1) -> Array:
    rank = x.ndim - 2
    stride, dilation, pad = (
        per_axis(stride, rank),
        per_axis(dilation, rank),
        per_axis(pad, 2 * rank),
    )
    out = [
        (x.shape[2 + i] + pad[i] + pad[rank + i] - (w.shape[2 + i] - 1) * dilation[i] - 1)
        // stride[i]
        + 1
        for i in range(rank)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    if b is not None:
        y += np.asarray(b, np.float64).reshape(-1, *[1] * rank)
    per = w.shape[0] // group
    for n, m in itertools.product(range(x.shape[0]), range(w.shape[0])):
        for o in itertools.product(*map(range, out)):
            for c, *k in itertools.product(*map(range, w.shape[1:])):
                at = [o[i] * stride[i] + k[i] * dilation[i] - pad[i] for i in range(rank)]
                if all(0 <= a < s for a, s in zip(at, x.shape[2:], strict=True)):
                    channel = m // per * w.shape[1] + c
                    y[(n, m, *o)] += float(x[(n, channel, *at)]) * float(w[(m, c, *k)])
    return y


def naive_transposed(x, w, b=None, stride=1, pad=0, dilation=1, group=1, output_padding=0) -> Array:
    rank = x.ndim - 2
    stride, dilation = per_axis(stride, rank), per_axis(dilation, rank)
    pad, extra = per_axis(pad, 2 * rank), per_axis(output_padding, rank)
    out = [
        (x.shape[2 + i] - 1) * stride[i]
        + (w.shape[2 + i] - 1) * dilation[i]
        + 1
        + extra[i]
        - pad[i]
        - pad[rank + i]
        for i in range(rank)
    ]
    per = w.shape[1]
    y = np.zeros((x.shape[0], per * group, *out))
    if b is not None:
        y += np.asarray(b, np.float64).reshape(-1, *[1] * rank)
    for n, c, m in itertools.product(range(x.shape[0]), range(x.shape[1]), range(per)):
        target = c // (x.shape[1] // group) * per + m
        for i in itertools.product(*map(range, x.shape[2:])):
            for k in itertools.product(*map(range, w.shape[2:])):
                at = [i[a] * stride[a] + k[a] * dilation[a] - pad[a] for a in range(rank)]
                if all(0 <= p < s for p, s in zip(at, out, strict=True)):
                    y[(n, target, *at)] += float(x[(n, c, *i)]) * float(w[(c, m, *k)])
    return y
