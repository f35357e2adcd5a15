"""Every operator has a formula and a sample, and its type rule tells what its reference does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.ops.samples import SAMPLES, Sample, load_samples
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS, Op

load_samples()

ROOMS = """activation cast columns compare elementwise fill index move random reduce select shape
    signal text"""


def _make(graph: Graph, sample: Sample, knowledge: str) -> list[Value | None]:
    """The inputs of a sample with all, or less, known about them."""
    values: list[Value | None] = []
    for i, a in enumerate(sample.inputs):
        if a is None:
            values.append(None)
        elif knowledge == "constant" or (knowledge == "symbolic" and i):
            values.append(graph.const(a))
        else:
            shape: Any = a.shape
            if knowledge in ("symbolic", "symbols"):
                shape = tuple(f"d{i}_{j}" for j in range(a.ndim))
            elif knowledge == "rankless":
                shape = None
            values.append(graph.input(f"x{i}", Type(a.dtype, shape)))
    return values


@pytest.mark.parametrize("knowledge", ["constant", "static", "symbolic", "symbols", "rankless"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_rule_agrees_with_reference(sample: Sample, knowledge: str) -> None:
    """dtype and shape agree, and a symbol stands for one size."""
    op, graph = OPS[sample.op], Graph("test")
    values = _make(graph, sample, knowledge)
    countless = knowledge in ("symbols", "rankless") and "num_outputs" not in sample.attrs
    if sample.op == "Split" and countless:
        with pytest.raises(TypeRuleError, match="num_outputs"):
            graph.add(op, *values, **sample.attrs)
        return
    node = graph.add(op, *values, **sample.attrs)
    results = _evaluate(op, sample)
    assert len(results) == len(node.outputs)
    sizes = {
        d: n
        for v, a in zip(values, sample.inputs, strict=True)
        if v is not None and v.shape is not None
        for d, n in zip(v.shape, a.shape, strict=True)
    }
    for out, got in zip(node.outputs, results, strict=True):
        assert out.dtype == got.dtype
        if knowledge == "constant":
            assert out.shape is not None
        if out.shape is None:
            continue
        assert len(out.shape) == got.ndim
        for d, n in zip(out.shape, got.shape, strict=True):
            known = d if isinstance(d, int) else sizes.setdefault(d, n)
            assert known == n, f"{out.type} for a result of {got.shape}"


def _evaluate(op: Op, sample: Sample) -> tuple[np.ndarray, ...]:
    arrays = tuple(sample.inputs)
    if not op.variadic:
        arrays += (None,) * (len(op.inputs) - len(arrays))
    return op.evaluate(arrays, op.bind(sample.inputs, sample.attrs))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_reference_leaves_its_inputs_alone(sample: Sample) -> None:
    before = [None if a is None else a.copy() for a in sample.inputs]
    _evaluate(OPS[sample.op], sample)
    for a, b in zip(sample.inputs, before, strict=True):
        if a is not None and b is not None:
            same = (a == b).all() if a.dtype == object else a.tobytes() == b.tobytes()
            assert same


@pytest.mark.parametrize("name", list(OPS))
def test_every_operator_says_its_formula(name: str) -> None:
    op = OPS[name]
    assert re.search(r"=|~|:|->", op.formula), f"the docstring of {name} holds no formula"


@pytest.mark.parametrize("name", list(OPS))
def test_every_operator_has_a_sample_and_a_rule(name: str) -> None:
    op = OPS[name]
    assert op._rule is not None or "elementwise" in op.traits
    if op.reference.__module__.rpartition(".")[2] in ROOMS.split():
        assert any(s.op == name for s in SAMPLES), f"add a sample of {name} to tests/ops"


BAD = [
    ("Add", ["float32[2]", "float64[2]"], {}, "different element types"),
    ("Add", ["float32[2]", "float32[3]"], {}, "broadcast"),
    ("Exp", ["int32[2]"], {}, "must be of"),
    ("And", ["int32[2]", "int32[2]"], {}, "must be of bool"),
    ("Where", ["float32[2]", "int8[2]", "int8[2]"], {}, "condition"),
    ("PRelu", ["float32[2]", "float32[3,2]"], {}, "does not broadcast"),
    ("Gelu", ["float32[2]"], {"approximate": "sigmoid"}, "approximate"),
    ("Clip", ["int8[2]"], {"min": 300}, "not a number of int8"),
    ("Clip", ["int8[2]"], {"min": 0.5}, "not a number of int8"),
    ("Cast", ["int8[2]"], {"to": "float31"}, "Did you mean 'float32'"),
    ("Cast", ["int8[2]"], {}, "needs the attribute to"),
    ("BitCast", ["int8[2]"], {"to": "int16"}, "different widths"),
    ("BitShift", ["int8[2]", "int8[2]"], {"direction": "UP"}, "direction"),
    ("Reduce", ["float32[2]", [1]], {"kind": "sum"}, "out of range"),
    ("Reduce", ["float32[2,2]", [1, -1]], {"kind": "sum"}, "twice"),
    ("Reduce", ["float32[2]"], {"kind": "median"}, "kind"),
    ("ArgReduce", ["float32[0]"], {"kind": "max"}, "empty"),
    ("CumSum", ["float32[2]", [2]], {}, "out of range"),
    ("Reshape", ["float32[2,3]", [4, -1]], {}, "cannot take"),
    ("Reshape", ["float32[2,3]", [4]], {}, "6 elements"),
    ("Reshape", ["float32[2,3]", [-1, -1]], {}, "more than one"),
    ("Reshape", ["float32[2,3]", [1, 2, 0]], {}, "keeps dim 2"),
    ("Reshape", ["float32[2,3]", [0, -1]], {"allowzero": True}, "forbids"),
    ("Transpose", ["float32[2,3]"], {"perm": (0, 0)}, "permutation"),
    ("Transpose", ["float32[2,3]"], {"perm": (0, 1, 2)}, "3 axes"),
    ("Squeeze", ["float32[2,3]", [0]], {}, "not 1"),
    ("Unsqueeze", ["float32[2,3]", [4]], {}, "out of range"),
    ("Expand", ["float32[2,3]", [2]], {}, "broadcast"),
    ("Tile", ["float32[2,3]", [2]], {}, "repeats"),
    ("Concat", ["float32[2,3]", "float32[3,3]"], {"axis": 1}, "axis 0 differs"),
    ("Concat", [], {"axis": 1}, "needs inputs"),
    ("Split", ["float32[5]", [2, 2]], {}, "add up"),
    ("Slice", ["float32[5]", [0], [3], [0], [0]], {}, "step is 0"),
    ("Slice", ["float32[5]", [0, 1], [3], [0]], {}, "different lengths"),
    ("Pad", ["float32[5]", [-3, -3]], {}, "cut more"),
    ("Pad", ["float32[0]", [1, 0]], {"mode": "edge"}, "empty"),
    ("Pad", ["float32[5]", [1, 0]], {"mode": "mirror"}, "mode"),
    ("Gather", ["float32[5]", [5]], {}, "out of range"),
    ("GatherND", ["float32[3,4]", [[0, -5]]], {}, "out of range"),
    ("GatherND", ["float32[2,3,4]", [[3], [0]]], {"batch_dims": 1}, "out of range"),
    ("GatherElements", ["float32[5,2]", "int64[5,3]"], {"axis": 0}, "larger"),
    ("GatherND", ["float32[5,2]", "int64[1,3]"], {}, "do not fit"),
    ("ScatterND", ["float32[5,2]", "int64[1,1]", "float32[2,2]"], {}, "must have the shape [1,2]"),
    ("ScatterElements", ["float32[5]", "int64[1]", "int8[1]"], {}, "different element types"),
    ("ScatterND", ["int8[5]", "int64[1,1]", "int8[1]"], {"reduction": "xor"}, "reduction"),
    ("TensorScatter", ["int8[2,5]", "int8[2,3]"], {"axis": 0}, "batch"),
    ("TopK", ["float32[3]", [4]], {}, "has 3 elements"),
    ("Range", [0, 5, 0], {}, "delta is 0"),
    ("DepthToSpace", ["float32[1,3,2,2]"], {"blocksize": 2}, "does not divide"),
    ("ChannelShuffle", ["float32[1,3,2]"], {"groups": 2}, "do not divide"),
    ("DFT", ["float32[2,6,2]"], {"onesided": True}, "onesided"),
    ("DFT", ["float32[2,6,1]", 0], {}, "a transform of 0 elements"),
    ("DFT", ["float32[2,6,1]", -4], {}, "a transform of -4 elements"),
    ("DFT", ["float32[2,0,1]"], {}, "a transform of 0 elements"),
    ("DFT", ["float32[2,6,14]"], {}, "not 1 or 2"),
    ("STFT", ["float32[2,6,1]", 1, None, 8], {}, "longer than"),
    ("STFT", ["float32[2,6,14]", 1, None, 4], {}, "not 1 or 2"),
    ("STFT", ["float32[2,6,0]", 1, None, 4], {"onesided": False}, "not 1 or 2"),
    ("RegexFullMatch", ["string[1]"], {"pattern": "("}, "not a regular expression"),
    ("StringConcat", ["string[1]", "int8[1]"], {}, "must be of"),
    ("Trilu", ["float32[1]"], {}, "rank 2"),
    ("EyeLike", ["float32[1]"], {}, "rank 2"),
    ("RandomNormal", [], {"shape": (-1,)}, "negative"),
]


@pytest.mark.parametrize(("name", "inputs", "attrs", "message"), BAD)
def test_rule_refuses(name: str, inputs: list[Any], attrs: dict[str, Any], message: str) -> None:
    graph = Graph("test")
    values = []
    for i, given in enumerate(inputs):
        if isinstance(given, str):
            dtype, _, dims = given.rstrip("]").partition("[")
            shape = tuple(int(d) for d in dims.split(",") if d)
            values.append(graph.input(f"x{i}", Type(dtype, shape)))  # type: ignore[arg-type]
        else:
            values.append(None if given is None else graph.const(np.array(given, np.int64)))
    with pytest.raises(TypeRuleError, match=re.escape(message)):
        graph.add(OPS[name], *values, **attrs)


SYMBOLIC = [
    ("Reshape", ("N", 8, 4), [(0, -1)], {}, ("N", 32)),
    ("Reshape", ("N", 8, 4), [(-1, 32)], {}, ("N", 32)),
    ("Reshape", ("N", "T", 12), [(0, 0, 3, -1)], {}, ("N", "T", 3, 4)),
    ("Reshape", ("N", "T", 12), [(0, -1, 12)], {}, ("N", "T", 12)),
    ("Flatten", ("N", 8, 4), [], {}, ("N", 32)),
    ("Flatten", (1, "T", 4), [], {"axis": 2}, ("T", 4)),
    ("Transpose", ("N", 8), [], {}, (8, "N")),
    ("Unsqueeze", ("N", 8), [(1,)], {}, ("N", 1, 8)),
    ("Squeeze", ("N", 1), [(1,)], {}, ("N",)),
    ("Slice", ("N", 8), [(0, 2), (2**63 - 1, 5)], {}, ("N", 3)),
    ("Slice", ("N", 8), [(-1,), (-(2**63),), (0,), (-1,)], {}, ("N", 8)),
    ("Pad", ("N", 8), [(0, 1, 0, 1)], {}, ("N", 10)),
    ("Tile", ("N", 8), [(1, 2)], {}, ("N", 16)),
    ("Expand", ("N", 1), [(1, 5)], {}, ("N", 5)),
    ("Gather", ("N", 8), [(1, 2)], {"axis": 1}, ("N", 2)),
    ("Reduce", ("N", 8), [(1,)], {"kind": "sum"}, ("N", 1)),
    ("Shape", ("N", 8), [], {}, (2,)),
    ("TopK", ("N", 8), [(3,)], {}, ("N", 3)),
    ("DepthToSpace", ("N", 8, 2, 2), [], {"blocksize": 2}, ("N", 2, 4, 4)),
]


@pytest.mark.parametrize(("name", "shape", "numbers", "attrs", "wanted"), SYMBOLIC)
def test_symbols_survive(name: str, shape: Any, numbers: Any, attrs: Any, wanted: Any) -> None:
    graph = Graph("test")
    x = graph.input("x", Type(np.dtype("float32"), shape))
    node = graph.add(OPS[name], x, *(np.array(n, np.int64) for n in numbers), **attrs)
    assert node.outputs[0].shape == wanted
