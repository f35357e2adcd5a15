"""Windows that no kernel knows, as gathers at constant places, products and sums."""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.window import window
from tinsmith.passes.facts import Array
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p

rules = RuleSet("lower-windows", "Rare windows become gathers at constant places and sums.")
register("machine")(rules)

LARGEST = 1 << 28  # elements of the columns of a convolution


def _dims(value: Value) -> tuple[int, ...]:
    if not value.type.is_static or not value.type.size:
        raise Skip(f"{value.name!r} is {value.type}")
    return value.dims


@rules.rule(
    p.Conv("x", "w", opt("b")).named("conv"),
    tolerance=1e-5,
    x=(1, 4, 5, 5),
    w=(6, 2, 3, 3),
    b=(6,),
    conv={"pad": (1, 1, 1, 1), "group": 2},
)
def conv_by_computed_weights(x: Value, w: Value, b: Value | None, conv: Node) -> Value:
    """conv(x, w, b) -> matmul(w, columns of x) + b, for weights that are computed."""
    if w.const is not None:
        raise Skip("the weights are constant: convolutions have kernels for that")
    if x.dtype != np.float32:
        raise Skip(f"x is {x.dtype}")
    (n, channels, *sizes), (m, per_group, *kernel) = _dims(x), _dims(w)
    win = window(tuple(sizes), tuple(kernel), conv.stride, conv.pad, conv.dilation, conv.auto_pad)
    group, out = conv.group, tuple(int(d) for d in win.out)
    points, taps = prod(out), prod(kernel)
    if n * channels * taps * points > LARGEST:
        raise Skip("the columns would take more than 1 GiB")
    columns = x
    if taps > 1 or points != prod(sizes):
        places = _places(tuple(sizes), tuple(kernel), out, win.stride, win.dilation, win.begin)
        columns = _gathered(OPS["Reshape"](x, _ints(n, channels, prod(sizes))), places, 2)
    columns = OPS["Reshape"](columns, _ints(n, group, per_group * taps, points))
    rows = OPS["Reshape"](w, _ints(1, group, m // group, per_group * taps))
    y = OPS["Reshape"](OPS["MatMul"](rows, columns), _ints(n, m, *out))
    if b is None:
        return y
    tail = (m, *[1] * len(out))
    bias = OPS["Reshape"](b, _ints(*tail)) if b.const is None else b.const.reshape(tail)
    return OPS["Add"](y, bias)


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def _places(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    out: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pad: tuple[int, ...],
) -> Array:
    """The flat place that each tap of each window reads, [taps, points]; prod(sizes) outside."""
    rank = len(sizes)
    index = np.zeros((*kernel, *out), np.int64)
    outside = np.zeros(index.shape, bool)
    for a in range(rank):
        tap = np.arange(kernel[a]) * dilation[a] - pad[a]
        at = tap.reshape(-1, *[1] * (2 * rank - 1 - a)) + (np.arange(out[a]) * stride[a]).reshape(
            -1, *[1] * (rank - 1 - a)
        )
        index = index * sizes[a] + at
        outside |= np.broadcast_to((at < 0) | (at >= sizes[a]), index.shape)
    return np.where(outside, prod(sizes), index).reshape(prod(kernel), prod(out))


def _gathered(x: Value, places: Array, axis: int) -> Value:
    """x at places on its last axis; the place after the last is 0."""
    if places.max(initial=0) == x.dims[axis]:
        pads = np.zeros(2 * len(x.dims), np.int64)
        pads[-1] = 1
        x = OPS["Pad"](x, pads)
    return OPS["Gather"](x, places, axis=axis)


@rules.rule(
    p.LpPool("x").named("pool"), tolerance=2e-5, x=(1, 2, 6, 7), pool={"kernel": (2, 3), "p": 2}
)
def lp_pool(x: Value, pool: Node) -> Value:
    """lp_pool(x) -> (n * mean of |x|^p over the windows)^(1/p), n the size of a window."""
    if x.dtype != np.float32:
        raise Skip(f"x is {x.dtype}")
    if pool.p not in (1, 2):
        raise Skip(f"p is {pool.p}")
    if pool.ceil_mode or pool.auto_pad not in ("NOTSET", "VALID"):
        raise Skip("the window is padded beyond the pads, or automatically")
    y = OPS["Abs"](x) if pool.p == 1 else OPS["Mul"](x, x)
    attrs = {name: getattr(pool, name) for name in ("kernel", "stride", "pad", "dilation")}
    y = OPS["AveragePool"](y, count_include_pad=True, **attrs)
    y = OPS["Mul"](y, np.float32(prod(pool.kernel)))
    return y if pool.p == 1 else OPS["Sqrt"](y)


@rules.rule(
    p.Col2Im("x", const("image"), const("block")).named("fold"),
    tolerance=1e-5,
    x=(1, 8, 16),
    image=np.array([5, 5]),
    block=np.array([2, 2]),
)
def col2im(x: Value, image: Array, block: Array, fold: Node) -> Value:
    """col2im(x) -> sum of x at the constant places that come to each element."""
    if x.dtype != np.float32:
        raise Skip(f"x is {x.dtype}")
    n, wide, count = _dims(x)
    sizes, kernel = (tuple(v.reshape(-1).tolist()) for v in (image, block))
    rank, taps = len(sizes), prod(kernel)
    stride, dilation = (v or (1,) * rank for v in (fold.stride, fold.dilation))
    pad = fold.pad or (0,) * 2 * rank
    out = tuple(
        (sizes[a] + pad[a] + pad[rank + a] - dilation[a] * (kernel[a] - 1) - 1) // stride[a] + 1
        for a in range(rank)
    )
    read = _places(sizes, kernel, out, stride, dilation, pad).reshape(-1)
    order = np.argsort(read, kind="stable")
    order = order[read[order] < prod(sizes)]
    rank_of = np.arange(len(order)) - np.searchsorted(read[order], read[order])
    come = np.full((int(rank_of.max(initial=0)) + 1, prod(sizes)), taps * count, np.int64)
    come[rank_of, read[order]] = order
    flat = OPS["Reshape"](x, _ints(n, wide // taps, taps * count))
    parts = _gathered(flat, come, 2)
    y = OPS["Reduce"](parts, _ints(2), kind="sum", keepdims=False)
    return OPS["Reshape"](y, _ints(n, wide // taps, *sizes))
