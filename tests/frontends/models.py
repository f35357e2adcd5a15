"""Small ONNX models, and what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tinsmith as ts
from tinsmith.frontends import load
from tinsmith.graph import Graph
from tinsmith.graph.verify import verify
from tinsmith.ops.interpret import run_graph

Arrays = Mapping[str, np.ndarray[Any, Any]]
FLOAT = 1


def info(name: str, shape: Sequence[int | str | None] | None = None, type: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type, shape)


def info_of(name: str, array: np.ndarray[Any, Any]) -> Any:
    return info(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))


def model(
    nodes: Sequence[Any],
    inputs: Arrays | Sequence[Any],
    outputs: Sequence[Any],
    weights: Arrays | None = None,
    *,
    opset: int = 21,
    functions: Sequence[Any] = (),
    value_info: Sequence[Any] = (),
    domains: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model; inputs may be arrays to be fed, outputs names without a type."""
    if isinstance(inputs, Mapping):
        inputs = [info_of(k, v) for k, v in inputs.items()]
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        [helper.make_empty_tensor_value_info(o) if isinstance(o, str) else o for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()],
        value_info=list(value_info),
    )
    imports = {"": opset, **(domains or {})}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(k, v) for k, v in imports.items()],
        functions=list(functions),
        ir_version=10,
    )


def one(
    type: str,
    *inputs: np.ndarray[Any, Any] | None,
    outs: int = 1,
    weights: Sequence[int] = (),
    opset: int = 21,
    domain: str = "",
    version: int = 1,
    **attrs: Any,
) -> Any:
    """A model of one node, and its feeds; inputs whose number is in `weights` are initialisers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    fixed = {f"x{i}": given.pop(f"x{i}") for i in weights}
    outputs = [f"y{i}" for i in range(outs)]
    nodes = [helper.make_node(type, names, outputs, domain=domain, **attrs)]
    domains = {domain: version} if domain else None
    return model(nodes, given, outputs, fixed, domains=domains, opset=opset), given


contrib = partial(one, domain="com.microsoft", opset=17)
ml = partial(one, domain="ai.onnx.ml", version=3, opset=17)


def run(proto: Any, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    """The outputs of the imported model."""
    graph = load(proto)
    verify(graph, proven=True)
    return run_graph(graph, feeds)


def check(proto: ModelProto, feeds: Arrays, expected: Any = None, rtol: float = 1e-5) -> Graph:
    """Import, run, and compare with `expected`, or with the reference evaluator of ONNX."""
    if expected is None:
        expected = ReferenceEvaluator(proto).run(None, dict(feeds))
    graph = load(proto)
    verify(graph, proven=True)
    assert [v.name for v in graph.inputs] == [v.name for v in proto.graph.input]
    assert [v.name for v in graph.outputs] == [v.name for v in proto.graph.output]
    for got, want in zip(run_graph(graph, feeds), expected, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    return graph


def check_evaluator(
    case: tuple[ModelProto, Arrays], backend: str, rtol: float = 2e-5, atol: float = 1e-6
) -> None:
    """A compiled model (and its feeds) gives what ONNX's evaluator gives."""
    proto, feeds = case
    want = ReferenceEvaluator(proto).run(None, feeds)
    net = ts.compile(load(proto), backend=backend)
    for got, w in zip(net.run(list(feeds.values())), want, strict=True):
        assert got.shape == w.shape
        if w.dtype.kind in "OUS":
            assert got.tolist() == w.tolist()
        else:
            assert got.dtype == w.dtype or w.dtype != np.float32
            np.testing.assert_allclose(got, w, rtol=rtol, atol=atol)


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def branch(name: str, nodes: list[Any], outputs: list[str], weights: Any = None) -> Any:
    """A subgraph without inputs: all that it reads is captured, or one of its weights."""
    return helper.make_graph(
        nodes,
        name,
        [],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()],
    )
