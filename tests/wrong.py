"""Kernels that are wrong on purpose, for tests of what finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tinsmith.kernels._kernel import KERNELS, Packed


def _too_large(pack: Any, *args: Any) -> Any:
    return pack(*args) * np.float32(1.05)


def spoiled(site: Any) -> Any:
    """A product as `matmul_packed` computes it, but with other weights."""
    choice: Any = KERNELS["matmul_packed"].rule(site)
    packed = choice.packed[0]
    return replace(choice, packed=(Packed("w", _too_large, (packed.pack, *packed.args)),))


def misplaced(site: Any) -> Any:
    """Wrong only where it does not read the graph's inputs."""
    return KERNELS["matmul_packed"].rule(site) if site.input(0).producer is None else spoiled(site)
