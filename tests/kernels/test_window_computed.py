"""Convolution by computed weights, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import conv, normal
from tests.kernels.window_shapes import FEW, FIRST, GROUPED, PAD, TRANSPOSED
from tests.machines import with_core
from tinsmith import ops
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, Skip

SHAPES = {
    "depthwise, odd": conv(2, 37, 37, (9, 11), (7, 7), group=37),
    "depthwise 1-D": conv(3, 20, 20, (17,), (5,), pad=(2, 2), group=20, bias=False),
    "depthwise 3-D": conv(1, 9, 9, (4, 5, 6), (2, 3, 3), dilation=(1, 2, 1), group=9),
    "direct": conv(1, 32, 48, (5, 6), (3, 3), pad=PAD),
    "direct, odd": conv(2, 19, 37, (7, 9), (3, 3), pad=PAD, stride=(2, 1), bias=False),
    "pointwise": conv(2, 64, 80, (3, 3), (1, 1)),
    **FEW,
    **FIRST,
    **GROUPED,
}


def every_choice(op, kernel, case, target, **more):
    """Each kernel that the weights may be packed for is right; what they say of themselves."""
    arrays, attrs = case
    offered = KERNELS[kernel].offer(site_of(one_node(op, arrays, attrs, (2,)), level(target)))
    for pick in range(len(offered)):
        check(op, arrays, attrs, kernel=kernel, target=target, consts=(2,), pick=pick, **more)
    return [choice.detail for choice in offered]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    every_choice("Conv", "conv_computed", SHAPES[name], target, extra_halo=len(name) % 3)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name, target):
    case = TRANSPOSED[name]
    every_choice("ConvTranspose", "conv_transposed_computed", case, target, extra_halo=1)


def test_no_weight_reaches_what_padding_leaves():
    graph, x, w = Graph("g"), normal(1, 2, 3, 1), normal(2, 2, 1, 2)
    values = [graph.input(f"i{i}", Type(a.dtype, a.shape)) for i, a in enumerate((x, w))]
    graph.outputs = [ops.ConvTranspose(*values, dilation=(1, 2), pad=(0, 1, 0, 1))]
    assert not ts.compile(graph, cache=False)(x, w).any()


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_weight_that_is_infinite_reaches_what_it_is_a_part_of(name):
    """What lies around an input is zero, and no part of a transposed convolution."""
    (x, w, *rest), attrs = TRANSPOSED[name]
    for place in {0, w.size // 2, w.size - 1}:
        infinite = w.copy()
        infinite.flat[place] = np.inf
        graph = Graph("g")
        values = [graph.input(f"i{i}", Type(a.dtype, a.shape)) for i, a in enumerate((x, w))]
        values += [None if a is None else graph.const(a) for a in rest]
        graph.outputs = [ops.ConvTranspose(*values, **attrs)]
        net = ts.compile(graph, kernels="ConvTranspose=conv_transposed_computed", cache=False)
        got, want = net(x, infinite), ops.ConvTranspose(x, infinite, *rest, **attrs)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.parametrize("target", levels())
def test_epilogue(target):
    tail = [("Mul", ("const", normal(1, 48, 1, 1, seed=4))), ("Sigmoid",)]
    details = every_choice("Conv", "conv_computed", SHAPES["direct"], target, epilogue=tail)
    assert [d.split(",")[0] for d in details] == ["conv_direct"]


@pytest.mark.parametrize("target", levels())
def test_a_last_panel_apart(target, monkeypatch):
    monkeypatch.setattr("tinsmith.kernels.window.order.by_positions", lambda *_, **__: False)
    arrays, attrs = conv(1, 133, 133, (14, 14), (1, 1))
    choice = check(
        "Conv", arrays, attrs, kernel="conv_computed", target=with_core(target), consts=(2,),
        threads=2,
    )  # fmt: skip
    if target in ("avx2", "avx512"):
        assert [p.barrier for p in choice.phases][-2:] == [False, True]


@pytest.mark.parametrize("target", levels())
def test_infinity_stays_in_its_channel(target):
    (x, w, _), attrs = conv(1, 5, 5, (6, 7), (3, 3), group=5, bias=False)
    assert x is not None
    x[0, 4, 2, 2] = np.inf
    with np.errstate(invalid="ignore"):
        every_choice("Conv", "conv_computed", ([x, w], attrs), target)


@pytest.mark.parametrize(
    ("case", "consts", "why"),
    [
        (conv(1, 4, 4, (5, 5), (3, 3), bias=False), (1,), "the weights are a constant"),
        (conv(1, 4, 4, (5, 5), (3, 3)), (), "conv_direct: the bias .* is not a constant"),
        (conv(1, 0, 4, (5, 5), (3, 3), bias=False), (), "there are 0 weights"),
    ],
)
def test_declines(case, consts, why):
    arrays, attrs = case
    arrays = [a for a in arrays if a is not None]
    site = site_of(one_node("Conv", arrays, attrs, consts), level("avx2"))
    with pytest.raises(Skip, match=why):
        KERNELS["conv_computed"].offer(site)
