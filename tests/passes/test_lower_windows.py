"""Windows as gathers, quantisation as arithmetic: native, and equal to the references."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, native
from tinsmith import ops
from tinsmith.graph import Type

CONVS = [
    ((1, 4, 8, 8), (6, 4, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((2, 4, 7, 9), (6, 2, 3, 2), {"stride": (2, 1), "pad": (0, 1, 2, 0), "group": 2}),
    ((1, 5, 6, 6), (5, 1, 3, 3), {"group": 5, "dilation": (2, 2)}),
    ((2, 3, 4, 4), (7, 3, 1, 1), {}),
    ((1, 3, 11), (4, 3, 4), {"auto_pad": "SAME_UPPER", "stride": (3,)}),
    ((1, 2, 3, 4, 5), (3, 2, 2, 2, 2), {}),
    ((2, 3, 3, 4), (24, 3, 3, 3), {"pad": (1, 0, 1, 1), "stride": (2, 2)}),
    ((1, 3, 1, 1), (9, 3, 1, 1), {}),
    ((1, 3, 7), (9, 3, 3), {"dilation": (2,), "stride": (2,)}),
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape, weights, attrs", CONVS)
def test_convolutions_by_computed_weights(shape, weights, attrs, biased):
    b = Builder()
    x, w = b.x(*shape, name="x"), b.x(*weights, name="w")
    bias = b.x(weights[0], name="b") if biased else None
    g = b.out(ops.Relu(ops.Conv(x, w, bias, **attrs)))
    native(g, [b.array(*v.dims) for v in g.inputs])


def test_computed_biases():
    b = Builder()
    x, bias = b.x(1, 4, 5, 6, name="x"), b.x(3, name="b")
    y = ops.Conv(x, b.w(3, 4, 2, 2), bias)
    g = b.out(ops.ConvTranspose(y, b.x(3, 3, 2, 2, name="w"), bias, stride=(2, 2)))
    native(g, [b.array(*v.dims) for v in g.inputs])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("attrs", [{}, {"stride": (2, 1), "pad": (1, 0, 1, 1)}])
def test_lp_pools(p, attrs):
    b = Builder()
    g = b.out(ops.LpPool(b.x(2, 3, 8, 7), kernel=(3, 2), p=p, **attrs))
    native(g, [b.array(2, 3, 8, 7)])


FOLDS = [
    ((5, 5), (2, 2), {}),
    ((4, 7), (3, 3), {"pad": (1, 1, 1, 1), "stride": (2, 1)}),
    ((6, 6), (2, 3), {"dilation": (2, 1), "stride": (1, 3)}),
    ((9,), (3,), {"stride": (4,)}),
]


@pytest.mark.parametrize("image, block, attrs", FOLDS)
def test_blocks_summed_into_images(image, block, attrs):
    b = Builder()
    rank = len(image)
    pad = attrs.get("pad", (0,) * 2 * rank)
    spans = zip(image, pad[:rank], pad[rank:], block, attrs.get("dilation", (1,) * rank),
                attrs.get("stride", (1,) * rank), strict=True)  # fmt: skip
    count = int(np.prod([(n + lo + hi - d * (k - 1) - 1) // s + 1 for n, lo, hi, k, d, s in spans]))
    x = b.x(2, 3 * int(np.prod(block)), count)
    g = b.out(ops.Col2Im(x, b.i(*image), b.i(*block), **attrs))
    native(g, [b.array(*x.dims)])


# ---- quantisation

LOW = ["int8", "uint8", "int16", "uint16"]
HARD = np.array([0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf, -np.inf, np.nan, 0.0], np.float32)


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("zeroed", [False, True])
def test_to_and_from_integers(low, axis, zeroed):
    b = Builder()
    shape = (3, 4, 10)
    rng, info = np.random.default_rng(1), np.iinfo(low)
    size = () if axis is None else (shape[axis],)
    scale = b.graph.const(rng.uniform(0.01, 2, size).astype(np.float32), "s")
    zero = rng.integers(info.min, info.max, size).astype(low)
    zero = b.graph.const(np.asarray(zero), "z") if zeroed else None
    dtype = None if zeroed else low
    q = ops.QuantizeLinear(b.x(*shape), scale, zero, axis=axis or 0, dtype=dtype)
    g = b.out(q, ops.DequantizeLinear(q, scale, zero, axis=axis or 0))
    x = rng.standard_normal(shape).astype(np.float32) * 100
    x[0, 0] = HARD
    native(g, [x], exact=True)


@pytest.mark.parametrize("shift", [0, 3, -50])
def test_scales_found_when_the_model_runs(shift):
    b = Builder()
    g = b.out(*ops.DynamicQuantizeLinear(b.x(5, 7)))
    native(g, [b.array(5, 7) + np.float32(shift)], exact=True)
    native(g, [np.zeros((5, 7), np.float32)], exact=True)


@pytest.mark.parametrize("inner", [4, 258, 259, 1100])
@pytest.mark.parametrize("left, right", [("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("const", [False, True])
def test_products_of_integers_are_exact(inner, left, right, const):
    rng = np.random.default_rng(inner)
    b = Builder()

    def numbers(dtype, *shape):
        """Mostly the largest, so that sums are long."""
        info = np.iinfo(dtype)
        ends = rng.choice([info.min, info.max], shape)
        return np.where(rng.random(shape) < 0.8, ends, rng.integers(-9, 9, shape)).astype(dtype)

    a, w = numbers(left, 2, 3, inner), numbers(right, inner, 5)
    x = b.graph.input("a", Type(a.dtype, a.shape))
    y = b.graph.const(w, "w") if const else b.graph.input("w", Type(w.dtype, w.shape))
    zeros = [b.graph.const(np.array(3, left), "za"), b.graph.const(numbers(right, 5), "zb")]
    g = b.out(ops.MatMulInteger(x, y, *zeros))
    native(g, [a] if const else [a, w])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("weights", "attrs", "product"),
    [
        ((5, 7, 4, 4), {}, True),
        ((5, 7, 2, 3), {"stride": (2, 3), "auto_pad": "SAME_UPPER"}, True),
        ((5, 7, 3), {}, True),
        ((5, 7, 2, 3, 2), {"stride": (2, 2, 2)}, True),
        ((5, 7, 4, 4), {"pad": (1, 1, 1, 1)}, False),
        ((5, 7, 2, 2), {"stride": (2, 2), "output_padding": (1, 1)}, False),
        ((5, 7, 2, 2), {"dilation": (2, 2)}, False),
        ((5, 7, 2, 2), {"group": 5}, False),
    ],
)
def test_a_transposed_convolution_of_a_pixel_is_a_product(weights, attrs, product, biased):
    b = Builder()
    x = b.x(3, 5, *[1] * (len(weights) - 2))
    bias = b.w(7 * attrs.get("group", 1)) if biased else None
    g = b.out(ops.Relu(ops.ConvTranspose(x, b.w(*weights), bias, **attrs)))
    check(g)
    fused = [n for node in g.nodes if node.op.name == "Fused" for n in node.attrs["body"].nodes]
    assert ("MatMul" in {n.op.name for n in (*g.nodes, *fused)}) == product
    native(g, [b.array(*v.dims) for v in g.inputs])
