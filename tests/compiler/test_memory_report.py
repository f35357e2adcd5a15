"""Where the memory of a model goes: what is planned step by step, what a run takes, and what an
engine without a plan would need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests import models
from tests.models import array
from tests.transformer import feeds, transformer
from tinsmith import ops
from tinsmith.compiler.memory import WIDTH, MemoryReport
from tinsmith.errors import InputShapeError, OptionError, TinsmithError
from tinsmith.graph import Graph, SequenceType, Type
from tinsmith.plan.alive import Moment, allocate_and_free, peak_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GRAPHS = [
    models.residual, models.narrow_residual, models.branches, lambda: models.residual(3, 20),
    lambda: models.branches(aligned=False),
]  # fmt: skip
FILES = [
    "digits/digits", "quantize/residual", "quantize/depthwise", "quantize/squeeze", "quantize/gru",
    "quantize/transformer",
]  # fmt: skip


def inputs_of(net: Any, free: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        n: rng.standard_normal([d if isinstance(d, int) else free for d in t.shape]).astype(t.dtype)
        for n, t in net.inputs.items()
    }


def check(report: MemoryReport) -> None:
    """What a run takes is what was planned."""
    planned, found = report.planned, report.measured
    assert found is not None
    assert found.arena == planned.peak and found.weights == planned.weights
    assert found.workspace <= planned.workspace and found.results == report.output_bytes
    alive = [row.alive for row in report.steps]
    assert max(alive, default=0) == planned.lower_bound <= planned.peak <= planned.naive
    assert all(row.made <= row.alive for row in report.steps)
    assert max((row.workspace for row in report.steps), default=0) <= planned.workspace
    assert all(len(line) <= WIDTH for line in str(report).splitlines())
    most = f"{planned.lower_bound / 1000:,.1f}"
    assert f"{most}* " in str(report) or not planned.lower_bound


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", GRAPHS)
def test_a_run_takes_what_was_planned(make: Any, threads: int) -> None:
    net = ts.compile(make(), threads=threads, cache=False)
    report = ts.memory_report(net, inputs_of(net))
    check(report)
    assert ts.memory_report(net).measured is None
    assert report.threads == net.program().plan.threads and not report.by_reference


@pytest.mark.parametrize("name", FILES)
def test_files_take_what_was_planned(name: str) -> None:
    net = ts.compile(EXAMPLES / f"{name}.onnx", shapes="fixed")
    check(ts.memory_report(net, inputs_of(net)))
    again = ts.compile(EXAMPLES / f"{name}.onnx", shapes="fixed")  # from the store
    first, second = (ts.memory_report(n, list(inputs_of(n).values())) for n in (net, again))
    assert first.steps == second.steps and first.planned == second.planned


@pytest.mark.parametrize("shapes", ["both", "fixed", "free"])
def test_free_sizes_take_what_was_planned(shapes: str) -> None:
    net = ts.compile(EXAMPLES / "digits" / "digits.onnx", shapes=shapes)
    peaks = []
    for batch in (1, 5, 3):
        report = ts.memory_report(net, inputs_of(net, batch))
        found, planned = report.measured, report.planned
        assert report.shapes == {"image": [batch, 1, 8, 8]} and found is not None
        assert found.arena <= planned.peak and found.results == report.output_bytes == 40 * batch
        assert max(row.alive for row in report.steps) == planned.lower_bound <= planned.peak
        peaks.append(planned.lower_bound)
    if shapes != "both":  # then each may have a program of its own, or that of all sizes
        assert peaks[1] > peaks[2] > peaks[0]


def test_what_numpy_computes_is_told_apart() -> None:
    g = Graph("both")
    x = g.input("x", Type(np.dtype("float32"), (4, 300)))
    g.outputs = [ops.Relu(ops.Softmax(ops.MatMul(x, g.const(array(300, 200), "w")), axis=-1))]
    slow = ts.compile(g, kernels="Softmax=reference,Fused=reference", cache=False)
    report = ts.memory_report(slow, inputs_of(slow))
    assert report.by_reference > 0 and report.measured is not None
    assert report.measured.python > 4 * 200 * 4
    assert "by reference, in numpy's own memory" in str(report)


def test_models_of_sizes_that_data_tell() -> None:
    net = ts.compile(transformer(), cache=False)
    report = ts.memory_report(net, feeds(1, 5))
    assert report.measured is not None and report.planned.peak == report.measured.arena
    assert report.shapes == {n: list(np.shape(a)) for n, a in feeds(1, 5).items()}


def test_lists_of_tensors_are_no_shapes() -> None:
    g = Graph("joined")
    parts = g.input("parts", SequenceType(Type("float32", (2, "k"))))
    g.outputs = [ops.ConcatFromSequence(parts, axis=1)]
    report = ts.memory_report(ts.compile(g, cache=False), [[array(2, 3), array(2, 1)]])
    assert report.unsized == 1 and report.shapes == {"parts": []}


def test_the_report_in_words_and_as_data() -> None:
    net = ts.compile(EXAMPLES / "digits" / "digits.onnx", cache=False)
    report = ts.memory_report(net, inputs_of(net))
    text, data = str(report), report.to_json()
    for word in ("arena", "lower bound", "allocate, free", "workspace", "weights, packed", "conv1"):
        assert word in text
    assert "measured arena" in text and "measured" not in str(ts.memory_report(net))
    assert data["planned"]["peak"] == data["measured"]["arena"] == report.planned.peak
    assert data["file_weights"] == 24_360 and data["steps"][0]["name"] == "conv0"


def test_what_has_no_plan_is_refused() -> None:
    net = ts.compile(models.residual(), backend="numpy")
    with pytest.raises(TinsmithError, match="has no program"):
        ts.memory_report(net)
    with pytest.raises(OptionError, match="takes a compiled net, not Graph"):
        ts.memory_report(models.residual())  # type: ignore[arg-type]
    with pytest.raises(InputShapeError):
        ts.memory_report(ts.compile(models.residual()), [np.zeros((1, 2, 3, 4), np.float32)])


# ---- without a plan


def chain() -> Graph:
    g = Graph("chain")
    x = g.input("x", Type(np.dtype("float32"), (1, 2, 10, 10)))
    a = models.conv(g, x, 8)
    b = ops.Add(models.conv(g, ops.Relu(a, name="in_place"), 4, seed=2), models.conv(g, a, 4, 1))
    g.outputs = [ops.Softmax(ops.Reshape(b, np.array([1, 400])), axis=-1)]
    return g


def test_each_result_lives_from_its_step_to_its_last_reader() -> None:
    moments = allocate_and_free(chain())
    x, a, b = 4 * 200, 4 * 800, 4 * 400
    found = {m.op: m for m in moments}
    assert [m.alive for m in moments if m.op == "Conv"] == [x + a, 2 * a + b, a + 2 * b]
    assert found["Relu"].allocates == a  # another reads what it would be written over
    assert found["Add"].allocates == b and found["Add"].alive == 3 * b
    assert found["Reshape"].allocates == found["Softmax"].allocates == 0
    assert peak_of(moments) == 2 * a + b and peak_of([]) == 0


@pytest.mark.parametrize(
    ("op", "options"),
    [
        (ops.Relu, {}), (ops.Softmax, {"axis": 1}), (ops.LRN, {"size": 3}),
        (ops.Sigmoid, {}), (ops.Abs, {}),
    ],
)  # fmt: skip
def test_operators_of_one_operand_are_in_place(op: Any, options: dict[str, Any]) -> None:
    g = Graph("one")
    x = g.input("x", Type(np.dtype("float32"), (1, 4, 3, 3)))
    g.outputs = [op(x, **options)]
    assert allocate_and_free(g) == [Moment(g.nodes[0].name, g.nodes[0].op.name, 0, 144)]
    g.outputs.append(x)
    assert allocate_and_free(g)[0].alive == 288


def test_sizes_that_nobody_knows_count_nothing() -> None:
    g = Graph("free")
    x = g.input("x", Type(np.dtype("float32"), ("N", 4)))
    g.outputs = [ops.MatMul(x, g.const(array(4, 5), "w"))]
    assert [(m.alive, m.known) for m in allocate_and_free(g)] == [(0, False)]
