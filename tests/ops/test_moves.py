"""What operators say that they move is what their references do, and which axes are apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest

from tests.ops.moved import MOVED, MOVERS, node_of
from tests.ops.samples import SAMPLES, Sample, data, i64
from tinsmith.errors import TypeRuleError
from tinsmith.ops import OPS
from tinsmith.ops._apart import axes_apart
from tinsmith.ops._move import Move, moves_of


@pytest.mark.parametrize("sample", MOVED, ids=str)
def test_moves_are_what_the_reference_does(sample: Sample) -> None:
    node = node_of(sample)
    moves = moves_of(node)
    wanted = node.op.evaluate(sample.inputs, node.attrs)
    for move, want, y in zip(moves, wanted, node.outputs, strict=True):
        if move is None:
            assert y.dtype != node.inputs[0].dtype, f"{node} declares nothing"
            continue
        _check(move, sample, want)


@pytest.mark.parametrize("number", [1, 9])
@pytest.mark.parametrize("sample", MOVED, ids=str)
def test_moves_hold_for_any_size(sample: Sample, number: int) -> None:
    """Symbols stand for the first axis, or for all: what is still known is as true."""
    try:
        node = node_of(sample, number)
    except TypeRuleError:
        return  # nothing to move where the number of outputs is not known
    sizes = {
        d: n
        for v, a in zip(node.inputs, sample.inputs, strict=False)
        if v is not None and v.shape
        for d, n in zip(v.shape, a.shape, strict=True)
    }
    wanted = node.op.evaluate(sample.inputs, node.attrs)
    for move, want in zip(moves_of(node), wanted, strict=True):
        if move is not None:
            parts = [replace(p, dims=tuple(sizes.get(d, d) for d in p.dims)) for p in move.parts]
            _check(replace(move, dims=want.shape, parts=tuple(parts)), sample, want)


def _check(move: Move, sample: Sample, want: np.ndarray) -> None:
    got = move.apply(sample.inputs)
    assert got.dtype == want.dtype and got.shape == want.shape, str(move)
    same = np.array_equal(got, want) if got.dtype == object else got.tobytes() == want.tobytes()
    assert same, str(move)


@pytest.mark.parametrize("name", MOVERS)
def test_every_operator_that_moves_says_so(name: str) -> None:
    known = [m for s in MOVED if s.op == name for m in moves_of(node_of(s))]
    assert any(m is not None for m in known) or name == "BitCast", f"{name} declares no move"


IMAGE, WEIGHTS = data((2, 4, 5, 5)), data((4, 4, 3, 3))
APART = [
    Sample("Conv", (IMAGE, WEIGHTS)),
    Sample("ConvTranspose", (IMAGE, WEIGHTS)),
    Sample("MaxPool", (IMAGE,), {"kernel": (2, 2)}),
    Sample("AveragePool", (IMAGE,), {"kernel": (2, 2)}),
    Sample("LpPool", (IMAGE,), {"kernel": (2, 2)}),
    Sample("GlobalPool", (IMAGE,)),
    Sample("InstanceNorm", (IMAGE, data((4,)), data((4,)))),
    Sample("GroupNorm", (IMAGE, data((4,)), data((4,))), {"groups": 2}),
    Sample("LRN", (IMAGE,), {"size": 3}),
    Sample("LayerNorm", (IMAGE, data((5, 5))), {"axis": 2}),
    Sample("RMSNorm", (IMAGE, data((5,)))),
    Sample("LpNorm", (IMAGE,), {"axis": 1}),
    Sample("Softmax", (IMAGE,), {"axis": 1}),
    Sample("LogSoftmax", (IMAGE,)),
    Sample("Hardmax", (IMAGE,), {"axis": 0}),
    Sample("Resize", (IMAGE, None, None, i64(2, 4, 7, 3))),
    Sample("Resize", (IMAGE, None, np.float32([1.2, 1, 2, 2]))),
    Sample("MatMul", (data((2, 3, 4)), data((4, 6)))),
    Sample("MatMul", (data((2, 3, 4)), data((2, 4, 6)))),
    Sample("MatMul", (data((2, 1, 3, 4)), data((5, 4, 6)))),
    Sample("MatMul", (data((4,)), data((2, 4, 6)))),
]


def test_all_declared_axes_are_tried() -> None:
    declared = {name for name in OPS if OPS[name]._apart is not None}
    assert declared <= {s.op for s in (*SAMPLES, *APART) if axes_apart(node_of(s))}


@pytest.mark.parametrize("sample", [*SAMPLES, *APART], ids=str)
def test_axes_apart_are_computed_apart(sample: Sample) -> None:
    """Of halves of the inputs along such an axis come the halves of the outputs."""
    op = OPS[sample.op]
    if op.traits & {"holder", "control", "impure"}:
        return
    node = node_of(sample)
    outputs = op.evaluate(sample.inputs, node.attrs)
    for d, axes in axes_apart(node).items():
        size = outputs[0].shape[d]
        if size < 2:
            continue
        for piece in (slice(0, size // 2), slice(size // 2, size)):
            arrays = [
                a if a is None or k is None else a[(slice(None),) * k + (piece,)]
                for a, k in zip_longest(sample.inputs, axes)
            ]
            wanted = [y[(slice(None),) * d + (piece,)] for y in outputs]
            if op.inputs[1:2] == ("shape",):
                shape = np.array(wanted[0].shape, np.int64)
                arrays[1] = shape[list(node.attrs.get("axes") or range(shape.size))]
            got = op.evaluate(tuple(arrays), node.attrs)
            for y, want in zip(got, wanted, strict=True):
                assert y.dtype == want.dtype
                if y.dtype.kind not in "fV":
                    assert np.array_equal(y, want)
                    continue
                y, want = y.astype(float), want.astype(float)
                np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)
