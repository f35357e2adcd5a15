"""Depthwise layers of MobileNet's sizes, with the kernel of this package and with Tinsmith's own.

`python examples/extension/try.py`, after `pip install examples/extension`.
"""

from importlib.util import find_spec

import numpy as np

import tinsmith as ts
from tinsmith import ops
from tinsmith.graph import Graph, Type

if find_spec("tinsmith_depthwise") is None:
    raise SystemExit("first: pip install examples/extension")
NAMES = "depthwise_3x3_rows", "conv_depthwise"


def layer(channels: int, size: int) -> Graph:
    rng = np.random.default_rng(0)
    graph = Graph("layer")
    image = graph.input("image", Type("float32", (1, channels, size, size)))
    weights = rng.standard_normal((channels, 1, 3, 3)).astype(np.float32)
    graph.outputs = [ops.Relu(ops.Conv(image, weights, None, group=channels, pad=(1, 1, 1, 1)))]
    return graph


for channels, size in ((32, 112), (128, 56), (256, 28), (512, 14)):
    image = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype(np.float32)
    installed = ts.compile(layer(channels, size))
    own = ts.compile(layer(channels, size), kernels=f"-{NAMES[0]}")
    np.testing.assert_allclose(installed(image), own(image), rtol=1e-4, atol=1e-5)
    rows = [r for net in (installed, own) for r in net.profile(image, repeat=50).rows]
    ms = {r.kernel: r.ms for r in rows if r.kernel in NAMES}
    assert tuple(ms) == NAMES, installed.explain()
    print(
        f"{channels} channels, {size}x{size}: {ms[NAMES[0]]:.3f} ms, {ms[NAMES[1]]:.3f} without it"
    )
