"""The numpy backend: every operator through its reference. The oracle of all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.backends import BACKENDS, Backend, Job
from tinsmith.graph import Graph, Node
from tinsmith.runtime.memory import owned


class NumpyProgram:
    """Evaluates a graph node by node. Immutable; safe to share between threads.

    Raises PlanError for results that are larger than the machine's memory.
    """

    def __init__(self, graph: Graph) -> None:
        from tinsmith.plan.arena import check_values

        check_values(graph)
        self.graph = graph

    def run(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The outputs for one array per input of any shape that the graph admits.

        A sequence is a list of arrays, an empty optional None.
        """
        from tinsmith.ops.interpret import run_graph

        outputs: list[np.ndarray[Any, Any]] = []
        for array in run_graph(self.graph, inputs):
            if not isinstance(array, np.ndarray):
                outputs.append(owned(array))
                continue
            # A view shares memory with an input, a constant, or another output.
            own = array.base is None and array.flags.writeable
            shared = any(array is other for other in (*inputs, *outputs))
            outputs.append(array if own and not shared else np.array(array))
        return outputs


class Numpy(Backend):
    """Every operator by its reference."""

    column, whole = "numpy", True

    def takes(self, node: Node) -> str:
        return ""

    def compile(self, graph: Graph, job: Job) -> NumpyProgram:
        return NumpyProgram(graph)


BACKENDS.register("numpy", Numpy())
