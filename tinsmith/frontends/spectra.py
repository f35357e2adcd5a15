"""The last part of inverse short-time Fourier transforms, for ncnn and PyTorch: overlap-add."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.nodes import SourceNode
from tinsmith.graph import Value


def overlapped(node: SourceNode, pieces: Value, w: Any, hop: int, frames: int) -> Value:
    """Overlap-add of `frames` pieces of a signal, [N, total] for total = (frames - 1) * hop + n:

        y[t] = sum over f of pieces[t - f * hop, f]  /  sum over f of w[t - f * hop]^2

    (not divided where the divisor is 0). `pieces` [N, n, frames] are multiplied by the window w [n]
    already. Raises Unsupported for hop < 1, and BudgetExceeded.
    """
    n = len(w)
    if hop < 1:
        raise Unsupported(f"its windows begin {hop} elements apart")
    total = (frames - 1) * hop + n
    budget.check("constants", 12 * total, f"the sums of windows of {node.label!r}")
    squares = np.zeros(total, np.float64)
    for f in range(frames):
        squares[f * hop : f * hop + n] += w.astype(np.float64) ** 2
    factor = np.where(squares, 1 / np.maximum(squares, 1e-30), 1).astype(np.float32)
    y = node.emit("Col2Im", pieces, node.ints(1, total), node.ints(1, n), stride=(1, hop))
    y = node.emit("Reshape", y, node.ints(*node.kept(y, 1), total))
    return node.emit("Mul", y, node.const(factor))
