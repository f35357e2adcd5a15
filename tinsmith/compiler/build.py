"""The compilation of one model: passes, plan and code for each signature of input shapes.

Imported only when something has to be built: a warm start does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinsmith.backends.cpu import Compiled, compile_placed
from tinsmith.codegen.target import Target
from tinsmith.compiler.explain import explain_steps
from tinsmith.graph import Graph
from tinsmith.kernels.select import check_overrides, parse_overrides
from tinsmith.passes.manager import Report, run_passes
from tinsmith.runtime.net import Signature


class Compilation:
    """A model with its options; `build` compiles it for one signature. Not thread-safe."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        threads: int,
        kernels: str | Mapping[str, str] | None,
        passes: str | None,
        precision: str,
        cache: bool,
    ) -> None:
        self.imported, self.target, self.threads = graph, target, threads
        self.passes, self.precision, self.cache = passes, precision, cache
        self.canonical = graph.clone()
        self.reports: list[Report] = [run_passes(self.canonical, "portable", "cpu", passes)]
        self.overrides = parse_overrides(kernels)
        check_overrides(self.overrides, {n.name for n in (*graph.nodes, *self.canonical.nodes)})

    def build(
        self, signature: Signature
    ) -> tuple[Compiled, Callable[[], str], Callable[[], dict[str, str]]]:
        """A program; what gives its placed graph as text, and the explanation of each step."""
        graph = self.canonical
        types = {
            v.name: v.type.like(shape=dims)
            for v, dims in zip(graph.inputs, signature, strict=True)
            if v.type.shape != dims
        }
        reports = self.reports[:1]
        placed = graph.clone(types)
        if types:
            reports.append(run_passes(placed, "portable", "cpu", self.passes))
        reports.append(run_passes(placed, "machine", "cpu", self.passes))
        compiled = compile_placed(
            placed, self.target, threads=self.threads, overrides=self.overrides,
            precision=self.precision, cache=self.cache,
        )  # fmt: skip
        self.reports = reports
        return compiled, lambda: str(placed), lambda: explain_steps(compiled.built, reports)

    def external_files(self) -> set[str]:
        """Files besides the model's own that its constants are mapped from."""
        found = set()
        for value in self.imported.constants():
            array: Any = value.const
            while array is not None:
                if isinstance(array, np.memmap) and array.filename is not None:
                    found.add(str(array.filename))
                    break
                array = getattr(array, "base", None)
        return found
