"""The numpy backend: every operator through its reference. The oracle of all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Graph


class NumpyProgram:
    """Evaluates a graph node by node. Immutable; safe to share between threads."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The outputs for one array per input of any shape that the graph admits."""
        from tinsmith.ops.control import run_graph

        return run_graph(self.graph, inputs)
