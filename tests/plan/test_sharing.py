"""Threads that share the positions of a result, or its channels: as the reference computes it."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.machines import machine_with, with_core
from tests.models import array, conv
from tinsmith import ops
from tinsmith.backends.cpu import compile_placed
from tinsmith.codegen.target import level, runnable
from tinsmith.graph import Graph, Type
from tinsmith.kernels.sharing import by_positions
from tinsmith.kernels.trace import make_site
from tinsmith.kernels.winograd.choose import best_plan
from tinsmith.kernels.winograd.kernel import plane_site
from tinsmith.kernels.winograd.matrices import bilinear
from tinsmith.passes.manager import run_passes

SIZES = [(1, 1), (2, 3), (9, 50), (28, 28)]
CASES = [
    (kernel, size)
    for kernel in ("conv_direct", "winograd", "winograd_amx", "conv_depthwise", "matmul_packed")
    for size in SIZES
    if size != (1, 1) or kernel.startswith("conv")  # others decline it
] + [("winograd_taps", (2, 3))]


def net_of(kernel: str, batch: int, size: tuple[int, int]) -> tuple[Graph, dict[str, str]]:
    """Layers of channels that fill no vectors, for one kernel."""
    g = Graph(kernel)
    x = g.input("x", Type(np.dtype("float32"), (batch, 70, *size)))
    if kernel == "matmul_packed":
        rows = ops.Reshape(x, np.array([-1, 70]))
        y = ops.Relu(ops.MatMul(rows, g.const(array(70, 133, seed=1), "w")))
        g.outputs = [ops.MatMul(y, g.const(array(133, 70, seed=2) / np.float32(9), "v"))]
        return g, {"MatMul": kernel}
    k, group = (1 if kernel == "conv_direct" else 3), (70 if kernel == "conv_depthwise" else 1)
    y = ops.Relu(conv(g, x, 140 if group == 1 else 70, k, group=group))
    g.outputs = [conv(g, y, 70, k, seed=3, group=group)]
    return g, {"Conv": kernel}


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("kernel", "size"), CASES, ids=str)
def test_results(kernel: str, size: tuple[int, int], batch: int, threads: int) -> None:
    if kernel == "winograd_amx" and not runnable(level("amx")):
        pytest.skip("no amx here")
    g, kernels = net_of(kernel, batch, size)
    x = array(batch, 70, *size, seed=9)
    want = ts.compile(g.clone(), backend="numpy")(x=x)
    net = ts.compile(g, threads=threads, kernels=kernels, cache=False)
    bound = 3e-5 if kernel == "winograd_amx" else 2e-5
    for _ in range(3):
        assert abs(net(x=x) - want).max() <= bound * abs(want).max()


@pytest.mark.parametrize("kernel", ["conv_direct", "conv_depthwise", "matmul_packed"])
def test_large_images_are_shared_by_positions(kernel: str) -> None:
    """The first layer at least, of few channels; what others do depends on the core."""
    g, kernels = net_of(kernel, 1, (28, 28))
    run_passes(g, "machine")
    steps = compile_placed(g, with_core("host"), threads=2, overrides=kernels).built.plan.steps
    calls = [s.calls[-1] for s in steps if s.kernel == kernel]
    assert calls[0].sweep, calls


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize(("batch", "channels"), [(1, 116), (1, 133), (1, 208), (2, 116)])
def test_a_last_panel_with_less_to_do_is_shared_apart(
    batch: int, channels: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread gets its share of either kind; they run side by side."""
    target = with_core(isa)
    if not runnable(target):
        pytest.skip(f"no {isa} here")
    monkeypatch.setattr("tinsmith.kernels.window.order.by_positions", lambda *_, **__: False)
    g = Graph("panels")
    x = g.input("x", Type(np.dtype("float32"), (batch, channels, 14, 14)))
    y = ops.Relu(conv(g, x, channels, 1))
    g.outputs = [ops.Add(conv(g, y, channels, 1, seed=3), y)]
    x0 = array(batch, channels, 14, 14, seed=9)
    want = ts.compile(g.clone(), backend="numpy")(x=x0)
    run_passes(g, "machine")
    kernels = {"Conv": "conv_direct"}
    for threads in (1, 2, 3):
        made = compile_placed(g, target, threads=threads, overrides=kernels)
        steps = [s for s in made.built.plan.steps if s.kernel == "conv_direct"]
        even = isa == "avx2" and channels != 133  # vectors of 8 fill its panels
        calls = [[c.barrier for c in s.calls] for s in steps]
        assert calls == [[True] if threads == 1 or even else [False, True]] * 2
        net = ts.compile(g.clone(), target=target, threads=threads, kernels=kernels, cache=False)
        for _ in range(3):
            assert abs(net(x=x0) - want).max() <= 2e-5 * abs(want).max()


def test_copies_pools_and_halos_follow() -> None:
    """What neither mixes channels nor has weights: threads keep the positions that they have."""
    g = Graph("follow")
    x = g.input("x", Type(np.dtype("float32"), (1, 64, 56, 56)))
    y = ops.MaxPool(ops.Relu(conv(g, x, 64, 1)), kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    z = ops.ChannelGather(conv(g, y, 64, 3, seed=2), y, sources=((1, 24, 40), (0, 0, 24)))
    g.outputs = [conv(g, z, 48, 1, seed=3)]
    x0 = array(1, 64, 56, 56, seed=9)
    want = ts.compile(g.clone(), backend="numpy")(x=x0)
    got = ts.compile(g.clone(), threads=2, cache=False)(x=x0)
    assert abs(got - want).max() <= 3e-5 * abs(want).max()
    run_passes(g, "machine")
    steps = compile_placed(g, level("host"), threads=2).built.plan.steps
    swept = {s.kernel: [c.sweep for c in s.calls] for s in steps}
    assert all(swept["pool_max"]) and all(swept["channel_gather"]), swept


def test_small_planes_are_shared_by_channels_one_layer_after_the_other() -> None:
    g = Graph("small planes")
    x = g.input("x", Type(np.dtype("float32"), (1, 160, 7, 7)))
    y = ops.Relu(conv(g, x, 960, 1))
    g.outputs = [conv(g, y, 960, 3, seed=3, group=960)]
    run_passes(g, "machine")
    steps = compile_placed(g, level("host"), threads=2).built.plan.steps
    calls = [s.calls[-1] for s in steps if s.kernel.startswith("conv")]
    assert len(calls) == 2 and not any(c.sweep for c in calls), calls


def test_threads_take_tiles_of_their_own_through_all_stages() -> None:
    target = machine_with("avx512", l2=2 << 20, l3=32 << 20, peak=170e9,
        l2_bandwidth=60e9, l3_bandwidth=25e9, dram_bandwidth=14e9,
    )  # fmt: skip
    g = Graph("winograd")
    x = g.input("x", Type(np.dtype("float32"), (1, 128, 28, 28)))
    conv(g, x, 128, 3)
    geo = plane_site(make_site(g.nodes[-1], target)).geo
    axis = bilinear(4, 3)
    assert [best_plan(target, geo, axis, axis, n)[0].blocks for n in (1, 2)] == [1, 2]


def test_who_reads_what_decides() -> None:
    g, _ = net_of("conv_direct", 1, (28, 28))
    node = next(n for n in g.nodes if n.op.name == "Conv")
    site = make_site(node, level("avx2"))
    x, image, flops = site.input(0), 1e6, 1e8
    assert not by_positions(site, x, image, flops, (28, 28), weights=0)  # one thread has all
    site.threads = 2
    assert by_positions(site, x, image, flops, (28, 28), weights=0)
    assert not by_positions(site, x, image, flops, (28, 28), weights=100 * image)  # all, twice
    assert not by_positions(site, x, image, flops, (1, 28), weights=0)  # nothing to share
    assert not by_positions(site, x, image, flops, (28, 28), weights=0, planes=1000)  # far apart
    assert by_positions(site, x, image, flops, (28, 28))
    site.by_channels.add(x)
    assert not by_positions(site, x, image, flops, (28, 28))
