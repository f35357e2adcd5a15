"""Convolutions of bytes of which only a call tells the sizes, compared with their references."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import level_param
from tinsmith import ops
from tinsmith.graph import Graph, Type

MACHINES = [level_param(name) for name in ("avx512vnni", "avxvnni", "avx512", "avx2", "sse2")]
SIZES = ((1, 16, 16), (1, 20, 24), (2, 7, 9), (1, 33, 17), (3, 3, 3), (1, 2, 50), (1, 57, 5),
         (2, 2, 6), (1, 4, 4), (2, 40, 41))  # fmt: skip
CASES = {  # inputs, outputs, kernel, groups, zero point of the input, attributes
    "conv_integer": (20, 33, (3, 3), 1, 0, {"pad": (1, 1, 1, 1)}),
    "conv_integer of a stride": (32, 24, (3, 3), 1, 0, {"pad": (0, 1, 1, 0), "stride": (2, 2)}),
    "conv_integer of one tap": (48, 33, (1, 1), 1, 7, {}),
    "conv_integer of groups": (32, 64, (3, 3), 2, 0, {"pad": (1, 1, 1, 1)}),
    "conv_integer with a zero point": (20, 16, (3, 3), 1, 100, {"pad": (1, 1, 1, 1)}),
    "conv_integer_winograd": (64, 64, (3, 3), 1, 0, {"pad": (1, 1, 1, 1)}),
    "conv_integer_winograd with a zero point": (64, 70, (3, 3), 1, 9, {"pad": (1, 0, 0, 1)}),
    "conv_integer_depthwise": (24, 24, (3, 3), 24, 0, {"pad": (1, 1, 1, 1)}),
    "conv_integer_depthwise of a stride": (24, 24, (5, 5), 24, 0,
                                           {"pad": (2, 2, 2, 2), "stride": (2, 2)}),
}  # fmt: skip


def graph_of(inputs, outputs, kernel, groups, zero, attrs):
    graph, rng = Graph("g"), np.random.default_rng(3)
    x = graph.input("x", Type("uint8", ("n", inputs, "h", "w")))
    w = rng.integers(-127, 128, (outputs, inputs // groups, *kernel)).astype(np.int8)
    y = ops.ConvInteger(x, graph.const(w, "w"), graph.const(np.uint8(zero)), name="conv",
                        group=groups, **attrs)  # fmt: skip
    graph.outputs = [y]
    return graph


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_one_program_takes_all_sizes(case, target):
    """Those with a size of 1 may have others."""
    graph, kernel = graph_of(*CASES[case]), case.split(" ", 1)[0]
    forced = {"conv": kernel} if "vnni" in target else {}  # which is the fastest depends on a core
    net = ts.compile(graph.clone(), shapes="free", cache=False, target=target, kernels=forced)
    reference = ts.compile(graph, backend="numpy")
    programs, kernels, rng = set(), set(), np.random.default_rng(0)
    for n, h, w in SIZES:
        x = rng.integers(0, 256, (n, CASES[case][0], h, w)).astype(np.uint8)
        np.testing.assert_array_equal(net(x), reference(x), err_msg=str((n, h, w)))
        kernels |= {step.kernel for step in net.program().plan.steps}
        if min(n, h, w) > 1:
            programs.add(str(net.program().takes))
    if "vnni" in target:
        assert kernel in kernels, net.explain("conv")
        assert len(programs) == 1 and "" not in programs


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize(
    "left, right, zeros",
    [
        ("uint8", "int8", (None, None)),
        ("int8", "uint8", (5, 7)),
        ("uint8", "uint8", (100, 120)),
        ("int8", "int8", (-3, None)),
    ],
)
def test_one_product_takes_all_sizes(left, right, zeros, target):
    graph, rng = Graph("g"), np.random.default_rng(4)
    a, b = (
        graph.input("a", Type(left, ("n", "m", "k"))),
        graph.input("b", Type(right, ("n", "k", "c"))),
    )
    known = [
        None if z is None else graph.const(np.array(z, kind))
        for z, kind in zip(zeros, (left, right), strict=True)
    ]
    graph.outputs = [ops.MatMulInteger(a, b, *known, name="product")]
    net = ts.compile(graph.clone(), shapes="free", cache=False, target=target)
    reference, programs = ts.compile(graph, backend="numpy"), set()
    for n, m, k, c in ((2, 8, 16, 20), (3, 7, 5, 33), (2, 30, 3, 7), (2, 2, 2, 2), (4, 9, 129, 70)):
        x = rng.integers(np.iinfo(left).min, np.iinfo(left).max, (n, m, k)).astype(left)
        w = rng.integers(np.iinfo(right).min, np.iinfo(right).max, (n, k, c)).astype(right)
        np.testing.assert_array_equal(net(x, w), reference(x, w), err_msg=str((n, m, k, c)))
        programs.add(str(net.program().takes))
    assert len(programs) == 1 and "" not in programs
    assert [step.kernel for step in net.program().plan.steps] == ["matmul_integer"]
