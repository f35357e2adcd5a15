"""Models that a backend, such as `numpy`, computes as they were imported, without a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.formats.mapped import check_unchanged
from tinsmith.graph.copy import with_outputs
from tinsmith.graph.text import weights_in
from tinsmith.runtime.explanation import Explanation
from tinsmith.runtime.net import Net
from tinsmith.runtime.programs import Provider

if TYPE_CHECKING:
    from tinsmith.backends import Backend, Job
    from tinsmith.graph import Graph
    from tinsmith.runtime.inputs import Signature
    from tinsmith.runtime.program import Program


class Whole(Provider):
    """The provider behind the `Net` of a graph that a `backend`, registered as `name`, computes
    whole. `ranges`: allowed sizes (least, largest) of free dimensions."""

    def __init__(
        self, graph: Graph, name: str, backend: Backend, job: Job,
        ranges: Mapping[str, tuple[int, int]],
    ) -> None:  # fmt: skip
        self._graph, self._name, self._backend, self._job = graph, name, backend, job
        self._ranges = ranges
        self.notes = []
        constants = weights_in([graph])
        compiled = backend.compile(graph, job)

        def run(arrays: Sequence[Any]) -> list[Any]:
            check_unchanged(constants)
            return compiled.run(arrays)

        self.runner = run

    def net(self) -> Net:
        graph = self._graph
        inputs = {v.name: v.type for v in graph.inputs}
        return Net(graph.name, inputs, [v.name for v in graph.outputs], self, self._ranges)

    def build(self, signature: Signature) -> Program:
        raise AssertionError(f"the backend {self._name!r} builds no program")

    def source(self) -> Graph:
        return self._graph

    def others(self, names: Sequence[str]) -> Net:
        copy = with_outputs(self._graph, names)
        copy.sweep()
        return Whole(copy, self._name, self._backend, self._job, self._ranges).net()

    def stage(self, name: str, program: Program | None) -> str:
        return str(self._graph)

    def explain(self, program: Program | None) -> list[Explanation]:
        about = f"backend {self._name}"
        return [Explanation(n.name, n.op.name, "reference", about) for n in self._graph]
