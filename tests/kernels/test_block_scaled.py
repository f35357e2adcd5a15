"""1x1 convolutions of scaled channels on every instruction set, alone and in whole graphs."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.block_cases import block_of_graph, run_block
from tests.kernels.harness import levels, site_of
from tests.machines import with_core
from tests.passes.build import Builder, feeds_of
from tinsmith import ops
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes


@pytest.mark.parametrize("threads", [1, 2])
def test_factors_that_are_constant(threads):
    b = Builder()
    x = b.x(1, 8, 4, 12)
    y = ops.Conv(ops.Mul(x, b.w(1, 8, 1, 1, name="s")), b.w(16, 8, 1, 1))
    g = b.out(y)
    feeds = feeds_of(g)
    want = run_graph(g, feeds)
    np.testing.assert_allclose(
        ts.compile(g, threads=threads)(*feeds), want[0], rtol=1e-4, atol=1e-5
    )


def graph_of(c, o, size, *, batch=1, bias=True, residual=False, swapped=False, factors=None):
    b = Builder()
    x, s = b.x(batch, c, *size), b.x(*(factors or (batch, c, 1, 1)), name="s")
    y = ops.Mul(s, x) if swapped else ops.Mul(x, s)
    y = ops.Conv(y, b.w(o, c, 1, 1), *([b.w(o, name="b")] if bias else []))
    if residual:
        y = ops.Relu(ops.Add(y, b.x(*y.shape, name="other")))
    g = b.out(y)
    run_passes(g, "portable")
    run_passes(g, "machine")
    return g


SHAPES = {
    "many channels": dict(c=160, o=96, size=(14, 13)),
    "odd channels": dict(c=37, o=21, size=(9, 11), residual=True),
    "few channels": dict(c=5, o=3, size=(12, 12), bias=False),
    "wide": dict(c=16, o=130, size=(7, 7), swapped=True, residual=True),
    "two pixels": dict(c=24, o=40, size=(1, 2)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_shapes(name, threads, target):
    run_block(graph_of(**SHAPES[name]), target, threads, len(name) % 3, "conv_scaled")


@pytest.mark.parametrize("target", levels())
def test_a_last_panel_apart(target, monkeypatch):
    monkeypatch.setattr("tinsmith.kernels.window.order.by_positions", lambda *_, **__: False)
    g = graph_of(c=133, o=133, size=(14, 14), residual=True)
    choice = run_block(g, with_core(target), 2, 1, "conv_scaled")
    if target in ("avx2", "avx512"):
        assert [p.barrier for p in choice.phases] == [True, False, True]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (dict(c=16, o=16, size=(5, 5), batch=2), "there are 2 images"),
        (dict(c=16, o=16, size=(1, 1)), "no product of an image"),
    ],
)
def test_declines(case, why):
    site = site_of(block_of_graph(graph_of(**case)), level("host"))
    with pytest.raises(Skip, match=why):
        KERNELS["conv_scaled"].offer(site)


def test_only_numbers_for_whole_channels_of_each_image_are_taken():
    for factors in ((1, 16, 6, 1), (1, 1, 1, 1)):
        g = graph_of(16, 16, (6, 6), factors=factors)
        assert "Block" not in [n.op.name for n in g.nodes]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_in_a_program(batch, threads):
    """Where the image is much larger than the weights, one image is computed so, three are not."""
    g = graph_of(48, 24, (60, 60), batch=batch, residual=True)
    feeds = feeds_of(g)
    net = ts.compile(g, threads=threads, cache=False)
    kernels = [step.kernel for step in net.program().plan.steps]
    assert ("conv_scaled" in kernels) == (batch == 1)
    (want,) = run_graph(g, feeds)
    np.testing.assert_allclose(net(*feeds), want, rtol=1e-4, atol=1e-4)
