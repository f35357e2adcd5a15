"""Operators that make, move or select elements, and are not one to one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.frontends.models import check, floats, model, one, run

node = helper.make_node
X = floats(2, 3, 4, 5)
M = floats(4, 3, seed=1)


SLICES = [
    ([1, 0], [3, 2], None),
    ([-3], [-1], [2]),
    ([0, 1], [1, 10**9], [0, 3]),
]


@pytest.mark.parametrize("starts, ends, axes", SLICES, ids=str)
def test_slice_with_attributes(starts: Any, ends: Any, axes: Any) -> None:
    attrs = {"starts": starts, "ends": ends, **({} if axes is None else {"axes": axes})}
    index: list[Any] = [slice(None)] * 4
    for s, e, a in zip(starts, ends, axes or range(len(starts)), strict=True):
        index[a] = slice(s, e)
    check(*one("Slice", X, opset=9, **attrs), expected=[X[tuple(index)]])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_with_attributes(mode: str) -> None:
    attrs = {"pads": [0, 0, 1, 2, 0, 0, 2, 1], "mode": mode}
    more = {"constant_values": 1.5} if mode == "constant" else {}
    want = np.pad(X, [(0, 0), (0, 0), (1, 2), (2, 1)], mode, **more)  # type: ignore[call-overload]
    value = {"value": 1.5} if mode == "constant" else {}
    check(*one("Pad", X, opset=10, **attrs, **value), expected=[want])


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_unsqueeze(opset: int) -> None:
    x = floats(1, 3, 1)
    if opset == 11:
        check(*one("Squeeze", x, opset=11, axes=[0, 2]), expected=[x[0, :, 0]])
        check(*one("Unsqueeze", x, opset=11, axes=[0, 4]), expected=[x[None, ..., None]])
    else:
        check(*one("Squeeze", x, np.array([0, -1]), opset=13))
        check(*one("Unsqueeze", x, np.array([0, -1]), opset=13))
        check(*one("Squeeze", x, opset=13))


SPLITS: list[tuple[int, Any, int, dict[str, Any]]] = [
    (11, [1, 3], 2, {"axis": 2}),
    (11, None, 2, {"axis": 2}),
    (13, [1, 2, 2], 3, {"axis": -1}),
    (13, None, 3, {"axis": 1}),
    (18, None, 2, {"axis": 3, "num_outputs": 2}),
    (18, [4, 1], 2, {"axis": 3}),
]


@pytest.mark.parametrize("opset, sizes, outs, attrs", SPLITS, ids=str)
def test_split(opset: int, sizes: Any, outs: int, attrs: dict[str, Any]) -> None:
    axis = attrs["axis"]
    total = X.shape[axis]
    step = -(-total // outs)
    cuts = np.cumsum(sizes)[:-1] if sizes else [step * i for i in range(1, outs)]
    want = np.split(X, cuts, axis=axis)
    if opset < 13 and sizes:
        proto, feeds = one("Split", X, opset=opset, outs=outs, split=sizes, **attrs)
    else:
        more = () if sizes is None else (np.array(sizes),)
        proto, feeds = one("Split", X, *more, opset=opset, outs=outs, **attrs)
    check(proto, feeds, expected=want)


@pytest.mark.parametrize("opset", [7, 10, 11])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(opset: int, largest: int) -> None:
    attrs: dict[str, Any] = {"axis": 1} if opset < 11 else {"axis": 1, "largest": largest}
    proto, feeds = (
        one("TopK", M, opset=7, outs=2, k=2, **attrs)
        if opset == 7
        else one("TopK", M, np.array([2]), opset=opset, outs=2, **attrs)
    )
    order = np.argsort(-M if largest or opset < 11 else M, axis=1)[:, :2]
    check(proto, feeds, expected=[np.take_along_axis(M, order, 1), order])


CONSTANTS = [
    ({"value_float": 1.5}, np.array(1.5, np.float32)),
    ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2.0], np.float32)),
    ({"value_int": 3}, np.array(3, np.int64)),
    ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
    ({"value": numpy_helper.from_array(M)}, M),
]


@pytest.mark.parametrize("attrs, want", CONSTANTS, ids=lambda v: str(v)[:20])
def test_constant(attrs: dict[str, Any], want: np.ndarray[Any, Any]) -> None:
    proto = model([node("Constant", [], ["c"], **attrs)], [], ["c"])
    graph = check(proto, {}, expected=[want])
    assert len(graph) == 0
    assert graph.outputs[0].name == "c"


@pytest.mark.parametrize(
    "attrs", [{"value_string": b"a"}, {"value_strings": [b"a", b"b"]}], ids=str
)
def test_constant_of_strings(attrs: dict[str, Any]) -> None:
    (got,) = run(model([node("Constant", [], ["c"], **attrs)], [], ["c"]), {})
    assert got.dtype == object
    assert got.ravel().tolist() in (["a"], ["a", "b"])


def test_sparse_constant() -> None:
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "v")
    indices = numpy_helper.from_array(np.array([[0, 1], [2, 0]], np.int64), "i")
    sparse = helper.make_sparse_tensor(values, indices, [3, 2])
    proto = model([node("Constant", [], ["c"], sparse_value=sparse)], [], ["c"])
    np.testing.assert_array_equal(run(proto, {})[0], [[0, 5], [0, 0], [7, 0]])


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "uint8"])
def test_constant_of_shape(dtype: str) -> None:
    value = numpy_helper.from_array(np.ones(1, dtype))
    check(*one("ConstantOfShape", np.array([2, 3]), value=value))


def test_space_to_depth_crd() -> None:
    x = np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)
    (got,) = run(*one("SpaceToDepth", x, opset=26, blocksize=2))
    blocks = x.reshape(2, 3, 2, 2, 3, 2)
    want = blocks.transpose(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3)
    np.testing.assert_array_equal(got, want)


def test_reshape_of_opset_1_has_its_shape_as_attribute() -> None:
    check(*one("Reshape", X, opset=1, shape=[0, -1]), expected=[X.reshape(2, -1)])
