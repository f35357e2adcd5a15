"""Small graphs that tests of planning, running and storing share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tinsmith import ops
from tinsmith.graph import Graph, Type


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def array(*dims: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(dims).astype(np.float32)


def conv(g: Graph, x, out: int, k: int = 3, seed: int = 0, **attrs):
    channels = x.dims[1] // attrs.get("group", 1)
    w = array(out, channels, k, k, seed=seed) / np.float32(k * channels**0.5)
    pad = (k // 2,) * 4
    return ops.Conv(x, g.const(w, "w"), g.const(array(out, seed=seed + 1), "b"), pad=pad, **attrs)


def residual(batch: int = 1, size: int = 12) -> Graph:
    """Convolutions, a residual, a pool, a dense layer and a softmax."""
    g = Graph("residual")
    x = g.input("x", Type("float32", (batch, 3, size, size)))
    a = ops.Relu(conv(g, x, 20))
    b = ops.Relu(ops.Add(conv(g, a, 20, seed=3), a))
    c = ops.MaxPool(b, kernel=(2, 2), stride=(2, 2))
    d = ops.Flatten(ops.GlobalPool(c, kind="mean"))
    w = g.const(array(20, 10, seed=5), "fc")
    g.outputs = [ops.Softmax(ops.MatMul(d, w), axis=-1, name="probabilities")]
    return g


def narrow_residual() -> Graph:
    """A residual of few channels, whose sum may lie where an addend lay that nobody needs then."""
    g = Graph("narrow_residual")
    x = g.input("x", Type("float32", (2, 4, 35, 14)))
    a = ops.Relu(conv(g, x, 4))
    b = ops.Relu(conv(g, a, 4, seed=2))
    g.outputs = [conv(g, ops.Add(conv(g, b, 4, seed=4), a), 4, seed=6)]
    return g


def branches(aligned: bool = True) -> Graph:
    """Concat and Split of convolutions: parts of whole blocks, or not."""
    g = Graph("branches")
    x = g.input("x", Type("float32", (2, 16, 7, 9)))
    n = 32 if aligned else 20
    left, right = conv(g, x, n, 1), conv(g, x, n, 3, seed=2)
    both = ops.Concat(ops.Relu(left), ops.Relu(right), x, axis=1)
    first, second = ops.Split(both, np.array([n, n + 16]), axis=1)
    g.outputs = [conv(g, first, 8, 3, seed=4), ops.Tanh(second), both]
    return g


def recurrent() -> Graph:
    g = Graph("recurrent")
    x = g.input("x", Type("float32", (6, 1, 10)))
    w, r = array(2, 80, 10), array(2, 80, 20, seed=1)
    y, h, c = ops.LSTM(x, w, r, array(2, 160, seed=2), hidden_size=20, direction="bidirectional")
    g.outputs = [y, h, c]
    return g


def mixed() -> Graph:
    """Native steps around steps that only the reference computes, with a data-dependent shape."""
    g = Graph("mixed")
    x = g.input("x", Type("float32", (4, 6)))
    y = ops.Exp(ops.Mul(x, g.const(np.float32(0.5))))
    where = ops.NonZero(ops.Greater(y, g.const(np.float32(1.0))))
    z = ops.Add(y, g.const(array(6)))
    g.outputs = [where, ops.Relu(z)]
    return g


def free() -> Graph:
    """A batch and a length that are known only when called."""
    g = Graph("free")
    x = g.input("x", Type("float32", ("N", "T", 8)))
    m = g.input("m", Type("float32", ("N", 1, 8)))
    y = ops.MatMul(ops.Mul(x, m), g.const(array(8, 12), "w"))
    shape = ops.Concat(ops.Slice(ops.Shape(y), [0], [1]), g.const(np.array([-1])), axis=0)
    g.outputs = [ops.Softmax(y, axis=-1), ops.Reshape(y, shape)]
    return g


GRAPHS = {
    "residual": residual,
    "residual_batch": lambda: residual(3, 11),
    "branches": branches,
    "branches_unaligned": lambda: branches(False),
    "recurrent": recurrent,
    "mixed": mixed,
    "narrow_residual": narrow_residual,
}


def feeds(g: Graph, seed: int = 7, **symbols: int) -> dict[str, np.ndarray]:
    return {
        v.name: array(
            *(symbols[d] if isinstance(d, str) else d for d in v.shape or ()), seed=seed + i
        )
        for i, v in enumerate(g.inputs)
    }


def digits() -> Path:
    return Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"


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
