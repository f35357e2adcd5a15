"""Windows that no kernel knows, as slices, products and sums."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.window import Window, window
from tinsmith.passes.facts import Array
from tinsmith.passes.manager import Context, register
from tinsmith.rewrite import RuleSet, Skip, p, replace_outputs

rules = RuleSet("lower-windows", "Rare windows become slices, products and sums.")
register("machine")(rules)

LARGEST = 1 << 28  # elements of the columns of a convolution


def _dims(value: Value) -> tuple[int, ...]:
    if not value.type.is_static or not value.type.size:
        raise Skip(f"{value.name!r} is {value.type}")
    return value.dims


@register("machine", name="lower-computed-weights", devices=("cpu",))
@dataclass(frozen=True)
class LowerComputedWeights:
    """Convolutions by weights that are computed become products with the columns of x."""

    operators: ClassVar = frozenset(("Conv",))

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            if node.op.name != "Conv" or node.inputs[1] is None or node.inputs[1].const is not None:
                continue
            try:
                new = _product((*node.inputs, None)[:3], node)
            except Skip as why:
                context.refuse("lower-computed-weights", node.name, str(why))
                continue
            changes += replace_outputs(graph, node, (new,))
        graph.sweep()
        return changes


def _product(operands: tuple[Value | None, ...], conv: Node) -> Value:
    """conv(x, w, b) -> matmul(w, columns of x) + b; depthwise only b becomes a node of its own."""
    x, w, b = operands
    assert x is not None and w is not None
    if x.dtype != np.float32:
        raise Skip(f"x is {x.dtype}")
    (n, channels, *sizes), (m, per_group, *kernel) = _dims(x), _dims(w)
    win = window(tuple(sizes), tuple(kernel), conv.stride, conv.pad, conv.dilation, conv.auto_pad)
    group, out = conv.group, tuple(int(d) for d in win.out)
    points, taps = prod(out), prod(kernel)
    if group == channels == m and len(sizes) <= 3:
        if b is None:
            raise Skip("depthwise convolutions pack their weights when they run")
        y = OPS["Conv"](x, w, **conv.attrs)
    elif n * channels * taps * points > LARGEST:
        raise Skip("the columns would take more than 1 GiB")
    else:
        columns = x
        if taps > 1 or points != prod(sizes):
            columns = _columns(x, win, out)
        columns = OPS["Reshape"](columns, _ints(n, group, per_group * taps, points))
        rows = OPS["Reshape"](w, _ints(1, group, m // group, per_group * taps))
        y = OPS["Reshape"](OPS["MatMul"](rows, columns), _ints(n, m, *out))
    if b is None:
        return y
    tail = (m, *[1] * len(out))
    bias = OPS["Reshape"](b, _ints(*tail)) if b.const is None else b.const.reshape(tail)
    return OPS["Add"](y, bias)


def _columns(x: Value, win: Window, out: tuple[int, ...]) -> Value:
    """[N, C, taps, points]: what each tap reads of the padded input, one after the other."""
    n, channels, *_ = x.dims
    if any(win.begin) or any(win.end):
        x = OPS["Pad"](x, _ints(0, 0, *win.begin, 0, 0, *win.end))
    axes, parts = _ints(*range(2, 2 + len(out))), []
    for tap in np.ndindex(*win.kernel):
        first = [t * d for t, d in zip(tap, win.dilation, strict=True)]
        last = [f + (o - 1) * s + 1 for f, o, s in zip(first, out, win.stride, strict=True)]
        part = OPS["Slice"](x, _ints(*first), _ints(*last), axes, _ints(*win.stride))
        parts.append(OPS["Reshape"](part, _ints(n, channels, 1, prod(out))))
    return OPS["Concat"](*parts, axis=2) if len(parts) > 1 else parts[0]


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


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
    p.MaxPool("x").named("pool"),
    x=np.arange(84, dtype=np.uint8).reshape(1, 2, 6, 7) % 11,
    pool={"kernel": (2, 3), "pad": (1, 1, 0, 1)},
)
def max_pool_of_bytes(x: Value, pool: Node) -> Value | tuple[Value, ...]:
    """max_pool(x) -> cast(max_pool(cast(x))), exact for bytes."""
    if x.dtype not in (np.int8, np.uint8):
        raise Skip(f"x is {x.dtype}")
    win = window(_dims(x)[2:], *(getattr(pool, n) for n in _WINDOW))
    wide = [max(ends) >= k for *ends, k in zip(win.begin, win.end, win.kernel, strict=True)]
    if any(wide) or max(win.dilation) > 1:
        raise Skip("a window may see nothing but padding")
    y = OPS["MaxPool"](OPS["Cast"](x, to="float32"), **pool.attrs)
    if pool.with_indices:
        return OPS["Cast"](y[0], to=x.dtype.name), y[1]
    return OPS["Cast"](y, to=x.dtype.name)


_WINDOW = ("kernel", "stride", "pad", "dilation", "auto_pad", "ceil_mode")
