"""Signals of the spectra of windows, as ncnn's and PyTorch's inverse transforms make them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.nodes import SourceNode
from tinsmith.graph import Value


def overlapped(node: SourceNode, pieces: Value, w: Any, hop: int, frames: int) -> Value:
    """[N, total]: the sum of `pieces`, [N, len(w), frames], each of which begins `hop` elements
    behind the one before it and is times the window w already, over the sum of the windows'
    squares; where these are all 0, the sum alone. Raises Unsupported where no window begins behind
    another, and BudgetExceeded."""
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
