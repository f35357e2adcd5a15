"""From a model (a file, a graph) to a Net."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinsmith.backends.cpu import compile_placed
from tinsmith.backends.numpy import NumpyProgram
from tinsmith.codegen.target import Target, host, level
from tinsmith.compiler.explain import explain_steps
from tinsmith.errors import TargetError, UnknownName
from tinsmith.graph import Graph
from tinsmith.kernels.select import check_overrides, parse_overrides
from tinsmith.passes.manager import run_passes
from tinsmith.runtime.net import Net, Signature
from tinsmith.runtime.program import Program

BACKENDS = ("cpu", "numpy")
PRECISIONS = ("default", "strict")


def load(path: Any) -> Graph:
    """Read a model of any supported format (recognised by its content) as a Graph.

    Raises ModelFileError, ExternalDataError or ImportFailed.
    """
    from tinsmith.frontends import load as load_model

    return load_model(path)


def compile(
    model: Graph | str | Path,
    *,
    threads: int = 1,
    backend: str = "cpu",
    target: str | Target | None = None,
    kernels: str | Mapping[str, str] | None = None,
    passes: str | None = None,
    precision: str = "default",
    cache: bool = True,
) -> Net:
    """Compile a model for this machine.

    threads    of the cpu backend
    backend    "cpu" (generated code) or "numpy" (the reference of every operator)
    target     "host", or an instruction set this machine has: "avx512", "avx2", "sse2", "scalar"
    kernels    overrides, as TINSMITH_KERNELS: "Conv=reference,layer1.0.conv1=conv_direct"
    passes     which passes run, e.g. "-fuse-elementwise" (see `tinsmith passes`)
    precision  "default", or "strict" (no kernels that trade accuracy for speed)
    cache      keep and use compiled code on disk

    A model of free shapes is compiled at the first call of each shape.
    """
    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    if not isinstance(threads, int) or not 1 <= threads <= 64:
        raise TargetError(f"threads must be a number from 1 to 64, not {threads!r}")
    graph = model if isinstance(model, Graph) else load(model)
    if backend == "numpy":
        return _numpy_net(graph)
    machine = host() if target is None else level(target) if isinstance(target, str) else target
    return _Compilation(graph, machine, threads, kernels, passes, precision, cache).net()


def _numpy_net(graph: Graph) -> Net:
    program = NumpyProgram(graph)

    def none(_: Signature) -> Program:
        raise AssertionError("the numpy backend builds no program")

    return Net(
        graph.name, {v.name: v.type for v in graph.inputs}, [v.name for v in graph.outputs], none,
        lambda _: str(graph), lambda: {n.name: f"{n.name}: {n.op.name} -> reference (backend numpy)" for n in graph},
        program.run,
    )  # fmt: skip


class _Compilation:
    """What is needed to compile one model for further shapes. Called under the Net's lock."""

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
        self.report = run_passes(self.canonical, "portable", "cpu", passes)
        self.overrides = parse_overrides(kernels)
        check_overrides(self.overrides, {n.name for n in (*graph.nodes, *self.canonical.nodes)})
        self.placed_text = ""
        self.explanations: dict[str, str] = {}

    def net(self) -> Net:
        graph = self.imported
        net = Net(
            graph.name, {v.name: v.type for v in graph.inputs}, [v.name for v in graph.outputs],
            self.build, self.stage, lambda: self.explanations,
        )  # fmt: skip
        if all(v.type.is_static for v in graph.inputs):
            net.program()
        return net

    def build(self, signature: Signature) -> Program:
        graph = self.canonical
        types = {
            v.name: v.type.like(shape=dims)
            for v, dims in zip(graph.inputs, signature, strict=True)
            if v.type.shape != dims
        }
        if types:
            graph = graph.clone(types)
            run_passes(graph, "portable", "cpu", self.passes)
        placed = graph.clone()
        report = run_passes(placed, "machine", "cpu", self.passes)
        compiled = compile_placed(
            placed, self.target, threads=self.threads, overrides=self.overrides,
            precision=self.precision, cache=self.cache,
        )  # fmt: skip
        self.placed_text = str(placed)
        self.explanations = explain_steps(compiled.built, report)
        return compiled.program

    def stage(self, name: str) -> str:
        return {"imported": str(self.imported), "canonical": str(self.canonical)}.get(
            name, self.placed_text
        )
