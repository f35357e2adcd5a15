"""The text form prints everything, reads it back, and says where it is wrong."""

import ml_dtypes
import numpy as np
import pytest

from tinsmith import ops
from tinsmith.errors import GraphSyntaxError
from tinsmith.graph import Graph, Origin, Type
from tinsmith.graph.text import format_graph, graph_weights, parse_graph
from tinsmith.graph.verify import verify


def round_trip(graph, max_inline=8):
    text = format_graph(graph, max_inline)
    back = parse_graph(text, graph_weights(graph, max_inline))
    verify(back)
    assert format_graph(back, max_inline) == text
    return back


def same(a, b):
    assert (a.name, a.file, a.meta) == (b.name, b.file, b.meta)
    assert [(v.name, v.type) for v in a.inputs] == [(v.name, v.type) for v in b.inputs]
    assert [(v.name, v.type) for v in a.outputs] == [(v.name, v.type) for v in b.outputs]
    for m, n in zip(a.nodes, b.nodes, strict=True):
        assert (m.name, m.op, m.origin) == (n.name, n.op, n.origin)
        assert [(v.name, v.type) for v in m.outputs] == [(v.name, v.type) for v in n.outputs]
        assert m.attrs.keys() == n.attrs.keys()
        for key, value in m.attrs.items():
            if isinstance(value, Graph):
                same(value, n.attrs[key])
            else:
                assert repr(value) == repr(n.attrs[key])
        for v, w in zip(m.inputs, n.inputs, strict=True):
            assert (v is None) == (w is None)
            if v is not None and v.const is not None:
                assert v.const.dtype == w.const.dtype
                assert v.const.tobytes() == w.const.tobytes() or v.const.dtype == object
                np.testing.assert_array_equal(v.const, w.const)


def example():
    g = Graph("net", file="a model.onnx")
    g.meta = {"opset": 20, "tags": ["a", "b"]}
    x = g.input("x", Type("float32", ("N", 3, "height of x", 8)))
    w = g.const(np.linspace(-1, 1, 4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3), "1.weight")
    y = ops.Conv(
        x, w, None, pad=(1, 1, 1, 1), name="conv", origin=Origin("a model.onnx", "c 1", "Conv")
    )
    a, b = ops.Split(y, g.const(np.array([1, 3]), "parts"), axis=1, outputs=["first", "odd name!"])
    z = ops.Clip(b, min=0.1, max=float("inf"), origin=Origin("other.onnx", "clip", "Relu6"))
    g.outputs += [ops.Softmax(z, axis=1, name="return"), a, x]
    return g


def test_example():
    g = example()
    same(g, round_trip(g))


def test_golden():
    assert format_graph(example()) == (
        'graph net file "a model.onnx" (x: float32[N,3,"height of x",8]) {\n'
        '  meta {"opset": 20, "tags": ["a", "b"]}\n'
        '  "1.weight" = const float32[4,3,3,3]\n'
        "  parts = const int64[2] = [1, 3]\n"
        '  conv = Conv(x, "1.weight", pad=(1, 1, 1, 1)) : float32[N,4,"height of x",8]'
        ' from "Conv" "c 1"\n'
        '  first, "odd name!" = Split(conv, parts, axis=1) : float32[N,1,"height of x",8],'
        ' float32[N,3,"height of x",8]\n'
        '  clip = Clip("odd name!", min=0.1, max=inf) : float32[N,3,"height of x",8]'
        ' from "Relu6" "clip" "other.onnx"\n'
        '  "return" = Softmax(clip, axis=1) : float32[N,3,"height of x",8]\n'
        '  return "return", first, x\n'
        "}\n"
    )


@pytest.mark.parametrize(
    "array",
    [
        np.float32([0.1, -0.0, 1e-45, 3.4e38]),
        np.float64([0.1, np.inf, -np.inf]),
        np.float16([0.1, 6e-8]),
        np.array([np.nan], np.float32),
        np.array([2**63 - 1, -(2**63)], np.int64),
        np.array([2**64 - 1], np.uint64),
        np.array([True, False]),
        np.array(3, np.int8),
        np.zeros((0, 3), np.float32),
        np.array([[1.5, 2.0]], ml_dtypes.bfloat16),
        np.array([1, -8], ml_dtypes.int4),
        np.array([0.5, 448.0], ml_dtypes.float8_e4m3fn),
        np.array(["a", 'quoted " and \n'], object),
        np.array([1 + 2j], np.complex64),
    ],
)
@pytest.mark.parametrize("max_inline", [0, 8])
def test_constants(array, max_inline):
    g = Graph("c")
    g.outputs.append(g.const(array, "c"))
    back = parse_graph(format_graph(g, max_inline), graph_weights(g, max_inline)).outputs[0].const
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tobytes() == array.tobytes() or array.dtype == object
    np.testing.assert_array_equal(back, array)


def test_nested_graphs_find_their_own_weights():
    g = Graph("outer")
    x = g.input("x", Type("float32", (20,)))
    w = np.arange(20, dtype=np.float32)
    branches = []
    for k in (1, 2):
        inner = Graph("branch")
        y = inner.input("y", Type("float32", (20,)))
        inner.outputs.append(ops.Add(y, inner.const(w * k, "w")))
        branches.append(inner)
    total = ops.Add(x, g.const(w, "w"))
    cond = ops.Less(ops.Reduce(total, kind="sum", keepdims=False), g.const(np.float32(0)))
    g.outputs.append(ops.If(cond, total, then_branch=branches[0], else_branch=branches[1]))
    back = round_trip(g)
    same(g, back)
    assert back.nodes[-1].else_branch.nodes[0].inputs[1].const[3] == 6


def test_unknown_ranks_and_nameless_symbols():
    g = Graph()
    x = g.input("x", Type("int64", None))
    y = ops.NonZero(ops.Identity(x))
    g.outputs.append(y)
    back = round_trip(g)
    assert back.inputs[0].type == x.type and back.outputs[0].type == y.type


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("graf g () {}", "line 1, column 1: expected 'graph'"),
        ("graph g (x: float33[2]) {}", "line 1, column 13: 'float33'"),
        ("graph g (x: float32[2]) {\n  y = Relu(z) : float32[2]\n}", "line 2, column 12: 'z'"),
        ("graph g (x: float32[2]) {\n  y = Relv(x)\n  return y}", "line 2, column 7: .*'Relv'"),
        ("graph g (x: float32[2]) {\n  y = Relu(x, x)\n  return y}", "line 2, column 7: .*takes 1"),
        (
            "graph g (x: float32[2]) {\n  y = Relu(x) : float32[3]\n return y}",
            "line 2.*not float32",
        ),
        ("graph g (x: float32[2]) {\n  x = Relu(x)\n return x}", "'x' is defined twice"),
        ("graph g (x: float32[2]) {\n  w = const float32[9]\n return w}", "'w' is not among"),
        ("graph g (x: float32[2]) {\n  w = const int64[2] = [1]\n return w}", "hold 1 elements"),
        ("graph g (x: float32[2]) {\n  return x\n} ^", "unexpected character"),
        ("graph g (x: float32[2]) {\n  return x\n} x", "expected the end"),
        ("graph g (x: float32[2]) {\n  meta {1}\n  return x\n}", "not JSON"),
        ("graph g (x: float32[2]", "expected ','"),
    ],
)
def test_errors_say_where(text, where):
    with pytest.raises(GraphSyntaxError, match=where):
        parse_graph(text)


def test_weights_of_another_shape():
    with pytest.raises(GraphSyntaxError, match=r"hold float64\[9\]"):
        parse_graph("graph () { w = const float32[9] return w }", {"w": np.zeros(9)})


def test_a_text_that_ends_within_the_arguments_of_a_node():
    with pytest.raises(GraphSyntaxError, match="line 2"):
        parse_graph("graph g(x: float32[2]) {\n  y = Add(x,")


@pytest.mark.parametrize("text", ['"A\\q"', '"A\\u12"', '"A\tb"'])
@pytest.mark.parametrize(
    ("around", "where"),
    [
        ("graph %s (x: float32[2]) { return x }", "line 1, column 7"),
        ("graph g (%s: float32[2]) { return x }", "line 1, column 10"),
        (
            'graph g (x: float32[2]) {\n  y = Abs(x) @a from %s "k"\n return y }',
            "line 2, column 22",
        ),
        ("graph g (x: float32[2]) {\n  y = Reduce(x, kind=%s)\n return y }", "line 2, column 22"),
    ],
)
def test_strings_that_are_not_json(text, around, where):
    with pytest.raises(GraphSyntaxError, match=f"{where}: the string .* is not JSON"):
        parse_graph(around % text)


@pytest.mark.parametrize(
    ("type_", "items"),
    [("int64", "9" * 40), ("float32", '"a"'), ("complex64", "(1, 2, 3)"), ("complex64", "1")],
)
def test_constants_that_their_type_cannot_hold(type_, items):
    with pytest.raises(GraphSyntaxError, match="cannot hold"):
        parse_graph(
            f"graph g(x: float32[2]) {{\n  c = const {type_}[1] = [{items}]\n  return x\n}}"
        )


@pytest.mark.parametrize(
    "text",
    [
        "graph g (x: " + "sequence(" * 5000 + "float32[1]" + ")" * 5000 + ") { return x }",
        "graph g (x: float32[1]) { y = Relu(x, a=" + "(" * 50000 + ") return y }",
    ],
)
def test_deep_nesting_is_an_error(text):
    with pytest.raises(GraphSyntaxError, match="nested too deeply"):
        parse_graph(text)


def test_long_numbers_are_an_error():
    with pytest.raises(GraphSyntaxError, match="has 5000 digits"):
        parse_graph("graph g (x: float32[" + "9" * 5000 + "]) { return x }")
