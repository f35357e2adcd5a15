"""Whole graphs through the cpu backend, and every input that does not fit."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest

import tinsmith as ts
from tests.models import GRAPHS, array, conv, digits, feeds, free, residual
from tinsmith import ops
from tinsmith.codegen.target import level, runnable
from tinsmith.errors import (
    DataError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    NoKernel,
    OptionError,
    TargetError,
    TinsmithError,
    UnknownName,
)
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.plan import planner

LEVELS = [n for n in ("amx", "avx512", "avx2", "sse2", "scalar", "neon") if runnable(level(n))]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide even tiny programs among threads."""
    monkeypatch.setattr(planner, "WORTH_DIVIDING", 0.0)


def same(got, want) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        scale = np.abs(w).max(initial=1e-30) if w.dtype.kind == "f" else 0
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_equal_their_reference(name: str, target: str) -> None:
    graph = GRAPHS[name]()
    given = feeds(graph)
    net = ts.compile(graph, target=target, cache=False)
    for _ in range(2):
        same(net.run(list(given.values())), run_graph(graph, given))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_more_threads_change_nothing(name: str, threads: int, divided: None) -> None:
    graph = GRAPHS[name]()
    given = feeds(graph)
    net = ts.compile(graph, threads=threads, cache=False)
    assert net.program().plan.threads == threads
    for _ in range(3):
        same(net.run(list(given.values())), run_graph(graph, given))


def test_a_tiny_program_stays_on_the_calling_thread() -> None:
    assert ts.compile(residual(1, 4), threads=2, cache=False).program().plan.threads == 1


def test_steps_can_be_forced_to_the_reference() -> None:
    graph = residual()
    given = feeds(graph)
    net = ts.compile(graph, kernels="Conv=reference", cache=False)
    assert "-> reference" in net.explain("conv") and "forced" in net.explain("conv")
    same(net.run(list(given.values())), run_graph(graph, given))
    whole = ts.compile(graph, kernels="reference", cache=False)
    assert all(s.kind in ("reference", "view") for s in whole.program().plan.steps)


def test_forcing_what_cannot_be_is_an_error() -> None:
    with pytest.raises(UnknownName, match="Did you mean"):
        ts.compile(residual(), kernels="Conv=conv_dirct", cache=False)
    with pytest.raises(UnknownName, match="operator or node"):
        ts.compile(residual(), kernels="Conw=reference", cache=False)
    with pytest.raises(NoKernel, match="declines"):
        ts.compile(residual(), kernels="Conv=conv_depthwise", cache=False)


def test_shapes_may_change_from_call_to_call() -> None:
    graph = free()
    net = ts.compile(graph, cache=False)
    for n, t in [(1, 5), (2, 3), (1, 5), (3, 1), (2, 17)]:
        given = feeds(graph, N=n, T=t)
        same(net(**given).values(), run_graph(graph, given))


def test_an_empty_batch_gives_an_empty_result() -> None:
    graph = free()
    net = ts.compile(graph, cache=False)
    given = feeds(graph, N=2, T=0)
    assert next(iter(net(**given).values())).shape == (2, 0, 12)


def test_one_program_serves_many_threads(divided: None) -> None:
    graph = residual()
    net = ts.compile(graph, threads=2, cache=False)
    xs = [array(1, 3, 12, 12, seed=s) for s in range(8)]
    want = [run_graph(graph, [x])[0] for x in xs]
    wrong: list[int] = []

    def work(k: int) -> None:
        got = [net(xs[k]) for _ in range(40)]
        wrong.extend(k for y in got if not np.allclose(y, want[k], rtol=1e-4, atol=1e-6))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a session hangs"
    assert not wrong


def _child(net, x, want, queue) -> None:
    queue.put(bool(np.allclose(net(x), want, rtol=1e-4, atol=1e-6)))


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_forked_child_builds_its_own_team(divided: None) -> None:
    graph = residual()
    net = ts.compile(graph, threads=2, cache=False)
    x = array(1, 3, 12, 12)
    want = net(x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(net, x, want, queue))
    child.start()
    assert queue.get(timeout=60)
    child.join(60)
    assert np.allclose(net(x), want)


BAD_INPUTS = [
    (lambda net, x: net(), InputNameError, "needs 'x'"),
    (lambda net, x: net(x, x), InputNameError, "2 arrays"),
    (lambda net, x: net(y=x), InputNameError, "no input named 'y'"),
    (lambda net, x: net(pnnx_input_0=x), InputNameError, r"Did you mean 'x', input 0 if"),
    (lambda net, x: net(pnnx_input_1=x), InputNameError, r"'pnnx_input_1'\. It takes"),
    (lambda net, x: net(x, x=x), InputNameError, "given twice"),
    (lambda net, x: net(x.tolist()), InputTypeError, "numpy array"),
    (lambda net, x: net(None), InputTypeError, "NoneType"),
    (lambda net, x: net(x.astype(np.float64)), InputTypeError, "float64"),
    (lambda net, x: net(x.astype(object)), InputTypeError, "object"),
    (lambda net, x: net(x[0]), InputShapeError, r"\[1, 3, 12, 12\]"),
    (lambda net, x: net(x[:, :2]), InputShapeError, r"not \[1, 2, 12, 12\]"),
    (lambda net, x: net(x[:0]), InputShapeError, r"not \[0, 3, 12, 12\]"),
    (lambda net, x: net(x.transpose(0, 2, 3, 1)), InputShapeError, r"transpose\(0, 3, 1, 2\) fits"),
]


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("case", range(len(BAD_INPUTS)))
def test_inputs_that_do_not_fit(case: int, backend: str) -> None:
    call, error, message = BAD_INPUTS[case]
    net = ts.compile(residual(), backend=backend, cache=False)
    with pytest.raises(error, match=message):
        call(net, array(1, 3, 12, 12))


def test_odd_arrays_are_read_right() -> None:
    graph = residual()
    net = ts.compile(graph, cache=False)
    x = array(1, 3, 12, 12)
    want = net(x)
    for odd in (
        np.asfortranarray(x),
        x[:, :, ::-1][:, :, ::-1],
        np.repeat(x, 2, axis=3)[..., ::2],
        x.astype(">f4"),
        np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    ):
        np.testing.assert_array_equal(net(odd), want)


def test_a_nan_goes_where_it_must() -> None:
    graph = residual()
    x = array(1, 3, 12, 12)
    x[0, 1, 5, 5] = np.nan
    assert np.isnan(ts.compile(graph, cache=False)(x)).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_out_of_range_is_an_error_not_a_wild_read(threads: int, divided: None) -> None:
    g = Graph("embedding")
    ids = g.input("ids", Type("int64", (1, 6)))
    g.outputs = [ops.Relu(ops.Gather(g.const(array(10, 20)), ids))]
    net = ts.compile(g, threads=threads, cache=False)
    assert all(s.kind != "reference" for s in net.program().plan.steps)
    good = np.array([[0, 9, -10, -1, 3, 3]])
    for wrong in (10, -11, 2**62, -(2**62)):
        np.testing.assert_array_equal(net(good), run_graph(g, [good])[0])
        bad = good.copy()
        bad[0, 3] = wrong
        with pytest.raises(DataError, match=r"Gather.*\[-10, 10\)"):
            net(bad)


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_net_says_how_it_is_handed_on(take: Callable[[object], object]) -> None:
    net = ts.compile(residual(), cache=False)
    for one in (net, net.program(), net.session()):
        with pytest.raises(TinsmithError, match=r"threads may call a Net; tinsmith.save"):
            take(one)


def test_symbols_must_agree() -> None:
    net = ts.compile(free(), cache=False)
    with pytest.raises(InputShapeError, match="'N' of free is 2"):
        net(x=array(2, 3, 8), m=array(1, 1, 8))


BAD_OPTIONS = [
    ({"threads": 0}, OptionError, "from 1 to 64"),
    ({"threads": True}, OptionError, "whole number"),
    ({"threads": 1000}, OptionError, "from 1 to 64"),
    ({"backend": "cpuu"}, UnknownName, "Did you mean 'cpu'"),
    ({"target": "avx1024"}, TargetError, "avx512"),
    ({"target": "neon" if "neon" not in LEVELS else "avx2"}, TargetError, "cannot run"),
    ({"precision": "exact"}, UnknownName, "default"),
    ({"passes": "-fold-constant"}, UnknownName, "fold-constants"),
]


@pytest.mark.parametrize("case", range(len(BAD_OPTIONS)))
def test_options_that_do_not_exist(case: int) -> None:
    options, error, message = BAD_OPTIONS[case]
    with pytest.raises(error, match=message):
        ts.compile(residual(), cache=False, **options)


def test_what_a_net_tells() -> None:
    net = ts.compile(digits(), cache=False)
    assert [str(t) for t in net.inputs.values()] == ["float32[N,1,8,8]"]
    assert net.output_names == ["probabilities"]
    x = array(2, 1, 8, 8)
    net(x)
    for stage in ("imported", "canonical", "placed", "plan"):
        assert net.graph(stage).strip()
    with pytest.raises(UnknownName, match="stage"):
        net.graph("optimised")
    with pytest.raises(UnknownName, match="node"):
        net.explain("no such node")
    assert net.memory.peak >= net.memory.lower_bound > 0
    assert net.memory.naive >= net.memory.peak
    profile = net.profile(x, repeat=3)
    assert profile.rows and abs(sum(r.share for r in profile.rows) - 1) < 1e-6
    assert profile.reference_share == 0 and "conv" in str(profile)


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("shape", [(1, 147, 17, 1), (2, 20, 1, 9), (1, 20, 5, 1), (1, 3, 7, 1)])
def test_images_of_one_column_or_row(shape: tuple[int, ...], target: str) -> None:
    g = Graph("narrow")
    x = g.input("x", Type("float32", shape))
    y = ops.Relu(conv(g, x, 17))
    g.outputs = [y, ops.MaxPool(y, kernel=(3, 3), pad=(1, 1, 1, 1))]
    given = feeds(g)
    net = ts.compile(g, target=target, cache=False)
    same(net.run(list(given.values())), run_graph(g, given))


def test_a_chain_that_uses_its_values_twice_compiles_at_once() -> None:
    g = Graph("twice")
    x = y = g.input("x", Type("float32", (2, 20)))
    for _ in range(40):
        y = ops.Mul(ops.Add(y, y), g.const(np.float32(0.5)))
    g.outputs = [y]
    a = array(2, 20)
    np.testing.assert_allclose(ts.compile(g, cache=False)(a), a, rtol=1e-5)
    assert x.uses


def test_attention_over_one_position_of_one_feature() -> None:
    g = Graph("one")
    x = g.input("x", Type("float32", (1, 8, 1, 1)))
    scores = ops.Softmax(ops.MatMul(x, ops.Transpose(x, perm=(0, 1, 3, 2))), axis=-1)
    g.outputs = [ops.MatMul(scores, x)]
    a = array(1, 8, 1, 1)
    np.testing.assert_allclose(ts.compile(g, cache=False)(a), run_graph(g, [a])[0], rtol=1e-5)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_from_within_a_call_has_memory_of_its_own(threads: int, divided: None) -> None:
    g = Graph("nested")
    x = g.input("x", Type("float32", (1 << 16,)))
    g.outputs = [ops.Add(x, x)]
    net = ts.compile(g, threads=threads, cache=False)
    ones, fives = np.ones(1 << 16, np.float32), np.full(1 << 16, 5, np.float32)
    inside = False

    def handler(*_: object) -> None:
        nonlocal inside
        if not inside:
            inside = True
            net(fives)
            inside = False

    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        assert all((net(ones) == 2).all() for _ in range(2000))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


WRONG_KINDS = [
    lambda net: ts.compile(5),
    lambda net: ts.compile("a\0b"),
    lambda net: ts.compile("x" * 5000),
    lambda net: ts.compile(residual(), kernels=5),
    lambda net: ts.compile(residual(), passes=["-merge-common"]),
    lambda net: ts.compile(residual(), target=["avx2"]),
    lambda net: ts.save(net, None),
    lambda net: ts.save("net", "x.tin"),
    lambda net: ts.save(net, "a\0b"),
    lambda net: net.profile(array(1, 3, 12, 12), repeat=0),
    lambda net: net.profile(array(1, 3, 12, 12), repeat=1.5),
    lambda net: net.explain(["conv"]),
    lambda net: net.run([array(1, 3, 12, 12).astype(np.float64)]),
    lambda net: net.run([]),
    lambda net: net.session(((1, 2),)),
    lambda net: net.session(()),
]


@pytest.mark.parametrize("case", range(len(WRONG_KINDS)))
def test_arguments_of_the_wrong_kind_are_named(case: int) -> None:
    net = ts.compile(residual(), cache=False)
    with pytest.raises(TinsmithError):
        WRONG_KINDS[case](net)


def test_numbers_that_an_input_cannot_hold() -> None:
    g = Graph("scalar")
    x = g.input("x", Type("int32", ()))
    g.outputs = [ops.Add(x, x)]
    net = ts.compile(g, cache=False)
    assert net(7) == 14
    for wrong in (2**40, float("nan"), 1.5):
        with pytest.raises(InputTypeError, match="cannot hold"):
            net(wrong)


def test_shapes_change_in_sixteen_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More shapes than programs are kept: they are built, shared, and dropped while others run."""
    monkeypatch.setattr("tinsmith.runtime.programs.PLANS", 3)
    graph = ts.load(digits())
    net = ts.compile(graph, threads=2)
    inputs = {n: array(n, 1, 8, 8) for n in range(1, 7)}
    want = {n: ts.compile(graph, backend="numpy")(x) for n, x in inputs.items()}
    wrong: list[object] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        try:
            for n in draw.integers(1, 7, 30):
                np.testing.assert_allclose(net(inputs[n]), want[n], rtol=1e-4, atol=1e-5)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not wrong and not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("shapes", [[[3, 1, 8, 8]], ([np.int64(3), 1, 8, 8],), [(3, 1, 8, 8)]])
def test_shapes_may_be_any_sequences(shapes):
    net = ts.compile(ts.load(digits()))
    assert net.program(shapes) is net.program(((3, 1, 8, 8),))


@pytest.mark.parametrize("shapes", [{"image": (3, 1, 8, 8)}, "x", 3, (3, 1, 8, 8), ((3, 8.0),)])
def test_what_is_no_shape_is_told(shapes):
    with pytest.raises(InputShapeError, match="needs a shape, such as"):
        ts.compile(ts.load(digits())).program(shapes)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_free_shapes_before_the_first_call_say_what_to_do(backend: str) -> None:
    net = ts.compile(ts.load(digits()), backend=backend)
    if backend == "numpy":
        assert net.explain() and net.graph("placed")
        return
    for ask in (net.explain, lambda: net.explain("conv1"), lambda: net.graph("placed")):
        with pytest.raises(InputShapeError, match=r"call it once, or give a shape .*net.program"):
            ask()
    net.program(((3, 1, 8, 8),))
    assert "conv1" in net.explain("conv1") and net.graph("placed")
    assert net.session().nbytes >= net.memory.peak + net.memory.workspace


def test_an_input_may_have_any_name() -> None:
    g = Graph("g")
    g.outputs = [ops.Relu(g.input("self", Type("float32", (2,))))]
    net = ts.compile(g, cache=False)
    np.testing.assert_array_equal(net(self=np.array([-1, 2], np.float32)), [0, 2])
    assert net.profile(self=np.zeros(2, np.float32), repeat=1).rows
