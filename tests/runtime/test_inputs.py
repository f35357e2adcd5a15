"""What a call says of inputs that it cannot take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tinsmith as ts
from tests.models import residual
from tinsmith import ops
from tinsmith.errors import InputError, InputNameError, InputShapeError, InputTypeError
from tinsmith.graph import Graph, Type


def test_a_dict_of_inputs_says_how_to_pass_it() -> None:
    one = ts.compile(residual(), cache=False)
    g = Graph("two")
    g.outputs = [ops.Add(*(g.input(n, Type("float32", (2,))) for n in "ab"))]
    two = ts.compile(g, cache=False)
    inputs = {n: np.ones(2, np.float32) for n in "ab"}
    for net in (one, two):
        with pytest.raises(InputTypeError, match=r"not dict; net\(\*\*inputs\)"):
            net(inputs)
    np.testing.assert_array_equal(two(**inputs), [2, 2])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("cat.jpg", r"str; read the file first.*Pillow"),
        (Path("cat.jpg"), "read the file first"),
        (None, "NoneType; give one"),
        ([np.ones(4, np.float32)], "pass what is in it"),
        ([1.0, 2.0], r"asarray\(\.\.\.\) makes one"),
        (SimpleNamespace(requires_grad=True), r"x\.detach\(\)\.numpy\(\) makes one"),
    ],
)
def test_what_is_no_array_is_told_how_to_become_one(given: object, says: str) -> None:
    g = Graph("twice")
    g.outputs = [ops.Mul(g.input("x", Type("float32", (4,))), np.float32(2))]
    with pytest.raises(InputTypeError, match=says):
        ts.compile(g, cache=False)(given)


def test_arrays_that_cannot_be_written() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.flags.writeable = False
    g = Graph("twice")
    g.outputs = [ops.Mul(g.input("x", Type("float32", ("N", 4))), np.float32(2))]
    net = ts.compile(g, cache=False)
    np.testing.assert_array_equal(net(x), x * 2)
    np.testing.assert_array_equal(net(x[:0]), x[:0])


def test_a_shape_that_lacks_only_the_batch_is_told_how_to_get_one() -> None:
    g = Graph("image")
    g.outputs = [ops.Relu(g.input("x", Type("float32", ("N", 1, 8, 8))))]
    net = ts.compile(g, cache=False)
    with pytest.raises(
        InputShapeError, match=r"not \[1, 8, 8\]; array\[None\] fits: a batch of one"
    ):
        net(np.zeros((1, 8, 8), np.float32))
    with pytest.raises(InputShapeError, match=r"not \[3, 8, 8\]$"):
        net(np.zeros((3, 8, 8), np.float32))
    with pytest.raises(InputShapeError, match=r"; array.transpose\(0, 3, 1, 2\) fits"):
        net(np.zeros((1, 8, 8, 1), np.float32))


ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("given, error, message", [
    ([], InputNameError, "takes 1 inputs; 0 arrays"),
    ({"x": ROWS}, InputNameError, "a list of arrays, in the order of the inputs"),
    ([ROWS, ROWS], InputNameError, "takes 1 inputs; 2 arrays"),
    ([ROWS[:1]], InputShapeError, r"must have shape \[2, 4\], not \[1, 4\]"),
    ([ROWS.ravel()], InputShapeError, r"not \[8\]"),
    ([ROWS.astype(np.float64)], InputTypeError, "of float32, not float64"),
    ([ROWS.tolist()], InputTypeError, "of float32, not list"),
    ([np.asfortranarray(ROWS)], InputTypeError, "is not contiguous"),
])  # fmt: skip
def test_a_session_refuses_what_its_program_was_not_made_for(
    given: list, error: type[InputError], message: str
) -> None:
    g = Graph("twice")
    g.outputs = [ops.Mul(g.input("x", Type("float32", ("N", 4))), np.float32(2))]
    session = ts.compile(g, cache=False).session(((2, 4),))
    with pytest.raises(error, match=message):
        session.run(given)
    np.testing.assert_array_equal(session.run([ROWS])[0], ROWS * 2)


@pytest.mark.parametrize("arrays", [5, None, np.ones((1, 3, 12, 12), np.float32)], ids=type)
def test_run_takes_a_list_or_a_dict(arrays: object) -> None:
    net = ts.compile(residual(), cache=False)
    with pytest.raises(InputTypeError, match="run takes a list of arrays, or a dict"):
        net.run(arrays)  # type: ignore[arg-type]


def test_shapes_may_be_lists_and_none_may_lack() -> None:
    g = Graph("any")
    g.outputs = [ops.Relu(g.input("x", Type("float32", ("N", 4))))]
    net = ts.compile(g, cache=False)
    assert net.session([[3, 4]]) is net.session(((3, 4),))  # type: ignore[arg-type]
    for ask in (net.program, net.session):
        with pytest.raises(InputShapeError, match="the input 'x' of any needs a shape"):
            ask((None,))


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubled(free: bool, backend: str) -> ts.Net:
    g = Graph("twice")
    dims = ("N", "M") if free else (2, 3)
    g.outputs = [ops.Mul(g.input("x", Type("float32", dims)), np.float32(2))]
    net = ts.compile(g, cache=False, backend=backend)
    net(X)  # the next calls may take the fast path
    return net


PLAIN = {
    "mapped": X.view(np.memmap),
    "records": X.view(np.recarray),
    "bytes swapped": X.astype(">f4"),
    "backwards": X[::-1, ::-1],
    "columns first": np.asfortranarray(X),
    "repeated": np.broadcast_to(X[:1], (2, 3)),
    "a field": np.array([[(1, 2)] * 3] * 2, [("a", "u1"), ("b", "f4")])["b"],
    "unaligned": np.frombuffer(b"-" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3),
}
REFUSED = {
    "masked": (np.ma.masked_array(X, X > 2), r"masked array.*x\.filled"),
    "masked nowhere": (np.ma.masked_array(X), r"masked array.*x\.filled"),
    "objects": (X.astype(object), "must have dtype float32, not object"),
    "fields": (np.zeros((2, 3), [("a", "f4")]), r"one of its fields, such as x\['a'\]"),
    "texts": (np.full((2, 3), "1", np.dtypes.StringDType()), "must have dtype float32"),
}


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("free", [False, True], ids=["fixed", "free"])
def test_arrays_of_other_kinds(free: bool, backend: str) -> None:
    net = doubled(free, backend)
    for what, array in PLAIN.items():
        np.testing.assert_array_equal(net(array), np.asarray(array) * 2, what)
    for array, message in REFUSED.values():
        with pytest.raises(InputTypeError, match=message):
            net(array)
    if backend == "cpu":
        with pytest.raises(InputTypeError, match="masked array"):
            net.session(((2, 3),)).run([REFUSED["masked"][0]])


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_texts_are_python_strings(backend: str) -> None:
    g = Graph("texts")
    x = g.input("x", Type("string", (2,)))
    g.outputs = [ops.StringConcat(x, x)]
    net = ts.compile(g, cache=False, backend=backend)
    given = np.array(["a", "b"])
    for array in (given, given.astype(object), given.astype(np.dtypes.StringDType())):
        assert net(array).tolist() == ["aa", "bb"]
    for other in (1, None, b"b"):
        with pytest.raises(InputTypeError, match=rf"takes texts \(str\), it holds {other!r}"):
            net(np.array(["a", other], object))
    with pytest.raises(InputTypeError, match="must have dtype object"):
        net(np.ones(2))
    with pytest.raises(InputTypeError, match=r"numpy\.strings\.decode"):
        net(given.astype("S"))


def two_inputs() -> Graph:
    g = Graph("two")
    a, b = (g.input(n, Type("float32", (2,))) for n in "ab")
    g.outputs = [ops.Sub(a, b, name="less"), ops.Add(a, b, name="more")]
    return g


def test_a_session_is_called_as_the_net_is() -> None:
    net = ts.compile(two_inputs(), cache=False)
    a, b = np.array([5, 6], np.float32), np.array([1, 2], np.float32)
    session = net.session()
    assert repr(session) == "<Session of two(a: float32[2], b: float32[2])>"
    for given, named in (((a, b), {}), ((a,), {"b": b}), ((), {"b": b, "a": a})):
        want, got = net(*given, **named), session(*given, **named)
        assert list(got) == list(want)
        assert all(np.array_equal(got[n], want[n]) for n in want)
    one = ts.compile(residual(), cache=False)
    x = np.ones(one.inputs["x"].dims, np.float32)
    np.testing.assert_array_equal(one.session()(x), one(x))
    with pytest.raises(InputNameError, match=r"no input named 'c'"):
        session(a, c=b)


@pytest.mark.parametrize("names", [None, ["less"]])
def test_sessions_take_no_names_of_outputs(names: list[str] | None) -> None:
    net = ts.compile(two_inputs(), cache=False)
    a = np.ones(2, np.float32)
    with pytest.raises(InputError, match=r"list of arrays|takes 2 inputs"):
        net.session().run(names, {"a": a, "b": a})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no names of outputs, not"):
        net.session(states={"more": "a"}).run(names, {"b": a})  # type: ignore[arg-type]


def test_rows_of_different_lengths_are_said_to_be_that() -> None:
    net = ts.compile(two_inputs(), cache=False)
    a = np.ones(2, np.float32)
    ragged = np.empty(2, object)
    ragged[:] = [[1, 2], [3]]
    with pytest.raises(InputTypeError, match="rows of different lengths"):
        net(a, ragged)
    with pytest.raises(InputTypeError, match=r"x\.astype\('float32'\) converts"):
        net(a, a.astype(object))
