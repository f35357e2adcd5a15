"""Recurrent operators against one sequence, one step, one gate at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.ops.checking import assert_static, check, close, normal, refused, types_of
from tinsmith.graph import Type

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS, H = 3, 4


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


DEFAULTS = {"RNN": [np.tanh], "GRU": [sigmoid, np.tanh], "LSTM": [sigmoid, np.tanh, np.tanh]}


def one_step(name, x, h, c, w, r, wb, rb, p, fs, clip, before, forget) -> Any:
    """(h, c) after one step of one sequence."""

    def act(i: int, v: Any) -> Any:
        return fs[i](v if clip is None else np.clip(v, -clip, clip))

    def gate(i: int, h: Any = h) -> Any:
        rows = slice(i * H, (i + 1) * H)
        return w[rows] @ x + wb[rows] + r[rows] @ h + rb[rows]

    if name == "RNN":
        return act(0, gate(0)), c
    if name == "GRU":
        z, q = act(0, gate(0)), act(0, gate(1))
        rows = slice(2 * H, 3 * H)
        inner = w[rows] @ x + wb[rows] + q * (r[rows] @ h + rb[rows]) if before else gate(2, q * h)
        return (1 - z) * act(1, inner) + z * h, c
    pi, po, pf = np.split(p, 3)
    i = act(0, gate(0) + pi * c)
    f = 1 - i if forget else act(0, gate(2) + pf * c)
    c = f * c + i * act(1, gate(3))
    o = act(0, gate(1) + po * c)
    return o * fs[2](c), c


def naive(name, x, w, r, b, lens, h0, c0, p, direction, fs=None, clip=None, before=0, forget=0):
    """All of it in float64; layout 0."""
    steps, batch, _ = x.shape
    dirs, gates = w.shape[0], GATES[name]
    fs = fs or DEFAULTS[name] * dirs
    y = np.zeros((steps, dirs, batch, H))
    hs, cs = np.zeros((dirs, batch, H)), np.zeros((dirs, batch, H))
    per = len(fs) // dirs
    for d, n in itertools.product(range(dirs), range(batch)):
        both = np.zeros(2 * gates * H) if b is None else b[d].astype(float)
        h = np.zeros(H) if h0 is None else h0[d, n].astype(float)
        c = np.zeros(H) if c0 is None else c0[d, n].astype(float)
        peep = np.zeros(3 * H) if p is None else p[d].astype(float)
        length = steps if lens is None else lens[n]
        if lens is not None and not length:  # as in ONNX Runtime: nothing was put out last
            continue
        order = range(length)
        if direction == "reverse" or d == 1:
            order = reversed(order)
        for t in order:
            h, c = one_step(
                name,
                x[t, n].astype(float),
                h,
                c,
                w[d].astype(float),
                r[d].astype(float),
                both[: gates * H],
                both[gates * H :],
                peep,
                fs[d * per : (d + 1) * per],
                clip,
                before,
                forget,
            )
            y[t, d, n] = h
        hs[d, n], cs[d, n] = h, c
    return (y, hs, cs) if name == "LSTM" else (y, hs)


def operands(name: str, steps: int, batch: int, dirs: int, parts: str) -> list[Any]:
    gates = GATES[name]
    lens = np.array([steps, 1, 0, 2, steps][:batch], np.int32) if "l" in parts else None
    arrays = [
        normal(steps, batch, INPUTS),
        normal(dirs, gates * H, INPUTS, seed=1),
        normal(dirs, gates * H, H, seed=2),
        normal(dirs, 2 * gates * H, seed=3) if "b" in parts else None,
        None if lens is None else np.minimum(lens, steps),
        normal(dirs, batch, H, seed=4) if "h" in parts else None,
        normal(dirs, batch, H, seed=5) if "h" in parts else None,
        normal(dirs, 3 * H, seed=6) if "p" in parts else None,
    ]
    return arrays if name == "LSTM" else arrays[:6]


def padded(arrays: list[Any]) -> list[Any]:
    return arrays + [None] * (8 - len(arrays))


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("parts", ["", "b", "bh", "bhl", "bhlp", "l"])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (3, 2), (4, 5)])
def test_recurrent(name, direction, parts, steps, batch):
    arrays = operands(name, steps, batch, 2 if direction == "bidirectional" else 1, parts)
    attrs = {"direction": direction, "hidden_size": H}
    got = check(name, *arrays, **attrs)
    assert_static(name, *arrays, **attrs)
    for a, b in zip(got, naive(name, *padded(arrays), direction), strict=True):
        close(a, b, atol=1e-4)


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_layout_1_puts_the_batch_first(name, direction):
    arrays = operands(name, 3, 2, 2 if direction == "bidirectional" else 1, "bhl")
    first = [
        a.swapaxes(0, 1) if i in (0, 5, 6) and a is not None else a for i, a in enumerate(arrays)
    ]
    got = check(name, *first, direction=direction, layout=1)
    y, *last = naive(name, *padded(arrays), direction)
    close(got[0], y.transpose(2, 0, 1, 3), atol=1e-4)
    for a, b in zip(got[1:], last, strict=True):
        close(a, b.swapaxes(0, 1), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "option"), [("GRU", "linear_before_reset"), ("LSTM", "input_forget")]
)
@pytest.mark.parametrize("clip", [None, 0.4])
def test_options(name, option, clip):
    arrays = operands(name, 4, 2, 1, "bhp")
    for on in (False, True):
        got = check(name, *arrays, clip=clip, **{option: on})
        want = naive(name, *padded(arrays), "forward", clip=clip, before=on, forget=on)
        for a, b in zip(got, want, strict=True):
            close(a, b, atol=1e-4)


FUNCTIONS = {
    "Relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "SIGMOID": sigmoid,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Affine": lambda x: 0.5 * x + 0.25,
    "LeakyRelu": lambda x: np.where(x < 0, 0.5 * x, x),
    "ThresholdedRelu": lambda x: np.where(x > 0.5, x, 0),
    "ScaledTanh": lambda x: 0.5 * np.tanh(0.25 * x),
    "HardSigmoid": lambda x: np.clip(0.5 * x + 0.25, 0, 1),
    "Elu": lambda x: np.where(x < 0, 0.5 * (np.exp(x) - 1), x),
}


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_activations(activation):
    arrays = operands("RNN", 3, 2, 1, "bh")
    got = check(
        "RNN", *arrays, activations=(activation,), activation_alpha=(0.5,), activation_beta=(0.25,)
    )
    want = naive("RNN", *padded(arrays), "forward", fs=[FUNCTIONS[activation]])
    close(got[0], want[0], atol=1e-4)


def test_alpha_goes_to_those_that_take_one():
    """Sigmoid takes none, so 0.5 is for LeakyRelu and 0.75 for HardSigmoid, in order."""
    arrays = operands("LSTM", 3, 2, 1, "bh")
    got = check(
        "LSTM",
        *arrays,
        activations=("Sigmoid", "LeakyRelu", "HardSigmoid"),
        activation_alpha=(0.5, 0.75),
        activation_beta=(0.125,),
    )
    hard = lambda x: np.clip(0.75 * x + 0.125, 0, 1)  # noqa: E731
    fs = [sigmoid, FUNCTIONS["LeakyRelu"], hard]
    for a, b in zip(got, naive("LSTM", *padded(arrays), "forward", fs=fs), strict=True):
        close(a, b, atol=1e-4)


@pytest.mark.parametrize("name", GATES)
def test_half_and_empty(name):
    arrays = [a if a is None else a.astype(np.float16) for a in operands(name, 3, 2, 1, "bh")]
    y = check(name, *arrays)[0]
    close(y, naive(name, *padded(arrays), "forward")[0], rtol=5e-3, atol=5e-3)
    empty = operands(name, 3, 2, 1, "b")
    empty[0] = empty[0][:, :0]
    assert check(name, *empty)[0].shape == (3, 1, 0, H)


def of(*shape: Any) -> Type:
    return Type(np.dtype(np.float32), shape)


@pytest.mark.parametrize(
    ("types", "attrs", "fragments"),
    [
        ([of(5, 2, 3), of(1, 16, 9), of(1, 16, 4)], {}, ["w wants 9 inputs, x has 3"]),
        ([of(5, 2, 3), of(1, 12, 3), of(1, 16, 4)], {}, ["w has 12 rows, not 16"]),
        ([of(5, 2, 3), of(1, 16, 3), of(1, 12, 4)], {}, ["r has 12 rows"]),
        ([of(5, 2, 3), of(1, 16, 3), of(1, 16, 4)], {"hidden_size": 5}, ["hidden_size is 5"]),
        ([of(5, 2, 3), of(1, 16, 3), of(1, 16, 4)], {"direction": "both"}, ["both", "reverse"]),
        (
            [of(5, 2, 3), of(1, 16, 3), of(1, 16, 4)],
            {"direction": "bidirectional"},
            ["r has 1 directions, 2 are needed"],
        ),
        (
            [of(5, 2, 3), of(1, 16, 3), of(1, 16, 4)],
            {"activations": ("Tanh",)},
            ["wants 3 activations, 1 are given"],
        ),
        (
            [of(5, 2, 3), of(1, 16, 3), of(1, 16, 4)],
            {"activations": ("Tanh", "Tanh", "Gelu")},
            ["no recurrent activation 'Gelu'"],
        ),
        ([of(5, 2), of(1, 16, 3), of(1, 16, 4)], {}, ["x needs rank 3"]),
        ([of(5, 2, 3), of(1, 16, 3), of(1, 16, 4), of(1, 16)], {}, ["b needs [1,32]"]),
        (
            [of(5, 2, 3), of(1, 16, 3), of(1, 16, 4), None, None, of(1, 3, 4)],
            {},
            ["initial_h needs [1,2,4]"],
        ),
    ],
)
def test_refused(types, attrs, fragments):
    with refused(*fragments):
        types_of("LSTM", types, attrs)
