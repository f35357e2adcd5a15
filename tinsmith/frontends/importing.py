"""The import of one model, of any format: its problems, which are reported all at once at the end,
and tables of importer functions, one for each operator.

All formats share this module and `nodes`. A frontend is a table of importer functions, and a loop
over the nodes of a file; docs/adding.md has a whole one:

    importer = Importers("ncnn layer", "tinsmith.frontends.ncnn")

    @importer("Dropout")
    def dropout(node):
        return node.emit("Mul", node[0], node.number(node.attr(0, 1.0), node[0]))"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinsmith import budget
from tinsmith.errors import (
    BudgetExceeded,
    GraphError,
    ImportFailed,
    ModelWarning,
    OptionError,
    ScaleError,
    TinsmithError,
    suggest,
    warn,
)
from tinsmith.graph import Graph, Type
from tinsmith.graph.types import shapes_agree
from tinsmith.records import dataclass
from tinsmith.registry import Registry

if TYPE_CHECKING:
    from tinsmith.frontends.nodes import SourceNode

Importer = Callable[[Any], Any]
"""A function that imports one node of a file: it takes a SourceNode, adds nodes to the graph, and
returns the Value of each output, in order (None for an output that it does not compute)."""

_MISFITS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""Errors of Python that an importer function may raise on attributes of the wrong kind."""


class Unsupported(TinsmithError):
    """Raised by an importer function: the node cannot be imported. The message says why; "" means
    that there is no importer for its operator. `Import.attempt` collects these errors."""


class Skipped(Unsupported):
    """Raised for a node that reads an output of one that was not imported: no new problem."""


class Broken:
    """The class of BROKEN, which stands for an output of a node that was not imported. Nodes that
    read it are skipped."""


BROKEN = Broken()


class Importers(Registry[Importer]):
    """The table of the importer functions of one format, by operator type. It is also a decorator:
    `@importers("Dropout")` registers the function below it.

    `package` has the functions; its modules are imported on the first look-up. `help` ends the
    error message about operators without an importer."""

    def __init__(self, kind: str, package: str | None = None, help: str = "") -> None:
        super().__init__(kind, package)
        self.help = help

    def __call__(self, *types: str) -> Callable[[Importer], Importer]:
        def register(function: Importer) -> Importer:
            self.settle(function)
            for type in types:
                self.register(type, function)
            return function

        return register

    def settle(self, function: Callable[..., Any]) -> None:
        """Fill the table before `function`, if a user's, is registered: a name that is taken is
        then an error at once, not when the next model is loaded."""
        if self._package is not None and not function.__module__.startswith(self._package + "."):
            self._load_own()


@dataclass(frozen=True)
class Problem:
    """Why one node was not imported: its operator `type` (`edition`: see `Import.fail`), its name,
    and the `reason`, "" if there is no importer for the type."""

    type: str
    edition: str
    node: str
    reason: str


class Import:
    """The state of the import of one model: its problems, its notes, and how many nodes it has.

    hints   what to try if nodes are not understood: lines that end the message of `finish`
    file    the name of the model in messages and origins; "" where it comes from no file
    files   all files that were read for it (`formats.mapped.Files`): stored programs are used again
            only while all are unchanged
    shapes  the option `input_shapes`: {name of an input: dims}"""

    def __init__(
        self, importers: Importers, file: str = "", files: Mapping[Path, tuple[int, ...]] = {},
        shapes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.importers, self.file, self.files = importers, file, files
        self.shapes = shapes or {}
        self.name = file or "the model"
        self.problems: list[Problem] = []
        self.scales = 0  # how many of the problems are ScaleErrors
        self.hints: list[str] = []
        self.notes: list[str] = []
        self.count = 0

    def count_nodes(self, count: int) -> None:
        """Add `count` to the number of nodes of the model, where nodes of functions count for each
        call. Raises BudgetExceeded for too many."""
        self.count += count
        budget.check("nodes", self.count, f"{self.name}, functions expanded")

    def typed(self, name: str, said: Type, *, firm: bool = True) -> Type:
        """The type of the model's input `name`: what the file says (`said`), with the caller's
        shape if one is given. Raises OptionError if the two shapes contradict each other; if not
        `firm`, the caller's wins."""
        given = self.shapes.get(name)
        if given is None:
            return said
        if firm and not shapes_agree(said.shape, given):
            raise OptionError(
                f"input_shapes gives {name!r} {given}, {self.name} says {said}; a name in place of "
                "the number, such as 'N', leaves a size free"
            )
        return said.like(shape=given)

    def note(self, text: str) -> None:
        """Record a remark about something that was imported but looks odd; `finish` warns of it."""
        if text not in self.notes:
            self.notes.append(text)

    def fail(self, type: str, node: str, reason: str, edition: str = "") -> None:
        """Record why the node named `node`, an operator `type`, was not imported; reason "": there
        is no importer. `edition` is the version of the operator, such as "opset 7"."""
        self.problems.append(Problem(type, edition, node, reason))

    def attempt(self, node: SourceNode, work: Importer) -> Any:
        """Return work(node). If it raises an error of the node, record that (unless Skipped) as a
        problem and return BROKEN. Errors of the whole file, GraphError and BudgetExceeded, are
        passed on."""
        try:
            return work(node)
        except Skipped:
            return BROKEN
        except (GraphError, BudgetExceeded):
            raise
        except TinsmithError as error:
            reason = str(error)
            self.scales += isinstance(error, ScaleError)
        except _MISFITS as error:
            reason = (
                f"its inputs or attributes are not as expected ({type(error).__name__}: {error})"
            )
        self.fail(node.key, node.label, reason, node.edition)
        return BROKEN

    def finish(self, graph: Graph) -> Graph:
        """Return `graph`, the whole model, once all nodes are imported; set its `files`. Raises
        ImportFailed (ScaleError if nothing but scales is wrong) with all problems. Warns of notes,
        and keeps them in `graph.meta["notes"]`."""
        if self.problems:
            only = self.scales == len(self.problems)
            raise (ScaleError if only else ImportFailed)(self._described())
        graph.files = self.files
        if self.notes:
            graph.meta["notes"] = tuple(self.notes)
            warn("; ".join(self.notes), ModelWarning)
        return graph

    def _described(self) -> str:
        """The message of ImportFailed: problems grouped by operator and reason, each with up to
        three nodes."""
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for p in self.problems:
            groups[p.type, p.edition, p.reason].append(p.node)
        count = len(self.problems)
        nodes = "1 node is" if count == 1 else f"{count} nodes are"
        lines = [f"{self.name} cannot be imported; {nodes} not understood:"]
        for (type, edition, reason), named in groups.items():
            where = ", ".join(map(repr, named[:3])) + (", ..." if len(named) > 3 else "")
            shown = f"{type} ({edition})" if edition else type
            close = suggest(type, self.importers)
            reason = reason or f"there is no importer for this operator.{close}"
            lines.append(f"  {shown} x{len(named)}: {reason} [{where}]")
        if self.importers.help and any(not p.reason for p in self.problems):
            lines.append(self.importers.help)
        if any(p.reason for p in self.problems):
            lines += self.hints
        if self.scales:
            lines.append("What helps: quantise the model anew, with data that are not constant")
        return "\n".join(lines)
