"""Quantising float16 and bfloat16: the element type of the division, from file to machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tinsmith as ts
from tests.frontends.models import model
from tinsmith import ops
from tinsmith.graph import Graph, Type, dtype_of
from tinsmith.ops.control import run_graph
from tinsmith.ops.precision import HALVES
from tinsmith.passes import COURSE, run_passes
from tinsmith.writers.onnx.model import write

KINDS = sorted(HALVES)
SCALE = 0.0321
MICROSOFT = "com.microsoft"
OPSETS = [(19, None), (21, None), (23, None), (23, "float32"), (25, None), (1, None)]
"""(Opset, attribute `precision`); opset 1 is that of com.microsoft."""


def numbers(kind: str, *shape: int) -> Any:
    return np.random.default_rng(0).normal(0, 3, shape or (64, 64)).astype(dtype_of(kind))


def quantised(x: Any, divided_in: str, low: str, zero: int) -> Any:
    """x by its definition: divided by SCALE of x's own type, in the type `divided_in`."""
    real, info = dtype_of(divided_in), np.iinfo(low)
    quotient = (x.astype(real) / np.array(SCALE, x.dtype).astype(real)).astype(np.float64)
    return np.clip(np.rint(quotient) + zero, info.min, info.max).astype(low)


@pytest.mark.parametrize("low", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("opset, precision", OPSETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_opset(kind: str, opset: int, precision: str | None, low: str, tmp_path: Path):
    if low.endswith("16") and opset == 19:
        pytest.skip("opset 19 has no results of 16 bits")
    x, domain = numbers(kind), MICROSOFT if opset == 1 else ""
    attrs: dict[str, Any] = {"precision": 1} if precision else {}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], domain=domain, **attrs)
    given = {"s": np.array(SCALE, x.dtype), "z": np.array(9, low)}
    domains = {domain: 1} if domain else {}
    proto = model([node], {"x": x}, ["y"], given, opset=max(opset, 19), domains=domains)
    real = kind if opset >= 23 and not precision else "float32"
    want = quantised(x, real, low, 9)
    other = quantised(x, kind if real == "float32" else "float32", low, 9)
    assert (want != other).any(), "both types of the division give the same"

    write(ts.load(proto), tmp_path / "written.onnx")
    for source in (proto, tmp_path / "written.onnx"):
        for backend in ("cpu", "numpy"):
            net = ts.compile(source, backend=backend, cache=False)
            np.testing.assert_array_equal(net(x), want)
    assert ts.verify(proto, {"x": x}, bisect=False).ok


def _scale(kind: str, *shape: int) -> Any:
    return np.linspace(SCALE, 2 * SCALE, int(np.prod(shape))).astype(dtype_of(kind)).reshape(shape)


def _around_a_sum(x: Any, kind: str, zero: Any) -> Any:
    """Bytes that are added up as floats and become bytes again, which a product reads."""
    low = ops.QuantizeLinear(x, np.float32(0.04), zero)
    real = ops.DequantizeLinear(low, np.float32(0.04), zero)
    other = ops.DequantizeLinear(low, np.float32(0.03), zero)
    y = ops.QuantizeLinear(ops.Add(real, other), np.float32(SCALE), zero, precision=kind)
    return y, ops.MatMulInteger(y, np.ones((64, 64), np.int8), zero)


FORMS = {
    "computed": lambda x, kind, zero: ops.QuantizeLinear(
        ops.Relu(x), np.array(SCALE, dtype_of(kind)), zero),
    "moved": lambda x, kind, zero: ops.QuantizeLinear(
        ops.Transpose(ops.Neg(x)), np.array(SCALE, dtype_of(kind)), zero),
    "channels": lambda x, kind, zero: ops.QuantizeLinear(x, _scale(kind, 64)),
    "blocks": lambda x, kind, zero: ops.QuantizeLinear(x, _scale(kind, 64, 4), block_size=16),
    "float8": lambda x, kind, zero: ops.QuantizeLinear(
        x, np.array(SCALE, dtype_of(kind)), dtype="float8_e4m3fn"),
    "scale of singles": lambda x, kind, zero: ops.QuantizeLinear(
        x, np.float32(SCALE), zero, precision=kind),
    "alike": lambda x, kind, zero: ops.QuantizeLinear(
        ops.DequantizeLinear(ops.QuantizeLinear(x, np.float32(SCALE), zero),
                             np.float32(SCALE), zero), np.float32(SCALE), zero, precision=kind),
    "sum": _around_a_sum,
}  # fmt: skip
"""Name -> what is quantised by a division in `kind`: x, one scale or several, zero point `zero`."""


@pytest.mark.parametrize("given", ["kind", "float32", "int32"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_rules_keep_the_type_of_the_division(kind: str, name: str, given: str):
    given = kind if given == "kind" else given
    graph, x = Graph("g"), numbers("float32")
    made = FORMS[name](graph.input("x", Type(given, x.shape)), kind, np.array(100, np.uint8))
    graph.outputs = list(made) if isinstance(made, tuple) else [made]
    x = x.astype(dtype_of(given))
    want = run_graph(graph, [x])
    np.testing.assert_equal(ts.compile(graph.clone(), cache=False).run([x]), want)
    for byte_rate in (1, 1.5, 4):  # those of other machines
        lowered = graph.clone()
        for stage in COURSE:
            run_passes(lowered, stage, byte_rate=byte_rate)
        np.testing.assert_equal(run_graph(lowered, [x]), want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_that_is_computed_and_far_values(kind: str):
    graph = Graph("g")
    x = np.array([0, -0.0, 1, -1, 6e4, -6e4, np.inf, -np.inf, np.nan], dtype_of(kind))
    s = np.array(SCALE, dtype_of(kind))
    values = [graph.input(n, Type(kind, v.shape)) for n, v in (("x", x), ("s", s))]
    graph.outputs = [ops.QuantizeLinear(values[0], ops.Abs(values[1]), np.array(7, np.int8))]
    want = run_graph(graph, [x, s])[0]
    np.testing.assert_array_equal(ts.compile(graph, cache=False).run([x, s])[0], want)
