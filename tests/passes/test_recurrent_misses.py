"""What is nearly a recurrent step, or nearly a run of them, and must not become one."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of
from tests.passes.recurrent_cells import BLENDS, Unrolled, gru_after, gru_before
from tinsmith import ops

RECURRENT = ("LSTM", "GRU", "RNN")
H = 4


def lengths(g):
    """The number of steps of each recurrent operator, in order."""
    return sorted(n.inputs[0].shape[0] for n in g.nodes if n.op.name in RECURRENT)


def left(g):
    return sum(o == "Tanh" for o in ops_of(g))


def said(report, what):
    return any(r.rule == "stack-recurrent" and what in r.reason for r in report.refusals)


class Steps:
    """Weights of one GRU or LSTM; `step` takes what is to be different in it."""

    def __init__(self, gates, seed=0):
        self.u = Unrolled(5, seed=seed)
        self.b = self.u.b
        self.w, self.r = self.b.w(3, gates * H), self.b.w(H, gates * H, name="r")
        self.bias = self.b.w(gates * H, name="bias")

    def gru(self, x, h, *, w=None, r=None, bias=None, sigmoid=ops.Sigmoid, tanh=ops.Tanh,
            blend=BLENDS["n + z*(h-n)"], reset=None, inner=None, state=None):  # fmt: skip
        b = self.b
        xs = ops.Add(ops.MatMul(x, w or self.w), bias or self.bias)
        hs = ops.MatMul(h, r or self.r)
        (xr, xz, xn), (hr, hz, hn) = (ops.Split(v, axis=1, num_outputs=3) for v in (xs, hs))
        q, z = sigmoid(ops.Add(xr, hr)), ops.Sigmoid(ops.Add(xz, hz))
        n = tanh(ops.Add(xn, ops.Mul(reset(q) if reset else q, inner(hn) if inner else hn)))
        return blend(b, z, n, h if state is None else state(h))

    def lstm(self, x, h, c, *, sigmoid=ops.Sigmoid, tanh=ops.Tanh, forget=None, out=None):
        total = ops.Add(ops.Add(ops.MatMul(x, self.w), ops.MatMul(h, self.r)), self.bias)
        i, f, g, o = ops.Split(total, axis=1, num_outputs=4)
        kept = ops.Mul(sigmoid(f) if forget is None else forget(f), c)
        new = ops.Add(kept, ops.Mul(ops.Sigmoid(i), tanh(g)))
        return ops.Mul(ops.Sigmoid(o), (out or ops.Tanh)(new)), new


def gru_run(change=None, at=2, steps=5):
    """The h of each step; step `at` is changed by the keywords that `change(steps)` returns."""
    s = Steps(3)
    h, hs = s.u.state("input"), []
    for t, x in enumerate(s.u.xs[:steps]):
        h = s.gru(x, h, **(change(s) if change and t == at else {}))
        hs.append(h)
    return s, hs


def lstm_run(change=None, at=2, steps=5):
    s = Steps(4)
    h, c, out = s.u.state("input"), s.u.state("input", "c0"), []
    for t, x in enumerate(s.u.xs[:steps]):
        h, c = s.lstm(x, h, c, **(change(s) if change and t == at else {}))
        out.append((h, c))
    return s, out


def test_the_unchanged_runs_match():
    s, hs = gru_run()
    check(g := s.b.out(hs[-1]), "portable")
    assert lengths(g) == [5] and not left(g)
    s, out = lstm_run()
    check(g := s.b.out(*out[-1]), "portable")
    assert lengths(g) == [5] and not left(g)


# ---- one step is another cell: it stays, and the run is divided there

ANOTHER_CELL = {
    "hard sigmoid": lambda s: {"sigmoid": lambda v: ops.HardSigmoid(v)},
    "relu": lambda s: {"tanh": ops.Relu},
    "softsign": lambda s: {"tanh": ops.Softsign},
    "scaled reset": lambda s: {"reset": lambda q: ops.Mul(q, s.b.c(0.5))},
    "no reset": lambda s: {"reset": lambda q: s.b.w(2, H)},
    "another factor in the reset": lambda s: {"inner": ops.Sin},
    "z*n + z*h": lambda s: {"blend": lambda b, z, n, h: ops.Add(ops.Mul(z, n), ops.Mul(z, h))},
    "(2-z)*n + z*h": lambda s: {
        "blend": lambda b, z, n, h: ops.Add(ops.Mul(ops.Sub(b.c(2.0), z), n), ops.Mul(z, h))
    },
    "(1-z)*n - z*h": lambda s: {
        "blend": lambda b, z, n, h: ops.Sub(ops.Mul(ops.Sub(b.c(1.0), z), n), ops.Mul(z, h))
    },
    "(1-z)*n + z": lambda s: {
        "blend": lambda b, z, n, h: ops.Add(ops.Mul(ops.Sub(b.c(1.0), z), n), z)
    },
    "another state in the blend": lambda s: {"state": lambda h: ops.Relu(h)},
}


@pytest.mark.parametrize("name", ANOTHER_CELL)
def test_one_step_of_another_cell(name):
    s, hs = gru_run(ANOTHER_CELL[name])
    g = s.b.out(hs[-1])
    check(g, "portable")
    assert lengths(g) == [2, 2]


@pytest.mark.parametrize("name", ANOTHER_CELL)
def test_a_single_step_of_another_cell(name):
    s, hs = gru_run(ANOTHER_CELL[name], at=0, steps=1)
    g = s.b.out(hs[-1])
    check(g, "portable")
    assert lengths(g) == []


LSTM_CHANGES = {
    "hard sigmoid": lambda s: {"sigmoid": lambda v: ops.HardSigmoid(v)},
    "relu": lambda s: {"tanh": ops.Relu},
    "no output tanh": lambda s: {"out": ops.Sin},
    "a constant forget gate": lambda s: {"forget": lambda f: s.b.c(0.5)},
    "1 - f": lambda s: {"forget": lambda f: ops.Sub(s.b.c(1.0), ops.Sigmoid(f))},
}


@pytest.mark.parametrize("name", LSTM_CHANGES)
def test_one_step_of_another_lstm(name):
    s, out = lstm_run(LSTM_CHANGES[name])
    g = s.b.out(*out[-1])
    check(g, "portable")
    assert lengths(g) == [2, 2]


# ---- each step is a cell, but they are not one run


def other(*shape):
    return lambda s: s.b.w(*shape, name="other")


@pytest.mark.parametrize(
    "which, make", [("w", other(3, 3 * H)), ("r", other(H, 3 * H)), ("bias", other(3 * H))]
)
def test_other_weights_in_one_step(which, make):
    s, hs = gru_run(lambda s: {which: make(s)})
    report = check(g := s.b.out(hs[-1]), "portable")
    assert lengths(g) == [1, 2, 2] and said(report, "weights differ")


def test_equal_weights_stored_twice_are_one():
    def copies(s):
        return {k: s.b.graph.const(v.const.copy(), k) for k, v in (("w", s.w), ("r", s.r))}

    s, hs = gru_run(copies)
    check(g := s.b.out(hs[-1]), "portable")
    assert lengths(g) == [5]


def test_reset_before_and_after_do_not_mix():
    u = Unrolled(4)
    a, _ = u.run(gru_after(), xs=u.xs[:2])
    step, h = gru_before()(u.b, 3, H), a[-1]
    for x in u.xs[2:]:
        h, _ = step(x, h, None)
    check(g := u.b.out(h), "portable")
    assert lengths(g) == [2, 2]


@pytest.mark.parametrize("which", ["w", "r"])
def test_weights_that_are_not_constant(which):
    s = Steps(3)
    setattr(s, which, s.b.x(3 if which == "w" else H, 3 * H, name="given"))
    h = s.u.state("input")
    for x in s.u.xs:
        h = s.gru(x, h)
    report = check(g := s.b.out(h), "portable")
    assert lengths(g) == [] and said(report, "constant weights")


def test_the_state_is_not_handed_on():
    """Every step begins with the same state."""
    s = Steps(3)
    h0 = s.u.state("input")
    g = s.b.out(*(s.gru(x, h0) for x in s.u.xs))
    check(g, "portable")
    assert lengths(g) == []  # one product with the state serves all steps


def test_a_state_that_is_changed_between_steps():
    s = Steps(3)
    h = s.u.state("input")
    for t, x in enumerate(s.u.xs):
        h = s.gru(x, ops.Relu(h) if t == 3 else h)
    check(g := s.b.out(h), "portable")
    assert lengths(g) == [2, 3]


def test_only_the_cell_state_is_handed_on():
    s = Steps(4)
    h0, c = s.u.state("input"), s.u.state("input", "c0")
    hs = []
    for x in s.u.xs:
        h, c = s.lstm(x, h0, c)
        hs.append(h)
    check(g := s.b.out(*hs), "portable")
    assert lengths(g) == []  # one product with h0 serves all steps


def test_the_cell_state_is_read_between():
    s, out = lstm_run()
    report = check(g := s.b.out(out[-1][0], ops.Relu(out[2][1])), "portable")
    assert lengths(g) == [2, 3] and said(report, "read elsewhere")


def test_a_gate_is_read_outside():
    s = Steps(3)
    seen = []

    def watched(v):
        seen.append(ops.Sigmoid(v))
        return seen[-1]

    h = s.u.state("input")
    for t, x in enumerate(s.u.xs):
        h = s.gru(x, h, sigmoid=watched if t == 2 else ops.Sigmoid)
    report = check(g := s.b.out(h, ops.Relu(seen[0])), "portable")
    assert lengths(g) == [2, 2] and said(report, "read outside the step")


def test_a_gate_is_an_output():
    s = Steps(4)
    h, c = s.u.state("input"), s.u.state("input", "c0")
    gate = []
    h, c = s.lstm(s.u.xs[0], h, c, sigmoid=lambda v: gate.append(ops.Sigmoid(v)) or gate[0])
    check(g := s.b.out(h, c, gate[0]), "portable")
    assert lengths(g) == []


def test_an_input_that_needs_the_step_before():
    """A decoder: what a step gives, changed, goes into the next."""
    s = Steps(3)
    h, x = s.u.state("input"), s.u.xs[0]
    v = s.b.w(H, 3)
    for _ in range(4):
        h = s.gru(x, h)
        x = ops.Relu(ops.MatMul(h, v))
    report = check(g := s.b.out(h, x), "portable")
    assert lengths(g) == [1] * 4 and said(report, "result of an earlier step")


def test_runs_that_need_each_other():
    """Step 2 of each of two runs needs step 1 of the other: only one can be stacked."""
    u = Unrolled(1)
    b = u.b
    one, two = gru_after()(b, H, H), gru_after()(b, H, H)
    x, y, h, k = (b.x(2, H, name=n) for n in ("in", "jn", "h", "k"))
    h1, _ = one(x, h, None)
    k1, _ = two(y, k, None)
    h2, _ = one(ops.Relu(k1), h1, None)
    k2, _ = two(ops.Relu(h1), k1, None)
    report = check(g := b.out(h2, k2), "portable")
    assert lengths(g) in ([2], [1, 1, 2]) and said(report, "an earlier step")


def test_two_steps_follow_one():
    s = Steps(3)
    h1 = s.gru(s.u.xs[0], s.u.state("input"))
    g = s.b.out(s.gru(s.u.xs[1], h1), s.gru(s.u.xs[2], h1))
    check(g, "portable")
    assert lengths(g) == [1]  # the product with h1 serves both


# ---- shapes and dtypes


def test_a_state_that_broadcasts():
    s = Steps(3)
    h = s.gru(s.u.xs[0], s.b.x(1, H, name="h0"))
    check(g := s.b.out(h), "portable")
    assert lengths(g) == []


def test_float64_is_left():
    b = Builder("float64")
    step = gru_after()(b, 3, H)
    h, _ = step(b.x(2, 3), b.x(2, H, name="h"), None)
    check(g := b.out(h), "portable")
    assert lengths(g) == []


def test_a_perceptron_is_no_rnn():
    b = Builder()
    x = b.x(2, H)
    w = b.w(H, H)
    for _ in range(4):
        x = ops.Tanh(ops.Add(ops.MatMul(x, w), b.w(H)))
    check(g := b.out(x), "portable")
    assert lengths(g) == []


def test_tanh_layers_with_skips_are_no_rnn():
    """Two products in every layer, of other weights each."""
    b = Builder()
    x = y = b.x(2, H)
    for _ in range(4):
        y = ops.Tanh(ops.Add(ops.MatMul(x, b.w(H, H)), ops.MatMul(y, b.w(H, H))))
    check(g := b.out(y), "portable")
    assert lengths(g) == []


def test_a_gated_sum_of_two_inputs():
    """sigmoid(a) * b + sigmoid(c) * tanh(d) of values that no product gives."""
    b = Builder()
    a, c, d = (b.x(2, H, name=n) for n in "acd")
    new = ops.Add(ops.Mul(ops.Sigmoid(a), c), ops.Mul(ops.Sigmoid(d), ops.Tanh(a)))
    g = b.out(ops.Mul(ops.Sigmoid(c), ops.Tanh(new)))
    report = check(g, "portable")
    assert lengths(g) == [] and said(report, "products with weights")


def test_numbers_stay_equal_where_a_gate_saturates():
    s, hs = gru_run()
    feeds = [np.full(v.dims, 50, np.float32) for v in s.b.graph.inputs]
    g = s.b.out(hs[-1])
    from tinsmith.ops.interpret import run_graph
    from tinsmith.passes import run_passes

    want = run_graph(g, feeds)
    run_passes(g, "portable")
    np.testing.assert_allclose(run_graph(g, feeds), want, rtol=1e-5, atol=1e-6)
