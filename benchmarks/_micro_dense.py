"""Products, norms and reductions of well-known networks, for `python -m benchmarks.micro`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.harness import one_node
from tinsmith.graph import Node


@dataclass(frozen=True)
class Case:
    """An operator on inputs of these shapes, some of them constants, perhaps over axes."""

    kernel: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    consts: tuple[int, ...] = ()
    axes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        shown = " ".join("x".join(map(str, s)) for s in self.shapes)
        return f"{shown} {self.axes or ''}".strip()

    def node(self) -> Node:
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(s, dtype=np.float32) for s in self.shapes]
        if self.axes is not None:
            arrays.append(np.array(self.axes))
        return one_node(self.op, arrays, dict(self.attrs), self.consts)


def cases() -> Iterator[Case]:
    yield from products()
    for shape, axis in (
        ((12, 197, 197), -1),
        ((192, 49, 49), -1),
        ((1, 1000), -1),
        ((64, 21, 1024), 1),
    ):
        yield Case("softmax", "Softmax", (shape,), (("axis", axis),))
    for n, c in ((196, 768), (3136, 96), (784, 192)):
        yield Case("layer_norm", "LayerNorm", ((n, c), (c,), (c,)), (), (1, 2))
    yield Case("rms_norm", "RMSNorm", ((128, 4096), (4096,)), (), (1,))
    yield Case("instance_norm", "InstanceNorm", ((1, 32, 128, 128), (32,), (32,)), (), (1, 2))
    for shape, axes in (
        ((1, 256, 56, 56), (2, 3)), ((1, 2048, 7, 7), (2, 3)), ((56, 56, 256), (0, 1)),
        ((512, 1024), (0,)), ((512, 1024), (1,)), ((64, 33, 64), (1,)),
    ):  # fmt: skip
        yield Case("reduce", "Reduce", (shape,), (("kind", "mean"),), (1,), axes)
    for shape in ((64, 1000), (1, 21, 256, 256)):
        yield Case("arg_reduce", "ArgReduce", (shape,), (("kind", "max"), ("axis", 1)))


def products() -> Iterator[Case]:
    for m, k, n in (
        (196, 768, 768), (196, 768, 3072), (196, 3072, 768), (197, 768, 2304), (49, 384, 1536),
        (784, 192, 768), (784, 768, 192), (3136, 96, 384), (3136, 384, 96), (64, 512, 512),
        (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (100, 300, 100), (8, 768, 768),
        (16, 1024, 4096),
    ):  # fmt: skip
        yield Case("matmul_packed", "MatMul", ((m, k), (k, n)), consts=(1,))
        yield Case("matmul_amx", "MatMul", ((m, k), (k, n)), consts=(1,))
    for m, k, n in (
        (1, 512, 512), (1, 2048, 1000), (1, 4096, 4096), (1, 25088, 4096), (4, 4096, 4096),
    ):  # fmt: skip
        yield Case("gemv_packed", "MatMul", ((m, k), (k, n)), consts=(1,))
    for a, b in (
        ((12, 197, 64), (12, 64, 197)), ((12, 197, 197), (12, 197, 64)),
        ((64, 49, 32), (64, 32, 49)), ((64, 49, 49), (64, 49, 32)),
        ((512, 512), (512, 512)), ((1024, 1024), (1024, 1024)),
        ((8, 1024, 64), (8, 64, 1024)), ((8, 1024, 1024), (8, 1024, 64)),
    ):  # fmt: skip
        yield Case("matmul_batched", "MatMul", (a, b))
    yield Case("matvec", "MatMul", ((4096, 4096), (4096, 1)))
