"""Backends, ways to compute graphs: the protocol that each follows, and the table of all.

A backend registers itself, in a module of this folder or from outside the package:

    BACKENDS.register("toy", Toy())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinsmith.errors import OptionError
from tinsmith.plan.options import PlanOptions
from tinsmith.records import dataclass
from tinsmith.registry import Registry

if TYPE_CHECKING:
    from tinsmith.backends.cpu import Room
    from tinsmith.codegen.library import Compiler
    from tinsmith.codegen.target import Target
    from tinsmith.graph import Graph, Node
    from tinsmith.plan.planner import Built
    from tinsmith.plan.shared_weights import SharedWeights

__all__ = ["BACKENDS", "DEFAULT", "Backend", "Job", "Runner", "backends_of", "is_whole"]

DEFAULT = "cpu"
"""The backend where the caller names none; its programs run the parts of all others as steps."""


@dataclass(frozen=True)
class Job(PlanOptions):
    """Options of `Backend.compile`; each backend uses the fields that it needs.

    target          the machine to compile for; None for a backend that computes whole models
    cache           whether code is kept in, and taken from, the cache on disk
    room            gets the packed weights (see `cpu.Room`); None: memory of this process
    shared_weights  packed weights of the model's other programs, which are used again; the new
                    ones are added to them
    compiler        from `Cpu.compiler`, for the cpu backend, which closes it; None: it makes one
    planned         called once with the plan, while its code is compiled on other threads
    """

    target: Target | None = None
    cache: bool = True
    room: Room | None = None
    shared_weights: SharedWeights | None = None
    compiler: Compiler | None = None
    planned: Callable[[Built], None] | None = None


class Runner(Protocol):
    """A compiled graph. Several threads may call `run` at once."""

    def run(self, arrays: Sequence[Any], /) -> list[Any]:
        """The graph's outputs, in order. `arrays` are its inputs, in order and of their types,
        plain and contiguous; they must neither be written to nor kept after the call."""
        ...


class Backend(Protocol):
    """One way to compute graphs. Classes that derive from this one get the defaults defined here.

    column  the backend's name in the table of kernels (`Kernel.backend`)
    whole   whether it computes models as they were imported, of any shapes, without passes
    """

    column: str
    whole: bool = False

    def need_target(self, target: Target) -> None:
        """Raise TargetError, with the reason, if the backend cannot compile for the target. By
        default it can for every target."""

    def takes(self, node: Node) -> str:
        """Return why the backend cannot compute a node of known sizes; "" if it can. By default it
        can if the table of kernels has a row for the operator in the backend's column."""
        from tinsmith.kernels._kernel import kernels_for

        known = kernels_for(node.op.name, self.column)
        return "" if known else f"no kernel of {self.column} computes {node.op.name}"

    def compile(self, graph: Graph, job: Job) -> Runner:
        """Compile a graph of nodes that the backend takes: the body of a Part node or, where
        `is_whole`, a model as it was imported."""
        ...

    def explain(self, graph: Graph) -> str:
        """Say in a line how the backend computes a graph; "" where there is nothing to say."""
        return ""


BACKENDS: Registry[Backend] = Registry("backend", "tinsmith.backends")


def backends_of(names: str | Sequence[str]) -> dict[str, Backend]:
    """Name -> backend for "toy,cpu" or ("toy", "cpu"), in the same order: a node goes to the first
    backend that takes it. Raises OptionError, UnknownName."""
    listed = names.split(",") if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(n, str) for n in listed):
        known = ", ".join(map(repr, BACKENDS))
        raise OptionError(f"backend must be one of {known}, or several of them, not {names!r}")
    listed = [n.strip() for n in listed]
    if not listed or len(set(listed)) < len(listed):
        raise OptionError(f"backend must name each backend once, in order, not {names!r}")
    return {name: BACKENDS[name] for name in listed}


def is_whole(backends: Mapping[str, Backend]) -> bool:
    """Whether there is one backend only, and it computes models as they are imported."""
    return [b.whole for b in backends.values()] == [True]
