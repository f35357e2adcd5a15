"""The table of formats that graphs are written in, and the errors that all of them share.

A format registers itself:

    WRITERS.register("onnx", Writer("ONNX", (".onnx",), write))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tinsmith.errors import FileNameError, ModelFileError, NotWritable, counted
from tinsmith.graph import Graph, Node
from tinsmith.records import dataclass
from tinsmith.registry import Registry


@dataclass(frozen=True)
class Writer:
    """One format that graphs are written in.

    title     the format's name in messages
    suffixes  of the files' names
    write     write(graph, path) writes the files of a graph, each whole or not at all, and leaves
              the graph as it is. Raises NotWritable before anything is written, OSError
    halves    the same with weights as float16; None: the format has no way of its own for that
    small     whether a graph can say that weights of any type are dequantised when they are read
    form      the form in which quantised graphs can be written (`quantizer/forms.py`)
    groups    groups(graph) finds the nodes that are one layer of the format, for each such layer,
              which passes for this format leave as they are
    """

    title: str
    suffixes: tuple[str, ...]
    write: Callable[[Graph, Path], None]
    halves: Callable[[Graph, Path], None] | None = None
    small: bool = False
    form: str = "qdq"
    groups: Callable[[Graph], Iterable[Iterable[Node]]] = lambda graph: ()


WRITERS: Registry[Writer] = Registry("format that models are written in", "tinsmith.writers")


def writer_of(path: Path) -> Writer:
    """The format that a file's name says: the one with the longest suffix that fits. Raises
    FileNameError if none does."""
    name = path.name.lower()
    found = [(len(s), w) for w in WRITERS.rows() for s in w.suffixes if name.endswith(s)]
    if not found:
        known = ", ".join(f"{' or '.join(w.suffixes)} ({w.title})" for w in WRITERS.rows())
        raise FileNameError(f"the name {path.name!r} says no format that is written: {known}")
    return max(found, key=lambda row: row[0])[1]


def write(graph: Graph, path: Path, kind: str = "float32") -> None:
    """Write a graph in the format that the name of `path` says. `kind` is the type in which weights
    are kept, "float32" as they are, or "float16" where the format has a way of its own for that.

    Raises FileNameError, NotWritable, and ModelFileError if a file cannot be written.
    """
    writer = writer_of(path)
    write_graph = {"float32": writer.write, "float16": writer.halves}.get(kind)
    if write_graph is None:
        raise NotWritable(
            f"{writer.title} has no way to keep weights as {kind} that are computed with as "
            f"float32: {path.name!r} can have them as float32"
            + "; `tinsmith quantize` makes layers that compute in bytes"
            * (writer.form != "qdq" and kind.startswith("int"))
        )
    try:
        write_graph(graph, path)
    except OSError as error:
        raise ModelFileError(
            f"{str(path)!r} cannot be written: {error.strerror or error}"
        ) from error


class Problems:
    """Collects what the format `title` cannot say of a graph, while the graph is gone through, so
    that all is told at once: `check` raises NotWritable."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.found: dict[tuple[str, str], list[Node]] = {}

    def add(self, node: Node, why: str) -> None:
        self.found.setdefault((node.op.name, why), []).append(node)

    def check(self, name: str) -> None:
        """Raise NotWritable, which names all problems, if there are any; `name` is the graph's."""
        if not self.found:
            return
        rows = [
            f"  {op} x{len(nodes)}: {why} [{', '.join(repr(n.name) for n in nodes[:3])}]"
            for (op, why), nodes in sorted(self.found.items())
        ]
        count = counted(sum(map(len, self.found.values())), "node")
        raise NotWritable(
            f"{name or 'the graph'} cannot be written as {self.title}, which cannot say {count}; "
            "nothing was written:\n" + "\n".join(rows) + "\nWhat helps: --outputs NAME of the "
            "commands, a value to end at that is before them"
        )
