"""Results in arrays of the caller, and values other than the model's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.models import digits
from tinsmith import ops
from tinsmith.errors import (
    InputNameError,
    InputTypeError,
    OutputError,
    TinsmithError,
    UnknownName,
)
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.runtime import program
from tinsmith.runtime.net import OTHERS, Net

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 12)
M = np.linspace(3, 5, 24, dtype=np.float32).reshape(2, 12)


def graph() -> Graph:
    """sum = relu(x) + m, product = relu(x) * m, with a value `clipped` between."""
    g = Graph("pair")
    x, m = g.input("x", Type("float32", ("N", 12))), g.input("m", Type("float32", ("N", 12)))
    clipped = ops.Relu(x, name="clipped")
    g.outputs = [ops.Add(clipped, m, name="sum"), ops.Mul(clipped, m, name="product")]
    return g


WANT = {"clipped": np.maximum(X, 0)}
WANT |= {"sum": WANT["clipped"] + M, "product": WANT["clipped"] * M, "x": X}


@pytest.fixture(scope="module", params=["cpu", "numpy", "cpu, reference", "cpu, 2 threads"])
def net(request: pytest.FixtureRequest) -> Net:
    kernels = "Add=reference" if "reference" in request.param else None
    backend, threads = request.param.split(",")[0], 2 if "threads" in request.param else None
    return ts.compile(graph(), backend=backend, kernels=kernels, threads=threads, cache=False)


def filled(shape: tuple[int, ...] = (2, 12), dtype: str = "float32") -> np.ndarray:
    return np.full(shape, 77, dtype)


def columns() -> np.ndarray:
    return filled((2, 24))[:, ::2]


def unaligned() -> np.ndarray:
    return np.zeros(97, np.uint8)[1:].view(np.float32).reshape(2, 12)


@pytest.mark.parametrize("make", [filled, columns, unaligned, lambda: filled()[::-1, ::-1],
                                  lambda: np.asfortranarray(filled())])  # fmt: skip
def test_results_lie_in_the_arrays_of_the_caller(net: Net, make: Any) -> None:
    out = {"sum": make(), "product": make()}
    for _ in range(2):
        got = net(X, M, out=out)
        for name, array in out.items():
            assert got[name] is array
            np.testing.assert_allclose(array, WANT[name], rtol=1e-6)
            array[...] = 77
    one = make()
    got = net(x=X, m=M, out={"product": one})
    assert got["product"] is one and got["sum"] is not out["sum"]
    np.testing.assert_allclose(got["sum"], WANT["sum"], rtol=1e-6)
    listed = net.run([X, M], out=[None, one])
    assert listed[1] is one


def test_a_result_may_go_where_an_input_lies(net: Net) -> None:
    x, m = X.copy(), M.copy()
    got = net(x, m, out={"sum": x, "product": m})
    assert got["sum"] is x and got["product"] is m
    np.testing.assert_allclose(x, WANT["sum"], rtol=1e-6)
    np.testing.assert_allclose(m, WANT["product"], rtol=1e-6)


def frozen() -> np.ndarray:
    array = filled()
    array.flags.writeable = False
    return array


ROWS = filled((3, 12))
BAD_OUT: list[tuple[Any, str]] = [
    (filled(), "a dict of arrays by name or a list of 2"),
    ([filled()], "not 1 arrays"),
    (5, "not int"),
    ({"summ": filled()}, "Did you mean 'sum'"),
    ({"sum": [1.0]}, "'sum' of pair must be a numpy array, not list"),
    ({"sum": filled(dtype="float64")}, "must be of float32, not float64"),
    ({"sum": filled(dtype=">f4")}, "must be of float32"),
    ({"sum": filled((2, 11))}, r"must have shape \[2, 12\], not \[2, 11\]"),
    ({"sum": filled((24,))}, r"must have shape \[2, 12\], not \[24\]"),
    ({"sum": frozen()}, "is read-only"),
    ({"sum": ROWS[:2], "product": ROWS[1:]}, "'sum' and for 'product' share memory"),
]


@pytest.mark.parametrize("case", range(len(BAD_OUT)))
def test_arrays_that_results_do_not_fit(net: Net, case: int) -> None:
    out, says = BAD_OUT[case]
    with pytest.raises(OutputError, match=says):
        net(X, M, out=out)
    with pytest.raises(OutputError, match=says):
        net.run([X, M], out=out)


@pytest.mark.parametrize("names", [["clipped"], ["product", "clipped"], ["product"], ["x", "sum"]])
def test_values_are_given_by_name_and_in_order(net: Net, names: list[str]) -> None:
    results = net.run(names, {"m": M, "x": X})
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(result, WANT[name], rtol=1e-6)
        assert not np.shares_memory(result, X)
    called = net(X, M, outputs=names)
    called = called if len(names) > 1 else {names[0]: called}
    assert list(called) == names
    for name, result in called.items():
        np.testing.assert_allclose(result, WANT[name], rtol=1e-6)
    out = filled()
    assert net.run(names, [X, M], out={names[0]: out})[0] is out
    np.testing.assert_allclose(out, WANT[names[0]], rtol=1e-6)


def test_none_means_the_model_s_own(net: Net) -> None:
    for got in (net.run(None, [X, M]), net.run(None, {"x": X, "m": M}), net.run([X, M])):
        np.testing.assert_allclose(got[1], WANT["product"], rtol=1e-6)
    assert list(net(X, M, outputs=None, out=None)) == ["sum", "product"]


def test_a_name_that_there_is_not_gets_a_suggestion(net: Net) -> None:
    with pytest.raises(
        UnknownName, match=r"no value of pair named 'cliped'. Did you mean 'clipped'"
    ):
        net.run(["cliped"], [X, M])


def test_the_model_s_own_outputs_are_named_before_other_values() -> None:
    g = Graph("long")
    x = g.input("x", Type("float32", (4,)))
    for i in range(20):
        x = ops.Add(x, np.float32(i), name=f"a{i}")
    g.outputs = [ops.Neg(x, name="zz")]
    with pytest.raises(UnknownName, match=r"Known: zz, a0, a1, "):
        ts.compile(g, cache=False).run(["prob"], [np.ones(4, np.float32)])


def test_other_outputs_are_compiled_once_and_few_are_kept() -> None:
    net = ts.compile(graph(), cache=False)
    net.run(["clipped"], [X, M])
    first = net._net_for(["clipped"])
    assert net._net_for(["clipped"]) is first and net._net_for(["sum"]) is net
    for names in (["clipped", "x"], ["x", "clipped"], ["x"], ["m"], ["m", "x"]):
        net.run(names, [X, M])
    assert len(net._nets) == OTHERS and net._net_for(["clipped"]) is not first


def test_other_outputs_of_a_file_with_options(tmp_path: Any) -> None:
    path = tmp_path / "digits.tin"
    ts.save(ts.load(digits()), path)
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    for model, options in ((digits(), {"kernels": {"conv1": "reference"}}), (str(path), {})):
        net = ts.compile(model, **options)
        g = net.source()
        name = g.node("pool0").outputs[0].name
        (got,) = net.run([name], {"image": x})
        copy = g.clone()
        copy.outputs = [v for v in copy.values() if v.name == name]
        np.testing.assert_allclose(got, run_graph(copy, [x])[0], rtol=1e-4, atol=1e-6)


def test_inputs_named_as_the_options_are_inputs() -> None:
    g = Graph("odd")
    out, outputs = (g.input(n, Type("float32", (3,))) for n in ("out", "outputs"))
    g.outputs = [ops.Sub(out, outputs, name="y")]
    net = ts.compile(g, cache=False)
    a, b = np.float32([5, 6, 7]), np.float32([1, 2, 3])
    np.testing.assert_array_equal(net(outputs=b, out=a), a - b)
    y = np.empty(3, np.float32)
    assert net.run({"out": a, "outputs": b}, out=y)[0] is y
    np.testing.assert_array_equal(y, a - b)


def test_a_subclass_and_a_map_of_a_file_take_results(tmp_path: Any) -> None:
    net = ts.compile(graph(), cache=False)
    out = np.memmap(tmp_path / "y", np.float32, "w+", shape=(2, 12))
    assert net(X, M, out={"sum": out})["sum"] is out
    np.testing.assert_allclose(np.fromfile(tmp_path / "y", np.float32).reshape(2, 12), WANT["sum"])


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_size_that_only_the_run_tells(backend: str) -> None:
    g = Graph("places")
    g.outputs = [ops.NonZero(g.input("x", Type("float32", (4,))))]
    net = ts.compile(g, backend=backend, cache=False)
    x, fits = np.float32([0, 1, 0, 2]), np.zeros((1, 2), np.int64)
    assert net(x, out=fits) is fits and fits.tolist() == [[1, 3]]
    with pytest.raises(OutputError, match=r"shape \[1, 2\], not \[1, 3\]"):
        net(x, out=np.zeros((1, 3), np.int64))


ODD: list[tuple[Any, type[TinsmithError], str]] = [
    (lambda net: net.run(), InputTypeError, "not 0 arguments"),
    (lambda net: net.run(None), InputTypeError, "not NoneType"),
    (lambda net: net.run("x"), InputTypeError, "not str"),
    (lambda net: net.run(None, None), InputTypeError, "not NoneType"),
    (lambda net: net.run(None, [X, M], None), InputTypeError, "not 3 arguments"),
    (lambda net: net.run([None, M]), InputTypeError, "'x' of pair must be a numpy array"),
    (lambda net: net.run({"x": [1, 2], "m": M}), InputTypeError, r"not list; numpy.asarray"),
    (lambda net: net.run([X]), InputNameError, "needs 'm'"),
    (lambda net: net.run([X, M, M]), InputNameError, "3 arrays"),
    (lambda net: net.run([]), InputNameError, "needs 'x', 'm'"),
    (lambda net: net.run({"x": X}), InputNameError, "needs 'm'"),
    (lambda net: net.run({"x": X, "n": M}), InputNameError, "no input named 'n'"),
    (lambda net: net.run({"x": X, 5: M}), InputNameError, "no input named 5"),
    (lambda net: net.run("sum", [X, M]), OutputError, r"a list of names.*\['sum'\] is one"),
    (lambda net: net.run([], [X, M]), OutputError, "a list of names"),
    (lambda net: net.run([5], [X, M]), OutputError, "a list of names"),
    (lambda net: net.run(["sum", "sum"], [X, M]), OutputError, "'sum' twice"),
    (lambda net: net.run([X, M], {"x": X}), OutputError, "a list of names"),
    (lambda net: net.run([X, M], inputs=5), InputTypeError, "'inputs'"),
    (lambda net: net(X, M, outputs="sum"), OutputError, "a list of names"),
    (lambda net: net(X, M, 5), InputNameError, "3 arrays"),
    (lambda net: net([X, M]), InputNameError, "needs 'm'"),
    (lambda net: net(X, m="m"), InputTypeError, "not str"),
]  # fmt: skip


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("case", range(len(ODD)))
def test_whatever_is_odd_is_an_error_of_ours(net: Net, case: int, warm: bool) -> None:
    call, error, says = ODD[case]
    if warm:
        net(X, M)
    with pytest.raises(error, match=says):
        call(net)


@pytest.mark.parametrize("header", [True, False])
def test_array_objects_and_addresses_give_the_same(
    header: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not header:
        monkeypatch.setattr(program, "DATA_AT", 0)
    assert bool(program.DATA_AT) is header
    net = ts.compile(graph(), cache=False)
    x = X.copy()
    x.flags.writeable = False
    for a, b in ((X, M), (x, M), (X[::-1], M[::-1]), (X[:0], M[:0]), (X[1:], M[1:])):
        want = [np.maximum(a, 0) + b, np.maximum(a, 0) * b]
        for got, w in zip(net.run([a, b]), want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-6)
    assert (net.session(((2, 12), (2, 12)))._enter is not None) is header


def test_values_are_asked_for_by_the_names_of_their_nodes() -> None:
    text = b"7767517\n3 3\nInput data 0 1 data 0=4\nReLU first 1 1 data a\nAbsVal last 1 1 a b\n"
    net, x = ts.compile(text, cache=False), np.float32([[-1, 2, -3, 4]])
    first, last, again = net.run(["first", "b", "last"], [x])
    for found in (first, last, again):
        np.testing.assert_array_equal(found, np.maximum(x, 0))
    into = np.empty_like(x)
    assert net(x, outputs=["first"], out=into) is into and (into == first).all()
    with pytest.raises(UnknownName, match=r"Known: .*first"):
        net.run(["nobody"], [x])
