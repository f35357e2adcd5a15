"""Random small graphs: the passes keep their results, and the text form keeps the graphs."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.passes.build import Builder, feeds_of
from tinsmith import ops
from tinsmith.graph.text import format_graph, graph_weights, parse_graph
from tinsmith.graph.verify import verify
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import COURSE, run_passes

UNARY = ["Relu", "Sigmoid", "Tanh", "Neg", "Identity", "Softplus", "HardSigmoid", "Abs", "Softsign"]
BINARY = ["Add", "Mul", "Sub", "Max", "Min"]
STEPS = ["unary", "binary", "number", "channel", "clip", "conv", "norm", "reshape", "swap"]
STEPS += ["mean", "pad", "concat", "cast", "matmul", "double"]
NUMBERS = [0.0, 1.0, 2.0, 0.5, -1.0, 6.0, 3.0]


@st.composite
def programs(draw):
    """A list of steps; each names an operator and which earlier values it reads."""
    count = draw(st.integers(2, 14))
    step = st.tuples(
        st.sampled_from(STEPS),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
    )
    return draw(st.lists(step, min_size=count, max_size=count)), draw(st.integers(1, 3))


def build(steps, outputs, batch):
    b = Builder(seed=len(steps))
    x = b.x(batch, 3, 4, 4)
    values = [x]

    def pick(i):
        return values[-1 - i % min(len(values), 4)]

    for kind, i, j, k in steps:
        v = pick(i)
        values.append(step(b, kind, v, pick(j), j, k))
    made = [v for v in dict.fromkeys(reversed(values)) if v.producer is not None]
    b.out(*made[:outputs])
    b.graph.sweep()
    return b.graph


def step(b, kind, v, other, j, k):
    rank, channels = v.rank, v.shape[1] if v.rank > 1 else None
    if kind == "unary":
        return ops.OPS[UNARY[k % len(UNARY)]](v)
    if kind == "binary" and other.shape == v.shape:
        return ops.OPS[BINARY[k % len(BINARY)]](v, other)
    if kind == "number":
        op = [*BINARY, "Div", "Pow"][k % 7]
        number = NUMBERS[j % len(NUMBERS)]
        if op == "Pow":
            return ops.Pow(v, b.c(2.0))
        return ops.OPS[op](v, b.c(number or (2.0 if op == "Div" else 0.0)))
    if kind == "channel" and rank == 4:
        return ops.OPS[BINARY[k % 2]](v, b.w(channels, 1, 1))
    if kind == "clip":
        return ops.Clip(v, min=[None, 0.0, -1.0][j % 3], max=[None, 6.0, 1.0][k % 3])
    if kind == "conv" and rank == 4:
        return ops.Conv(v, b.w(2 + k % 3, channels, 3, 3), pad=(1, 1, 1, 1))
    if kind == "norm" and rank == 4:
        scale, shift, mean = (b.w(channels) for _ in range(3))
        return ops.BatchNorm(v, scale, shift, mean, b.c(np.abs(b.array(channels)) + 0.5))
    if kind == "reshape" and rank == 4:
        return ops.Flatten(v, axis=2) if k % 2 else ops.Reshape(v, b.i(0, -1, *v.shape[:1:-1]))
    if kind == "swap" and rank > 2:
        return ops.Transpose(v, perm=(*range(rank - 2), rank - 1, rank - 2))
    if kind == "mean" and rank == 4:
        return ops.Add(v, ops.Reduce(v, b.i(2, 3), kind="mean", keepdims=True))
    if kind == "pad" and rank == 4 and isinstance(v.shape[2], int) and v.shape[2] < 9:
        return ops.Pad(v, b.i(0, 0, k % 2, 0, 0, 0, 1, j % 2))
    if kind == "concat" and other.shape == v.shape and rank == 4 and v.shape[1] < 8:
        return ops.Concat(v, other, axis=1)
    if kind == "cast":
        return ops.Cast(ops.Cast(v, to="float64"), to="float32")
    if kind == "matmul" and rank > 2 and isinstance(v.shape[-1], int) and v.shape[-1] < 30:
        return ops.MatMul(v, b.w(v.shape[-1], 4))
    if kind == "double":
        return ops.Mul(v, ops.Sigmoid(v))
    return ops.Identity(v)


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.sampled_from([1, 2, "N"]))
def test_passes_keep_the_results(program, batch):
    graph = build(*program, batch)
    feeds = feeds_of(graph, {"N": 3})
    before = run_graph(graph, feeds)
    names = [v.name for v in graph.outputs]
    for stage in COURSE:
        text = format_graph(graph)
        weights = graph_weights(graph)
        run_passes(graph, stage, verify=True)
        verify(graph)
        assert [v.name for v in graph.outputs] == names
        for a, b in zip(before, run_graph(graph, feeds), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            scale = max(1.0, float(np.max(np.abs(a), initial=0)))
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4 * scale, err_msg=text)
        again = format_graph(graph)
        back = parse_graph(again, graph_weights(graph))
        verify(back)
        assert format_graph(back) == again
        assert format_graph(parse_graph(text, weights)) == text


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_passes_reach_their_end(program):
    """A second run of the portable stage finds nothing to do."""
    graph = build(*program, 2)
    for _ in range(3):
        run_passes(graph, "portable")
    text = str(graph)
    again = run_passes(graph, "portable")
    assert not any(again.changes.values()), (again.changes, text)
