"""Blocks of 1x1 and depthwise convolutions on every instruction set, alone and in whole graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.block_cases import block_of_graph, graph_of, run_block
from tests.kernels.harness import levels, site_of
from tests.kernels.window_cases import spills
from tests.passes.build import Builder, feeds_of
from tinsmith import ops
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.block.plan import _with_weights, plan_block
from tinsmith.kernels.block.stages import stages_of
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import spec_of
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes

SHAPES = {
    "stride 2": dict(c=16, e=96, o=24, size=(20, 18), stride=2),
    "residual": dict(c=24, e=144, o=24, size=(14, 14), residual=True),
    "odd channels, 5x5, batch": dict(c=19, e=37, o=21, size=(9, 11), kernel=5, batch=2),
    "7x7 on a small image": dict(c=8, e=40, o=8, size=(3, 4), kernel=7, residual=True),
    "no expansion": dict(c=24, e=0, o=40, size=(17, 13)),
    "no expansion, stride 2, residual": dict(
        c=24, e=0, o=16, size=(17, 13), kernel=5, stride=2, residual=True, residual_of="other"
    ),
    "no projection": dict(c=24, e=100, o=0, size=(17, 13), finish="silu", kernel=5, stride=2),
    "no projection, batch": dict(c=7, e=130, o=0, size=(6, 10), batch=3, finish="none"),
    "one pixel": dict(c=8, e=8, o=8, size=(1, 1)),
    "one row": dict(c=16, e=33, o=8, size=(1, 30), kernel=3),
    "no bias, slopes": dict(c=16, e=48, o=16, size=(10, 7), bias=False, finish="slope"),
    "rows are skipped": dict(c=16, e=48, o=16, size=(13, 14), kernel=1, stride=3, pad=(0,) * 4),
    "dilated": dict(c=16, e=32, o=32, size=(15, 12), dilation=3, pad=(3, 3, 3, 3)),
    "pads differ": dict(c=8, e=32, o=8, size=(11, 12), pad=(0, 2, 3, 0)),
    "long": dict(c=4, e=20, o=3, size=(90, 9)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    run_block(graph_of(**SHAPES[name]), target, extra_halo=len(name) % 3)


@pytest.mark.parametrize("target", levels()[:2])
@pytest.mark.parametrize("name", ["stride 2", "residual", "no projection, batch", "long"])
def test_bands(name, target):
    choice = run_block(graph_of(**SHAPES[name]), target, threads=4)
    assert choice.phases[0].tiles > 1


def test_every_height_of_a_step(monkeypatch):
    """What the cost model picks here is one of many cuts; all must be right."""
    from tinsmith.kernels.block import kernel, plan
    from tinsmith.kernels.window.tiles import cut

    seen = set()
    for most in (1, 4, 13):
        for bands in (1, 3):

            def forced(target, shape, most=most, bands=bands):
                rows = cut(13, most)
                seen.add(rows)
                return plan.plan_rows(target, shape, rows, min(bands, sum(n for n, _ in rows)))

            monkeypatch.setattr(kernel, "plan_block", forced)
            g = graph_of(c=9, e=40, o=9, size=(13, 6), residual=True)
            run_block(g, "host", threads=3)
    assert {len(rows) for rows in seen} == {1, 2}


@pytest.mark.parametrize("l2", [512, 1024, 2048])  # which decides how many rows are taken at once
@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "case",
    [
        dict(c=24, e=144, o=24, size=(28, 28), residual=True),
        dict(c=16, e=96, o=24, size=(28, 28), stride=2),
        dict(c=32, e=0, o=16, size=(28, 28)),
    ],
)
def test_inner_loops_hardly_spill(case, target, l2):
    machine = replace(level(target), l2=l2 << 10)
    site = site_of(block_of_graph(graph_of(**case)), machine)
    choice = KERNELS["conv_block"].offer(site)[0]
    reads = [spec_of(v.dtype, v.dims, w) for v, w in zip(site.operands, choice.reads, strict=True)]
    writes = [spec_of(v.dtype, v.dims, w) for v, w in zip(site.outputs, choice.writes, strict=True)]
    packed = [p.make().dtype for p in choice.packed]
    text = assembly(build_phase(site, choice, 0, reads, writes, packed).text, site.target)
    # Of 16 registers, weights make room once in a tile: more of them where rows are few.
    assert len(spills(text)) <= 3 * (target == "avx2")


def test_declines_what_outgrows_the_cache():
    site = site_of(block_of_graph(graph_of(c=16, e=96, o=24, size=(20, 20))), level("host"))
    small = replace(site.target, l2=8 << 10)
    with pytest.raises(Skip, match="do not stay in the cache"):
        plan_block(small, stages_of(site).shape)


def test_weights_that_images_push_out_are_fetched_again():
    site = site_of(block_of_graph(graph_of(c=16, e=96, o=24, size=(20, 20))), level("host"))
    shape, weights, images = stages_of(site).shape, 4 * 96 * (16 + 24), 4 * 400 * (16 + 24)
    steps = 4
    most = weights + images // steps
    near, far = (
        _with_weights(replace(site.target, l2=l2), shape, 1e-3, steps, 1, 0)
        for l2 in (most, most - 1)
    )
    assert far - near == pytest.approx((steps - 1) * weights / site.target.l3_bandwidth)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_in_a_program(name, threads):
    """Forced together, and placed by the cost model, the results are those of the reference."""
    g = graph_of(**SHAPES[name])
    feeds = feeds_of(g)
    (want,) = run_graph(g, feeds)
    for kernels in ({"Block": "conv_block"}, None, {"Conv": "reference"}):
        net = ts.compile(g.clone(), threads=threads, kernels=kernels, cache=False)
        got = net(*feeds)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))
        ran = {s.kernel for s in net.program().plan.steps}
        if kernels and "Block" in kernels:
            assert "conv_block" in ran
        elif kernels:
            assert "conv_block" not in ran and "reference" in ran


@pytest.mark.parametrize("target", levels())
def test_operands_of_every_epilogue(target):
    b = Builder()
    x, r, gate = b.x(2, 19, 8, 9), b.x(2, 19, 8, 9, name="r"), b.x(2, 19, 1, 1, name="gate")
    y = ops.Relu(ops.Add(ops.Conv(x, b.w(19, 19, 1, 1)), r))
    y = ops.Conv(y, b.w(19, 1, 3, 3), b.w(19), group=19, pad=(1, 1, 1, 1))
    y = ops.Add(ops.Mul(y, gate), x)
    g = b.out(ops.Mul(ops.Add(ops.Conv(y, b.w(19, 19, 1, 1)), r), b.x(2, 1, 8, 9, name="place")))
    run_passes(g, "machine")
    run_block(g, target, extra_halo=1)


def test_explain_tells_both_ways():
    g = graph_of(c=16, e=96, o=24, size=(56, 56), stride=2)
    text = ts.compile(g, cache=False).explain()
    assert "us together" in text and "us one by one" in text


def test_two_blocks_in_a_row_share_their_values():
    """Placed one by one, a value and its copies in other layouts are known under both names."""
    b = Builder()
    x = b.x(1, 24, 9, 9)
    y = x
    for i in range(2):
        w = b.graph.const(b.array(40, 24, 1, 1), f"w{i}")
        d = b.graph.const(b.array(40, 1, 3, 3), f"d{i}")
        p = b.graph.const(b.array(24, 40, 1, 1), f"p{i}")
        z = ops.Relu(ops.Conv(ops.Relu(ops.Conv(y, w)), d, group=40, pad=(1, 1, 1, 1)))
        y = ops.Add(ops.Conv(z, p), y)
    g = b.out(y, ops.Transpose(y, perm=(0, 2, 3, 1)), ops.Exp(x))
    want = run_graph(g, feeds_of(g))
    for kernels in ({"Block": "conv_block"}, {"conv": "conv_direct"}, None):
        got = ts.compile(g.clone(), kernels=kernels, cache=False)(*feeds_of(g)).values()
        for a, e in zip(got, want, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5 * float(np.abs(e).max()))
