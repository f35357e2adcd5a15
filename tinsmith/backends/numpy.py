"""The numpy backend: computes every operator by its reference; other backends are tested against
its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.backends import BACKENDS, Backend, Job
from tinsmith.graph import Graph, Node
from tinsmith.runtime.memory import owned


class NumpyProgram:
    """Evaluates a graph node by node, by references. Immutable; safe to share between threads.

    Making it raises PlanError for a result of known size larger than the machine's memory.
    """

    def __init__(self, graph: Graph) -> None:
        from tinsmith.plan.arena import check_values

        check_values(graph)
        self.graph = graph

    def run(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The outputs for one value per input, of any shapes that the graph admits. No output
        shares memory with an input or a constant. A sequence is a list of arrays, an empty optional
        None."""
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
    """The backend of this module: takes every node, and whole models as they were imported."""

    column, whole = "numpy", True

    def takes(self, node: Node) -> str:
        return ""

    def compile(self, graph: Graph, job: Job) -> NumpyProgram:
        return NumpyProgram(graph)


BACKENDS.register("numpy", Numpy())
