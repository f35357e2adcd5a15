"""Shapes that only a call tells: free dimensions, sizes that depend on data, control flow."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.dependent import F, model_of, node
from tests.models import agree
from tests.transformer import feeds, transformer
from tinsmith.cli._facts import facts_of
from tinsmith.codegen import cache as code_cache
from tinsmith.errors import InputNameError, InputShapeError, TypeRuleError
from tinsmith.plan.shared_weights import OPEN
from tinsmith.runtime.programs import PLANS, SIZED

RANDOM = np.random.default_rng(5)


@pytest.fixture(scope="module")
def net():
    return ts.compile(ts.load(transformer()), cache=False)


@pytest.fixture(scope="module")
def reference():
    return ts.compile(ts.load(transformer()), backend="numpy")


# ---- tables that are shorter than the input

SLICED = {
    "Add": ([node("Add", "x q", "y")], (4, 8), 0),
    "Mul": ([node("Mul", "q x", "p"), node("Relu", "p", "y")], (4, 8), 0),
    "Where": ([node("Equal", "q q", "c"), node("Where", "c x x", "y")], (4, 8), 0),
    "Concat": ([node("Concat", "x q", "y", axis=1)], (4, 8), 0),
    "MatMul": ([node("MatMul", "x q", "y")], (4, 3), 1),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", SLICED)
def test_a_slice_that_is_shorter_than_the_input_is_an_error(name, large):
    """Generated code would read beyond the end of the table."""
    nodes, (rows, columns), axis = SLICED[name]
    columns *= 600 if large else 1  # beyond what shapes are followed through
    table = np.ones((rows, columns), np.float32)
    cut = [
        node("Shape", "x", "s", start=axis, end=axis + 1),
        node("Slice", "table zero s zero", "q"),
    ]
    wide = "K" if axis else columns
    model = model_of(
        [*cut, *nodes], [("x", F, ["N", wide])], [("y", F)], [("table", table), ("zero", [0])]
    )
    net = ts.compile(ts.load(model), cache=False)
    for fit, size in ((True, 2), (True, rows), (False, rows + 2), (False, 5000)):
        x = np.ones((1, size) if axis else (size, columns), np.float32)
        if fit:
            assert np.isfinite(net(x)).all()
            continue
        with pytest.raises(TypeRuleError, match=f"{name} '"):
            net(x)


def test_work_is_counted_where_sizes_follow_from_the_inputs():
    graph = ts.load(transformer())
    one, many = (facts_of(graph, {"batch": n, "seq": 8}) for n in (1, 3))
    assert one.unsized == many.unsized == 0
    assert many.flops["MatMul"] > 2 * one.flops["MatMul"] > 0


# ---- a transformer of free batch and sequence length

SHAPES = [(1 + i % 4, 1 + (7 * i) % 23) for i in range(12)] + [(1, 1), (9, 1), (1, 64)]


@pytest.mark.parametrize(("batch", "seq"), SHAPES)
def test_a_transformer_of_any_shape(net, reference, batch, seq):
    given = feeds(batch, seq, seed=batch + seq)
    agree(net(**given), reference(**given))
    # Indices that are out of range must be refused, which only the reference can.
    assert {s.op for s in net.program().plan.steps if s.kind == "reference"} <= {"Gather"}


def test_many_shapes_in_a_row_leave_nothing_behind():
    """Few distinct kernels, so that this is about plans and sessions rather than compilation."""
    model = relu_model(["n", "m"])
    net = ts.compile(ts.load(model), cache=False)
    programs, sessions = [], []
    for i in range(SIZED + 36):
        x = RANDOM.standard_normal((1 + i % 5, 1 + i // 5), np.float32)
        np.testing.assert_allclose(net(x), np.maximum(x, 0) * 2, rtol=1e-6)
        programs.append(weakref.ref(net.program(x_shape(x))))
        sessions.append(weakref.ref(net.session(x_shape(x))))
    gc.collect()
    assert PLANS < sum(r() is not None for r in programs) <= SIZED + 1  # the first is fixed
    assert sum(r() is not None for r in sessions) <= SIZED + 1
    assert programs[-1]() is not None
    x = np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(net(x), x * 2)  # the first shape, whose plan is long gone


def test_the_program_for_given_inputs():
    net = ts.compile(ts.load(relu_model(["n", "m"])), cache=False)
    x = np.ones((3, 5), np.float32)
    made = net.program_for(x)
    assert made is net.program_for(**{next(iter(net.inputs)): x}) is net.program(((3, 5),))
    assert made is not net.program_for(np.ones((5, 3), np.float32))
    with pytest.raises(InputShapeError, match=r"must have shape \[n, m\], not \[3\]"):
        net.program_for(x[:, 0])


def test_outputs_in_order_for_inputs_by_name():
    net = ts.compile(ts.load(relu_model(["n", "m"])), cache=False)
    x = np.ones((2, 3), np.float32)
    (name,) = net.inputs
    (by_name,), (in_order,) = net.run({name: x}), net.run([x])
    np.testing.assert_array_equal(by_name, in_order)
    with pytest.raises(InputNameError, match="no input named"):
        net.run({name: x, "other": x})


def held():
    """(mappings, MiB resident, threads) of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    maps = Path("/proc/self/maps").read_text().count("\n")
    return maps, int(status["VmRSS"].split()[0]) >> 10, int(status["Threads"])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc/self/maps")
def test_a_transformer_of_fifty_shapes_in_a_row():
    """Programs that are dropped take their weights and their code with them."""
    model = ts.load(transformer(d=16, heads=2, layers=1))
    net, reference = ts.compile(model, threads=2), ts.compile(model, backend="numpy")
    shapes = [(1 + i % 3, 1 + i) for i in range(50)]
    for i, (batch, seq) in enumerate(shapes):
        given = feeds(batch, seq, seed=i)
        agree(net(**given), reference(**given))
        if i == PLANS + 4:
            gc.collect()
            maps, resident, workers = held()
    gc.collect()
    ends = time.monotonic() + 5  # threads of pools that are dropped are told so, and end
    while (now := held())[2] > workers + 1 and time.monotonic() < ends:
        time.sleep(0.01)
    assert now[0] - maps < 40, (maps, now)  # each program's code takes about five
    assert now[1] - resident < 48, (resident, now)
    assert now[2] <= workers + 1  # the first large program starts the second thread
    assert len({id(b) for p in net._programs.kept().values() for b in p.blobs}) <= PLANS + OPEN


def test_programs_of_all_shapes_share_their_weights():
    d = 64
    model = ts.load(transformer(d=d, heads=2, layers=2))
    net = ts.compile(model, cache=False)
    # Of equal rows, so that the same tiles are best, whatever the machine.
    given = {shape: feeds(*shape) for shape in [(2, 20), (4, 10), (1, 40), (2, 20)]}
    expected = {shape: net(**f) for shape, f in given.items()}
    own = [p.blobs[0].data.size for p in net._programs.kept().values()]
    assert own[0] > 4 * 12 * d * d * 2
    table = 512 * d * 4  # of positions: a program for all sizes looks them up
    assert sum(own[1:]) < own[0] // 4 + table, own
    whole = {p.plan.memory.weights for p in net._programs.kept().values()}
    assert min(whole) > own[0] // 2
    first = weakref.ref(next(iter(net._programs.kept().values())).blobs[0])
    net._programs._recent.popitem(last=False)
    gc.collect()
    assert first() is not None  # the others read it
    agree(net(**given[1, 40]), expected[1, 40])


def test_stored_programs_share_their_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    code_cache._open.cache_clear()
    path = tmp_path / "model.onnx"
    path.write_bytes(transformer(d=64, heads=2).SerializeToString())
    given = [feeds(2, 20), feeds(2, 21)]
    expected = [ts.compile(path)(**f) for f in given[:1]]
    net = ts.compile(path)
    expected = [net(**f) for f in given]
    first, second = (net.program(tuple(a.shape for a in f.values())) for f in given)
    assert first.stored and not second.stored and first.blobs[0] in second.blobs
    again = ts.compile(path)
    for f, want in zip(given, expected, strict=True):
        agree(again(**f), want, 0)
    programs = list(again._programs.kept().values())
    assert all(p.stored for p in programs)
    assert programs[0].blobs[0] in programs[1].blobs
    # What the second reads of the first is gone: it counts as absent, and is made anew.
    (tmp_path / "cache" / "programs" / programs[0].blobs[0].file).unlink()
    lone = ts.compile(path)
    agree(lone(**given[1]), expected[1])
    assert not lone.program().stored
    code_cache._open.cache_clear()


def x_shape(x):
    return (x.shape,)


def relu_model(dims):
    nodes = [node("Relu", "x", "r"), node("Mul", "r two", "y")]
    return model_of(nodes, [("x", F, dims)], [("y", F, dims)], [("two", np.float32(2))])


def test_a_shape_whose_kernels_exist_is_planned_quickly(net):
    """Another Net of the same model has to plan anew, but to generate and compile nothing."""
    given = [feeds(*shape) for shape in SHAPES[:6]]
    model = ts.load(transformer())
    for f in given:
        net(**f)
    again = ts.compile(model)
    for f in given:
        again(**f)  # now its kernels are in the cache on disk as well
    once_more = ts.compile(model)
    spent = []
    for f in given:
        start = time.process_time()
        once_more(**f)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.2, spent  # 25 ms where nothing else runs


def test_threads_may_use_different_shapes_at_once(net, reference):
    shapes = SHAPES[:6]
    expected = {shape: reference(**feeds(*shape)) for shape in shapes}
    faults = []

    def work(shape):
        try:
            for _ in range(5):
                agree(net(**feeds(*shape)), expected[shape])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in shapes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_symbols_must_agree(net):
    given = feeds(2, 5)
    with pytest.raises(InputShapeError, match=r"'seq' .* is 5 in 'ids' and 4 in 'mask'"):
        net(ids=given["ids"], mask=given["mask"][:, :4])
    with pytest.raises(InputShapeError, match="must have shape"):
        net(ids=given["ids"][0], mask=given["mask"])
