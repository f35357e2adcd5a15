"""StackLoops: Scan and Loop whose body is one recurrent step."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tests.passes.build import Builder, check, feeds_of, ops_of
from tests.passes.recurrent_cells import CELLS, gru_after, lstm, rnn
from tinsmith import ops
from tinsmith.frontends import load
from tinsmith.graph import Type
from tinsmith.ops.interpret import run_graph

N, I, H, T = 2, 3, 4, 5  # noqa: E741
MOVES = {"Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze"}
INT, BOOL = Type(np.dtype(np.int64), ()), Type(np.dtype(bool), ())


def said(report, what):
    return any(r.rule == "stack-loops" and what in r.reason for r in report.refusals)


def shape_at(axis, steps=T):
    dims = [N, I]
    dims.insert(axis, steps)
    return tuple(dims)


def scan(make, kind="LSTM", axis=0, reverse=False, out_axis=0, out_reverse=None, start="input"):
    """A graph of one Scan that does a step in each iteration; y of all, and the last states."""
    outer, inner = Builder(), Builder(seed=5)
    inner.graph.name = "body"
    states = 2 if kind == "LSTM" else 1
    formal = [inner.x(N, H, name=f"s{k}") for k in range(states)]
    h, c = make(inner, I, H)(inner.x(N, I, name="xt"), formal[0], formal[-1])
    body = inner.out(h, *([c] if states > 1 else []), ops.Identity(h))
    x = outer.x(*shape_at(axis))
    given = [
        outer.x(N, H, name=f"h{k}") if start == "input" else outer.c(np.zeros((N, H)))
        for k in range(states)
    ]
    back = reverse if out_reverse is None else out_reverse
    outs = ops.Scan(
        *given, x, body=body, num_scan_inputs=1, scan_input_axes=(axis,),
        scan_input_directions=(int(reverse),), scan_output_axes=(out_axis,),
        scan_output_directions=(int(back),),
    )  # fmt: skip
    return outer.out(*outs)


def one(g, kind):
    """The only recurrent operator, beside moves."""
    assert set(ops_of(g)) <= {*MOVES, kind}
    (node,) = (n for n in g.nodes if n.op.name == kind)
    return node


@pytest.mark.parametrize("start", ["input", "zeros"])
@pytest.mark.parametrize("name", CELLS)
def test_scan_of_every_spelling(name, start):
    make, kind = CELLS[name]
    g = scan(make, kind, start=start)
    check(g, "portable")
    assert one(g, kind).direction == "forward"


@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("out_axis", [0, 1, 2, -1])
@pytest.mark.parametrize("reverse, out_reverse", [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_scan_axes_and_directions(axis, out_axis, reverse, out_reverse):
    g = scan(gru_after(), "GRU", axis % 3, bool(reverse), out_axis, bool(out_reverse))
    check(g, "portable")
    assert one(g, "GRU").direction == ("reverse" if reverse else "forward")


@pytest.mark.parametrize("name", ["lstm torch", "gru before", "rnn"])
def test_compiled(name):
    make, kind = CELLS[name]
    g = scan(make, kind)
    feeds = feeds_of(g)
    for a, b in zip(ts.compile(g, cache=False).run(feeds), run_graph(g, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_two_scanned_inputs():
    outer, inner = Builder(), Builder(seed=5)
    step = lstm()(inner, 2 * I, H)
    h, c = (inner.x(N, H, name=n) for n in "hc")
    a, b = inner.x(N, I, name="a"), inner.x(N, I, name="b")
    h, c = step(ops.Concat(a, b, axis=1), h, c)
    body = inner.out(h, c, ops.Identity(h))
    zeros = outer.c(np.zeros((N, H)))
    xs = outer.x(T, N, I), outer.x(N, T, I, name="y")
    g = outer.out(
        *ops.Scan(zeros, zeros, *xs, body=body, num_scan_inputs=2, scan_input_axes=(0, 1))
    )
    report = check(g, "portable")
    assert "LSTM" in ops_of(g) and "Scan" not in ops_of(g), [
        str(r) for r in report.refusals if "stack" in r.rule
    ]


def test_free_batch_and_length():
    outer, inner = Builder(), Builder(seed=5)
    s, xt = inner.x("N", H, name="s"), inner.x("N", I, name="xt")
    h, _ = gru_after()(inner, I, H)(xt, s, None)
    body = inner.out(h, ops.Identity(h))
    x, h0 = outer.x("T", "N", I), outer.x("N", H, name="h0")
    g = outer.out(*ops.Scan(h0, x, body=body, num_scan_inputs=1))
    check(g, "portable", sizes={"T": 6, "N": 2})
    one(g, "GRU")


# ---- Loop


def loop(make, kind="GRU", index=None, count=T, size=T, axis=0, captured=False, go=None, more=None):
    """A graph of one Loop that reads x at `index(builder, i)`; the results as for `scan`."""
    outer, inner = Builder(), Builder(seed=5)
    i, keep = inner.graph.input("i", INT), inner.graph.input("keep", BOOL)
    states = 2 if kind == "LSTM" else 1
    formal = [inner.x(N, H, name=f"s{k}") for k in range(states)]
    seen = inner.x(*shape_at(axis, size), name="seen")
    place = index(inner, i) if index else i
    xt = ops.Gather(seen, place, axis=axis)
    xt = ops.Reshape(xt, inner.i(N, I)) if xt.rank == 3 else xt
    h, c = make(inner, I, H)(xt, formal[0], formal[-1])
    cond = go(inner, i, h) if go else keep
    kept = [ops.Identity(h)] + ([more(inner, h)] if more else [])
    body = inner.out(cond, h, *([c] if states > 1 else []), *kept)
    x = outer.x(*shape_at(axis, size))
    given = [outer.x(N, H, name=f"h{k}") for k in range(states)]
    m = count(outer, x) if callable(count) else outer.c(count, "int64")
    outs = ops.Loop(m, None, *given, x, body=body, captured=1)
    return outer.out(*outs)


@pytest.mark.parametrize("name", CELLS)
def test_loop_of_every_spelling(name):
    make, kind = CELLS[name]
    g = loop(make, kind)
    check(g, "portable")
    assert one(g, kind).inputs[0].shape == (T, N, I)


INDICES = {
    "i": (lambda b, i: i, "forward"),
    "[i]": (lambda b, i: ops.Unsqueeze(i, b.i(0)), "forward"),
    "cast": (lambda b, i: ops.Cast(i, to="int32"), "forward"),
    "T - 1 - i": (lambda b, i: ops.Sub(b.c(T - 1, "int64"), i), "reverse"),
    "-i + T - 1": (lambda b, i: ops.Add(ops.Neg(i), b.c(T - 1, "int64")), "reverse"),
    "i * -1 + T - 1": (
        lambda b, i: ops.Add(ops.Mul(i, b.c(-1, "int64")), b.c(T - 1, "int64")),
        "reverse",
    ),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", INDICES)
def test_loop_indices(name, axis):
    index, direction = INDICES[name]
    g = loop(lstm(), "LSTM", index, axis=axis)
    check(g, "portable")
    assert one(g, "LSTM").direction == direction


@pytest.mark.parametrize("index, count", [(0, 3), (2, 3), (1, 4)])
def test_loop_over_a_part(index, count):
    g = loop(gru_after(), index=lambda b, i: ops.Add(i, b.c(index, "int64")), count=count)
    check(g, "portable")
    assert one(g, "GRU").inputs[0].shape[0] == count


def counting(step, index, size=T):
    """A graph of one Loop with a state `at` of its own that begins with 0; it reads x at
    `index(i, at)`, and `at` becomes `step(builder, at)`."""
    outer, inner = Builder(), Builder(seed=5)
    i, keep = inner.graph.input("i", INT), inner.graph.input("keep", BOOL)
    at = inner.graph.input("at", INT)
    s, seen = inner.x(N, H, name="s"), inner.x(size, N, I, name="seen")
    h, _ = gru_after()(inner, I, H)(ops.Gather(seen, index(i, at), axis=0), s, None)
    body = inner.out(keep, step(inner, at), h, ops.Identity(h))
    x, h0 = outer.x(size, N, I), outer.x(N, H, name="h0")
    at0 = outer.c(0, "int64")
    _, last, y = ops.Loop(
        outer.c(T, "int64"), outer.c(True, "bool"), at0, h0, x, body=body, captured=1
    )
    return outer.out(last, y)


def test_loop_with_a_counter_of_its_own():
    g = counting(lambda b, at: ops.Add(at, b.c(1, "int64")), lambda i, at: at)
    check(g, "portable")
    one(g, "GRU")


def test_a_state_that_alternates_does_not_count():
    g = counting(lambda b, at: ops.Sub(b.c(1, "int64"), at), ops.Add, T + 1)
    assert said(check(g, "portable"), "does not follow the iterations")


def test_loop_as_long_as_its_input():
    outer, inner = Builder(), Builder(seed=5)
    i, keep = inner.graph.input("i", INT), inner.graph.input("keep", BOOL)
    s, seen = inner.x(N, H, name="s"), inner.x("T", N, I, name="seen")
    h, _ = rnn()(inner, I, H)(ops.Gather(seen, i, axis=0), s, None)
    body = inner.out(keep, h, ops.Identity(h))
    x = outer.x("T", N, I)
    count = ops.Gather(ops.Shape(x), outer.c(0, "int64"), axis=0)
    g = outer.out(*ops.Loop(count, None, outer.x(N, H, name="h0"), x, body=body, captured=1))
    check(g, "portable", sizes={"T": 6})
    one(g, "RNN")


# ---- near misses

MISSES = {
    "ends early": (
        {"go": lambda b, i, h: ops.Less(i, b.c(3, "int64"))},
        "a condition may end it",
    ),
    "reads beside": ({"index": lambda b, i: b.c(2, "int64")}, "does not follow the iterations"),
    "every second": (
        {"index": lambda b, i: ops.Mul(i, b.c(2, "int64")), "size": 2 * T},
        "does not follow the iterations",
    ),
    "from the end": (
        {"index": lambda b, i: ops.Sub(b.c(-1, "int64"), i)},
        "do not fit",
    ),
    "another result": ({"more": lambda b, h: ops.Relu(h)}, "another than the step's"),
}


@pytest.mark.parametrize("name", MISSES)
def test_loops_that_stay(name):
    options, why = MISSES[name]
    g = loop(gru_after(), **options)
    report = check(g, "portable")
    assert "Loop" in ops_of(g) and "GRU" not in ops_of(g)
    assert said(report, why), [str(r) for r in report.refusals if r.rule == "stack-loops"]


def test_a_state_that_is_not_the_result():
    outer, inner = Builder(), Builder(seed=5)
    s, xt = inner.x(N, H, name="s"), inner.x(N, I, name="xt")
    h, _ = gru_after()(inner, I, H)(xt, s, None)
    body = inner.out(ops.Relu(h), ops.Identity(h))
    x, h0 = outer.x(T, N, I), outer.x(N, H, name="h0")
    g = outer.out(*ops.Scan(h0, x, body=body, num_scan_inputs=1))
    report = check(g, "portable")
    assert ops_of(g) == ["Scan"] and said(report, "hands on no state")


def test_weights_that_change_with_the_call():
    outer, inner = Builder(), Builder(seed=5)
    h, w = inner.x(N, H, name="h"), inner.x(I, H, name="w")
    xt = inner.x(N, I, name="xt")
    inner.graph.inputs = [h, xt, w]
    new = ops.Tanh(ops.Add(ops.MatMul(xt, w), ops.MatMul(h, inner.w(H, H))))
    body = inner.out(new, ops.Identity(new))
    x, h0, given = outer.x(T, N, I), outer.x(N, H, name="h0"), outer.x(I, H, name="w")
    g = outer.out(*ops.Scan(h0, x, given, body=body, num_scan_inputs=1, captured=1))
    check(g, "portable")
    assert ops_of(g) == ["Scan"]


# ---- as ONNX files


def test_an_onnx_scan_that_captures_its_weights():
    rng = np.random.default_rng(0)
    info = helper.make_tensor_value_info
    w, r = (rng.standard_normal(s).astype(np.float32) for s in ((3 * H, I), (3 * H, H)))
    b = rng.standard_normal(3 * H).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["xt", "w", "b"], ["xs"], transB=1),
        helper.make_node("Gemm", ["h", "r", "b"], ["hs"], transB=1),
        helper.make_node("Split", ["xs"], ["xr", "xz", "xn"], axis=1, num_outputs=3),
        helper.make_node("Split", ["hs"], ["hr", "hz", "hn"], axis=1, num_outputs=3),
        helper.make_node("Add", ["xr", "hr"], ["ar"]),
        helper.make_node("Add", ["xz", "hz"], ["az"]),
        helper.make_node("Sigmoid", ["ar"], ["q"]),
        helper.make_node("Sigmoid", ["az"], ["z"]),
        helper.make_node("Mul", ["q", "hn"], ["inner"]),
        helper.make_node("Add", ["xn", "inner"], ["an"]),
        helper.make_node("Tanh", ["an"], ["n"]),
        helper.make_node("Sub", ["h", "n"], ["d"]),
        helper.make_node("Mul", ["z", "d"], ["zd"]),
        helper.make_node("Add", ["n", "zd"], ["h_new"]),
        helper.make_node("Identity", ["h_new"], ["y"]),
    ]
    shapes = [("h", [N, H]), ("xt", [N, I])], [("h_new", [N, H]), ("y", [N, H])]
    ins, outs = ([info(n, TensorProto.FLOAT, s) for n, s in some] for some in shapes)
    body = helper.make_graph(nodes, "body", ins, outs)
    node = helper.make_node("Scan", ["h0", "x"], ["last", "ys"], body=body, num_scan_inputs=1)
    graph = helper.make_graph(
        [node],
        "g",
        [info("h0", TensorProto.FLOAT, [N, H]), info("x", TensorProto.FLOAT, [T, N, I])],
        [info("last", TensorProto.FLOAT, [N, H]), info("ys", TensorProto.FLOAT, [T, N, H])],
        [numpy_helper.from_array(a, k) for k, a in (("w", w), ("r", r), ("b", b))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.checker.check_model(model)
    g = load(model)
    check(g, "portable")
    assert one(g, "GRU").linear_before_reset
