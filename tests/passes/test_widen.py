"""Halves are computed in float32: where the casts are, what stays, and how exact it is."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tests.passes.build import Builder, ops_of
from tests.transformer import transformer
from tinsmith import ops
from tinsmith.codegen.target import host
from tinsmith.compiler.build import Compilation
from tinsmith.compiler.options import Options
from tinsmith.graph import Graph, Type
from tinsmith.graph.verify import verify
from tinsmith.ops.interpret import run_graph
from tinsmith.ops.precision import is_float
from tinsmith.passes import run_passes

HALF = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a unit in the last place of 1


def widened(graph, feeds=()):
    """Run the pass; the results may only become more exact. Returns (before, after)."""
    before = run_graph(graph, list(feeds))
    names, types = [v.name for v in graph.outputs], [v.type for v in graph.outputs]
    report = run_passes(graph, "precision", verify=True)
    verify(graph)
    assert [v.name for v in graph.outputs] == names
    assert [v.type for v in graph.outputs] == types
    assert run_passes(graph, "precision").changes["widen-halves"] == 0
    return before, run_graph(graph, list(feeds)), report


def computed(graph):
    """dtypes of the results of all nodes but casts."""
    return {v.dtype.name for n in graph.nodes if n.op.name != "Cast" for v in n.outputs}


@pytest.mark.parametrize("kind", HALF)
def test_a_region_has_casts_at_its_borders_only(kind):
    b = Builder(HALF[kind])
    x = b.x(2, 8, name="x")
    h = ops.Tanh(ops.Add(ops.MatMul(x, b.w(8, 16)), b.w(16)))
    g = b.out(ops.Exp(ops.MatMul(h, b.w(16, 4))))
    feed = b.array(2, 8)
    before, after, report = widened(g, [feed])
    assert ops_of(g) == ["Cast", "MatMul", "Add", "Tanh", "MatMul", "Exp", "Cast"]
    assert computed(g) == {"float32"}
    assert len(report.notes) == 5 and "float32" in report.notes[0].reason
    exact = _exact(feed, [v.const for v in g.constants()])
    errors = [np.abs(y[0].astype(np.float64) - exact) / np.abs(exact) for y in (before, after)]
    assert errors[1].max() <= UNIT[kind] * 1.001
    assert errors[1].max() <= errors[0].max()


def _exact(x, weights):
    a, c, d = (w.astype(np.float64) for w in weights)
    return np.exp(np.tanh(x.astype(np.float64) @ a + c) @ d)


def test_names_stay():
    b = Builder("float16")
    g = b.out(ops.Relu(ops.Neg(b.x(3))))
    nodes, values = [n.name for n in g.nodes], [n.output.name for n in g.nodes]
    widened(g, [b.array(3)])
    kept = [n for n in g.nodes if n.op.name != "Cast"]
    assert [n.name for n in kept] == nodes
    assert kept[0].output.name == values[0]


def test_a_table_is_gathered_as_it_is_stored():
    b = Builder("float16")
    ids = b.graph.input("ids", Type(np.dtype(np.int64), (2, 5)))
    rows = ops.Gather(b.w(100, 8), ids, axis=0)
    g = b.out(ops.Softmax(rows, axis=-1))
    widened(g, [b.rng.integers(0, 100, (2, 5))])
    assert ops_of(g) == ["Gather", "Cast", "Softmax", "Cast"]
    assert [v.dtype.name for v in g.constants()] == ["float16"]


def test_moves_of_inputs_stay_and_moves_of_results_do_not():
    b = Builder("float16")
    y = ops.Transpose(b.x(3, 4), perm=(1, 0))
    z = ops.Transpose(ops.Tanh(y), perm=(1, 0))
    g = b.out(z)
    widened(g, [b.array(3, 4)])
    moved = [n.output.dtype.name for n in g.nodes if n.op.name == "Transpose"]
    assert moved == ["float16", "float32"]


def test_a_cast_to_half_and_back_alone_is_kept():
    g = Graph("g")
    x = g.input("x", Type(np.dtype(np.float32), (4,)))
    g.outputs = [ops.Cast(ops.Cast(x, to="float16"), to="float32")]
    feed = np.array([1 + 2.0**-12, 1e6, 1e-9, 3], np.float32)
    before, after, _ = widened(g, [feed])
    assert ops_of(g) == ["Cast", "Cast"]
    np.testing.assert_array_equal(before[0], after[0])


def test_casts_between_halves_and_singles_disappear_inside():
    """As converters leave them around operators that they keep in float32."""
    b = Builder("float16")
    x = ops.MatMul(b.x(4, 4), b.w(4, 4))
    wide = ops.Softmax(ops.Cast(x, to="float32"), axis=-1)
    g = b.out(ops.MatMul(ops.Cast(wide, to="float16"), b.w(4, 4)))
    widened(g, [b.array(4, 4)])
    assert ops_of(g) == ["Cast", "MatMul", "Softmax", "MatMul", "Cast"]


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("to", ["uint8", "int64", "bool"])
def test_whole_numbers_are_made_of_rounded_halves(kind, to):
    """2.9999 is 3 as a half, and 3 as a whole number; a number too small for a half is false."""
    b = Builder(np.dtype(np.float32))
    x = b.x(2, 3, name="x")
    half = ops.Cast(ops.Add(x, x), to=kind)
    g = b.out(ops.Cast(ops.Mul(half, b.c(1, HALF[kind])), to=to))
    feed = np.array([[1.49999, 1.0, 2.00001], [1e-42, 0.49999, 1.50001]], np.float32)
    before, after, _ = widened(g, [feed])
    np.testing.assert_array_equal(before[0], after[0])


def test_weights_that_are_only_stored_in_half_become_constants_unless_products_read_them():
    g = Graph("g")
    x = g.input("x", Type(np.dtype(np.float32), (2, 1200)))
    rng = np.random.default_rng(0)
    w, v = (g.const(rng.standard_normal((n, 1200)).astype(np.float16)) for n in (1200, 2))
    g.outputs = [ops.Add(ops.MatMul(x, ops.Cast(w, to="float32")), ops.Cast(v, to="float32"))]
    run_passes(g, "portable", verify=True)
    run_passes(g, "precision", verify=True)
    run_passes(g, "portable", verify=True)
    assert ops_of(g) == ["Cast", "MatMul", "Add"]
    run_passes(g, "machine", verify=True)
    small = next(n for n in g.nodes if n.op.name in ("SmallMatMul", "Fused"))
    assert any(value is not None and value.dtype == np.float16 for value in small.inputs)


def test_what_cannot_be_widened_says_why():
    b = Builder("float16")
    bits = ops.BitCast(ops.Neg(b.x(4)), to="int16")
    g = b.out(bits)
    _, _, report = widened(g, [b.array(4)])
    assert ops_of(g) == ["Cast", "Neg", "Cast", "BitCast"]
    assert any("widths" in r.reason for r in report.refusals)


def test_results_of_other_types_and_graph_outputs_inside():
    b = Builder("float16")
    x = b.x(3, 4)
    y = ops.Tanh(x)
    g = b.out(y, ops.Greater(y, b.c(0.25)), ops.ArgReduce(ops.Exp(y), axis=1, kind="max"), y)
    feed = b.array(3, 4)
    before, after, _ = widened(g, [feed])
    assert [a.dtype.name for a in after] == ["float16", "bool", "int64", "float16"]
    np.testing.assert_array_equal(before[0], after[0])


@pytest.mark.parametrize("kind", HALF)
def test_activations_are_recognised_by_constants_rounded_to_halves(kind):
    b = Builder(HALF[kind])
    x = b.x(5, 7)
    erf = ops.Erf(ops.Div(x, b.c(2**0.5)))
    g = b.out(ops.Mul(ops.Mul(x, ops.Add(erf, b.c(1))), b.c(0.5)))
    run_passes(g, "portable", verify=True)
    assert ops_of(g) == ["Gelu"]


# ---- whole models


def in_half(model, kind):
    """The model with all its float32 weights, constants, casts, inputs and outputs in a half."""
    to = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[kind]

    def half(t):
        if t.data_type == TensorProto.FLOAT:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(HALF[kind]), t.name))

    out = onnx.ModelProto()
    out.CopyFrom(model)
    for t in out.graph.initializer:
        half(t)
    for node in out.graph.node:
        for a in node.attribute:
            if a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = to
            if a.HasField("t"):
                half(a.t)
    for v in (*out.graph.input, *out.graph.output, *out.graph.value_info):
        if v.type.tensor_type.elem_type == TensorProto.FLOAT:
            v.type.tensor_type.elem_type = to
    return out


def conv_net():
    rng = np.random.default_rng(5)
    nodes, weights = [], []

    def w(*shape, scale=1.0):
        name = f"w{len(weights)}"
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    def add(op, *inputs, **attrs):
        nodes.append(helper.make_node(op, list(inputs), [f"t{len(nodes)}"], **attrs))
        return f"t{len(nodes) - 1}"

    x = add("Conv", "x", w(16, 3, 3, 3, scale=0.2), w(16), pads=[1] * 4, strides=[2, 2])
    ones = numpy_helper.from_array(np.full(16, 1.5, np.float32), "var")
    weights.append(ones)
    x = add("Relu", add("BatchNormalization", x, w(16), w(16), w(16), "var"))
    y = add("Conv", x, w(16, 1, 3, 3, scale=0.3), pads=[1] * 4, group=16)
    y = add("Add", x, add("Conv", add("HardSwish", y), w(16, 16, 1, 1, scale=0.25)))
    y = add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = add("Flatten", add("GlobalAveragePool", y))
    y = add("Gemm", y, w(10, 16, scale=0.25), w(10), transB=1)
    nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
            (("x", [1, 3, 32, 32]), ("y", [1, 10]))]  # fmt: skip
    graph = helper.make_graph(nodes, "net", info[:1], info[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def models():
    ids = np.random.default_rng(1).integers(0, 50, (2, 9))
    mask = np.ones((2, 9), np.float32)
    mask[1, 6:] = 0
    x = np.random.default_rng(2).standard_normal((1, 3, 32, 32)).astype(np.float32)
    return {"conv net": (conv_net(), [x]), "transformer": (transformer(), [ids, mask])}


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("name", ["conv net", "transformer"])
def test_models_in_half_run_natively(name, kind, tmp_path):
    """Against the same model of weights rounded to halves, computed in float32 by the references:
    only the result is rounded."""
    model, feeds = models()[name]
    half = in_half(model, kind)
    path = tmp_path / "half.onnx"
    onnx.save(half, path)
    single = onnx.ModelProto()
    single.CopyFrom(model)
    for t in single.graph.initializer:
        if t.data_type == TensorProto.FLOAT:
            rounded = numpy_helper.to_array(t).astype(HALF[kind]).astype(np.float32)
            t.CopyFrom(numpy_helper.from_array(rounded, t.name))
    onnx.save(single, tmp_path / "single.onnx")
    xs = [f.astype(HALF[kind]) if f.dtype == np.float32 else f for f in feeds]
    wides = [x.astype(np.float32) if x.dtype == HALF[kind] else x for x in xs]
    net = ts.compile(path, cache=False)
    got = net(*xs)
    want = ts.compile(tmp_path / "single.onnx", backend="numpy")(*wides)
    for a, b in zip(_arrays(got), _arrays(want), strict=True):
        assert a.dtype == HALF[kind]
        error = np.abs(a.astype(np.float64) - b)
        assert (error <= np.abs(b) * UNIT[kind] * 1.01 + 1e-5 * np.abs(b).max()).all()
    steps = net.program().plan.steps
    assert not [s.name for s in steps if s.kind == "reference"]


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("name", ["conv net", "transformer"])
def test_canonical_graphs_keep_the_element_types_of_the_file(name, kind, tmp_path):
    """No weight of the file is rounded again or widened; the placed graph computes in float32."""
    path = tmp_path / "half.onnx"
    onnx.save(in_half(models()[name][0], kind), path)
    made = Compilation(ts.load(path), host(), Options(), cache=False)
    floats = [v for v in made.canonical.constants() if is_float(v.dtype)]
    assert {v.dtype.name for v in floats if v.const.size > 1} == {kind}
    stored = {v.const.tobytes() for v in made.imported.constants()}
    assert any(v.const.size > 1 and v.const.tobytes() in stored for v in floats)
    signature = tuple(v.shape for v in made.canonical.inputs)
    assert str(made.canonical_for(signature)) == str(made.canonical)
    assert "BatchNorm" in ops_of(made.canonical) or name == "transformer"
    placed = made.place(signature)
    assert "BatchNorm" not in ops_of(placed)
    assert "float32" in {v.dtype.name for n in placed.nodes for v in n.outputs}


def _arrays(result):
    return list(result.values()) if isinstance(result, dict) else [result]


@pytest.mark.parametrize("kind", HALF)
def test_sequences_keep_their_element_type(kind):
    b = Builder(HALF[kind])
    x = ops.Tanh(b.x(4, 3))
    parts = ops.SequenceInsert(ops.SplitToSequence(x, np.int64(3)), ops.Exp(x), np.int64(0))
    pair = ops.SequenceConstruct(ops.SequenceAt(parts, np.int64(0)), x)
    g = b.out(ops.ConcatFromSequence(parts, axis=0), ops.ConcatFromSequence(pair, axis=0))
    feed = b.array(4, 3)
    want, got, _ = widened(g, [feed])
    for y, z, right in zip(got, ts.compile(g, cache=False).run([feed]), want, strict=True):
        for found in (y, z):
            assert found.dtype == right.dtype == HALF[kind]
            np.testing.assert_allclose(
                found.astype(np.float64), right.astype(np.float64), rtol=2 * UNIT[kind]
            )
