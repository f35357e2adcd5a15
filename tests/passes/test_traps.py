"""What other engines fuse although they must not, and the nearest case that must fuse."""

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import Builder, check, feeds_of, ops_of, refused
from tinsmith import ops
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes


def conv_norm(b, x, c=4, **attrs):
    y = ops.Conv(x, b.w(c, x.shape[1] // attrs.get("group", 1), 3, 3), pad=(1, 1, 1, 1), **attrs)
    return y, ops.BatchNorm(
        y, b.w(c), b.w(c), b.w(c), b.graph.const(np.abs(b.array(c)) + 0.5), name="bn"
    )


def test_batchnorm_folds():
    b = Builder()
    _, z = conv_norm(b, b.x(1, 3, 6, 6))
    g = b.out(z)
    check(g, "portable")
    assert ops_of(g) == ["Conv"]


def test_not_over_a_graph_output():
    b = Builder()
    y, z = conv_norm(b, b.x(1, 3, 6, 6))
    g = b.out(z, y)
    report = check(g, "portable")
    assert ops_of(g) == ["Conv", "BatchNorm"]
    (why,) = [r for r in refused(report.refusals, "bn") if r.rule == "fold_batchnorm_into_conv"]
    assert "used outside the match" in why.reason
    assert why in refused(report.refusals, "conv"), "the refusal is found from every node involved"


def test_not_over_a_second_consumer():
    b = Builder()
    y, z = conv_norm(b, b.x(1, 3, 6, 6))
    g = b.out(ops.Mul(z, ops.Sigmoid(y)))
    check(g, "portable")
    assert ops_of(g).count("BatchNorm") == 1


def test_not_over_an_activation_between():
    b = Builder()
    y = ops.Relu(ops.Conv(b.x(1, 3, 6, 6), b.w(4, 3, 3, 3)))
    g = b.out(ops.Mul(y, b.w(4, 1, 1)))
    check(g, "portable")
    assert ops_of(g) == ["Conv", "Relu", "Mul"]


def test_dynamic_weights_do_not_fold():
    b = Builder()
    y = ops.Conv(b.x(1, 3, 6, 6), b.x(4, 3, 3, 3, name="w"))
    g = b.out(ops.Mul(y, b.w(4, 1, 1), name="scale"))
    report = check(g, "portable")
    assert ops_of(g) == ["Conv", "Mul"]
    assert any("is not a constant" in r.reason for r in refused(report.refusals, "scale"))


def test_batchnorm_after_concat_stays():
    b = Builder()
    x = b.x(1, 3, 6, 6)
    y = ops.Concat(ops.Conv(x, b.w(2, 3, 1, 1)), ops.Conv(x, b.w(2, 3, 1, 1)), axis=1)
    g = b.out(ops.BatchNorm(y, b.w(4), b.w(4), b.w(4), b.c(np.ones(4))))
    check(g, "portable")
    assert ops_of(g) == ["Conv", "Conv", "Concat", "BatchNorm"]


@pytest.mark.parametrize(
    ("shape", "folds"),
    [
        ((), True),
        ((1,), True),
        ((4, 1, 1), True),
        ((1, 4, 1, 1), True),
        ((1, 1, 1), True),
        ((4,), False),  # along the width, which is 4 too
        ((1, 4, 1), False),  # along the height
        ((2, 1, 1, 1), False),  # along the batch
        ((4, 4, 1), False),
        ((1, 1, 4, 1, 1), False),  # a higher rank
    ],
)
@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
def test_only_channels_fold_into_conv(op, shape, folds):
    b = Builder()
    y = ops.Conv(b.x(2, 3, 4, 4), b.w(4, 3, 1, 1), b.w(4))
    k = b.graph.const(np.abs(b.array(*shape)) + 0.5)
    g = b.out(ops.OPS[op](y, k))
    check(g, "portable")
    assert (ops_of(g) == ["Conv"]) == folds


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scalar", [False, True])
def test_weight_axes(kind, group, bias, scalar):
    b = Builder()
    x = b.x(1, 4, 5, 6)
    shape = (8, 4 // group, 3, 2) if kind == "Conv" else (4, 8 // group, 3, 2)
    inputs = (x, b.w(*shape), *([b.w(8)] if bias else []))
    y = ops.OPS[kind](*inputs, group=group, stride=(2, 1))
    y = ops.Mul(y, b.w(*(() if scalar else (8, 1, 1))))
    y = ops.BatchNorm(y, b.w(8), b.w(8), b.w(8), b.c(np.abs(b.array(8)) + 0.1))
    g = b.out(ops.Add(y, b.w(1, 8, 1, 1)))
    check(g, "portable")
    assert ops_of(g) == [kind]


def test_output_channels_as_many_as_the_width_of_a_dense_layer():
    """A batch-norm over [N, C, L] has its channels in the middle, not in the last axis."""
    b = Builder()
    y = ops.MatMul(b.x(2, 4, 5), b.w(5, 4))
    g = b.out(ops.BatchNorm(y, b.w(4), b.w(4), b.w(4), b.c(np.ones(4))))
    check(g, "portable")
    assert ops_of(g) == ["MatMul", "BatchNorm"]


def test_batchnorm_into_dense():
    b = Builder()
    y = ops.Add(ops.MatMul(b.x("N", 5), b.w(5, 4)), b.w(4))
    g = b.out(ops.BatchNorm(y, b.w(4), b.w(4), b.w(4), b.c(np.ones(4))))
    check(g, "portable")
    assert ops_of(g) == ["MatMul", "Add"]


def test_zero_divisor_and_tiny_variance_do_not_fold():
    b = Builder()
    y = ops.Conv(b.x(1, 3, 4, 4), b.w(4, 3, 1, 1))
    k = b.c(np.array([1.5, 0, 2.5, 3]).reshape(4, 1, 1))
    g = b.out(ops.Div(y, k))
    run_passes(g, "portable", verify=True)
    assert ops_of(g) == ["Conv", "Div"]


@pytest.mark.parametrize(
    "by, factor", [("Mul", np.inf), ("Mul", 3e38), ("Mul", np.nan), ("BatchNorm", np.inf)]
)
def test_factors_that_overflow_do_not_fold_into_a_norm(by, factor):
    b = Builder()
    channels = b.w(4), b.w(4), b.w(4), b.graph.const(np.full(4, 0.25, np.float32))
    inner = ops.BatchNorm(b.x(1, 4, 3, 3), *channels)
    huge = b.graph.const(np.full((4, 1, 1) if by == "Mul" else 4, factor, np.float32))
    rest = () if by == "Mul" else channels[1:]
    g = b.out(ops.OPS[by](inner, huge, *rest))
    (x,) = feeds = feeds_of(g)
    x.flat[0], x.flat[1], x.flat[2] = np.inf, np.nan, 0
    with np.errstate(all="ignore"):
        want = run_graph(g, feeds)
        run_passes(g, "portable", verify=True)
        for a, b in zip(run_graph(g, feeds), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


# ---- activations


def hard_swish_by(b, x, lo, hi, add, div):
    return ops.Div(ops.Mul(x, ops.Clip(ops.Add(x, b.c(add)), min=lo, max=hi)), b.c(div))


@pytest.mark.parametrize(
    ("lo", "hi", "add", "div", "found"),
    [
        (0.0, 6.0, 3.0, 6.0, True),
        (0.0, 20.0, 3.0, 6.0, False),
        (0.0, 6.0, 3.5, 6.0, False),
        (0.0, 6.0, 3.0, 7.0, False),
        (-1.0, 6.0, 3.0, 6.0, False),
    ],
)
def test_hard_swish_needs_its_numbers(lo, hi, add, div, found):
    b = Builder()
    g = b.out(hard_swish_by(b, b.x(2, 30), lo, hi, add, div))
    check(g, "portable")
    assert ("HardSwish" in ops_of(g)) == found


def test_clip_0_20_is_not_clip_0_6():
    b = Builder()
    g = b.out(ops.Clip(b.x(3, 4), min=0.0, max=20.0))
    check(g)
    (node,) = g.nodes
    assert (node.op.name, node.min, node.max) == ("Clip", 0.0, 20.0)


def gelu_erf(b, x, half=0.5, root=2**0.5, one=1.0):
    e = ops.Erf(ops.Div(x, b.c(root)))
    return ops.Mul(ops.Mul(x, ops.Add(e, b.c(one))), b.c(half))


def gelu_tanh(b, x, cubic=0.044715, outer=(2 / np.pi) ** 0.5, three=3.0):
    inner = ops.Add(x, ops.Mul(ops.Pow(x, b.c(three)), b.c(cubic)))
    t = ops.Tanh(ops.Mul(inner, b.c(outer)))
    return ops.Mul(ops.Mul(x, b.c(0.5)), ops.Add(t, b.c(1.0)))


def gelu_keras(b, x):
    square = ops.Mul(ops.Mul(x, b.c(0.044715)), x)
    inner = ops.Mul(ops.Mul(x, b.c(0.7978845608)), ops.Add(square, b.c(1.0)))
    return ops.Mul(ops.Mul(b.c(0.5), x), ops.Add(b.c(1.0), ops.Tanh(inner)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("make", "changes", "found"),
    [
        (gelu_erf, {}, "none"),
        (gelu_erf, {"half": 0.6}, None),
        (gelu_erf, {"root": 1.4}, None),
        (gelu_erf, {"one": 2.0}, None),
        (gelu_tanh, {}, "tanh"),
        (gelu_tanh, {"cubic": 0.05}, None),
        (gelu_tanh, {"outer": 0.8}, None),
        (gelu_tanh, {"three": 2.5}, None),
        (gelu_keras, {}, "tanh"),
    ],
)
def test_gelu_looks_at_every_number(dtype, make, changes, found):
    b = Builder(dtype)
    x = ops.Softplus(b.x(5, 7))
    g = b.out(make(b, x, **changes))
    check(g, "portable", tolerance=1e-2 if dtype == "float16" else 1e-5)
    gelus = [n.approximate for n in g.nodes if n.op.name == "Gelu"]
    assert gelus == ([found] if found else [])


def test_literals_are_rounded_to_the_constants_type():
    b = Builder()
    x = b.x(4, 4)
    g = b.out(ops.Mul(x, ops.HardSigmoid(x, alpha=1 / 6)), gelu_erf(b, x, root=np.float32(2**0.5)))
    check(g, "portable")
    assert sorted(ops_of(g)) == ["Gelu", "HardSwish"]


@pytest.mark.parametrize("op, number, kept", [
    ("Add", 0.0, True), ("Add", -0.0, False), ("Sub", 0.0, False), ("Sub", -0.0, True),
])  # fmt: skip
@pytest.mark.parametrize("target", ["avx2", "scalar"])
def test_only_what_keeps_the_sign_of_zero_is_neutral(op, number, kept, target):
    b = Builder()
    g = b.out(ops.Reciprocal(ops.OPS[op](b.x(4), b.c(number))))
    x = np.array([0, -0.0, 1, -np.inf], np.float32)
    with np.errstate(divide="ignore"):
        (want,) = run_graph(g, [x])
    np.testing.assert_array_equal(ts.compile(g, cache=False, target=target)(x), want)
    run_passes(g, "portable")
    assert ("Add" in ops_of(g)) == kept


def test_interior_value_of_an_activation_used_outside():
    b = Builder()
    x = b.x(4, 4)
    s = ops.Sigmoid(x)
    g = b.out(ops.Mul(x, s), ops.Neg(s))
    check(g, "portable")
    assert sorted(ops_of(g)) == ["Mul", "Neg", "Sigmoid"]


# ---- pads


@pytest.mark.parametrize(
    ("value", "pads", "mode", "folds"),
    [
        (None, (0, 0, 1, 2, 0, 0, 0, 1), "constant", True),
        (0.0, (0, 0, 1, 2, 0, 0, 0, 1), "constant", True),
        (1.0, (0, 0, 1, 2, 0, 0, 0, 1), "constant", False),
        (None, (0, 0, 1, 2, 0, 0, 0, 1), "reflect", False),
        (None, (0, 1, 1, 2, 0, 0, 0, 1), "constant", False),  # pads channels
        (None, (0, 0, -1, 2, 0, 0, 0, 1), "constant", False),  # crops
    ],
)
def test_pad_into_conv(value, pads, mode, folds):
    b = Builder()
    x = b.x(1, 3, 6, 6)
    y = ops.Pad(x, b.i(*pads), None if value is None else b.c(value), mode=mode)
    channels = y.shape[1]
    g = b.out(ops.Conv(y, b.w(2, channels, 3, 3), pad=(1, 0, 0, 1)))
    check(g, "portable")
    assert (ops_of(g) == ["Conv"]) == folds


@pytest.mark.parametrize(
    ("pool_pad", "counts", "ceil", "folds"),
    [
        (None, False, False, True),
        ((1, 1, 1, 1), False, False, False),
        ((1, 1, 1, 1), True, False, True),
        (None, True, True, False),
    ],
)
def test_pad_into_average_pool(pool_pad, counts, ceil, folds):
    b = Builder()
    y = ops.Pad(b.x(1, 3, 6, 7), b.i(0, 0, 1, 1, 0, 0, 1, 0))
    attrs = {"kernel": (3, 3), "stride": (2, 2), "pad": pool_pad, "ceil_mode": ceil}
    g = b.out(ops.AveragePool(y, count_include_pad=counts, **attrs))
    check(g, "portable")
    assert (ops_of(g) == ["AveragePool"]) == folds


@pytest.mark.parametrize(("value", "folds"), [(-np.inf, True), (0.0, False), (-1e30, False)])
def test_pad_into_max_pool(value, folds):
    b = Builder()
    y = ops.Pad(b.x(1, 3, 6, 7), b.i(0, 0, 1, 1, 0, 0, 1, 0), b.c(value))
    g = b.out(ops.MaxPool(y, kernel=(3, 3), stride=(2, 2)))
    check(g, "portable")
    assert (ops_of(g) == ["MaxPool"]) == folds


# ---- shapes


def test_symbols_keep_a_broadcast_alive():
    """x [1, 3] + zeros of shape [1, 1] may be dropped; an Expand to [N, 3] may not."""
    b = Builder()
    n = b.x("N", 3, name="n")
    x = b.x(1, 3)
    wide = ops.Expand(x, ops.Shape(n))
    g = b.out(ops.Relu(wide), ops.Relu(ops.Add(x, b.c([[0.0]]))))
    check(g, sizes={"N": 5})
    assert "Expand" in ops_of(g)
    assert "Add" not in ops_of(g)


def test_reshape_by_a_dynamic_batch():
    b = Builder()
    x = b.x("N", 3, 4)
    n = ops.Gather(ops.Shape(x), b.c(0, "int64"))
    shape = ops.Concat(ops.Unsqueeze(n, b.i(0)), b.i(12), axis=0)
    g = b.out(ops.Relu(ops.Reshape(x, shape)))
    check(g, "portable", sizes={"N": 2})
    assert ops_of(g) == ["Reshape", "Relu"]
    assert g.outputs[0].shape == ("N", 12)
    assert list(g.nodes[0].inputs[1].const) == [0, 12]


def test_a_size_of_zero_is_not_rewritten():
    b = Builder()
    g = b.out(ops.Relu(ops.Flatten(ops.Neg(b.x(0, 3, 4)))))
    check(g)


@pytest.mark.parametrize(
    ("x", "y", "found"),
    [
        ((3, 4), (4,), True),
        ((4,), (), True),
        (("N", 4), ("N", 1), True),
        (("N", 4), ("N", 4), False),
        ((4,), (3, 4), False),
        ((1, 4), (4,), False),
        ((3, 1), (1, 4), False),
    ],
)
def test_rsqrt_of_fewer_elements(x, y, found):
    b = Builder()
    g = b.out(ops.Div(b.x(*x), ops.Sqrt(b.x(*y, name="y"))))
    run_passes(g, "portable", verify=True)
    assert ops_of(g) == (["Rsqrt", "Mul"] if found else ["Sqrt", "Div"])


def test_float64_and_integers_stay_what_they_are():
    b = Builder("float64")
    _, z = conv_norm(b, b.x(1, 3, 5, 5))
    g = b.out(ops.Relu(z))
    check(g, tolerance=1e-12)
    assert [v.dtype.name for v in g.outputs] == ["float64"]
    c = Builder("int64")
    h = c.out(ops.Max(ops.Sub(c.x(3, 4), c.c(2)), c.c(0)))
    check(h)
    assert ops_of(h) == ["Sub", "Max"]


def test_random_numbers_are_not_folded_or_merged():
    b = Builder()
    attrs = {"shape": (2, 3)} if "shape" in ops.OPS["RandomNormal"].attrs else {}
    r = [b.graph.add(ops.RandomNormal, **attrs).output for _ in range(2)]
    g = b.out(ops.Sub(*r))
    run_passes(g, "portable", verify=True)
    assert ops_of(g).count("RandomNormal") == 2


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_outputs_that_are_equal_constants_keep_their_names(wanted):
    b = Builder()
    constants = [b.graph.const(np.ones(3, np.float32), name) for name in ("one", "other")]
    x = b.x(3)
    g = b.out(ops.Add(x, constants[0]), ops.Sub(x, constants[1]))
    g.outputs = [*g.outputs, *(constants[i] for i in wanted)]
    names = [v.name for v in g.outputs]
    run_passes(g, "portable", verify=True)
    assert [v.name for v in g.outputs] == names


def test_folding_is_bounded():
    b = Builder()
    big = ops.Expand(b.c([[1.0]]), b.i(1024, 1024))
    g = b.out(ops.Add(b.x(1024, 1024), big))
    report = run_passes(g, "portable", verify=True)
    assert "Expand" in ops_of(g)
    assert any("bytes more" in r.reason for r in report.refusals)
    run_passes(g, "portable", spec="fold-constants{max-growth=9999999}", verify=True)
    assert ops_of(g) == ["Add"]


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("op", [ops.Mul, ops.Div, ops.Add])
@pytest.mark.parametrize("make", ["conv", "transposed", "norm", "vector"])
def test_constants_that_enlarge_a_result_stay(make, op, shape):
    b = Builder()
    if make == "vector":
        y = ops.BatchNorm(b.x(5), b.w(1), b.w(1), b.w(1), b.c([1.5]))
    elif make == "norm":
        y = ops.InstanceNorm(b.x(2, 1, 4, 5), b.w(1), b.w(1))
    elif make == "conv":
        y = ops.Conv(b.x(2, 3, 4, 5), b.w(1, 3, 2, 2), b.w(1))
    else:
        y = ops.ConvTranspose(b.x(2, 3, 4, 5), b.w(3, 1, 2, 2))
    check(b.out(op(y, b.c(np.abs(b.array(*shape)) + 0.5))))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_casts_of_wide_integers_by_way_of_floats_stay(dtype):
    b = Builder(dtype)
    y = ops.Cast(ops.Cast(b.x(2), to="float64"), to=dtype)
    g = b.out(ops.BitwiseNot(y))
    run_passes(g, "portable")
    assert ops_of(g) == ["Cast", "Cast", "BitwiseNot"], "2 ** 53 + 1 is no float64"


def test_a_factor_of_almost_one_stays():
    b = Builder("float64")
    x = b.x(3)
    check(b.out(ops.Sub(ops.Mul(x, b.c(1 + 5e-7)), x)), "portable", tolerance=1e-12)


@pytest.mark.parametrize("how", ["factor", "sum", "low rank"])
def test_products_of_integers_are_exact(how):
    b = Builder("int64")
    x, big = b.x(2, 2), b.c([[2**53, 1], [3, 2**62]])
    y = ops.MatMul(x, big)
    if how == "factor":
        y = ops.Mul(y, b.c([3, 5]))
    elif how == "sum":
        y = ops.Add(y, ops.MatMul(x, b.c([[1, 1], [1, 2**62]])))
    else:
        y = ops.Add(y, ops.MatMul(ops.MatMul(x, b.c([[1], [3]])), b.c([[1, 5]])))
    g = b.out(y)
    want = run_graph(g, [np.ones((2, 2), np.int64)])
    run_passes(g, "portable")
    np.testing.assert_array_equal(run_graph(g, [np.ones((2, 2), np.int64)]), want)


@pytest.mark.parametrize("make", ["input", "bias", "conv"])
def test_sums_that_round_stay(make):
    b = Builder()
    x = b.x(1, 3, 4, 4)
    y = {"input": x, "bias": ops.Add(x, b.w(4))}.get(make, ops.Conv(x, b.w(4, 3, 1, 1)))
    y = ops.Sub(ops.Add(y, b.c(1.5 * 2**23)), b.c(1.5 * 2**23))
    g = b.out(y)
    feeds = [4 * b.array(1, 3, 4, 4)]
    want = run_graph(g, feeds)
    (got,) = ts.compile(g, cache=False).run(feeds)
    np.testing.assert_array_equal(got, want[0])


@pytest.mark.parametrize("dtype, size", [("float32", 1e-30), ("float16", 1e-3)])
def test_factors_that_vanish_together_stay(dtype, size):
    b = Builder(dtype)
    g = b.out(ops.Mul(ops.Mul(b.x(2), b.c(size)), b.c(size)))
    feeds = [np.array([1, 2] / np.float64(size)).astype(dtype)]
    want = run_graph(g, feeds)
    run_passes(g, "portable")
    np.testing.assert_allclose(run_graph(g, feeds)[0], want[0], rtol=5e-3)


@pytest.mark.parametrize("times", [1, 2])
def test_hard_activations_of_integers_stay(times):
    b = Builder("int32")
    x = b.x(4)
    y = ops.Clip(ops.Add(x, b.c(3)), min=0, max=6)
    check(b.out(ops.Div(y if times == 1 else ops.Mul(x, y), b.c(6))), "portable")


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_only_whole_exponents_make_squares_of_integers(dtype):
    b = Builder("int32")
    g = b.out(ops.Pow(b.x(3), b.c(2, dtype)))
    x = np.array([46341, -3, -(2**31)], np.int32)
    (want,) = run_graph(g, [x])
    np.testing.assert_array_equal(ts.compile(g)(x), want)
    run_passes(g, "portable")
    assert ops_of(g) == ["Mul" if dtype == "int32" else "Pow"]
