"""What makes files smaller, though not programs faster: these rules run on graphs that are written.

On an image of one pixel a convolution is a product. Our kernels take either; most engines that
read the files have a layer for products that costs less.
"""

from __future__ import annotations

from typing import Any

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import i64, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p
from tinsmith.sizes import NUMBER

rules = RuleSet(
    "dense-after-pool", "Convolutions of one pixel are products of vectors.", halves=False
)
register("files")(rules)

TOLERANCE = 2e-6  # of rules that compute new weights, in their generated tests
CONV: dict[str, Any] = {"w": (3, 4, 1, 1), "b": (3,)}


_weights = (const("w"), opt(const("b")))


def _product(x: Value, conv: Node, w: Array, b: Array | None) -> Value:
    """The result of `conv` on images of one pixel, given as vectors x [N, C]: x @ w + b, reshaped
    to images. Raises Skip if `conv` has groups, pads or a kernel of several taps."""
    if conv.group != 1:
        raise Skip(f"it has {conv.group} groups")
    if any(k != 1 for k in w.shape[2:]):
        raise Skip(f"its kernel is {list(w.shape[2:])}, not one tap")
    if any(conv.pad or ()) or conv.auto_pad not in ("NOTSET", "VALID"):
        raise Skip("it pads")
    y = OPS["MatMul"](x, w.reshape(w.shape[:2]).T.copy())
    if b is not None:
        y = OPS["Add"](y, b)
    return _image(y, w.ndim)


def _image(x: Value, rank: int) -> Value:
    """Vectors [N, C] as images of one pixel, of `rank` axes: [N, C, 1, ...]."""
    return OPS["Reshape"](x, i64(0, -1, *(1,) * (rank - 2)))


@rules.rule(
    p.Conv(p.GlobalPool("x").named("pool").shared(), *_weights).named("conv"),
    tolerance=TOLERANCE,
    x=(2, 4, 6, 5),
    **CONV,
)
def dense_after_pool(pool: Node, conv: Node, w: Array, b: Array | None) -> Value:
    """conv(global_pool(x), w, b) -> (global_pool(x) as vectors @ w + b) as images, where w has one
    tap."""
    if pool.kind not in ("mean", "max"):
        raise Skip(f"it pools by {pool.kind}")
    return _product(OPS["Reshape"](pool.output, i64(0, w.shape[1])), conv, w, b)


@rules.rule(
    p.Conv(p.Reshape("v", ...).named("image"), *_weights).named("conv"),
    tolerance=TOLERANCE,
    v=(2, 4),
    image={"#1": i64(2, 4, 1, 1)},
    **CONV,
)
def dense_after_dense(v: Value, image: Node, conv: Node, w: Array, b: Array | None) -> Value:
    """conv(vectors as images of one pixel, w, b) -> (vectors @ w + b) as such images, where w has
    one tap."""
    _of_one_pixel(v, image)
    return _product(v, conv, w, b)


def _of_one_pixel(v: Value, image: Node) -> None:
    vector, dims = shape_of(v), shape_of(image.output)
    if len(vector) != 2 or dims[:2] != vector or any(d != 1 for d in dims[2:]):
        raise Skip(f"{list(vector)} becomes {list(dims)}: no image of one pixel")
    if not isinstance(vector[1], NUMBER) or len(dims) < 3:
        raise Skip("the number of channels is not known")


@rules.rule(
    p.trait("activation")(p.Reshape("v", ...).named("image")).named("y"),
    v=(2, 4),
    image={"#1": i64(2, 4, 1, 1)},
    y={"LeakyRelu": {"alpha": 0.1}},
)
def activate_vectors(v: Value, image: Node, y: Node) -> Value:
    """f(vectors as images of one pixel) -> f(vectors) as such images."""
    _of_one_pixel(v, image)
    return _image(OPS[y.op.name](v, **y.attrs), len(shape_of(y.output)))
