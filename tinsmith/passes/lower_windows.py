"""Windows that no kernel knows, as slices, products and sums."""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.window import Window, spatial_attr, window
from tinsmith.passes.facts import filled_dims, pads
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p

rules = RuleSet("lower-windows", "Rare windows become slices, products and sums.")
register("machine")(rules)

WINDOW = ("kernel", "stride", "pad", "dilation", "auto_pad", "ceil_mode")

FEWER = 4
"""A convolution by computed weights becomes a product if it has at least this many times as many
output channels as output positions."""


@rules.rule(
    p.Conv("x", "w", "b").named("conv") | p.ConvTranspose("x", "w", "b").named("conv"),
    tolerance=2e-5,
    x=(1, 2, 4, 5),
    w=(2, 2, 2, 2),
    b=(2,),
)
def computed_bias(x: Value, w: Value, b: Value, conv: Node) -> Value:
    """conv(x, w, b) -> conv(x, w) + b, transposed or not, where w or b is computed."""
    if b.const is not None and w.const is not None:
        raise Skip("the weights and the bias are constants")
    y = OPS[conv.op.name](x, w, **conv.attrs)
    bias = OPS["Reshape"](b, np.array((-1, *[1] * (len(filled_dims(x)) - 2)), np.int64))
    return OPS["Add"](y, bias)


@rules.rule(p.Conv("x", "w").named("conv"), tolerance=2e-5, x=(1, 2, 3, 4), w=(24, 2, 2, 2))
def few_positions(x: Value, w: Value, conv: Node) -> Value:
    """conv(x, w) -> w @ columns of x (im2col), where w is computed and has FEWER times as many rows
    as there are columns: it need not be packed."""
    if w.const is not None:
        raise Skip("the weights are a constant")
    if conv.group != 1 or x.dtype != np.float32:
        raise Skip(f"x is {x.dtype}, in {conv.group} groups")
    (n, _, *sizes), (m, channels, *kernel) = filled_dims(x), filled_dims(w)
    win = window(tuple(sizes), tuple(kernel), conv.stride, conv.pad, conv.dilation, conv.auto_pad)
    out, depth = tuple(int(d) for d in win.out), channels * prod(kernel)
    if m < FEWER * n * prod(out):
        raise Skip(f"{n * prod(out)} positions are no {FEWER} times fewer than {m} outputs")
    rows = OPS["Reshape"](w, np.array([m, depth]))
    columns = OPS["Reshape"](_columns(x, win, out), np.array([n, depth, prod(out)]))
    return OPS["Reshape"](OPS["MatMul"](rows, columns), np.array([n, m, *out]))


@rules.rule(
    p.ConvTranspose("x", const("w"), opt(const("b"))).named("conv"),
    tolerance=2e-5,
    x=(2, 3, 1, 1),
    w=(3, 2, 4, 3),
    b=(2,),
)
def transposed_of_a_pixel(x: Value, w: Array, b: Array | None, conv: Node) -> Value:
    """conv_transpose(x, w, b) -> x @ w + b, of images of one pixel and one group, where the result
    is one whole window: no pads, no dilation."""
    n, channels, *sizes = filled_dims(x)
    (_, m, *out), (_, _, *kernel) = filled_dims(conv.output), w.shape
    dilation = spatial_attr("dilation", conv.dilation, len(kernel), 1, 1)
    if set(sizes) != {1} or conv.group != 1:
        raise Skip(f"an image has {prod(sizes)} pixels, in {conv.group} groups")
    if out != kernel or pads(conv) or max(dilation) > 1:
        raise Skip("the result is not one window as it is")
    y = OPS["MatMul"](OPS["Reshape"](x, np.array([n, channels])), w.reshape(channels, -1))
    if b is not None:
        y = OPS["Add"](y, np.repeat(b, prod(kernel)))
    return OPS["Reshape"](y, np.array([n, m, *kernel]))


def _columns(x: Value, win: Window, out: tuple[int, ...]) -> Value:
    """The columns of x (im2col): [N, C, taps, positions], the element of the padded input that each
    tap of a convolution reads for each output position. Taps, and positions in the extents `out`,
    are counted in row-major order."""
    if any(win.begin) or any(win.end):
        x = OPS["Pad"](x, np.array([0, 0, *win.begin, 0, 0, *win.end]))
    axes, parts = np.arange(2, 2 + len(out)), []
    for tap in np.ndindex(*win.kernel):
        first = np.multiply(tap, win.dilation)
        last = first + np.multiply(np.subtract(out, 1), win.stride) + 1
        part = OPS["Slice"](x, first, last, axes, np.array(win.stride))
        parts.append(OPS["Reshape"](part, np.array([*x.dims[:2], 1, prod(out)])))
    return OPS["Concat"](*parts, axis=2)


@rules.rule(
    p.LpPool("x").named("pool"), tolerance=2e-5, x=(1, 2, 6, 7), pool={"kernel": (2, 3), "p": 2}
)
def lp_pool(x: Value, pool: Node) -> Value:
    """lp_pool(x) -> (n * mean of |x|^p over the windows)^(1/p), n a window's size, p 1 or 2."""
    if x.dtype != np.float32:
        raise Skip(f"x is {x.dtype}")
    if pool.p not in (1, 2):
        raise Skip(f"p is {pool.p}")
    if pool.ceil_mode or pool.auto_pad not in ("NOTSET", "VALID"):
        raise Skip("the window is padded beyond the pads, or automatically")
    y = OPS["Abs"](x) if pool.p == 1 else OPS["Mul"](x, x)
    attrs = {name: getattr(pool, name) for name in WINDOW[:4]}
    y = OPS["AveragePool"](y, count_include_pad=True, **attrs)
    y = OPS["Mul"](y, np.float32(prod(pool.kernel)))
    return y if pool.p == 1 else OPS["Sqrt"](y)


@rules.rule(
    p.MaxPool("x").named("pool"),
    x=np.arange(84, dtype=np.uint8).reshape(1, 2, 6, 7) % 11,
    pool={"kernel": (2, 3), "pad": (1, 1, 0, 1), "with_indices": True},
)
def max_pool_of_bytes(x: Value, pool: Node) -> tuple[Value, ...]:
    """max_pool(x) -> cast(max_pool(cast(x))), exact for bytes, where indices are wanted too."""
    if x.dtype not in (np.int8, np.uint8):
        raise Skip(f"x is {x.dtype}")
    if not pool.with_indices:
        raise Skip("a kernel takes bytes")
    win = window(filled_dims(x)[2:], *(getattr(pool, n) for n in WINDOW))
    wide = [max(ends) >= k for *ends, k in zip(win.begin, win.end, win.kernel, strict=True)]
    if any(wide) or max(win.dilation) > 1:
        raise Skip("a window may see nothing but padding")
    y = OPS["MaxPool"](OPS["Cast"](x, to="float32"), **pool.attrs)
    return OPS["Cast"](y[0], to=x.dtype.name), y[1]
