"""Recurrent steps in primitives, in many spellings, and graphs that unroll them.

A cell is a function of (b, x, h, c) that returns (h, c); making it draws its weights.
"""

import numpy as np

from tests.passes.build import Builder
from tinsmith import ops


def _split(b, v, count, axis=-1):
    return ops.Split(v, axis=axis, num_outputs=count)


def _slices(b, v, count):
    h = v.shape[-1] // count
    return [ops.Slice(v, b.i(k * h), b.i((k + 1) * h), b.i(v.rank - 1)) for k in range(count)]


def _gathers(b, v, count):
    wide = ops.Reshape(v, b.i(*v.shape[:-1], count, -1))
    return [ops.Gather(wide, b.graph.const(np.array(k)), axis=v.rank - 1) for k in range(count)]


CUTS = {"split": _split, "slice": _slices, "gather": _gathers}


def two_products(b, i, h, gates, biases=2):
    """(x, h) -> x w + bw, h r + br, each of all gates."""
    w, r = b.w(i, gates * h) if i else None, b.w(h, gates * h, name="r")
    wb = b.w(gates * h, name="wb") if biases else None
    rb = b.w(gates * h, name="rb") if biases > 1 else None

    def make(x, s):
        xs, hs = ops.MatMul(x, w), ops.MatMul(s, r)
        return (ops.Add(xs, wb) if biases else xs), (ops.Add(rb, hs) if biases > 1 else hs)

    return make


def joint_product(b, i, h, gates):
    """(x, h) -> [x, h] k + b."""
    k, bias = b.w(i + h, gates * h), b.w(gates * h, name="b")
    return lambda x, s: ops.Add(ops.MatMul(ops.Concat(x, s, axis=-1), k), bias)


# ---- LSTM


def _lstm_step(i, f, g, o, c):
    new = ops.Add(ops.Mul(f, c), ops.Mul(i, g))
    return ops.Mul(o, ops.Tanh(new)), new


def lstm(order="ifgo", cut="split", biases=2, forget=0.0, activate_first=False):
    def make(b, i, h):
        products = two_products(b, i, h, 4, biases)

        def step(x, s, c):
            xs, hs = products(x, s)
            total = ops.Add(xs, hs)
            if activate_first:  # the gates under sigmoid are neighbours
                smooth, rest = ops.Split(total, b.i(3 * h, h), axis=-1)
                parts = [*CUTS[cut](b, ops.Sigmoid(smooth), 3), ops.Tanh(rest)]
                gate = dict(zip(order, parts, strict=True))
                return _lstm_step(gate["i"], gate["f"], gate["g"], gate["o"], c)
            gate = dict(zip(order, CUTS[cut](b, total, 4), strict=True))
            f = ops.Add(gate["f"], b.c(forget)) if forget else gate["f"]
            activated = [ops.Sigmoid(v) for v in (gate["i"], f, gate["o"])]
            return _lstm_step(*activated[:2], ops.Tanh(gate["g"]), activated[2], c)

        return step

    return make


def lstm_joint(order="igfo", cut="split"):
    def make(b, i, h):
        product = joint_product(b, i, h, 4)

        def step(x, s, c):
            gate = dict(zip(order, CUTS[cut](b, product(x, s), 4), strict=True))
            y = {k: ops.Tanh(v) if k == "g" else ops.Sigmoid(v) for k, v in gate.items()}
            new = ops.Add(ops.Mul(ops.Tanh(gate["g"]), y["i"]), ops.Mul(c, y["f"]))
            return ops.Mul(ops.Tanh(new), y["o"]), new

        return step

    return make


def lstm_per_gate(b, i, h):
    made = {k: two_products(b, i, h, 1, biases=k != "f") for k in "ifgo"}

    def step(x, s, c):
        gate = {k: ops.Add(*make(x, s)) for k, make in made.items()}
        smooth = [ops.Sigmoid(gate[k]) for k in "ifo"]
        return _lstm_step(*smooth[:2], ops.Tanh(gate["g"]), smooth[2], c)

    return step


# ---- GRU


def _one_minus(b, z):
    return ops.Sub(b.c(1.0), z)


BLENDS = {
    "(1-z)*n + z*h": lambda b, z, n, h: ops.Add(ops.Mul(_one_minus(b, z), n), ops.Mul(z, h)),
    "h*z + n*(1-z)": lambda b, z, n, h: ops.Add(ops.Mul(h, z), ops.Mul(n, _one_minus(b, z))),
    "n + z*(h-n)": lambda b, z, n, h: ops.Add(n, ops.Mul(z, ops.Sub(h, n))),
    "n - z*(n-h)": lambda b, z, n, h: ops.Sub(n, ops.Mul(z, ops.Sub(n, h))),
    "h + (1-z)*(n-h)": lambda b, z, n, h: ops.Add(h, ops.Mul(_one_minus(b, z), ops.Sub(n, h))),
    "(1-z)*h + z*n": lambda b, z, n, h: ops.Add(ops.Mul(_one_minus(b, z), h), ops.Mul(z, n)),
    "h + z*(n-h)": lambda b, z, n, h: ops.Add(h, ops.Mul(z, ops.Sub(n, h))),
}


def gru_after(order="rzn", cut="split", blend="n + z*(h-n)", biases=2):
    """torch's, and Keras's with reset_after."""

    def make(b, i, h):
        products = two_products(b, i, h, 3, biases)

        def step(x, s, c):
            xs, hs = products(x, s)
            xg = dict(zip(order, CUTS[cut](b, xs, 3), strict=True))
            hg = dict(zip(order, CUTS[cut](b, hs, 3), strict=True))
            r, z = (ops.Sigmoid(ops.Add(xg[k], hg[k])) for k in "rz")
            n = ops.Tanh(ops.Add(ops.Mul(r, hg["n"]), xg["n"]))
            return BLENDS[blend](b, z, n, s), None

        return step

    return make


def gru_before(order="zr", blend="h*z + n*(1-z)", joint=False):
    """Keras's of old, and TensorFlow's with [x, h] kernels."""

    def make(b, i, h):
        gates = joint_product(b, i, h, 2) if joint else two_products(b, i, h, 2, 1)
        last = joint_product(b, i, h, 1) if joint else two_products(b, i, h, 1, 1)

        def step(x, s, c):
            total = gates(x, s) if joint else ops.Add(*gates(x, s))
            gate = dict(zip(order, _split(b, ops.Sigmoid(total), 2), strict=True))
            inner = last(x, ops.Mul(gate["r"], s))
            n = ops.Tanh(inner if joint else ops.Add(*inner))
            return BLENDS[blend](b, gate["z"], n, s), None

        return step

    return make


# ---- RNN


def rnn(biases=2, joint=False):
    def make(b, i, h):
        product = joint_product(b, i, h, 1) if joint else two_products(b, i, h, 1, biases)

        def step(x, s, c):
            return ops.Tanh(product(x, s) if joint else ops.Add(*product(x, s))), None

        return step

    return make


CELLS = {
    "lstm torch": (lstm(), "LSTM"),
    "lstm slices": (lstm("ifgo", "slice"), "LSTM"),
    "lstm gathers": (lstm("iogf", "gather", biases=1), "LSTM"),
    "lstm no bias": (lstm("fiog", "split", biases=0), "LSTM"),
    "lstm keras": (lstm("ifgo", "split", biases=1, forget=1.0), "LSTM"),
    "lstm sigmoid first": (lstm("ifog", "slice", activate_first=True), "LSTM"),
    "lstm joint": (lstm_joint(), "LSTM"),
    "lstm joint slices": (lstm_joint("ifgo", "slice"), "LSTM"),
    "lstm per gate": (lstm_per_gate, "LSTM"),
    "gru torch": (gru_after(), "GRU"),
    "gru keras after": (gru_after("zrn", "slice", "(1-z)*n + z*h"), "GRU"),
    "gru gathers": (gru_after("rzn", "gather", "n - z*(n-h)", biases=1), "GRU"),
    "gru no bias": (gru_after("rzn", "split", "h + (1-z)*(n-h)", biases=0), "GRU"),
    "gru inverse": (gru_after("rzn", "split", "(1-z)*h + z*n"), "GRU"),
    "gru inverse short": (gru_after("rzn", "split", "h + z*(n-h)"), "GRU"),
    "gru before": (gru_before(), "GRU"),
    "gru before joint": (gru_before("rz", "h*z + n*(1-z)", joint=True), "GRU"),
    "gru before inverse": (gru_before("rz", "h + z*(n-h)"), "GRU"),
    "rnn": (rnn(), "RNN"),
    "rnn one bias": (rnn(1), "RNN"),
    "rnn joint": (rnn(joint=True), "RNN"),
}


# ---- unrolled

LAYOUTS = {"tni": (0, 1, 2), "nti": (1, 0, 2), "nit": (2, 0, 1)}


class Unrolled:
    """A graph of `steps` steps over x; `reads` says how a step reads its input."""

    def __init__(self, steps, batch=2, inputs=3, hidden=4, layout="tni", reads="gather", seed=0):
        self.b, self.steps, self.reads = Builder(seed=seed), steps, reads
        self.batch, self.inputs, self.hidden = batch, inputs, hidden
        self.axis = LAYOUTS[layout].index(0) if layout != "nit" else 2
        dims = {"t": steps, "n": batch, "i": inputs}
        if reads == "separate":
            self.xs = [self.b.x(batch, inputs, name=f"x{t}") for t in range(steps)]
            return
        self.x = self.b.x(*(dims[k] for k in layout))
        if reads == "split":
            parts = ops.Split(self.x, axis=self.axis, num_outputs=steps)
            parts = parts if steps > 1 else (parts,)
            self.xs = [ops.Squeeze(p, self.b.i(self.axis)) for p in parts]
        else:
            self.xs = [self._read(t) for t in range(steps)]

    def _read(self, t):
        b = self.b
        if self.reads == "gather":
            return ops.Gather(self.x, b.graph.const(np.array(t)), axis=self.axis)
        part = ops.Slice(self.x, b.i(t), b.i(t + 1), b.i(self.axis))
        if self.reads == "slice":
            return ops.Squeeze(part, b.i(self.axis))
        return ops.Reshape(part, b.i(self.batch, self.inputs))

    def state(self, kind="zeros", name="h0"):
        shape = (self.batch, self.hidden)
        if kind == "input":
            return self.b.x(*shape, name=name)
        if kind == "const":
            return self.b.w(*shape, name=name)
        return self.b.graph.const(np.zeros(shape, np.float32), name)

    def run(self, make, reverse=False, start="zeros", xs=None, name=""):
        """The h of every step in the order of the steps, and the last c."""
        xs = self.xs if xs is None else xs
        step = make(self.b, xs[0].shape[-1], self.hidden)
        h, c = self.state(start, f"h0{name}"), self.state(start, f"c0{name}")
        hs = []
        for x in xs[::-1] if reverse else xs:
            h, c = step(x, h, c)
            hs.append(h)
        return hs, c

    def stack(self, hs, axis=0):
        return ops.Concat(*(ops.Unsqueeze(h, self.b.i(axis)) for h in hs), axis=axis)
