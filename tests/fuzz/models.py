"""Drawing whole models, their inputs, and how they are compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.base import CHANNELS, SIZES, Array, Unfit, Value
from tests.fuzz.elementwise import Elementwise
from tests.fuzz.moves import Moves
from tests.fuzz.products import Products
from tests.fuzz.windows import Windows
from tinsmith.codegen.target import level, runnable

TARGETS = [
    t for t in ("host", "avx512", "avx512vnni", "avx2", "sse2", "scalar") if runnable(level(t))
]
PASSES = ["canonicalise", "fold-constants", "fold-into-conv", "fuse-elementwise", "gather-channels"]
STEPS = [
    "unary",
    "unary",
    "guarded",
    "clip",
    "binary",
    "binary",
    "binary",
    "several",
    "where",
    "residual",
    "residual",
    "residual",
    "casts",
    "other_types",
    "conv",
    "conv",
    "conv",
    "conv_then",
    "conv_then",
    "conv_then",
    "conv_transpose",
    "pool",
    "pool",
    "global_pool",
    "norm",
    "norm",
    "softmax",
    "reduce",
    "reduce",
    "arg",
    "scan",
    "matmul",
    "matmul",
    "gemm",
    "attention",
    "transpose",
    "transpose",
    "reshape",
    "reshape",
    "concat",
    "concat",
    "split",
    "slice",
    "slice",
    "pad",
    "resize",
    "repeat",
    "gather",
    "blocks",
    "shuffle",
    "top",
    "trilu",
    "again",
    "again",
]


class Maker(Elementwise, Windows, Products, Moves):
    """Draws a model node by node."""


@dataclass
class Case:
    model: onnx.ModelProto
    feeds: dict[str, Array]
    options: dict[str, Any]


def draw(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    m = Maker(rng)
    for _ in range(m.some(1, 2)):
        batch = m.one([1, 1, 1, 1, 2, 3, 0 if m.chance(0.2) else 1])
        kind = m.some(0, 9)
        if kind < 6:
            m.input((batch, m.one(CHANNELS), m.one(SIZES), m.one(SIZES)))
        elif kind == 6:
            m.input((batch, m.one(CHANNELS), m.one([1, 2, 9, 30, 100])))
        elif kind == 7:
            m.input((batch, m.one([1, 3, 8, 17]), m.some(1, 5), m.some(1, 6), m.some(1, 7)))
        elif kind == 8:
            m.input((m.one([1, 2, 7, 16, 33]), m.one([1, 3, 8, 16, 50, 129])))
        else:
            m.input(tuple(m.some(1, 5) for _ in range(m.some(0, 5))))
    if m.chance(0.1):
        m.input(m.inputs[0].shape, m.one([np.int64, np.int32, np.float64, np.bool_, np.uint8]))
    length, tries = m.some(1, 12), 0
    while len(m.nodes) < length and tries < 200:
        tries += 1
        kept = len(m.nodes), len(m.values), len(m.weights)
        try:
            getattr(m, m.one(STEPS))()
        except (Unfit, ValueError):  # numpy's, where shapes do not go together
            del m.nodes[kept[0] :], m.values[kept[1] :], m.weights[kept[2] :]
    used = {i for n in m.nodes for i in n.input}
    ends = [v for v in m.values if v.name not in used]
    outputs = ends + [v for v in m.values if v.name in used and m.chance(0.1)]
    rng.shuffle(outputs)  # type: ignore[arg-type]

    def info(v: Value, free: float = 0.0) -> Any:
        dims = [f"{v.name}_{i}" if m.chance(free) else n for i, n in enumerate(v.shape)]
        return helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.dtype), dims)

    free = m.one([0.0, 0.0, 0.0, 0.3, 1.0])
    graph = helper.make_graph(
        m.nodes,
        f"fuzz{seed}",
        [info(v, free) for v in m.inputs],
        [info(v) for v in outputs],
        m.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {v.name: sample(rng, v.shape, v.dtype) for v in m.inputs}
    options: dict[str, Any] = {
        "threads": m.one([1, 1, 1, 2, 3]),
        "target": m.one([TARGETS[0], TARGETS[0], *TARGETS]),
        "precision": m.one(["default", "default", "strict"]),
    }
    if m.chance(0.15):
        options["passes"] = "-" + m.one(PASSES)
    return Case(model, feeds, options)


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape), dtype)
