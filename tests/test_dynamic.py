"""Shapes that only a call tells: free dimensions, sizes that depend on data, control flow."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tests.transformer import feeds, transformer
from tinsmith import ops
from tinsmith.codegen import cache as code_cache
from tinsmith.errors import DataError, InputShapeError, TypeRuleError
from tinsmith.graph.text import parse_graph
from tinsmith.plan.shelf import OPEN
from tinsmith.runtime.net import PLANS

RANDOM = np.random.default_rng(5)


@pytest.fixture(scope="module")
def net():
    return ts.compile(ts.load(transformer()), cache=False)


@pytest.fixture(scope="module")
def reference():
    return ts.compile(ts.load(transformer()), backend="numpy")


def agree(got, want, tolerance=1e-5):
    got = got if isinstance(got, dict) else {"": got}
    want = want if isinstance(want, dict) else {"": want}
    assert list(got) == list(want)
    for name, b in want.items():
        a = got[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        if b.dtype.kind == "f":
            scale = max(1.0, float(np.abs(b).max(initial=0)))
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)


# ---- a transformer of free batch and sequence length

SHAPES = [(1 + i % 4, 1 + (7 * i) % 23) for i in range(12)] + [(1, 1), (9, 1), (1, 64)]


@pytest.mark.parametrize(("batch", "seq"), SHAPES)
def test_a_transformer_of_any_shape(net, reference, batch, seq):
    given = feeds(batch, seq, seed=batch + seq)
    agree(net(**given), reference(**given))
    # Indices that are out of range must be refused, which only the reference can.
    assert {s.op for s in net.program().plan.steps if s.kind == "reference"} <= {"Gather"}


def test_fifty_shapes_in_a_row_leave_nothing_behind():
    """Few distinct kernels, so that this is about plans and sessions rather than compilation."""
    model = relu_model(["n", "m"])
    net = ts.compile(ts.load(model), cache=False)
    programs, sessions = [], []
    for i in range(50):
        x = RANDOM.standard_normal((1 + i % 5, 1 + i // 5), np.float32)
        np.testing.assert_allclose(net(x), np.maximum(x, 0) * 2, rtol=1e-6)
        programs.append(weakref.ref(net.program(x_shape(x))))
        sessions.append(weakref.ref(net.session(x_shape(x))))
    gc.collect()
    assert sum(r() is not None for r in programs) <= PLANS
    assert sum(r() is not None for r in sessions) <= PLANS
    assert programs[-1]() is not None
    x = np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(net(x), x * 2)  # the first shape, whose plan is long gone


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
    now = held()
    assert now[0] - maps < 40, (maps, now)  # each program's code takes about five
    assert now[1] - resident < 48, (resident, now)
    assert now[2] <= workers + 1  # the first large program starts the second thread
    assert len({id(b) for p in net._programs.values() for b in p.blobs}) <= PLANS + OPEN


def test_programs_of_all_shapes_share_their_weights():
    d = 64
    model = ts.load(transformer(d=d, heads=2, layers=2))
    net = ts.compile(model, cache=False)
    # Of equal rows, so that the same tiles are best, whatever the machine.
    given = {shape: feeds(*shape) for shape in [(2, 20), (4, 10), (1, 40), (2, 20)]}
    expected = {shape: net(**f) for shape, f in given.items()}
    own = [p.blobs[0].data.size for p in net._programs.values()]
    assert own[0] > 4 * 12 * d * d * 2
    assert sum(own[1:]) < own[0] // 4, own
    whole = {p.plan.memory.weights for p in net._programs.values()}
    assert min(whole) > own[0] // 2
    first = weakref.ref(next(iter(net._programs.values())).blobs[0])
    del net._programs[next(iter(net._programs))]
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
    programs = list(again._programs.values())
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
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Mul", ["r", "two"], ["y"])]
    graph = helper.make_graph(nodes, "relu", [x], [y], [two])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


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


# ---- outputs whose size depends on data


def model_of(nodes, inputs, outputs, weights=(), opset=18):
    def info(name, type, dims=None):
        return helper.make_tensor_value_info(name, type, dims)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(*i) for i in inputs],
        [info(*o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

DEPENDENT = {
    "nonzero": model_of(
        [node("Relu", "x", "r"), node("Exp", "r", "e"), node("Sub", "e one", "d"),
         node("NonZero", "d", "places"), node("Transpose", "places", "t", perm=[1, 0]),
         node("GatherND", "x t", "found"), node("Sigmoid", "found", "y")],
        [("x", F, ["n", 8])], [("places", INT), ("y", F)], [("one", np.float32(1))],
    ),
    "compress": model_of(
        [node("Greater", "x zero", "keep"), node("Reshape", "keep flat", "k"),
         node("Compress", "x k", "c"), node("Mul", "c two", "y")],
        [("x", F, ["n", 8])], [("y", F)],
        [("zero", np.float32(0)), ("two", np.float32(2)), ("flat", np.array([-1]))],
    ),
    "unique": model_of(
        [node("Round", "x", "r"), node("Unique", "r", "u i v c"), node("Exp", "u", "y")],
        [("x", F, ["n", 8])], [("y", F), ("i", INT), ("v", INT), ("c", INT)],
    ),
    "topk": model_of(
        [node("Relu", "x", "r"), node("Shape", "x", "s"), node("Gather", "s zero", "n1"),
         node("Min", "n1 three", "k"), node("TopK", "r k", "y i", axis=0)],
        [("x", F, ["n", 8])], [("y", F), ("i", INT)],
        [("zero", np.array([0])), ("three", np.array([3]))],
    ),
    "topk of a computed k": model_of(
        [node("Relu", "x", "r"), node("ReduceMax", "x", "m", keepdims=0), node("Abs", "m", "a"),
         node("Ceil", "a", "c"), node("Cast", "c", "k0", to=INT), node("Reshape", "k0 one", "k"),
         node("TopK", "r k", "v i", axis=1), node("Add", "v half", "y")],
        [("x", F, ["n", 8])], [("y", F), ("i", INT)],
        [("one", np.array([1])), ("half", np.float32(0.5))],
    ),
    "a slice of computed ends": model_of(
        [node("Sigmoid", "x", "s"), node("ReduceSum", "s", "t", keepdims=0),
         node("Floor", "t", "f"), node("Cast", "f", "e0", to=INT), node("Reshape", "e0 one", "e1"),
         node("Min", "e1 seven", "e"), node("Slice", "x zero e one", "c"), node("Tanh", "c", "y")],
        [("x", F, ["n", 8])], [("y", F)],
        [("one", np.array([1])), ("zero", np.array([0])), ("seven", np.array([7]))],
    ),
    "a range of a computed size": model_of(
        [node("NonZero", "x", "p"), node("Shape", "p", "s"), node("Gather", "s one", "n1"),
         node("Range", "zero n1 one", "r"), node("Cast", "r", "y", to=F)],
        [("x", F, ["n", 8])], [("y", F)], [("one", np.array(1)), ("zero", np.array(0))],
    ),
    "if": model_of(
        [node("ReduceSum", "x", "t", keepdims=0), node("Greater", "t zero", "c"),
         helper.make_node("If", ["c"], ["b"],
             then_branch=helper.make_graph([node("Relu", "x", "o")], "yes", [],
                 [helper.make_tensor_value_info("o", F, None)]),
             else_branch=helper.make_graph([node("Reshape", "x flat", "o")], "no", [],
                 [helper.make_tensor_value_info("o", F, None)])),
         node("Exp", "b", "y")],
        [("x", F, ["n", 8])], [("y", F)], [("zero", np.float32(0)), ("flat", np.array([-1]))],
    ),
    "loop": model_of(
        [node("Relu", "x", "r"), node("Shape", "x", "s"), node("Gather", "s zero", "turns"),
         helper.make_node("Loop", ["turns", "", "r"], ["last", "all"],
             body=helper.make_graph(
                 [node("Mul", "state r", "m"), node("Tanh", "m", "next"),
                  node("ReduceMax", "next", "item", keepdims=0), node("Identity", "go", "out")],
                 "body",
                 [helper.make_tensor_value_info("i", INT, []),
                  helper.make_tensor_value_info("go", B, []),
                  helper.make_tensor_value_info("state", F, None)],
                 [helper.make_tensor_value_info("out", B, []),
                  helper.make_tensor_value_info("next", F, None),
                  helper.make_tensor_value_info("item", F, None)])),
         node("Exp", "last", "y")],
        [("x", F, ["n", 8])], [("y", F), ("all", F)], [("zero", np.array(0))],
    ),
    "scan": model_of(
        [node("Relu", "x", "r"),
         helper.make_node("Scan", ["start", "r"], ["last", "sums"], num_scan_inputs=1,
             body=helper.make_graph(
                 [node("Add", "state row", "next"), node("Identity", "next", "item")], "body",
                 [helper.make_tensor_value_info("state", F, [8]),
                  helper.make_tensor_value_info("row", F, [8])],
                 [helper.make_tensor_value_info("next", F, [8]),
                  helper.make_tensor_value_info("item", F, [8])])),
         node("Exp", "last", "y")],
        [("x", F, ["n", 8])], [("y", F), ("sums", F)], [("start", np.zeros(8, np.float32))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPENDENT)
def test_what_depends_on_data(name):
    graph = ts.load(DEPENDENT[name])
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for n in (1, 4, 4, 7):
        x = RANDOM.standard_normal((n, 8), np.float32) * 1.5
        agree(net(x), reference(x))
        agree(net(-np.abs(x)), reference(-np.abs(x)))  # often nothing is left


@pytest.mark.parametrize("name", ["nonzero", "compress", "unique", "if", "loop"])
def test_parts_around_them_are_native(name):
    net = ts.compile(ts.load(DEPENDENT[name]), cache=False)
    net(RANDOM.standard_normal((4, 8), np.float32))
    assert "native" in {s.kind for s in net.program().plan.steps}, net.explain()


def test_boxes():
    """Scores and boxes are native, NonMaxSuppression chooses, Gather takes what is left."""
    weights = [("n", np.array([5])), ("iou", np.array([0.5], np.float32)),
               ("least", np.array([0.3], np.float32)), ("two", np.array([2])),
               ("m", RANDOM.standard_normal((4, 4)).astype(np.float32))]  # fmt: skip
    model = model_of(
        [node("MatMul", "boxes m", "b0"), node("Sigmoid", "b0", "b"),
         node("Sigmoid", "x", "scores"),
         node("NonMaxSuppression", "b scores n iou least", "chosen"),
         node("Gather", "chosen two", "which", axis=1), node("Reshape", "which flat", "w"),
         node("Gather", "b w", "y", axis=1)],
        [("boxes", F, ["n", "k", 4]), ("x", F, ["n", 2, "k"])], [("chosen", INT), ("y", F)],
        [*weights, ("flat", np.array([-1]))],
    )  # fmt: skip
    graph = ts.load(model)
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for k in (3, 20, 50):
        boxes = RANDOM.standard_normal((1, k, 4), np.float32)
        x = RANDOM.standard_normal((1, 2, k), np.float32)
        agree(net(boxes, x), reference(boxes, x))
    assert "native" in {s.kind for s in net.program().plan.steps}


def test_an_axis_of_free_size_is_squeezed_only_where_it_is_1():
    graph = ts.load(
        model_of(
            [node("Squeeze", "x zero", "y")],
            [("x", F, ["n", "m"])],
            [("y", F)],
            [("zero", np.array([0]))],
        )
    )
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((3, 4), np.float32)
    np.testing.assert_array_equal(net(x[:1]), x[0])
    assert "reference" not in {s.kind for s in net.program().plan.steps}
    with pytest.raises(TypeRuleError, match="axis 0"):
        net(x)


CROP = [node("Shape", "x", "sizes"), node("Gather", "sizes zero", "h"), node("Div", "h two", "k"),
        node("Mul", "k two", "end"), node("Slice", "x zero end zero", "y")]  # fmt: skip


def test_a_size_that_a_model_names_like_another_may_differ():
    """Exporters are told names of sizes by hand, and the same for inputs and outputs."""
    weights = [("zero", np.array([0])), ("two", np.array([2]))]
    graph = ts.load(model_of(CROP, [("x", F, ["h", 4])], [("y", F, ["h", 4])], weights))
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((5, 4), np.float32)
    np.testing.assert_array_equal(net(x[:2]), x[:2])
    np.testing.assert_array_equal(net(x), x[:4])


def test_names_of_sizes_are_not_those_made_for_unknown_sizes():
    last = int(ops.fresh()[1:])
    names = [f"?{last + i}" for i in range(1, 9)]
    nodes = [node("Slice", f"x begin end {axis}", f"y{axis}") for axis in "01234567"]
    weights = [(str(i), np.array([i])) for i in range(8)]
    inputs = [("x", F, names), ("begin", INT, [1]), ("end", INT, [1])]
    proto = model_of(nodes, inputs, [(f"y{i}", F) for i in range(8)], weights)
    net = ts.compile(ts.load(proto), cache=False)
    x = np.arange(3**8, dtype=np.float32).reshape([3] * 8)
    for i, y in enumerate(net.run([x, np.array([1]), np.array([2])])):
        np.testing.assert_array_equal(y, np.take(x, [1], i))


def test_unknown_sizes_in_a_text_are_not_made_again():
    next_one = int(ops.fresh()[1:]) + 1
    graph = parse_graph(f"graph g (x: float32[?{next_one}]) {{ return x }}")
    assert ops.fresh() not in graph.inputs[0].shape


def test_a_declared_size_that_is_not_so_is_an_error():
    graph = ts.load(
        model_of(
            [node("Compress", "x which", "y", axis=0)],
            [("x", F, [3, 4]), ("which", TensorProto.BOOL, [3])],
            [("y", F, [3, 4])],
        )
    )
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((3, 4), np.float32)
    np.testing.assert_array_equal(net(x, np.array([True] * 3)), x)
    for which in ([False, True, False], [True, True, False]):
        with pytest.raises(DataError, match=r"Compress 'y'.*declares"):
            net(x, np.array(which))


def test_a_split_into_sizes_of_which_not_even_the_number_is_known():
    graph = ts.load(
        model_of(
            [node("Split", "x sizes", "a b", axis=1)],
            [("x", F, ["n", "m"]), ("sizes", INT, ["k"])],
            [("a", F), ("b", F)],
        )
    )
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((3, 4), np.float32)
    agree(net(x, np.array([1, 3])), {"a": x[:, :1], "b": x[:, 1:]})


def test_automatic_pads_of_a_kernel_of_free_size():
    graph = ts.load(
        model_of(
            [node("Conv", "x w", "y", auto_pad="SAME_UPPER")],
            [("x", F, [1, 2, 5, 6]), ("w", F, [3, 2, "h", "w"])],
            [("y", F)],
        )
    )
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for size in ((3, 3), (2, 5), (1, 1)):
        x = RANDOM.standard_normal((1, 2, 5, 6), np.float32)
        w = RANDOM.standard_normal((3, 2, *size), np.float32)
        agree(net(x, w), reference(x, w))
