"""Compiling takes time in proportion to the number of nodes, whatever the graph looks like.

Each shape is what makes some step slow that looks at too much for each node: values with thousands
of readers, nodes with thousands of inputs, thousands of values that live at once or lie in each
other, long chains.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tinsmith.codegen import library
from tinsmith.codegen.target import level
from tinsmith.compiler.collector import still
from tinsmith.compiler.explain import explain_steps
from tinsmith.frontends.onnx import load
from tinsmith.graph import Graph
from tinsmith.kernels import memo
from tinsmith.passes.manager import run_passes
from tinsmith.plan.planner import make_plan

FEW, MANY = 2_500, 20_000
MORE = 2.5
"""How much more time a node may take in a graph of `MANY` than in one of `FEW`: were it in
proportion to the size of the graph, it would be eight times as much."""

node = helper.make_node


def value(name: str, *dims: int) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def model(nodes: list[Any], ins: list[Any], outs: list[Any], **consts: Any) -> bytes:
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def fan(n: int) -> bytes:
    """One value and one constant, each read n/3 times."""
    nodes, y = [node("Relu", ["x"], ["r"])], "r"
    for i in range(n // 3):
        nodes.append(node("Mul", ["r", "c"] if i % 2 else ["c", y], [f"m{i}"]))
        nodes.append(node("Reshape", [f"m{i}", "shape"], [f"v{i}"]))
        nodes.append(node("Add", [y, f"v{i}"], [y := f"s{i}"]))
    c = np.linspace(-0.1, 0.1, 64, dtype=np.float32).reshape(4, 16)
    return model(nodes, [value("x", 4, 16)], [value(y, 4, 16)], c=c, shape=[4, 16])


def scan(n: int) -> bytes:
    """A state-space model unrolled in time: values that are cut thousands of times, and a stack of
    as many."""
    steps, state = n // 8, "h"
    nodes = [node("Sigmoid", ["a"], ["sa"]), node("Relu", ["b"], ["sb"])]
    consts = {"h": np.zeros((1, 8, 4), np.float32), "last": [-1], "first": [1]}
    for t in range(steps):
        consts[f"t{t}"] = np.array(t)
        for x, part in ("sa", f"a{t}"), ("sb", f"b{t}"), ("c", f"c{t}"):
            nodes.append(node("Gather", [x, f"t{t}"], [part], axis=1))
        nodes += [
            node("Mul", [f"a{t}", state], [f"p{t}"]), node("Add", [f"p{t}", f"b{t}"], [f"h{t}"]),
            node("Mul", [f"h{t}", f"c{t}"], [f"q{t}"]),
            node("ReduceSum", [f"q{t}", "last"], [f"s{t}"], keepdims=0),
            node("Unsqueeze", [f"s{t}", "first"], [f"y{t}"]),
        ]  # fmt: skip
        state = f"h{t}"
    nodes.append(node("Concat", [f"y{t}" for t in range(steps)], ["y"], axis=1))
    ins = [value("a", 1, steps, 8, 4), value("b", 1, steps, 8, 4), value("c", 1, steps, 1, 4)]
    return model(nodes, ins, [value("y", 1, steps, 8)], **consts)


def moves(n: int) -> bytes:
    """A chain of reshapes and transpositions, none of which another one undoes."""
    nodes, x = [], "x"
    for i in range(n // 4):
        nodes += [
            node("Reshape", [x, "s"], [f"a{i}"]),
            node("Transpose", [f"a{i}"], [f"b{i}"], perm=[1, 2, 0]),
            node("Reshape", [f"b{i}", "t"], [f"c{i}"]),
            node("Transpose", [f"c{i}"], [f"d{i}"], perm=[1, 0]),
        ]
        x = f"d{i}"
    nodes.append(node("Relu", [x], ["y"]))
    return model(nodes, [value("x", 20, 6)], [value("y", 20, 6)], s=[4, 6, 5], t=[6, 20])


def joins(n: int) -> bytes:
    """Each join goes on where the last one ended: thousands of tensors, each inside of the next."""
    nodes, t, y = [], "x", "x"
    for i in range(n // 2):
        nodes.append(node("Tanh", [t], [t := f"t{i}"]))
        nodes.append(node("Concat", [y, t], [y := f"j{i}"], axis=1))
    return model(nodes, [value("x", 1, 1)], [value(y, 1, n // 2 + 1)])


def outputs(n: int) -> bytes:
    """n/2 outputs, each of which passes look at."""
    nodes, outs = [], []
    for i in range(n // 2):
        nodes.append(node("Mul", ["x", f"c{i % 53}"], [f"m{i}"]))
        nodes.append(node("Tanh", [f"m{i}"], [f"y{i}"]))
        outs.append(value(f"y{i}", 4, 16))
    consts = {f"c{i}": np.full(20, i + 1, np.float32)[:16] for i in range(53)}
    return model(nodes, [value("x", 4, 16)], outs, **consts)


@still
def planned(data: bytes) -> Graph:
    """All of compiling but LLVM."""
    graph = load(data)
    reports = [run_passes(graph, stage, "cpu", None) for stage in ("portable", "machine")]
    explain_steps(make_plan(graph, level("avx2")), reports)
    return graph


def seconds(work: Callable[[bytes], object], data: bytes, runs: int) -> float:
    """The least processor time that it takes, of all threads."""
    taken = []
    for _ in range(runs):
        start = time.process_time()
        work(data)
        taken.append(time.process_time() - start)
    return min(taken)


def check(work: Callable[[bytes], object], shape: Callable[[int], bytes], few: int) -> None:
    work(shape(100))  # what is loaded and made once
    many = few * MANY // FEW
    small, large = seconds(work, shape(few), 2) / few, seconds(work, shape(many), 1) / many
    if large > MORE * small:  # something else may have run
        large = min(large, seconds(work, shape(many), 1) / many)
    assert large <= MORE * small, f"{small * 1e6:.0f} us a node, {large * 1e6:.0f} in a large graph"


@pytest.mark.parametrize("shape", [fan, scan, moves, joins, outputs])
def test_passes_and_plan_take_time_in_proportion_to_nodes(shape: Callable[[int], bytes]) -> None:
    check(planned, shape, FEW)


def test_code_takes_time_in_proportion_to_nodes(cache: Path, tmp_path: Path) -> None:
    """With LLVM, the linker and the program that is stored. Nothing is left of the run before."""
    path, compiled = tmp_path / "model.onnx", []

    def work(data: bytes) -> None:
        path.write_bytes(data)
        shutil.rmtree(cache, ignore_errors=True)
        memo.forget()
        library.forget()
        compiled.append(ts.compile(path))

    check(work, scan, 500)
    x = [np.ones(t.dims, np.float32) for t in compiled[-1].inputs.values()]
    got = compiled[-1](*x)
    want = ts.compile(path, backend="numpy")(*x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
