"""Machines that compute graphs: a protocol, and the table of those that there are.

A backend registers itself, in a module of this folder or from outside the package:

    BACKENDS.register("toy", Toy())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tinsmith.errors import OptionError
from tinsmith.plan.options import PlanOptions
from tinsmith.records import dataclass
from tinsmith.registry import Registry

if TYPE_CHECKING:
    from tinsmith.backends.cpu import Room
    from tinsmith.codegen.target import Target
    from tinsmith.graph import Graph, Node
    from tinsmith.plan.shared_weights import SharedWeights

__all__ = ["BACKENDS", "DEFAULT", "Backend", "Job", "Runner", "backends_of", "is_whole"]

Array = np.ndarray[Any, Any]

DEFAULT = "cpu"
"""The backend where nobody asks for one; its programs run the parts of all others."""


@dataclass(frozen=True)
class Job(PlanOptions):
    """What a graph is compiled for, and how; a backend takes from it what it has a use for.

    target          the machine; None for a backend that computes a whole model, where it is
    cache           whether code may be kept on disk, and found there
    room            where packed weights go
    shared_weights  packed weights of other programs of the model, and where they lie
    """

    target: Target | None = None
    cache: bool = True
    room: Room | None = None
    shared_weights: SharedWeights | None = None


class Runner(Protocol):
    """A compiled graph. Several threads may call it at once."""

    def run(self, arrays: Sequence[Any], /) -> list[Any]:
        """The outputs, in order, of an array for each input of the graph, in order and of its type.
        The inputs are plain and contiguous, must not be written to, and are gone after the call."""
        ...


class Backend(Protocol):
    """One way to compute graphs. A class that derives from this one has what is defined here.

    column  which rows of the table of kernels it reads: those that name this
    whole   whether it computes models as they are imported, of any shapes, without passes
    """

    column: str
    whole: bool = False

    def need_target(self, target: Target) -> None:
        """Raise TargetError, which says why, unless it can make what it makes for the target."""

    def takes(self, node: Node) -> str:
        """Why it does not compute a node, whose sizes are known; "" where it does. Here: what its
        column of the table of kernels has a row for, it computes."""
        from tinsmith.kernels._kernel import kernels_for

        known = kernels_for(node.op.name, self.column)
        return "" if known else f"no kernel of {self.column} computes {node.op.name}"

    def compile(self, graph: Graph, job: Job) -> Runner:
        """What computes a graph of nodes that it takes."""
        ...

    def explain(self, graph: Graph) -> str:
        """How it computes a graph, in a line; "" where there is nothing to say."""
        return ""


BACKENDS: Registry[Backend] = Registry("backend", "tinsmith.backends")


def backends_of(names: str | Sequence[str]) -> dict[str, Backend]:
    """The backends of a list of names, "toy,cpu" or ("toy", "cpu"), in its order. Raises
    OptionError, UnknownName."""
    listed = names.split(",") if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(n, str) for n in listed):
        known = ", ".join(map(repr, BACKENDS))
        raise OptionError(f"backend must be one of {known}, or several of them, not {names!r}")
    listed = [n.strip() for n in listed]
    if not listed or len(set(listed)) < len(listed):
        raise OptionError(f"backend must name each backend once, in order, not {names!r}")
    return {name: BACKENDS[name] for name in listed}


def is_whole(backends: Mapping[str, Backend]) -> bool:
    """Whether they are one that computes models as they are imported."""
    return [b.whole for b in backends.values()] == [True]
