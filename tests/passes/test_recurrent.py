"""StackRecurrent: unrolled steps of every spelling become one operator over the sequence."""

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import check, feeds_of, ops_of, refused
from tests.passes.recurrent_cells import CELLS, Unrolled, gru_after, gru_before, lstm, rnn
from tinsmith import ops
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes

RECURRENT = ("LSTM", "GRU", "RNN")
VIEWS = {"Reshape", "Transpose", "Gather", "Slice", "Split", "Concat"}


def stacked(g, *kinds, also=()):
    """Check the results; exactly these recurrent operators are left, and moves."""
    report = check(g, "portable")
    assert sorted(o for o in ops_of(g) if o in RECURRENT) == sorted(kinds)
    assert set(ops_of(g)) <= {*VIEWS, *kinds, *also}
    return report


def recurrent(g):
    (node,) = (n for n in g.nodes if n.op.name in RECURRENT)
    return node


def compiled(g, seed=3):
    feeds = feeds_of(g, seed=seed)
    want = run_graph(g, feeds)
    for a, b in zip(ts.compile(g, cache=False).run(feeds), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


# ---- spellings


@pytest.mark.parametrize("start", ["zeros", "input"])
@pytest.mark.parametrize("name", CELLS)
def test_every_spelling(name, start):
    make, kind = CELLS[name]
    u = Unrolled(3)
    hs, c = u.run(make, start=start)
    stacked(u.b.out(u.stack(hs), *([] if c is None else [c])), kind)


@pytest.mark.parametrize("name", CELLS)
def test_a_constant_start(name):
    """Its product with the weights is folded into the first step, which may stay as it is."""
    make, kind = CELLS[name]
    u = Unrolled(4)
    hs, c = u.run(make, start="const")
    g = u.b.out(u.stack(hs), *([] if c is None else [c]))
    check(g, "portable")
    (node,) = (n for n in g.nodes if n.op.name == kind and n.inputs[0].shape[0] > 1)
    assert node.inputs[0].shape[0] in (3, 4)


@pytest.mark.parametrize("name", [n for n in CELLS if not n.startswith("rnn")])
def test_a_single_step(name):
    make, kind = CELLS[name]
    u = Unrolled(1)
    hs, c = u.run(make, start="input")
    g = u.b.out(*hs, *([] if c is None else [c]))
    stacked(g, kind)


def test_a_single_tanh_of_two_products_is_left():
    u = Unrolled(1)
    g = u.b.out(*u.run(rnn(), start="input")[0])
    check(g, "portable")
    assert "RNN" not in ops_of(g)


@pytest.mark.parametrize("name", ["lstm torch", "gru torch", "gru before joint", "rnn"])
@pytest.mark.parametrize(
    "steps, batch, inputs, hidden", [(2, 1, 1, 1), (20, 3, 5, 7), (7, 1, 4, 4)]
)
def test_sizes(name, steps, batch, inputs, hidden):
    make, kind = CELLS[name]
    u = Unrolled(steps, batch, inputs, hidden)
    hs, _ = u.run(make, start="input")
    g = u.b.out(u.stack(hs), hs[-1])
    stacked(g, kind)


# ---- inputs


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("reads", ["gather", "slice", "reshape", "split", "separate"])
@pytest.mark.parametrize("layout", ["tni", "nti", "nit"])
def test_where_the_inputs_come_from(layout, reads, reverse):
    u = Unrolled(4, layout=layout, reads=reads)
    hs, c = u.run(lstm(), reverse)
    g = u.b.out(u.stack(hs[::-1] if reverse else hs), c)
    stacked(g, "LSTM")
    if reads != "separate":
        assert recurrent(g).direction == ("reverse" if reverse else "forward")
        assert "Concat" not in ops_of(g) and "Gather" not in ops_of(g)


def test_a_part_of_the_sequence():
    u = Unrolled(6)
    g = u.b.out(u.stack(u.run(gru_after(), xs=u.xs[1:5])[0]))
    stacked(g, "GRU")
    assert "Slice" in ops_of(g) and "Concat" not in ops_of(g)


def test_steps_in_any_order():
    u = Unrolled(4)
    g = u.b.out(u.stack(u.run(gru_after(), xs=[u.xs[t] for t in (2, 0, 3, 1)])[0]))
    stacked(g, "GRU")
    assert "Gather" in ops_of(g)


def test_the_same_input_at_every_step():
    u = Unrolled(4)
    g = u.b.out(u.stack(u.run(gru_after(), xs=[u.xs[0]] * 4)[0]))
    stacked(g, "GRU")


def test_inputs_computed_step_by_step():
    u = Unrolled(3)
    xs = [ops.Sin(x) for x in u.xs]
    stacked(u.b.out(u.stack(u.run(lstm(), xs=xs)[0])), "LSTM", also=("Sin",))


def test_two_inputs():
    """x and a context in one product with the state: the inputs are joined."""
    u = Unrolled(3)
    other = u.b.x(2, 5, name="context")
    k, bias = u.b.w(3 + 5 + 4, 12), u.b.w(12)
    h = u.state("input")
    for x in u.xs:
        total = ops.Add(ops.MatMul(ops.Concat(x, h, other, axis=1), k), bias)
        i, f, o = ops.Split(total, axis=1, num_outputs=3)
        c = u.state("input", f"c{x.name}") if x is u.xs[0] else c  # noqa: F821
        g = ops.Tanh(ops.Add(ops.MatMul(x, u.b.w(3, 4)), ops.MatMul(h, u.b.w(4, 4))))
        c = ops.Add(ops.Mul(ops.Sigmoid(f), c), ops.Mul(ops.Sigmoid(i), g))
        h = ops.Mul(ops.Sigmoid(o), ops.Tanh(c))
    # the candidate reads other inputs than the gates: no cell
    g = u.b.out(h)
    report = check(g, "portable")
    assert not {*RECURRENT} & {*ops_of(g)} and refused(report.refusals, h.producer.name)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_context_beside_the_input(reverse):
    u = Unrolled(3)
    context = u.b.x(2, 5, name="context")
    xs = [ops.Concat(x, context, axis=1) for x in u.xs]
    g = u.b.out(u.stack(u.run(lstm(), reverse, xs=xs)[0]))
    stacked(g, "LSTM")


def test_the_product_of_all_inputs_before_the_steps():
    u = Unrolled(4)
    b = u.b
    every = ops.Add(ops.MatMul(u.x, b.w(3, 12)), b.w(12))
    r, rb = b.w(4, 12), b.w(12)
    h, hs = u.state(), []
    for t in range(4):
        xr, xz, xn = ops.Split(ops.Gather(every, b.c(t, "int64"), axis=0), axis=1, num_outputs=3)
        hr, hz, hn = ops.Split(ops.Add(ops.MatMul(h, r), rb), axis=1, num_outputs=3)
        z = ops.Sigmoid(ops.Add(xz, hz))
        n = ops.Tanh(ops.Add(xn, ops.Mul(ops.Sigmoid(ops.Add(xr, hr)), hn)))
        h = ops.Add(ops.Mul(ops.Sub(b.c(1), z), n), ops.Mul(z, h))
        hs.append(h)
    stacked(b.out(u.stack(hs)), "GRU")


def test_a_free_batch():
    u = Unrolled(3, batch="N", reads="gather")
    h0, c0 = u.b.x("N", 4, name="h0"), u.b.x("N", 4, name="c0")
    step, h, c, hs = lstm()(u.b, 3, 4), h0, c0, []
    for x in u.xs:
        h, c = step(x, h, c)
        hs.append(h)
    g = u.b.out(u.stack(hs), c)
    check(g, "portable", sizes={"N": 5})
    assert ops_of(g).count("LSTM") == 1 and "Tanh" not in ops_of(g)


# ---- results


@pytest.mark.parametrize("cell", [lstm(), gru_before(), rnn()])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_results_stacked(cell, reverse, axis):
    u = Unrolled(4)
    hs, _ = u.run(cell, reverse)
    g = u.b.out(ops.Relu(u.stack(hs, axis)), u.stack(hs[::-1], axis))
    check(g, "portable")
    assert "Concat" not in ops_of(g) and "Gather" not in ops_of(g)


@pytest.mark.parametrize("axis", [0, 1])
def test_results_joined_without_a_new_axis(axis):
    u = Unrolled(4)
    g = u.b.out(ops.Concat(*u.run(gru_after())[0], axis=axis))
    stacked(g, "GRU")
    assert "Concat" not in ops_of(g)


@pytest.mark.parametrize("reverse", [False, True])
def test_results_used_one_by_one(reverse):
    u = Unrolled(5)
    hs, c = u.run(lstm(), reverse, "input")
    g = u.b.out(ops.Relu(hs[1]), hs[3], ops.Sin(hs[4]), c, ops.Concat(hs[2], hs[0], axis=1))
    stacked(g, "LSTM", also=("Relu", "Sin"))


def test_only_the_last_result():
    u = Unrolled(5)
    g = u.b.out(u.run(gru_after())[0][-1])
    stacked(g, "GRU")
    assert "Gather" not in ops_of(g)


def test_a_result_that_is_an_output_of_every_kind():
    u = Unrolled(3)
    hs, _ = u.run(gru_after())
    g = u.b.out(*hs, u.stack(hs))
    stacked(g, "GRU")


# ---- layers and directions


@pytest.mark.parametrize("cells", [(lstm(), lstm()), (gru_after(), lstm("fiog")), (rnn(), rnn(1))])
def test_layers(cells):
    u = Unrolled(4)
    h1, _ = u.run(cells[0])
    h2, _ = u.run(cells[1], xs=h1, name="b")
    g = u.b.out(u.stack(h2))
    check(g, "portable")
    kinds = [o for o in ops_of(g) if o in RECURRENT]
    assert len(kinds) == 2 and not {"Concat", "Gather", "MatMul"} & {*ops_of(g)}


@pytest.mark.parametrize("cell", [lstm(), gru_after(), gru_before(joint=True), rnn()])
@pytest.mark.parametrize("start", ["zeros", "input"])
@pytest.mark.parametrize("layout", ["tni", "nti"])
def test_both_directions_become_one(cell, start, layout):
    u = Unrolled(5, layout=layout)
    fs, _ = u.run(cell, start=start, name="f")
    bs, _ = u.run(cell, reverse=True, start=start, name="b")
    y = ops.Concat(u.stack(fs), u.stack(bs[::-1]), axis=2)
    g = u.b.out(y, ops.Concat(fs[-1], bs[-1], axis=1))
    check(g, "portable")
    assert recurrent(g).direction == "bidirectional"
    assert set(ops_of(g)) <= {*VIEWS, *RECURRENT}


def test_directions_of_another_kind_or_size_stay_apart():
    u = Unrolled(4)
    fs, _ = u.run(gru_after(), name="f")
    bs, _ = u.run(gru_before(), reverse=True, name="b")
    u.hidden = 6
    ws, _ = u.run(gru_after(), reverse=True, name="w")
    g = u.b.out(u.stack(fs), u.stack(bs), u.stack(ws))
    check(g, "portable")
    assert ops_of(g).count("GRU") == 3


def test_a_direction_that_begins_where_the_other_ends():
    u = Unrolled(3)
    fs, _ = u.run(gru_after())
    step, h, bs = gru_after()(u.b, 3, 4), fs[-1], []
    for x in u.xs[::-1]:
        h, _ = step(x, h, None)
        bs.append(h)
    g = u.b.out(u.stack(bs))
    check(g, "portable")
    assert ops_of(g).count("GRU") == 2


def test_two_layers_of_both_directions():
    u = Unrolled(3)
    xs = u.xs
    for k in range(2):
        fs, _ = u.run(lstm(), xs=xs, name=f"f{k}")
        bs, _ = u.run(lstm(), True, xs=xs, name=f"b{k}")
        xs = [ops.Concat(f, b, axis=1) for f, b in zip(fs, bs[::-1], strict=True)]
    g = u.b.out(u.stack(xs))
    check(g, "portable")
    assert ops_of(g).count("LSTM") in (2, 3, 4) and "Tanh" not in ops_of(g)


# ---- compiled


@pytest.mark.parametrize("name", ["lstm torch", "gru torch", "gru before", "rnn joint"])
def test_compiled(name):
    u = Unrolled(6, batch=2, inputs=5, hidden=9)
    fs, _ = u.run(CELLS[name][0], start="input", name="f")
    bs, _ = u.run(CELLS[name][0], reverse=True, start="input", name="b")
    compiled(u.b.out(u.stack(fs), bs[-1], ops.Relu(bs[2])))


def test_the_pass_is_quick_and_settles():
    """A network of 3,000 nodes is rewritten in a moment, and the result is left alone."""
    import time

    u = Unrolled(100, batch=1, inputs=16, hidden=16)
    fs, _ = u.run(gru_after(), name="f")
    bs, _ = u.run(gru_after(), reverse=True, name="b")
    g = u.b.out(u.stack([ops.Concat(f, b, axis=1) for f, b in zip(fs, bs[::-1], strict=True)]))
    assert len(g) > 2500
    start = time.perf_counter()
    report = run_passes(g, "portable")
    assert time.perf_counter() - start < 8
    assert ops_of(g).count("GRU") == 1 and report.changes["stack-recurrent"] == 1
