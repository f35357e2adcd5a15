"""Operators that are not one to one: each compared with ONNX's own evaluator, or with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontends.models import check, check_evaluator, floats, info, model, one, ops, run

node = helper.make_node
X = floats(2, 3, 4, 5)
M = floats(4, 3, seed=1)


GEMM = [
    {},
    {"transA": 1},
    {"transB": 1},
    {"alpha": 0.5, "beta": 2.0},
    {"alpha": 0.25, "transA": 1, "transB": 1},
    {"beta": 0.0},
]


@pytest.mark.parametrize("attrs", GEMM, ids=str)
@pytest.mark.parametrize("c", [None, (3,), (2, 3), (1,), (), (2, 1)], ids=str)
def test_gemm(attrs: dict[str, Any], c: Any) -> None:
    a, b = floats(2, 4), floats(4, 3, seed=2)
    a = np.ascontiguousarray(a.T) if attrs.get("transA") else a
    b = np.ascontiguousarray(b.T) if attrs.get("transB") else b
    bias = () if c is None else (np.asarray(floats(*c, seed=3)),)
    graph = check(*one("Gemm", a, b, *bias, **attrs))
    assert set(ops(graph)) <= {"Transpose", "MatMul", "Mul", "Add"}


def test_gemm_refuses_to_scale_integers_by_a_fraction() -> None:
    a = np.ones((2, 2), np.int32)
    with pytest.raises(Exception, match=r"scales integers by 0\.5"):
        run(*one("Gemm", a, a, alpha=0.5))


def _statistics(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    return [floats(*shape, seed=s) for s in (1, 2, 3)] + [np.abs(floats(*shape, seed=4)) + 0.5]


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_norm(opset: int) -> None:
    feeds = [X, *_statistics((3,))]
    s, b, m, v = (a.reshape(1, 3, 1, 1) for a in feeds[1:])
    want = (X - m) / np.sqrt(v + 1e-3) * s + b
    graph = check(*one("BatchNormalization", *feeds, opset=opset, epsilon=1e-3), expected=[want])
    assert ops(graph) == ["BatchNorm"]


def test_batch_norm_with_a_statistic_for_each_element() -> None:
    feeds = [X, *_statistics((3, 4, 5))]
    s, b, m, v = feeds[1:]
    want = (X - m) / np.sqrt(v + np.float32(1e-5)) * s + b
    check(*one("BatchNormalization", *feeds, opset=7, spatial=0), expected=[want])


def test_dropout_is_dropped_and_its_mask_is_true() -> None:
    graph = check(*one("Dropout", X, opset=13), expected=[X])
    assert ops(graph) == ["Identity"]  # only because an output may not share an input's name
    proto = model(
        [node("Dropout", ["x"], ["d", "mask"]), node("Relu", ["d"], ["y"])], {"x": X}, ["y", "mask"]
    )
    check(proto, {"x": X}, expected=[np.maximum(X, 0), np.ones(X.shape, bool)])


REDUCTIONS = "Sum Mean Max Min Prod L1 L2 SumSquare LogSum LogSumExp".split()  # noqa: SIM905


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [1], [0, -1]], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_with_axes_as_attribute_and_as_input(
    kind: str, axes: Any, keepdims: int
) -> None:
    x = np.abs(X) + 0.5
    attrs: dict[str, Any] = {"keepdims": keepdims}
    check(*one(f"Reduce{kind}", x, opset=11, **attrs, **({"axes": axes} if axes else {})))
    more = () if axes is None else (np.array(axes, np.int64),)
    check(*one(f"Reduce{kind}", x, *more, opset=18, **attrs))


@pytest.mark.parametrize("noop", [0, 1])
def test_reduction_without_axes(noop: int) -> None:
    check(*one("ReduceSum", X, None, opset=13, noop_with_empty_axes=noop))


@pytest.mark.parametrize("type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2, None])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_before_and_after_opset_13(type: str, axis: int | None, opset: int) -> None:
    attrs = {} if axis is None else {"axis": axis}
    proto, feeds = one(type, X, opset=opset, **attrs)
    if opset == 13:
        check(proto, feeds)
        return
    flat = X.reshape(int(np.prod(X.shape[: (1 if axis is None else axis % 4)])), -1)
    twin, its = one(type, flat, opset=13, axis=-1)
    check(proto, feeds, expected=[run(twin, its)[0].reshape(X.shape)])


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 2)])
def test_softmax_of_nothing_before_opset_13(shape: tuple[int, ...]) -> None:
    proto, feeds = one("Softmax", np.zeros(shape, np.float32), opset=11)
    check(proto, feeds, expected=[np.zeros(shape, np.float32)])


BOUNDS = [(-0.5, 0.5), (None, 0.5), (-0.5, None), (None, None), (0.5, -0.5)]


@pytest.mark.parametrize("low, high", BOUNDS, ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_clip(low: float | None, high: float | None, constant: bool) -> None:
    given = {"low": low, "high": high}
    bounds = {k: np.array(v, np.float32) for k, v in given.items() if v is not None}
    names = ["x", *(k if v is not None else "" for k, v in given.items())]
    feeds = {"x": X} if constant else {"x": X, **bounds}
    nodes = [node("Clip", names, ["y"])]
    proto = model(nodes, feeds, ["y"], bounds if constant else None, opset=13)
    want = X if low is None else np.maximum(X, np.float32(low))
    want = want if high is None else np.minimum(want, np.float32(high))
    graph = check(proto, feeds, expected=[want])
    if constant:
        assert ops(graph) == ["Clip"]
        assert graph.nodes[0].attrs["min"] == low


@pytest.mark.parametrize("constant", [{"low"}, {"high"}, {"low", "high"}, set()])
def test_a_bound_of_clip_that_is_not_a_number_is_none(constant: set[str]) -> None:
    bounds = {"low": np.array(np.nan, np.float32), "high": np.array(0.5, np.float32)}
    feeds = {"x": X} | {k: v for k, v in bounds.items() if k not in constant}
    known = {k: v for k, v in bounds.items() if k in constant}
    for names in (["x", "low", "high"], ["x", "high", "low"]):
        proto = model([node("Clip", names, ["y"])], feeds, ["y"], known, opset=13)
        bound = np.minimum if names[1] == "low" else np.maximum
        check(proto, feeds, expected=[bound(X, np.float32(0.5))])


def test_clip_with_attributes_before_opset_11() -> None:
    check(*one("Clip", X, opset=7, min=-0.25, max=0.5), expected=[np.clip(X, -0.25, 0.5)])
    check(*one("Clip", X, opset=7), expected=[X])


def test_clip_of_integers() -> None:
    x = np.arange(-5, 5, dtype=np.int64)
    low, high = np.array(-2, np.int64), np.array(3, np.int64)
    proto = model([node("Clip", ["x", "a", "b"], ["y"])], {"x": x}, ["y"], {"a": low, "b": high})
    check(proto, {"x": x})


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(opset: int, mode: str) -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    if opset == 7:
        proto, feeds = one("Upsample", X, opset=7, mode=mode, scales=scales.tolist())
    else:
        nodes = [node("Upsample", ["x0", "s"], ["y0"], mode=mode)]
        feeds = {"x0": X}
        proto = model(nodes, feeds, ["y0"], {"s": scales}, opset=9)
    (got,) = run(proto, feeds)
    assert got.shape == (2, 3, 8, 15)
    if mode == "nearest":
        np.testing.assert_array_equal(got, X.repeat(2, axis=2).repeat(3, axis=3))
    else:
        np.testing.assert_allclose(got[..., ::2, ::3], X, rtol=1e-5)
        middle = (X[:, :, 0] + X[:, :, 1]) / 2
        np.testing.assert_allclose(got[:, :, 1, ::3], middle, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("operator, opset", [("Resize", 10), ("Upsample", 9)])
@pytest.mark.parametrize("factors", [
    (1, 1), (1.5, 1), (0.6, 0.6), (0.6, 1), (2.5, 0.7), (0.3, 1.7), (1.2, 3),
])  # fmt: skip
def test_resize_before_opset_11_rounds_up_along_axes_that_shrink(
    factors: tuple[float, float], operator: str, opset: int, computed: bool
) -> None:
    scales = np.array([1, 1, *factors], np.float32)
    given = {"s": scales}
    feeds = {"x": X} | (given if computed else {})
    weights = {} if computed else given
    proto = model([node(operator, ["x", "s"], ["y"])], feeds, ["y"], weights, opset=opset)

    def places(size: int, scale: np.float32) -> np.ndarray:
        at = np.arange(int(size * scale), dtype=np.float32) / scale
        return np.minimum(np.ceil(at) if scale < 1 else np.floor(at), size - 1).astype(int)

    rows, columns = (places(n, s) for n, s in zip(X.shape[2:], scales[2:], strict=True))
    check(proto, feeds, expected=[X[:, :, rows][..., columns]])


def test_resize_of_opset_10_as_in_onnx_itself() -> None:
    """ONNX's case test_resize_downsample_nearest of opset 10."""
    x, scales = floats(1, 1, 2, 4), np.array([1, 1, 0.6, 0.6], np.float32)
    proto = model([node("Resize", ["x", "s"], ["y"])], {"x": x}, ["y"], {"s": scales}, opset=10)
    check(proto, {"x": x}, expected=[x[:, :, :1, [0, 2]]])


@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resize_with_empty_inputs_of_opset_11(by: str) -> None:
    empty = np.zeros(0, np.float32)
    scales = np.array([1, 1, 2, 2], np.float32) if by == "scales" else empty
    names = ["x", "e", "s", *(["n"] if by == "sizes" else [])]
    weights = {"e": empty, "s": scales, "n": np.array([2, 3, 8, 10], np.int64)}
    proto = model([node("Resize", names, ["y"])], {"x": X}, ["y"], weights, opset=11)
    check(proto, {"x": X}, expected=[X.repeat(2, axis=2).repeat(2, axis=3)])


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("onesided", [None, 0])
def test_short_time_fourier_transform(rank: int, onesided: int | None) -> None:
    x = floats(2, 20)
    step, size = np.array(4), np.array(8)
    window = np.hanning(8).astype("f4")
    pieces = np.lib.stride_tricks.sliding_window_view(x, 8, 1)[:, ::4] * window
    found = np.fft.fft(pieces) if onesided == 0 else np.fft.rfft(pieces)
    want = np.stack([found.real, found.imag], -1).astype("f4")
    attrs = {} if onesided is None else {"onesided": onesided}
    feeds = x if rank == 2 else x[..., None], step, window, size
    check(*one("STFT", *feeds, **attrs), expected=[want])


@pytest.mark.parametrize("type", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_variadic(type: str, count: int) -> None:
    inputs = [floats(2, 3, seed=i) for i in range(count - 1)] + [floats(3, seed=9)]
    check(*one(type, *inputs, opset=13))


@pytest.mark.parametrize("base", ["float32", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "int32", "int64", "float64"])
def test_power_has_the_dtype_of_its_base(base: str, exponent: str) -> None:
    x, y = np.array([1, 2, 3], base), np.array([3, 2, 1], exponent)
    check(*one("Pow", x, y, opset=15))


def test_a_whole_base_and_a_real_exponent_are_multiplied_in_double_precision() -> None:
    (y,) = run(*one("Pow", np.array([3, -3]), np.array([20, 31], np.float32), opset=15))
    assert y.tolist() == [3**20, -(3**31)]


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("weights", [(), (1,)], ids=["computed", "constant"])
@pytest.mark.parametrize("exponent", ["int32", "int64", "uint32", "float64"])
@pytest.mark.parametrize("base", ["float16", "float32"])
def test_exponents_that_float32_does_not_hold(
    base: str, exponent: str, weights: tuple[int, ...], backend: str
) -> None:
    x, y = np.array([-1, -1, 3, 0.5], base), np.array([2**24 + 1, 3, 2, 1], exponent)
    case = one("Pow", x, y, opset=15, weights=weights)
    check_evaluator(case, backend)


@pytest.mark.parametrize("to", ["float16", "float64", "int8", "bool", "int64"])
def test_cast(to: str) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    check(*one("Cast", X * 3, to=code))


def test_group_norm_before_opset_21_scales_groups() -> None:
    x, scale, shift = floats(2, 4, 3), floats(2, seed=1), floats(2, seed=2)
    grouped = x.reshape(2, 2, 2, 3)
    mean, var = (f(grouped, axis=(2, 3), keepdims=True) for f in (np.mean, np.var))
    s, b = (v.reshape(1, 2, 1, 1) for v in (scale, shift))
    want = ((grouped - mean) / np.sqrt(var + 1e-5) * s + b).reshape(x.shape)
    proto, feeds = one("GroupNormalization", x, scale, shift, opset=18, num_groups=2)
    check(proto, feeds, expected=[want])
    weights = {"x1": scale, "x2": shift}
    proto = model(proto.graph.node, {"x0": x}, ["y0"], weights, opset=18)
    check(proto, {"x0": x}, expected=[want])


@pytest.mark.parametrize("outs", [1, 2, 3])
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_norm(outs: int, axis: int) -> None:
    scale = floats(*X.shape[axis:], seed=1)
    check(*one("LayerNormalization", X, scale, outs=outs, opset=17, axis=axis), rtol=1e-4)


@pytest.mark.parametrize("kind", ["Average", "Max", "Lp"])
def test_global_pools(kind: str) -> None:
    (got,) = run(*one(f"Global{kind}Pool", X, opset=13))
    plane = X.reshape(2, 3, -1)
    want = {
        "Average": plane.mean(-1),
        "Max": plane.max(-1),
        "Lp": np.sqrt((plane**2).sum(-1)),
    }[kind]
    np.testing.assert_allclose(got.reshape(2, 3), want, rtol=1e-5)


@pytest.mark.parametrize("type, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("opset", [7, 14])
@pytest.mark.parametrize("sizes", [True, False])
def test_recurrent(type: str, gates: int, opset: int, sizes: bool) -> None:
    x = floats(3, 2, 4)
    w, r = floats(1, gates * 5, 4, seed=1), floats(1, gates * 5, 5, seed=2)
    outs = 3 if type == "LSTM" else 2
    attrs = {"hidden_size": 5} if sizes else {}
    proto, feeds = one(type, x, w, r, outs=outs, opset=opset, **attrs)
    twin, _ = one(type, x, w, r, outs=2, opset=14, hidden_size=5)
    from onnx.reference import ReferenceEvaluator

    want = ReferenceEvaluator(twin).run(None, feeds)
    for got, expected in zip(run(proto, feeds), want, strict=False):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_add_of_opset_6_aligns_the_second_operand_at_an_axis() -> None:
    y = floats(3, seed=1)
    proto, feeds = one("Add", X, y, opset=6, broadcast=1, axis=1)
    check(proto, feeds, expected=[X + y.reshape(3, 1, 1)])


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="this onnx has no SwiGLU")
@pytest.mark.parametrize("alpha", [None, 2.0])
def test_operators_without_a_row_are_expanded_by_their_definition(alpha: float | None) -> None:
    x, gate = floats(2, 6), floats(2, 6, seed=1)
    attrs = {} if alpha is None else {"alpha": alpha}
    want = x / (1 + np.exp(-(alpha or 1.0) * x)) * gate
    graph = check(*one("SwiGLU", x, gate, opset=28, **attrs), expected=[want.astype(np.float32)])
    assert ops(graph) == ["Swish", "Mul"]
    assert {n.origin.type for n in graph.nodes} == {"SwiGLU"}


def test_a_model_may_have_no_nodes() -> None:
    check(model([], [info("x", [2])], [info("x", [2])]), {"x": floats(2)}, expected=[floats(2)])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_a_mask_of_integers_is_added_to_the_scores_of_attention(dtype: Any) -> None:
    q, k, v = (floats(1, 2, 3, 4, seed=i) for i in range(3))
    mask = np.arange(9).reshape(3, 3).astype(dtype)
    got = run(*one("Attention", q, k, v, mask, opset=23))
    np.testing.assert_allclose(
        got, run(*one("Attention", q, k, v, mask.astype(np.float32), opset=23)), rtol=1e-6
    )
    weights = np.exp(q @ k.swapaxes(-1, -2) / 2 + mask)
    np.testing.assert_allclose(got[0], weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-4)
