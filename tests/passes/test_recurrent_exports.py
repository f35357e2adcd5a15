"""Models that torch exported: its cells step by step, and loops written by hand."""

from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import check, feeds_of, ops_of
from tests.passes.recurrent_cells import Unrolled
from tinsmith import ops
from tinsmith.frontends import load
from tinsmith.graph import Graph
from tinsmith.ops.interpret import run_graph

MODELS = Path(__file__).parent.parent / "data" / "recurrent"
WANTED = {
    "lstm_cell": ["LSTM"],
    "lstm_cell_free": ["LSTM"],
    "gru_cell": ["GRU"],
    "gru_cell_free": ["GRU"],
    "gru_cell_back": ["GRU"],
    "rnn_cell": ["RNN"],
    "hand_lstm": ["LSTM"],
    "hand_gru": ["GRU", "GRU"],
}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda p: p.stem)
def test_an_exported_model(path):
    g = load(path)
    source = g.clone()
    check(g, "portable")
    name = path.stem.rpartition("_")[0]
    assert [o for o in ops_of(g) if o in ("LSTM", "GRU", "RNN")] == WANTED[name]
    assert set(ops_of(g)) <= {"Transpose", "Reshape", *WANTED[name]}, "nothing else is left"
    ways = {n.direction for n in g.nodes if n.op.name in WANTED[name]}
    both = {"hand_gru": "bidirectional", "gru_cell_back": "reverse"}
    assert ways == {both.get(name, "forward")}
    if path.stem.endswith("dynamo"):
        feeds = feeds_of(source)
        net = ts.compile(source, cache=False)
        for a, b in zip(net.run(feeds), run_graph(source, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_every_model_is_small():
    files = sorted(MODELS.glob("*.onnx"))
    assert len(files) == 14 and all(f.stat().st_size < 50_000 for f in files)


# ---- operators of one step, as torch's older exporter writes its cells

SPECS = [("LSTM", 4, {}), ("GRU", 3, {"linear_before_reset": 1}), ("GRU", 3, {}), ("RNN", 1, {})]


def native(u, op, gates, attrs, reverse=False, states=True, bias=True, change=None, width=None):
    b, i, h = u.b, u.inputs, u.hidden
    w, r = b.w(1, gates * h, i), b.w(1, gates * h, h, name="r")
    bias = b.w(1, 2 * gates * h, name="bias") if bias else None
    start = b.x(1, u.batch, h, name="h0") if states else None
    hs, c = start, b.x(1, u.batch, width or h, name="c0") if states and op == "LSTM" else None
    results = []
    for t, x in enumerate(u.xs[::-1] if reverse else u.xs):
        last = (c,) if op == "LSTM" else ()
        here = {**attrs, **(change if change and t == 2 else {})}
        outs = ops.OPS[op](
            ops.Unsqueeze(x, b.i(0)), w, r, bias, None, hs, *last, hidden_size=h, **here
        )
        y, hs, *rest = outs
        c = rest[0] if rest else None
        results.append((ops.Squeeze(y, b.i(0, 1)), hs))
    return results, c


@pytest.mark.parametrize("op, gates, attrs", SPECS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_operators_of_one_step(op, gates, attrs, reverse, states):
    u = Unrolled(4)
    results, c = native(u, op, gates, attrs, reverse, states)
    g = u.b.out(u.stack([y for y, _ in results]), results[-1][1], *([c] if c is not None else []))
    check(g, "portable")
    (node,) = (n for n in g.nodes if n.op.name == op)
    assert node.inputs[0].shape[0] == 4 and "Concat" not in ops_of(g)


@pytest.mark.parametrize(
    "change",
    [
        {"activations": ("HardSigmoid", "Tanh", "Tanh")},
        {"clip": 0.5},
        {"clip": 0.0},
        {"input_forget": True},
        {"rounded": True},
    ],
)
def test_an_operator_of_another_kind_between(change):
    u = Unrolled(5)
    results, _ = native(u, "LSTM", 4, {}, change=change)
    g = u.b.out(results[-1][0])
    check(g, "portable")
    assert sorted(n.inputs[0].shape[0] for n in g.nodes if n.op.name == "LSTM") == [1, 2, 2]


def test_a_state_of_unknown_width_is_no_zeros():
    u = Unrolled(3)
    results, _ = native(u, "LSTM", 4, {}, width="h")
    check(u.b.out(results[-1][0]), "portable", sizes={"h": u.hidden})


def test_one_step_alone_stays():
    u = Unrolled(1)
    results, _ = native(u, "GRU", 3, {})
    g: Graph = u.b.out(results[0][0])
    assert check(g, "portable").changes["stack-recurrent"] == 0
