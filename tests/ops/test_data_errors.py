"""Values that do not fit: refused by type rules where they are known, else when they come."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.errors import DataError, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

X = np.arange(6, dtype="f4").reshape(2, 3)


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def recurrent(gates: int, *lens: int) -> list[np.ndarray]:
    """x of three steps of three, weights of two units, a bias, and the lengths."""
    shapes = (3, len(lens), 3), (1, gates * 2, 3), (1, gates * 2, 2), (1, gates * 4)
    return [*(np.ones(s, np.float32) for s in shapes), np.array(lens, np.int32)]


def rows(batch: int) -> np.ndarray:
    """Two heads of three rows of four elements."""
    return np.ones((batch, 2, 3, 4), np.float32)


CASES = {
    "DFT, parts": ([np.ones((1, 4, 14), "f4")], {}, "not 1 or 2"),
    "STFT": ([np.ones((1, 4, 14), "f4"), i64(1)], {}, "not 1 or 2"),
    "Attention": ([rows(1), rows(1), rows(8)], {}, "batch"),
    "TopK": ([X, i64(4)], {}, "k is 4"),
    "TopK, negative": ([X, i64(-1)], {}, "k is -1"),
    "OneHot": ([i64(0, 1), i64(-3), i64(0, 1)], {}, "depth is -3"),
    "Pad": ([X, i64(0, -2, 0, -2)], {}, "cut"),
    "Pad, one side": ([X, i64(-3, 0, 4, 0)], {}, "cut"),
    "Slice": ([X, i64(0), i64(2), i64(1), i64(0)], {}, "step is 0"),
    "Split": ([X, i64(1, 1)], {"axis": 1, "num_outputs": 2}, "does not add up"),
    "Split, negative": ([X, i64(4, -1)], {"axis": 1, "num_outputs": 2}, r"split \[4, -1\]"),
    "Reshape": ([X, i64(-1, -1)], {}, "more than one -1"),
    "Reshape, negative": ([X, i64(-3, 2)], {}, "negative dim"),
    "Expand": ([X, i64(2, 2)], {}, r"\[2, ?3\], \[2, ?2\] do not broadcast"),
    "Expand, row": ([X[:, :1], i64(3, 3)], {}, r"\[2, ?1\], \[3, ?3\] do not broadcast"),
    "Expand, negative": ([X, i64(-1, 3)], {}, "negative dim"),
    "Trilu": ([X, i64(0, 1)], {}, "k must hold one number, it holds 2"),
    "ReverseSequence": ([X, i64(1, 3, 0)], {}, r"\[0, 2\]"),
    "ReverseSequence, negative": ([X, i64(1, -1, 0)], {}, r"\[0, 2\]"),
    "RNN": (recurrent(1, 4, 0), {}, r"sequence_lens must lie in \[0, 3\]"),
    "RNN, negative": (recurrent(1, 3, -1), {}, r"sequence_lens must lie in \[0, 3\]"),
    "GRU": (recurrent(3, 3, 5), {}, r"sequence_lens must lie in \[0, 3\]"),
    "LSTM": (recurrent(4, 2, 4), {}, r"sequence_lens must lie in \[0, 3\]"),
    "LSTM, batch first": (recurrent(4, 2, 1, 4), {"layout": 1}, r"must lie in \[0, 3\]"),
    "Range": ([np.array(0), np.array(5), np.array(0)], {}, "delta is 0"),
    "Range, NaN": ([f32(0), f32(np.nan), f32(1)], {}, "limit is nan|is not finite"),
    "Range, endless": ([f32(0), f32(np.inf), f32(1)], {}, "limit is inf|is not finite"),
    "Resize": ([X, None, f32(1, -1)], {}, "scales must be positive and finite"),
    "Resize, NaN": ([X, None, f32(1, np.nan)], {}, "scales must be positive and finite"),
    "Resize, endless": ([X, None, f32(np.inf, 1)], {}, "scales must be positive and finite"),
    "Resize, sizes": ([X, None, None, i64(4, -1)], {}, "sizes must not be negative"),
    "DFT": ([X[..., None], np.array(-4)], {}, "a transform of -4 elements"),
    "Col2Im": ([np.ones((1, 4, 5), "f4"), i64(3, 3), i64(2, 2)], {}, "x has 5 blocks"),
    "Col2Im, channels": ([np.ones((1, 6, 4), "f4"), i64(3, 3), i64(2, 2)], {}, "not divide into"),
    "Col2Im, large": ([np.ones((1, 9, 1), "f4"), i64(1, 1), i64(3, 3)], {}, "do not fit into"),
    "Compress": ([X, np.array([True] * 4)], {"axis": 1}, "4 elements.* 3 places"),
    "Compress, flat": ([X, np.array([True] * 7)], {}, "7 elements.* 6 places"),
}


SIZES = ("Attention", "Compress", "DFT, parts", "STFT", "Trilu")
"""Operators whose sizes do not fit, which is known before the values are."""


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith(SIZES)])
def test_at_run_time(case, backend):
    arrays, attrs, message = CASES[case]
    op, graph = OPS[case.split(",")[0]], Graph("g")
    values = [
        None if a is None else graph.input(f"x{i}", Type(a.dtype, a.shape))
        for i, a in enumerate(arrays)
    ]
    node = graph.add(op, *values, **attrs)
    graph.outputs = list(node.outputs)
    net = ts.compile(graph, backend=backend, cache=False)
    with pytest.raises(DataError, match=f"{op.name}.*{message}"):
        net.run([a for a in arrays if a is not None])


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith(SIZES)])
def test_free_sizes(case, backend):
    """They are looked at for every call: here for the first."""
    arrays, attrs, message = CASES[case]
    graph = Graph("g")
    values = [
        graph.input(f"x{i}", Type(a.dtype, tuple(f"n{i}{k}" for k in range(a.ndim))))
        for i, a in enumerate(arrays)
    ]
    graph.outputs = list(graph.add(OPS[case.split(",")[0]], *values, **attrs).outputs)
    net = ts.compile(graph, backend=backend, cache=False)
    with pytest.raises((DataError, TypeRuleError), match=message):
        net.run(arrays)


@pytest.mark.parametrize("case", CASES)
def test_constants(case):
    arrays, attrs, message = CASES[case]
    graph = Graph("g")
    x = graph.input("x", Type(arrays[0].dtype, arrays[0].shape))
    with pytest.raises(TypeRuleError, match=message):
        graph.add(OPS[case.split(",")[0]], x, *arrays[1:], **attrs)


@pytest.mark.parametrize("case", CASES)
def test_references(case):
    arrays, attrs, message = CASES[case]
    with pytest.raises(DataError, match=message):
        OPS[case.split(",")[0]](*arrays, **attrs)


@pytest.mark.parametrize("op", SIZES)
def test_sizes(op):
    """Refused when the graph is made, though only the run will know the numbers."""
    arrays, attrs, message = CASES[op]
    graph = Graph("g")
    values = [graph.input(f"x{i}", Type(a.dtype, a.shape)) for i, a in enumerate(arrays)]
    with pytest.raises(TypeRuleError, match=message):
        graph.add(OPS[op.split(",")[0]], *values, **attrs)


def test_a_short_condition_drops_the_rest():
    got = OPS["Compress"](X, np.array([False, True]), axis=1)
    np.testing.assert_array_equal(got, X[:, 1:2])


@pytest.mark.parametrize("op", ["Reshape", "Expand", "Unsqueeze", "Tile", "ConstantOfShape"])
@pytest.mark.parametrize("rank", [65, 10**12])
def test_ranks_that_no_array_has(op, rank):
    """A file may declare any length of what tells a shape."""
    graph = Graph("g")
    shape = graph.input("shape", Type("int64", (rank,)))
    x = graph.input("x", Type("float32", None if op == "Tile" else (2, 3)))
    with pytest.raises(TypeRuleError, match="64 at most"):
        graph.add(OPS[op], *([shape] if op == "ConstantOfShape" else [x, shape]))
