"""Convolutions of which only a call tells the sizes, compared with their references."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinsmith as ts
from tinsmith import ops
from tinsmith.graph import Graph, Type


def conv(channels: int, outputs: int, kernel: tuple[int, ...], **attrs: Any) -> Graph:
    rng, graph = np.random.default_rng(0), Graph("g")
    dims = ("n", channels, *("hw"[-len(kernel) :]))
    x = graph.input("x", Type("float32", dims))
    w = rng.standard_normal((outputs, channels, *kernel)) / np.sqrt(channels * np.prod(kernel))
    b = graph.const(rng.standard_normal(outputs).astype(np.float32), "b")
    y = ops.Conv(x, graph.const(w.astype(np.float32), "w"), b, name="conv", **attrs)
    graph.outputs = [ops.Relu(y)]
    return graph


def picture(channels: int, *sizes: int) -> Any:
    n, *rest = sizes
    x = np.random.default_rng(sum(sizes)).standard_normal((n, channels, *rest))
    return x.astype(np.float32)


def agree(kernel: str, graph: Graph, pictures: list[Any], **options: Any) -> int:
    """Compare with the reference; how many programs it took. `kernel` must run in one of them."""
    net = ts.compile(graph.clone(), shapes="free", cache=False, **options)
    reference = ts.compile(graph, backend="numpy")
    programs, kernels = set[str](), set[str]()
    for x in pictures:
        found, wanted = net(x), reference(x)
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-9)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5 * scale)
        kernels |= {s.kernel for s in net.program().plan.steps}
        programs.add(str(net.program().takes))
    assert kernel in kernels, net.explain("conv")
    return len(programs)
