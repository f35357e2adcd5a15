"""Random operands for convolutions and pools, and a look at the assembly of a kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.kernels.harness import one_node, site_of
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import Target, level
from tinsmith.kernels._kernel import KERNELS
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import spec_of

RELU6 = [("Clip", None, {"min": 0.0, "max": 6.0})]
"""An epilogue that holds constants."""


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


EPILOGUES = {
    "relu": [("Relu",)],
    "residual": [("Add", normal(2, 19, 6, 7, seed=5)), ("Relu",)],
    "channels": [("Mul", ("const", normal(1, 19, 1, 1, seed=6))), ("Sigmoid",)],
    "scalar": [("Add", ("const", normal(1, seed=7)))],
    "pixels": [("Mul", normal(2, 1, 6, 7, seed=8)), ("HardSwish",)],
    "row": [("Sub", normal(1, 19, 6, 1, seed=9))],
    "heavy": [("Mish",), ("Sub", normal(1, 19, 6, 1, seed=9)), ("Gelu",)],
}
"""Of results of shape 2x19x6x7."""


def conv(
    batch: int,
    channels: int,
    outputs: int,
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    bias: bool = True,
    group: int = 1,
    **attrs: Any,
) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """The arrays and attributes of a Conv; outputs are of order 1."""
    fan = channels // group * int(np.prod(kernel))
    w = normal(outputs, channels // group, *kernel, seed=1) / np.float32(fan**0.5)
    b = normal(outputs, seed=2) if bias else None
    return [normal(batch, channels, *size), w, b], {"group": group, **attrs}


def conv_transposed(
    batch: int,
    channels: int,
    outputs: int,
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    bias: bool = True,
    group: int = 1,
    **attrs: Any,
) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """The arrays and attributes of a ConvTranspose."""
    w = normal(channels, outputs // group, *kernel, seed=1) / np.float32((channels // group) ** 0.5)
    b = normal(outputs, seed=2) if bias else None
    return [normal(batch, channels, *size), w, b], {"group": group, **attrs}


def machine_code(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: dict[str, Any],
    kernel: str,
    target: str | Target,
    epilogue: Sequence[tuple] = (),
    *,
    phase: int = 0,
    precision: str = "default",
) -> str:
    """The assembly of a phase of a kernel."""
    machine = level(target) if isinstance(target, str) else target
    site = site_of(one_node(op, arrays, attrs, (1, 2), epilogue), machine, precision)
    choice = KERNELS[kernel].offer(site)[0]
    reads = [
        None if v is None or layout is None else spec_of(v.dtype, v.dims, layout)
        for v, layout in zip(site.operands, choice.reads, strict=True)
    ]
    writes = [
        spec_of(v.dtype, v.dims, layout)
        for v, layout in zip(site.outputs, choice.writes, strict=True)
    ]
    packed = [p.make().dtype for p in choice.packed]
    number = range(len(choice.phases))[phase]
    return assembly(build_phase(site, choice, number, reads, writes, packed).text, site.target)


_STACK = re.compile(r"\s(v?mov\w*ps)\s+%[xyz]mm\d+, -?\d*\(%rsp")
_JUMP = re.compile(r"\sj\w+\s+(\.L\w+)")
_LABEL = re.compile(r"^(\.L\w+):")
_FMA = re.compile(r"\s(vfm?n?add\w*[ps]s|mul[ps]s|vmaxps|maxps)\s")


def spills(text: str) -> list[str]:
    """Vector stores to the stack inside the innermost loops that do arithmetic."""
    lines = text.splitlines()
    labels = {m[1]: i for i, line in enumerate(lines) if (m := _LABEL.match(line))}
    loops = [
        (labels[m[1]], i)
        for i, line in enumerate(lines)
        if (m := _JUMP.search(line)) and labels.get(m[1], i) < i
    ]
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    busy = [(lo, hi) for lo, hi in inner if any(map(_FMA.search, lines[lo:hi]))]
    assert busy, "no inner loop with arithmetic was found"
    return [line.strip() for lo, hi in busy for line in lines[lo:hi] if _STACK.search(line)]
