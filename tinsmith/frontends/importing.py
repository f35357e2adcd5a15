"""One model while it is imported, whatever its format: what could not be understood of it, which is
reported at once, and the table of the functions that import its operators.

With `nodes` it is what the importers of all formats share. One is a table, functions in it, and a
loop over records; docs/adding.md has a whole one that runs:

    importer = Importers("ncnn layer", "tinsmith.frontends.ncnn")

    @importer("Dropout")
    def dropout(node):
        return node.emit("Mul", node[0], node.number(node.attr(0, 1.0), node[0]))
"""

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
"""Makes our nodes of one of the file's: takes a SourceNode, returns the Value of each output, in
order; None for one that is not wanted."""

_MISFITS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""What importers, type rules and packages of a format raise on attributes of the wrong kind."""


class Unsupported(TinsmithError):
    """A node that cannot be imported; its message says why, "" that nothing imports its operator.
    Collected, never seen by users."""


class Skipped(Unsupported):
    """A node that reads what was not imported, where that was recorded already."""


class Broken:
    """Stands for a value whose node was not imported, so that its readers are passed over."""


BROKEN = Broken()


class Importers(Registry[Importer]):
    """The importer functions of one format, by operator type; called, a decorator that registers.

    `package` is where they are: its modules are imported on the first look-up. `help` is the last
    line of a message about operators that have none.
    """

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
        """Fill the table before a function of a user is registered, so that a name that is taken is
        an error there, and not of the next model."""
        if self._package is not None and not function.__module__.startswith(self._package + "."):
            self._load_own()


@dataclass(frozen=True)
class Problem:
    """Why one node was not imported."""

    type: str
    edition: str
    node: str
    reason: str


class Import:
    """What the import of one model collects: its problems, notes, and how many nodes it has.

    file    the name of the model in messages and origins; "" where it comes from no file
    files   all files that are read for it (`formats.mapped.Files`): programs that are kept of it
            are found again only while none of them has changed
    shapes  what the caller gives as shapes of inputs of the model, by their names
    """

    def __init__(
        self, importers: Importers, file: str = "", files: Mapping[Path, tuple[int, ...]] = {},
        shapes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.importers, self.file, self.files = importers, file, files
        self.shapes = shapes or {}
        self.name = file or "the model"
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.count = 0

    def count_nodes(self, count: int) -> None:
        """Count nodes that are to be imported, some more than once. Raises BudgetExceeded."""
        self.count += count
        budget.check("nodes", self.count, f"{self.name}, functions expanded")

    def typed(self, name: str, said: Type, *, firm: bool = True) -> Type:
        """The type of an input of the model: what the file says, or with the shape that the caller
        gives. Raises OptionError where that is another than the file says; if that is not `firm`,
        it is taken."""
        given = self.shapes.get(name)
        if given is None:
            return said
        if firm and not shapes_agree(said.shape, given):
            raise OptionError(f"input_shapes gives {name!r} {given}, {self.name} says {said}")
        return said.like(shape=given)

    def note(self, text: str) -> None:
        """Record a remark about something that was imported but looks odd; `finish` tells it."""
        if text not in self.notes:
            self.notes.append(text)

    def fail(self, type: str, node: str, reason: str, edition: str = "") -> None:
        """Record why a node was not imported; "" where nothing imports its type. `edition` says
        which of several operators of that name it is: "opset 7"."""
        self.problems.append(Problem(type, edition, node, reason))

    def attempt(self, node: SourceNode, work: Importer) -> Any:
        """`work(node)`; BROKEN where that raises, and why is a problem then. Errors of the whole
        file, GraphError and BudgetExceeded, are raised."""
        try:
            return work(node)
        except Skipped:
            return BROKEN
        except (GraphError, BudgetExceeded):
            raise
        except TinsmithError as error:
            reason = str(error)
        except _MISFITS as error:
            reason = (
                f"its inputs or attributes are not as expected ({type(error).__name__}: {error})"
            )
        self.fail(node.key, node.label, reason, node.edition)
        return BROKEN

    def finish(self, graph: Graph) -> Graph:
        """The graph of the whole model, after all of its nodes. Raises ImportFailed with everything
        that could not be imported; warns of the notes, which `graph.meta["notes"]` keeps."""
        if self.problems:
            raise ImportFailed(self._described())
        graph.files = self.files
        if self.notes:
            graph.meta["notes"] = tuple(self.notes)
            warn("; ".join(self.notes), ModelWarning)
        return graph

    def _described(self) -> str:
        """All problems in one message: grouped by operator and reason, with the first nodes."""
        groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for p in self.problems:
            groups[p.type, p.edition, p.reason].append(p.node)
        count = len(self.problems)
        nodes = "1 node is" if count == 1 else f"{count} nodes are"
        lines = [f"{self.name} cannot be imported; {nodes} not understood:"]
        for (type, edition, reason), named in groups.items():
            where = ", ".join(map(repr, named[:3])) + (", ..." if len(named) > 3 else "")
            shown = f"{type} ({edition})" if edition else type
            lines.append(f"  {shown} x{len(named)}: {reason or self._missing(type)} [{where}]")
        if self.importers.help and any(not p.reason for p in self.problems):
            lines.append(self.importers.help)
        return "\n".join(lines)

    def _missing(self, type: str) -> str:
        close = suggest(type, self.importers)
        return f"there is no importer for this operator.{close}"
