"""References against hand-computed values and independent formulas."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.samples import BF16, i64, text
from tinsmith import ops
from tinsmith.ops import OPS

NAN, INF = math.nan, math.inf
I8, U8, I32, F32 = np.int8, np.uint8, np.int32, np.float32

# operator, inputs, attributes, the first output
TABLE: list[tuple[str, list[Any], dict[str, Any], Any]] = [
    ("Div", [I32([7, -7, 7, -7, 5]), I32([2, 2, -2, -2, 0])], {}, I32([3, -3, -3, 3, 0])),
    ("Div", [I8([-128, 127]), I8([-1, -1])], {}, I8([-128, -127])),
    ("Div", [U8([250, 7]), U8([7, 0])], {}, U8([35, 0])),
    ("Div", [np.int64([2**62 + 1]), np.int64([3])], {}, np.int64([(2**62 + 1) // 3])),
    ("Mod", [I32([7, -7, 7, -7, 5]), I32([3, 3, -3, -3, 0])], {}, I32([1, 2, -2, -1, 0])),
    ("Mod", [I32([7, -7, 7, -7]), I32([3, 3, -3, -3])], {"fmod": True}, I32([1, -1, 1, -1])),
    ("Mod", [F32([-4.5]), F32([2])], {"fmod": True}, F32([-0.5])),
    ("Mod", [F32([-4.5]), F32([2])], {}, F32([1.5])),
    ("Pow", [I32([2, -3, 7, 0]), I32([10, 3, 0, 0])], {}, I32([1024, -27, 1, 1])),
    ("Pow", [I32([2, 1, -1, -1, 0]), I32([-1, -5, -3, -4, -1])], {}, I32([0, 1, -1, 1, 0])),
    ("Pow", [I32([2, 3]), F32([0.5, 2])], {}, I32([1, 9])),
    ("Pow", [np.int64([3]), np.int64([39])], {}, np.int64([3**39])),
    ("Pow", [F32([2, -2]), np.int64([-1, 3])], {}, F32([0.5, -8])),
    ("Pow", [F32([-1, -3]), np.int64([2**24 + 1, 2**25 + 1])], {}, F32([-1, -INF])),
    ("Pow", [I32([46341, -46341, 0]), F32([2, 3, -1])], {}, I32([2**31 - 1, -(2**31), 2**31 - 1])),
    ("Min", [F32([NAN, 1, 2]), F32([1, NAN, 3])], {}, F32([NAN, NAN, 2])),
    ("Max", [F32([NAN, 1, 2]), F32([1, NAN, 3])], {}, F32([NAN, NAN, 3])),
    ("Relu", [F32([NAN, -1, 2])], {}, F32([NAN, 0, 2])),
    ("Clip", [F32([NAN, -1, 5])], {"min": 3, "max": 2}, F32([NAN, 2, 2])),
    ("Sign", [F32([-2, 0, 3])], {}, F32([-1, 0, 1])),
    ("Round", [F32([0.5, 1.5, -2.5, 2.6])], {}, F32([0, 2, -2, 3])),
    ("Shrink", [F32([-2, -0.5, 0.5, 2])], {"bias": 1.0, "lambd": 1.0}, F32([-1, 0, 0, 1])),
    ("Shrink", [np.int64([2**63 - 1, -(2**63), 3])], {"bias": -1.5},
     np.int64([2**63 - 1, -(2**63), 4])),
    ("Shrink", [U8([0, 1, 255])], {"bias": 3.0}, U8([0, 0, 252])),
    ("Reduce", [np.int64([-(2**63)])], {"kind": "l2", "keepdims": False}, np.int64(2**63 - 1)),
    ("Reduce", [np.zeros((0,), np.uint8)], {"kind": "logsum", "keepdims": False}, U8(0)),
    ("IsInf", [F32([INF, -INF, NAN])], {"detect_negative": False}, [True, False, False]),
    ("BitShift", [I8([-8, 4, -1]), I8([1, 8, -3])], {"direction": "RIGHT"}, I8([-4, 0, -1])),
    ("BitShift", [U8([1, 129, 255]), U8([7, 1, 8])], {"direction": "LEFT"}, U8([128, 2, 0])),
    ("Cast", [I32([200, -1, 256])], {"to": "int8"}, I8([-56, -1, 0])),
    ("Cast", [F32([0.5, -0.0, NAN])], {"to": "bool"}, [True, False, True]),
    ("Cast", [F32([2.9, -2.9])], {"to": "int32"}, I32([2, -2])),
    ("Cast", [I32([17, -9])], {"to": "int4"}, np.array([1, 7], ml_dtypes.int4)),
    ("Cast", [F32([1e6, -INF])], {"to": "float16"}, np.float16([INF, -INF])),
    ("Cast", [F32([0.1, 1e-7, 3, INF, NAN])], {"to": "string"},
     text("0.1", "1e-07", "3.0", "INF", "NaN")),
    ("Cast", [text("1.5", "-INF", "+inf", "nan", "1E8")], {"to": "float32"},
     F32([1.5, -INF, INF, NAN, 1e8])),
    ("Cast", [text("9007199254740993", "100.5")], {"to": "int64"}, i64(9007199254740993, 100)),
    ("CumSum", [F32([1, 2, 3]), np.int64(0)], {"exclusive": True}, F32([0, 1, 3])),
    ("CumSum", [F32([1, 2, 3]), np.int64(0)], {"exclusive": True, "reverse": True}, F32([5, 3, 0])),
    ("CumProd", [F32([2, 3, 4]), np.int64(-1)], {"exclusive": True, "reverse": True},
     F32([12, 4, 1])),
    ("ArgReduce", [I8([3, 5, 5, 1])], {"kind": "max", "keepdims": False}, np.int64(1)),
    ("ArgReduce", [I8([3, 5, 5, 1])], {"kind": "max", "keepdims": False, "select_last": True},
     np.int64(2)),
    ("Reshape", [np.zeros((0, 3, 4), F32), i64(0, -1)], {}, np.zeros((0, 12), F32)),
    ("Slice", [I8([0, 1, 2, 3, 4]), i64(-100), i64(-(2**63)), i64(0), i64(-1)], {}, I8([0])),
    ("Slice", [I8([0, 1, 2, 3, 4]), i64(2**63 - 1), i64(-(2**63)), i64(0), i64(-2)], {},
     I8([4, 2, 0])),
    ("Slice", [I8([0, 1, 2, 3, 4]), i64(1), i64(2**63 - 1), i64(0), i64(3)], {}, I8([1, 4])),
    ("Slice", [I8([0, 1, 2, 3, 4]), i64(3), i64(-6), i64(0), i64(-1)], {}, I8([3, 2, 1, 0])),
    ("Pad", [I8([1, 2, 3]), i64(2, 4)], {"mode": "reflect"}, I8([3, 2, 1, 2, 3, 2, 1, 2, 3])),
    ("Pad", [I8([1, 2, 3]), i64(2, 4)], {"mode": "wrap"}, I8([2, 3, 1, 2, 3, 1, 2, 3, 1])),
    ("Pad", [I8([1, 2, 3]), i64(-1, 2)], {"mode": "edge"}, I8([2, 3, 3, 3])),
    ("Pad", [I8([1, 2, 3]), i64(1, -2), I8(9)], {}, I8([9, 1])),
    ("CenterCropPad", [I8([1, 2, 3, 4, 5]), i64(2)], {}, I8([2, 3])),
    ("CenterCropPad", [I8([1, 2]), i64(5)], {}, I8([0, 1, 2, 0, 0])),
    ("ScatterElements", [I8([1, 2, 3]), i64(1, 1), I8([5, 6])], {"reduction": "add"},
     I8([1, 13, 3])),
    ("ScatterND", [I8([1, 2, 3]), np.int64([[-1], [0]]), I8([5, 6])], {}, I8([6, 2, 5])),
    ("GatherElements", [I8([[1, 2], [3, 4]]), np.int64([[0, 0]])], {"axis": 1}, I8([[1, 1]])),
    ("OneHot", [i64(0, -1, 3, -4), np.int64(3), I8([7, 9])], {},
     I8([[9, 7, 7], [7, 7, 9], [7, 7, 7], [7, 7, 7]])),
    ("TopK", [U8([3, 255, 0, 255]), i64(3)], {}, U8([255, 255, 3])),
    ("NonZero", [I8([[0, 2], [3, 0]])], {}, np.int64([[0, 1], [1, 0]])),
    ("NonZero", [F32(3)], {}, np.zeros((0, 1), np.int64)),
    ("Range", [np.int64(5), np.int64(-2), np.int64(-3)], {}, i64(5, 2, -1)),
    ("Range", [F32(1), F32(1), F32(1)], {}, F32([])),
    ("EyeLike", [np.zeros((2, 3), I8)], {"k": 1}, I8([[0, 1, 0], [0, 0, 1]])),
    ("Trilu", [np.ones((2, 2), I8), np.int64(-1)], {"upper": False}, I8([[0, 0], [1, 0]])),
    ("Trilu", [np.ones((2, 2), I8), np.int64(2**63 - 1)], {}, I8([[0, 0], [0, 0]])),
    ("Trilu", [np.ones((2, 2), I8), np.int64(-(2**63))], {}, I8([[1, 1], [1, 1]])),
    ("ReverseSequence", [I8([[1, 2, 3], [4, 5, 6]]), i64(2, 3)],
     {"batch_axis": 0, "time_axis": 1}, I8([[2, 1, 3], [6, 5, 4]])),
    ("ChannelShuffle", [I8([[0, 1, 2, 3, 4, 5]])], {"groups": 2}, I8([[0, 3, 1, 4, 2, 5]])),
    ("StringSplit", [text(" a  b ", "")], {}, text("a", "b", "", "").reshape(2, 2)),
    ("StringSplit", [text("a,,b", "c")], {"delimiter": ","},
     text("a", "", "b", "c", "", "").reshape(2, 3)),
    ("StringNormalizer", [text("The", "Cat")], {"stopwords": ("the", "cat")}, text("")),
    ("HannWindow", [np.int64(4)], {}, F32([0, 0.5, 1, 0.5])),
    ("HannWindow", [np.int64(3)], {"periodic": False}, F32([0, 1, 0])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "attrs", "wanted"), TABLE)
def test_hand_computed(name: str, inputs: list[Any], attrs: dict[str, Any], wanted: Any) -> None:
    op = OPS[name]
    arrays = tuple(np.asarray(a) for a in inputs)
    arrays += (None,) * (len(op.inputs) - len(arrays))
    got, wanted = op.evaluate(arrays, op.bind(arrays, attrs))[0], np.asarray(wanted)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if wanted.dtype.kind == "O":
        assert got.tolist() == wanted.tolist()
    else:
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

# y(x) for one double, in the textbook form
FORMULAS: dict[str, Any] = {
    "Exp": math.exp,
    "Erf": math.erf,
    "Tanh": math.tanh,
    "Sinh": math.sinh,
    "Atan": math.atan,
    "Asinh": math.asinh,
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "Softplus": lambda x: math.log1p(math.exp(x)),
    "Mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "Elu": lambda x: x if x > 0 else math.expm1(x),
    "Celu": lambda x: x if x > 0 else math.expm1(x),
    "Selu": lambda x: GAMMA * (x if x > 0 else ALPHA * math.expm1(x)),
    "Gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "Swish": lambda x: x / (1 + math.exp(-x)),
    "HardSwish": lambda x: x * min(max(x / 6 + 0.5, 0), 1),
    "HardSigmoid": lambda x: min(max(0.2 * x + 0.5, 0), 1),
    "Softsign": lambda x: x / (1 + abs(x)),
    "LeakyRelu": lambda x: x if x > 0 else 0.01 * x,
    "ThresholdedRelu": lambda x: x if x > 1 else 0.0,
}
X = np.concatenate([np.linspace(-9, 9, 301), [-30.0, 30.0, 1e-6, -1e-6, 0.0]])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", BF16], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_against_the_textbook(name: str, dtype: Any) -> None:
    """The error is a few units of the dtype's own precision: narrow floats compute in float32."""
    x = X.astype(dtype)
    y = OPS[name](x)
    assert y.dtype == x.dtype
    with np.errstate(over="ignore"):
        wanted = np.array([FORMULAS[name](float(v)) for v in x]).astype(dtype)
    wanted, got = wanted.astype(np.float64), y.astype(np.float64)
    eps = float(ml_dtypes.finfo(dtype).eps)
    # 1 + erf cancels for negative x, so the error of Gelu is relative to x
    size = np.abs(x.astype(np.float64) if name == "Gelu" else wanted)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    error = np.abs(got[finite] - wanted[finite]) / (size[finite] + eps)
    assert error.max() <= 8 * eps, (name, x[finite][error.argmax()])


def test_celu_with_a_negative_alpha():
    x = np.array([-2, -0.5, 0, 1, 100], np.float32)
    want = [-1.5 * math.expm1(2 / 1.5), -1.5 * math.expm1(0.5 / 1.5), 0, 1, 100]
    np.testing.assert_allclose(OPS["Celu"](x, alpha=-1.5), want, rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["Sigmoid", "Tanh", "Mish", "Softplus", "Gelu", "Elu", "Selu", "Celu"]
)
def test_limits(name: str) -> None:
    """No overflow spoils the result far from zero."""
    low, high = OPS[name](np.float32([-200, 200]))
    limits = {"Sigmoid": (0, 1), "Tanh": (-1, 1), "Elu": (-1, 200), "Celu": (-1, 200)}
    limits["Selu"] = (-1.7580993, 210.1402)
    wanted = limits.get(name, (0, 200))
    np.testing.assert_allclose([low, high], wanted, rtol=1e-6)


def test_erf_is_exact_in_double() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [NAN, INF, -INF, -0.0, 1e-300]])
    got = ops.Erf(x)
    wanted = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(got, wanted, rtol=4e-16, atol=3e-16)
    assert np.signbit(got[-2])


F8 = [
    ("float8_e4m3fn", 448, NAN),
    ("float8_e4m3fnuz", 240, NAN),
    ("float8_e5m2", 57344, INF),
    ("float8_e5m2fnuz", 57344, NAN),
]


@pytest.mark.parametrize(("to", "top", "over"), F8)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", BF16], ids=str)
def test_cast_to_float8(to: str, top: float, over: float, dtype: Any) -> None:
    x = np.array([INF, -INF, NAN, 6e4, -6e4, 0.3]).astype(dtype)
    saturated = ops.Cast(x, to=to).astype(np.float64)
    np.testing.assert_array_equal(saturated[:5], [top, -top, NAN, top, -top])
    plain = ops.Cast(x, to=to, saturate=False).astype(np.float64)
    np.testing.assert_array_equal(np.abs(plain[:2]), [over, over])
    assert abs(saturated[5] - 0.3) < 0.04 and plain[5] == saturated[5]


EMPTY = [
    ("sum", 0.0), ("prod", 1.0), ("max", -INF), ("min", INF), ("l1", 0.0), ("l2", 0.0),
    ("sumsquare", 0.0), ("logsum", -INF), ("logsumexp", -INF), ("mean", NAN),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wanted"), EMPTY)
def test_reduce_of_nothing(kind: str, wanted: float) -> None:
    got = ops.Reduce(np.zeros((2, 0), np.float32), i64(1), kind=kind, keepdims=False)
    np.testing.assert_array_equal(got, np.float32([wanted, wanted]))


def test_reduce_extremes() -> None:
    assert ops.Reduce(np.zeros((0,), I8), None, kind="max") == -128
    assert ops.Reduce(np.zeros((0,), U8), None, kind="min") == 255
    assert not ops.Reduce(np.zeros((0,), bool), None, kind="max").any()
    x = np.float32([1000, 1000])
    np.testing.assert_allclose(ops.Reduce(x, None, kind="logsumexp"), [1000 + math.log(2)])
    assert ops.Reduce(np.float32([-INF, -INF]), None, kind="logsumexp") == -INF
    assert ops.Reduce(np.float32([INF, 1]), None, kind="logsumexp") == INF
    big = np.full(100, 2**53 + 1, np.int64)
    assert ops.Reduce(big, None, kind="sum", keepdims=False) == 100 * (2**53 + 1)
    halves = np.full(5000, 1, np.float16)
    assert ops.Reduce(halves, None, kind="sum", keepdims=False) == np.float16(5000)
    no_axes = ops.Reduce(np.float32([-2, 3]), None, kind="sumsquare", noop_with_empty_axes=True)
    np.testing.assert_array_equal(no_axes, np.float32([4, 9]))


def test_top_k_breaks_ties_by_index() -> None:
    x = np.float32([1, 3, 3, NAN, 0, 3])
    for largest, wanted in ((True, [3, 1, 2, 5]), (False, [4, 0, 1, 2])):
        assert ops.TopK(x, i64(4), largest=largest)[1].tolist() == wanted


def test_unique_in_both_orders() -> None:
    x = np.float32([2, 1, 1, 3, 4, 3])
    y, first, inverse, counts = ops.Unique(x, sorted=False)
    assert y.tolist() == [2, 1, 3, 4] and first.tolist() == [0, 1, 3, 4]
    assert inverse.tolist() == [0, 1, 1, 2, 3, 2] and counts.tolist() == [1, 2, 2, 1]
    rows = np.int64([[1, 0], [0, 1], [1, 0]])
    y, first, inverse, counts = ops.Unique(rows, axis=0)
    assert y.tolist() == [[0, 1], [1, 0]] and first.tolist() == [1, 0]
    assert inverse.tolist() == [1, 0, 1] and counts.tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space_are_inverse(mode: str) -> None:
    x = np.arange(2 * 8 * 3 * 2, dtype=np.float32).reshape(2, 8, 3, 2)
    y = ops.DepthToSpace(x, blocksize=2, mode=mode)
    np.testing.assert_array_equal(ops.SpaceToDepth(y, blocksize=2, mode=mode), x)
    assert y[0, 0, 0, 1] == (x[0, 2, 0, 0] if mode == "DCR" else x[0, 1, 0, 0])


def test_fourier_round_trip() -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 1))
    whole = ops.DFT(x)
    back = ops.DFT(whole, None, None, inverse=True)
    np.testing.assert_allclose(back[..., :1], x, atol=1e-12)
    half = ops.DFT(x, None, None, onesided=True)
    np.testing.assert_allclose(half, whole[:, :4], atol=1e-12)
    np.testing.assert_allclose(
        ops.DFT(half, None, None, onesided=True, inverse=True), x, atol=1e-12
    )


def test_stft_is_a_transform_of_each_frame() -> None:
    x = np.random.default_rng(0).normal(size=(1, 10, 1))
    w = np.random.default_rng(1).normal(size=4)
    got = ops.STFT(x, np.int64(3), w)
    assert got.shape == (1, 3, 3, 2)
    for f in range(3):
        frame = (x[0, 3 * f : 3 * f + 4, 0] * w)[None, :, None]
        np.testing.assert_allclose(got[:, f], ops.DFT(frame, None, None, onesided=True), atol=1e-12)


def test_col2im_counts_the_blocks_over_each_pixel() -> None:
    y = ops.Col2Im(np.ones((1, 4, 4), np.float32), i64(3, 3), i64(2, 2))
    np.testing.assert_array_equal(y[0, 0], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])


def test_random_numbers_follow_their_law() -> None:
    normal = ops.RandomNormal(shape=(20000,), mean=3.0, scale=2.0, seed=1.0)
    assert abs(normal.mean() - 3) < 0.1 and abs(normal.std() - 2) < 0.1
    uniform = ops.RandomUniform(shape=(20000,), low=-1.0, high=2.0, seed=2.0)
    assert uniform.min() >= -1 and uniform.max() <= 2 and abs(uniform.mean() - 0.5) < 0.05
    coin = ops.Bernoulli(np.full(20000, 0.3, np.float32), seed=3.0)
    assert abs(coin.mean() - 0.3) < 0.02
    logits = np.float32([[math.log(0.2), -INF, math.log(0.8)]])
    drawn = ops.Multinomial(logits, sample_size=20000, seed=4.0)
    share = np.bincount(drawn[0], minlength=3) / 20000
    np.testing.assert_allclose(share, [0.2, 0, 0.8], atol=0.02)
    again = ops.RandomNormal(shape=(4,), seed=1.0)
    np.testing.assert_array_equal(again, ops.RandomNormal(shape=(4,), seed=1.0))
    assert (ops.RandomNormal(shape=(4,)) != ops.RandomNormal(shape=(4,))).any()


def test_tf_idf() -> None:
    pool = {"pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7), "ngram_counts": (0, 4)}
    common = {"ngram_indexes": tuple(range(7)), "min_gram_length": 2, "max_gram_length": 2, **pool}
    x = i64(1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8)
    got = ops.TfIdfVectorizer(x, mode="TF", max_skip_count=0, **common)
    assert got.tolist() == [0, 0, 0, 0, 1, 1, 1]
    got = ops.TfIdfVectorizer(x, mode="TF", max_skip_count=5, **common)
    assert got.tolist() == [0, 0, 0, 0, 1, 3, 1]
    weights = (1.0,) * 5 + (0.5, 2.0)
    got = ops.TfIdfVectorizer(x, mode="TFIDF", max_skip_count=5, weights=weights, **common)
    assert got.tolist() == [0, 0, 0, 0, 1, 1.5, 2]
