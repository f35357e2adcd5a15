"""Whatever follows an operator is computed: fused to it or not, of one tensor or of two."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.ops.samples import Sample, load_samples
from tinsmith.errors import CodegenError
from tinsmith.graph import Graph, Type, Value
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.memo import forget
from tinsmith.ops import OPS

EACH = 3  # samples of an operator
INTEGERS = {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
"""Anchors whose results are no floats."""


def _some(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _recurrent(op: str, gates: int, directions: int) -> Sample:
    weights = _some(directions, 4 * gates, 3), _some(directions, 4 * gates, 4)
    both = "bidirectional" if directions > 1 else "forward"
    return Sample(op, (_some(5, 2, 3), *weights), {"hidden_size": 4, "direction": both})


MORE = [
    *(_recurrent(op, g, d) for op, g in (("LSTM", 4), ("GRU", 3), ("RNN", 1)) for d in (1, 2)),
    Sample("Conv", (_some(2, 3, 9, 7), _some(20, 3, 3, 3)), {"pad": (1, 1, 1, 1)}),
    Sample("Conv", (_some(1, 20, 7, 7), _some(18, 20, 1, 1))),
    Sample("Conv", (_some(1, 20, 7, 7), _some(20, 1, 3, 3)), {"group": 20}),
    Sample("Conv", (_some(1, 20, 14, 14), _some(20, 20, 3, 3), _some(20)), {"pad": (1, 1, 1, 1)}),
    Sample("ConvTranspose", (_some(1, 5, 4, 4), _some(5, 6, 3, 3)), {"stride": (2, 2)}),
    Sample("DeformConv", (_some(1, 4, 6, 6), _some(5, 4, 3, 3), _some(1, 18, 4, 4))),
    Sample("MatMul", (_some(5, 7), _some(7, 9))),
    Sample("MatMul", (_some(2, 1, 33), _some(33, 40))),
    Sample("MatMul", (_some(2, 5, 7), _some(2, 7, 9))),
    Sample(
        "SmallMatMul", (_some(2, 9), np.arange(-30, 33, dtype=np.int8).reshape(9, 7), _some(1, 7))
    ),
    Sample("Attention", (_some(2, 3, 5, 8), _some(2, 3, 6, 8), _some(2, 3, 6, 8))),
    Sample("Einsum", (_some(3, 5), _some(5, 4)), {"equation": "ij,jk->ik"}),
    Sample("MaxPool", (_some(1, 20, 7, 7),), {"kernel": (2, 2)}),
    Sample("AveragePool", (_some(1, 20, 7, 7),), {"kernel": (3, 3)}),
    Sample("GlobalPool", (_some(1, 20, 7, 7),)),
    Sample("LayerNorm", (_some(3, 20), _some(20), _some(20))),
    Sample("Softmax", (_some(3, 20),)),
    Sample("Resize", (_some(1, 4, 5, 5), None, np.array([1, 1, 2, 2], np.float32))),
]


def _alone(sample: Sample) -> tuple[Graph, Value] | None:
    """The sample, all but its first input constants, and its result; None where that is no float32
    of known shape."""
    graph = Graph("test")
    first, *rest = sample.inputs
    values = [graph.input("x", Type(first.dtype, first.shape))]
    values += [None if a is None else graph.const(a) for a in rest]
    results = graph.add(OPS[sample.op], *values, **sample.attrs).outputs
    y = results[0] if results else None
    fits = y is not None and isinstance(y.type, Type) and y.type.is_static
    return (graph, y) if y is not None and fits and y.dtype == np.float32 else None


def _samples() -> list[Sample]:
    seen: Counter[str] = Counter()
    found = []
    for sample in [*MORE, *load_samples()]:
        first = sample.inputs[0] if sample.inputs else None
        random = sample.op.startswith(("Random", "Bernoulli", "Multinomial"))
        if random or first is None or seen[sample.op] == EACH or _alone(sample) is None:
            continue
        seen[sample.op] += 1
        found.append(sample)
    return found


def test_all_anchors_are_followed() -> None:
    anchors = {op.name for op in OPS.rows() if "anchor" in op.traits}
    assert anchors - INTEGERS <= {sample.op for sample in _samples()}


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("sample", _samples(), ids=str)
def test_what_follows_an_operator_is_computed(sample: Sample, residual: bool) -> None:
    made = _alone(sample)
    assert made is not None
    (graph, y), feeds = made, [sample.inputs[0]]
    z = graph.add(
        OPS["Mul"], graph.add(OPS["Relu"], y).output, graph.const(np.float32(-0.5))
    ).output
    if residual:
        z = graph.add(OPS["Add"], z, graph.input("r", Type(y.dtype, y.dims))).output
        feeds.append(_some(*y.dims))
    graph.outputs.append(z)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = ts.compile(graph, backend="numpy").run(feeds)[0]
        got = ts.compile(graph, cache=False).run(feeds)[0]
    finite = np.abs(expected[np.isfinite(expected)])
    atol = 1e-4 * float(finite.max(initial=1e-3))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=atol)


def test_a_kernel_that_leaves_out_what_is_fused_to_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Emit, "epilogue", lambda self, acc, index, mask=None: acc)
    graph = Graph("test")
    x = graph.input("x", Type(np.dtype("float32"), (2, 33)))
    y = graph.add(OPS["MatMul"], x, graph.const(_some(33, 31))).output
    graph.outputs.append(graph.add(OPS["Tanh"], y).output)
    forget()
    with pytest.raises(CodegenError, match="leaves out what is fused to MatMul"):
        ts.compile(graph, cache=False)
    forget()
