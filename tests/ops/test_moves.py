"""What operators say that they move is what their references do, and which axes are apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ops.samples import SAMPLES, Sample, load_samples
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.ops._move import Move, moves_of

load_samples()
MOVERS = [name for name in OPS if OPS[name].traits & {"move", "view"}]
MOVED = [s for s in SAMPLES if s.op in MOVERS]


def node_of(sample: Sample, symbols: int = 0) -> Node:
    """The operands are constants; data are inputs, with symbols for the first axes."""
    op, graph = OPS[sample.op], Graph("moved")
    values: list[Value | None] = []
    for i, a in enumerate(sample.inputs):
        if a is None or (i and not op.variadic):
            values.append(None if a is None else graph.const(a))
            continue
        shape = tuple(f"d{i}_{k}" if k < symbols else n for k, n in enumerate(a.shape))
        values.append(graph.input(f"x{i}", Type(a.dtype, shape)))
    return graph.add(op, *values, **sample.attrs)


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
