"""Convolutions and products of dequantised bytes become exact sums of bytes, and arithmetic.

A quantised operator is DequantizeLinear -> float operator -> elementwise nodes -> QuantizeLinear.
Here the dequantising of both factors moves behind the sums, where it is a factor for each output:

    conv(s (x - z), t (w - u)) + b = st conv_integer(x, w, z, u) + b

The float operator would round each of its sums; these are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import Array, filled_dims, shape_of
from tinsmith.passes.lower_integers import is_depthwise
from tinsmith.passes.lower_quant import FLOAT32, given, known
from tinsmith.passes.manager import Context, has_fast_bytes, has_pairs, register
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_

BYTES = ("int8", "uint8")
PRODUCTS = ("ConvInteger", "MatMulInteger")

rules = RuleSet("integer-products", "Products of dequantised bytes become exact sums of bytes.")
register("machine", when=has_fast_bytes)(rules)


@register("machine")
@dataclass(frozen=True)
class SplitDequantised:
    """Each reader of dequantised bytes gets its own DequantizeLinear, which becomes part of it.

    Floats that several nodes read would be stored.
    """

    def run(self, graph: Graph, context: Context) -> int:
        if not has_fast_bytes(context):
            return 0
        found = 0
        for node in list(graph.nodes):
            if node.op.name != "DequantizeLinear" or node.inputs[0] is None:
                continue
            if node.inputs[0].const is not None or node.output in graph.outputs:
                continue
            for user in list(dict.fromkeys(node.output.uses))[1:]:
                own = graph.adopt(node, node.inputs)
                own.seq = node.seq
                for i, v in enumerate(user.inputs):
                    if v is node.output:
                        graph.set_input(user, i, own.output)
                found += 1
        return found


def _float32(*numbers: float) -> Callable[[Graph, Any], Value]:
    """A sample: a constant of float32, whatever the type that a rule is tried with."""
    return lambda graph, _: graph.const(np.array(numbers, FLOAT32))


def _left(x: Value, scale: Array, zero: Value | None) -> None:
    """Skip unless these are bytes with one scale."""
    _need_bytes(x, scale)
    if scale.size != 1:
        raise Skip("the left factor has a scale for each place")
    if zero is not None and zero.const is None:
        raise Skip("the zero point of the left factor is computed")


def _need_bytes(x: Value, scale: Array) -> None:
    if x.dtype.name not in BYTES:
        raise Skip(f"{x.name!r} is {x.dtype}, not bytes")
    if scale.dtype != FLOAT32:
        raise Skip(f"a scale is {scale.dtype}")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise Skip("a scale is not positive")


def _zero(zero: Value | None) -> Value | None:
    """A zero point, or None where it is known to be 0."""
    return None if zero is None or (zero.const is not None and not zero.const.any()) else zero


def _flat(zero: Value | None) -> Any:
    """A zero point as one number, of rank 0."""
    if zero is None or zero.const is None:
        return zero
    return zero.const.reshape(()) if zero.const.size == 1 else zero.const


def _scaled(sums: Value, factor: Array, bias: Any) -> Value:
    y = OPS["Mul"](OPS["Cast"](sums, to="float32"), factor)
    return y if bias is None else OPS["Add"](y, bias)


_conv = p.Conv(
    p.DequantizeLinear("x", const("xs"), opt("xz")).shared(),
    p.DequantizeLinear("w", const("ws"), opt("wz")).shared().named("right"),
    opt(const("b")),
).named("conv")
_sample: dict[str, Any] = {
    "tolerance": 1e-5,
    "x": given("uint8", 1, 8, 5, 5),
    "xs": np.array(0.5, np.float32),
    "xz": np.array(3, np.uint8),
    "w": np.arange(-144, 144, dtype=np.int32).astype(np.int8).reshape(4, 8, 3, 3),
    "ws": np.array([0.1, 0.2, 0.3, 0.01], np.float32),
    "wz": np.array([1, 0, -2, 5], np.int8),
    "b": (4,),
    "right": {"axis": 0},
}


@rules.rule(_conv, **_sample, conv={"pad": (1, 1, 1, 1)})
def convolution(
    x: Value, xs: Array, xz: Value | None, w: Value, ws: Array, wz: Value | None, b: Array | None,
    right: Node, conv: Node,
) -> Value:  # fmt: skip
    """conv(deq(x), deq(w), b) -> float(conv_integer(x, w)) * xs * ws + b, sums exact."""
    _left(x, xs, xz)
    _need_bytes(w, ws)
    rank = len(shape_of(x))
    if w.const is None:
        raise Skip("the weights are computed")
    if (ws.size > 1 and right.axis % rank) or right.block_size:
        raise Skip("the weights do not have a scale for each output")
    if conv.group > 1 and not is_depthwise(x, w, _zero(xz), _zero(wz), conv):
        raise Skip(f"no kernel takes its {conv.group} groups of bytes")
    tail = (1,) * (rank - 2)
    names = ("stride", "pad", "dilation", "group", "auto_pad")
    sums = OPS["ConvInteger"](
        x, w, _flat(_zero(xz)), _flat(_zero(wz)), **{n: getattr(conv, n) for n in names}
    )
    factor = (xs.reshape(()) * ws).reshape(-1, *tail) if ws.size > 1 else (xs * ws).reshape(())
    return _scaled(sums, factor, None if b is None else b.reshape(-1, *tail))


pairs = RuleSet("integer-pairs", "The same, where floats do not need far fewer products.")
register("machine", when=has_pairs)(pairs)

LEAST = 32
"""Channels on either side from which products take less time as bytes, packed as 16 bits, than as
floats. Measured on Zen 3."""


_pointwise = {
    "x": given("uint8", 1, LEAST, 5, 5),
    "w": np.arange(LEAST * LEAST).astype(np.int8).reshape(LEAST, LEAST, 1, 1),
    "ws": np.linspace(0.1, 1, LEAST, dtype=np.float32),
    "wz": np.zeros(LEAST, np.int8),
    "b": (LEAST,),
}


@pairs.rule(_conv, **_sample | _pointwise)
def convolution_of_pairs(
    x: Value, xs: Array, xz: Value | None, w: Value, ws: Array, wz: Value | None, b: Array | None,
    right: Node, conv: Node,
) -> Value:  # fmt: skip
    """conv(deq(x), deq(w), b) -> float(conv_integer(x, w)) * xs * ws + b, without Winograd's."""
    dims = filled_dims(w)
    if prod(dims[2:]) > 1 and all(s == 1 for s in conv.stride or (1,)):
        raise Skip(f"floats need fewer products for its {prod(dims[2:])} taps")
    if conv.group > 1 or min(dims[:2]) < LEAST:
        raise Skip(f"it has {conv.group} groups of {dims[1]} to {dims[0]} channels: too few")
    return convolution.build(x, xs, xz, w, ws, wz, b, right, conv)


_transpose = p.Transpose(
    p.DequantizeLinear("w", const("ws"), opt("wz")).shared().named("right")
).named("t")
_weights: dict[str, Any] = {
    "w": np.arange(-10, 10, dtype=np.int8).reshape(5, 4),
    "ws": np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    "wz": np.array([1, 0, -2, 5, 7], np.int8),
    "right": {"axis": 0},
    "t": {"perm": (1, 0)},
}


@rules.rule(_transpose, **_weights)
def transposed(w: Value, right: Node, t: Node) -> Value:
    """transpose(deq(w)) -> deq(transpose(w))."""
    if right.block_size:
        raise Skip("it is quantised in blocks")
    rank = len(shape_of(w))
    perm = t.perm or tuple(reversed(range(rank)))
    axis = perm.index(right.axis % rank)
    return with_(right, x=OPS["Transpose"](known(w), perm=perm), axis=axis)


@pairs.rule(_transpose, **_weights)
def transposed_weights(w: Value, right: Node, t: Node) -> Value:
    """transpose(deq(w)) -> deq(transpose(w)), of constant weights."""
    if w.const is None:
        raise Skip("it is computed")
    return transposed.build(w, right, t)


@rules.rule(
    p.Reshape(p.DequantizeLinear("x", const("xs"), opt("xz")).named("left"), "shape"),
    x=given("uint8", 2, 3, 4),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    shape=np.array([6, 4]),
)
def reshaped(x: Value, xs: Array, shape: Value, left: Node) -> Value:
    """reshape(deq(x)) -> deq(reshape(x)), where x has one scale."""
    if xs.size != 1:
        raise Skip("it has a scale for each place")
    return with_(left, x=OPS["Reshape"](x, known(shape)))


@rules.rule(
    p.MaxPool(p.DequantizeLinear("x", const("xs"), opt("xz")).named("left")).named("pool"),
    x=given("uint8", 1, 3, 5, 6),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    pool={"kernel": (2, 3), "pad": (1, 0, 0, 1)},
)
def maximum(x: Value, xs: Array, left: Node, pool: Node) -> Value:
    """max_pool(deq(x)) -> deq(max_pool(x)), where x has one scale."""
    _need_bytes(x, xs)
    if xs.size != 1 or pool.with_indices:
        raise Skip("it has a scale for each place, or the places of the maxima are wanted")
    return with_(left, x=with_(pool, x=x))


@rules.rule(
    p.QuantizeLinear(p.Concat("x", "y", ...).named("join"), const("scale"), opt("zero")).named("q"),
    x=(1, 3, 4),
    y=(1, 2, 4),
    scale=_float32(0.017),
    zero=np.array([7], np.uint8),
    join={"axis": 1},
)
def joined(join: Node, scale: Array, q: Node) -> Value:
    """quantise(concat(x, ...)) -> concat(quantise(x), ...), with one scale."""
    if scale.size != 1:
        raise Skip("it has a scale for each place")
    parts = [with_(q, x=v) for v in join.inputs]
    return OPS["Concat"](*parts, axis=join.axis)


@rules.rule(
    p.QuantizeLinear(
        p.DequantizeLinear("x", const("s"), opt(const("z"))).shared().named("before"),
        const("t"),
        opt(const("u")),
    ).named("q"),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 3)))),
    s=_float32(0.017),
    t=_float32(0.017),
    z=np.zeros(1, np.uint8),
    u=np.zeros(1, np.uint8),
)
def undone(
    x: Value, s: Array, z: Array | None, t: Array, u: Array | None, before: Node, q: Node
) -> Value:
    """quantise(deq(x, s, z), s, z) -> x, with one positive scale."""
    _need_bytes(x, s)
    zeros = [0 if v is None else int(v.reshape(-1)[0]) for v in (z, u)]
    if s.size != 1 or t.size != 1 or s.item() != t.item() or zeros[0] != zeros[1]:
        raise Skip("the scales or the zero points differ")
    if x.dtype != q.output.dtype or before.output.dtype != FLOAT32:
        raise Skip("the element types differ")
    return x


_product = p.MatMul(
    p.DequantizeLinear("a", const("sa"), opt("za")).shared(),
    p.DequantizeLinear("b", const("sb"), opt("zb")).shared().named("right"),
)
_factors: dict[str, Any] = {
    "tolerance": 1e-5,
    "a": given("uint8", 3, 4),
    "sa": np.array(0.5, np.float32),
    "za": np.array(3, np.uint8),
    "b": np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    "sb": np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    "zb": np.array([1, 0, 0, 2, 5], np.int8),
    "right": {"axis": 1},
}


@rules.rule(_product, **_factors)
def product(
    a: Value, sa: Array, za: Value | None, b: Value, sb: Array, zb: Value | None, right: Node
) -> Value:
    """deq(a) @ deq(b) -> float(matmul_integer(a, b)) * sa * sb, sums exact."""
    _left(a, sa, za)
    _need_bytes(b, sb)
    rank = len(shape_of(b))
    if len(shape_of(a)) < 2 or rank < 2:
        raise Skip("a factor is a vector")
    if (sb.size > 1 and right.axis % rank != rank - 1) or right.block_size:
        raise Skip("the right factor does not have a scale for each column")
    if zb is not None and zb.const is None:
        raise Skip("the zero point of the right factor is computed")
    sums = OPS["MatMulInteger"](a, b, _flat(_zero(za)), _flat(_zero(zb)))
    factor = sa.reshape(()) * (sb if sb.size > 1 else sb.reshape(()))
    return _scaled(sums, factor, None)


_large: dict[str, Any] = {
    "a": given("uint8", 3, LEAST),
    "b": np.arange(LEAST * LEAST).astype(np.int8).reshape(LEAST, LEAST),
    "sb": np.linspace(0.1, 1, LEAST, dtype=np.float32),
    "zb": np.zeros(LEAST, np.int8),
}


@pairs.rule(_product, **_factors | _large)
def product_of_pairs(
    a: Value, sa: Array, za: Value | None, b: Value, sb: Array, zb: Value | None, right: Node
) -> Value:
    """deq(a) @ deq(b) -> float(matmul_integer(a, b)) * sa * sb, of constant weights."""
    if b.const is None:
        raise Skip("both factors are computed")
    if len(shape_of(b)) != 2 or min(shape_of(b)) < LEAST:
        raise Skip(f"its weights {shape_of(b)} are too few")
    return product.build(a, sa, za, b, sb, zb, right)


requantise = RuleSet("requantise", "What bytes become between integers is one factor and one term.")
register("machine", when=lambda context: has_fast_bytes(context) or has_pairs(context))(requantise)

_sums = p.Mul(p.Cast("sums").named("cast"), const("factor"))


@requantise.rule(
    p.QuantizeLinear(p.Add(_sums, const("bias")), const("scale"), opt("zero")).named("q")
    | p.QuantizeLinear(_sums, const("scale"), opt("zero")).named("q"),
    tolerance=1e-5,
    sums=np.arange(-10, 10, dtype=np.int32).reshape(4, 5),
    factor=_float32(0.1, 0.2, 0.3, 0.01, 1),
    bias=_float32(0.1, 0.2, 0.3, 0.01, 1),
    scale=_float32(0.017),
    zero=np.array(7, np.uint8),
    cast={"to": "float32"},
)
def requantised(
    sums: Value, factor: Array, scale: Array, zero: Value | None, q: Node,
    bias: Array | None = None,
) -> Value:  # fmt: skip
    """quantise(sums * f + b, s, z) -> saturate(round(sums * (f / s) + b / s) + z)."""
    low = q.output.dtype
    _need_bytes(q.output, scale)
    if scale.size != 1 or sums.dtype != np.int32 or q.precision not in (None, "float32"):
        raise Skip("it has a scale for each place, or is no sum")
    step = scale.astype(np.float64).reshape(())
    y = OPS["Mul"](OPS["Cast"](sums, to="float32"), (factor / step).astype(FLOAT32))
    y = y if bias is None else OPS["Add"](y, (bias / step).astype(FLOAT32))
    return _narrow(y, zero, low)


def _narrow(y: Value, zero: Value | None, low: np.dtype[Any]) -> Value:
    """saturate(round(y) + zero)."""
    y = OPS["Round"](y)
    if _zero(zero) is not None:
        y = OPS["Add"](y, OPS["Cast"](_flat(zero), to="float32"))
    return OPS["Cast"](y, to=low.name)


@requantise.rule(
    p.QuantizeLinear(
        p.Add(
            p.DequantizeLinear("a", const("sa"), opt(const("za"))),
            p.DequantizeLinear("b", const("sb"), opt(const("zb"))),
        ),
        const("scale"),
        opt("zero"),
    ).named("q"),
    tolerance=1e-5,
    a=given("uint8", 3, 4),
    sa=_float32(0.5),
    za=np.array([3], np.uint8),
    b=np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
    sb=_float32(0.3),
    zb=np.array([-3], np.int8),
    scale=_float32(0.017),
    zero=np.array([7], np.uint8),
)
def requantised_sum(
    a: Value, sa: Array, za: Array | None, b: Value, sb: Array, zb: Array | None, scale: Array,
    zero: Value | None, q: Node,
) -> Value:  # fmt: skip
    """quantise(deq(a) + deq(b), s, z) -> saturate(round(a * (sa / s) + (b * (sb / s) + c)) + z)."""
    _need_bytes(a, sa)
    _need_bytes(b, sb)
    _need_bytes(q.output, scale)
    if max(sa.size, sb.size, scale.size) > 1:
        raise Skip("a scale is not one number")
    if not any(user.op.name in PRODUCTS for user in (*q.output.uses, *a.uses, *b.uses)):
        raise Skip("nothing multiplies these bytes")
    step, shift = float(scale.item()), 0.0
    terms = []
    for v, s, z in ((a, sa, za), (b, sb, zb)):
        factor = float(s.item()) / step
        shift -= factor * (0 if z is None else int(z.item()))
        terms.append(OPS["Mul"](OPS["Cast"](v, to="float32"), np.float32(factor)))
    right = OPS["Add"](terms[1], np.float32(shift)) if shift else terms[1]
    return _narrow(OPS["Add"](terms[0], right), zero, q.output.dtype)


factors = RuleSet("quantise-by-factor", "What is computed is quantised by a product.")
register("machine")(factors)


@factors.rule(
    p.QuantizeLinear("x", const("scale"), opt("zero")).named("q"),
    tolerance=1e-5,
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(FLOAT32, (2, 3, 4)))),
    scale=_float32(0.017),
    zero=np.array([7], np.uint8),
)
def quantised_by_factor(x: Value, scale: Array, zero: Value | None, q: Node) -> Value:
    """quantise(f(x), s, z) -> saturate(round(f(x) * (1 / s)) + z): dividing takes much longer."""
    _need_bytes(q.output, scale)
    traits = () if x.producer is None else x.producer.op.traits
    if "elementwise" not in traits and "anchor" not in traits:
        raise Skip("nothing is computed with it")
    if scale.size != 1 or x.dtype != FLOAT32 or q.precision not in (None, "float32"):
        raise Skip("it has a scale for each place, or is not float32")
    return _narrow(OPS["Mul"](x, np.float32(1 / float(scale.item()))), zero, q.output.dtype)
