"""The table of formats in which graphs are written, and the errors that all writers share.

A format registers itself:

    WRITERS.register("onnx", Writer("ONNX", (".onnx",), write))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tinsmith.errors import FileNameError, ModelFileError, NotWritable, counted
from tinsmith.graph import Graph, Node
from tinsmith.records import dataclass
from tinsmith.registry import Registry


@dataclass(frozen=True)
class Writer:
    """A format in which graphs are written.

    title     the format's name in messages
    suffixes  endings of its files' names
    write     (graph, path) writes a graph's files, each complete or not at all, and leaves it as it
              is. Raises NotWritable before anything is written, OSError
    halves    as `write`, with weights as float16; None if the format has no such weights
    small     whether the format has operators that dequantise weights of any type
    form      the form of quantised graphs that can be written, by name (`quantizer/forms.py`); ""
              if none can
    groups    (graph) -> the groups of nodes for which the format has one layer; passes for this
              format do not change them
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
    """Return the writer for a file's name: the one with the longest suffix that fits. Raises
    FileNameError if none does."""
    name = path.name.lower()
    found = [(len(s), w) for w in WRITERS.rows() for s in w.suffixes if name.endswith(s)]
    if not found:
        known = ", ".join(f"{' or '.join(w.suffixes)} ({w.title})" for w in WRITERS.rows())
        raise FileNameError(f"the name {path.name!r} says no format that is written: {known}")
    return max(found, key=lambda row: row[0])[1]


def files_at(path: Path) -> list[Path]:
    """Return the files that a model written to `path` may have: that, and its weights beside it."""
    stem = path.name.removesuffix(".bin").removesuffix(".param")
    return [path, path.with_name(f"{stem}.bin"), path.with_name(f"{path.name}.data")]


def check_out(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check, before long work, that files can be `written`. Raises FileNameError for one of those
    that the model is `read` from, ModelFileError where the folder is none, or not writable."""
    there = [file for file in read if file.exists()]
    for out in written:
        if out.exists() and any(map(out.samefile, there)):
            raise FileNameError(
                f"{str(out)!r} is a file from which the model is read, and would be lost: write to"
                " another name, and rename that if it is to take its place"
            )
        folder = out.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            why = "is not writable" if folder.is_dir() else "is no folder"
            raise ModelFileError(f"{str(out)!r} cannot be written: {str(folder)!r} {why}")


def write(graph: Graph, path: Path, kind: str = "float32") -> None:
    """Write a graph in the format that the name of `path` says. `kind` is the type of weights in
    the file: "float32" (unchanged), or "float16" if the format has such weights.

    Raises FileNameError, NotWritable, and ModelFileError if a file cannot be written.
    """
    writer = writer_of(path)
    write_graph = {"float32": writer.write, "float16": writer.halves}.get(kind)
    if write_graph is None:
        raise NotWritable(
            f"{writer.title} has no way to keep weights as {kind} that are computed with as "
            f"float32: {path.name!r} can have them as float32"
            + "; `tinsmith quantize` makes layers that compute in bytes"
            * (writer.form not in ("", "qdq") and kind.startswith("int"))
        )
    try:
        write_graph(graph, path)
    except OSError as error:
        raise ModelFileError(
            f"{str(path)!r} cannot be written: {error.strerror or error}"
        ) from error


class Problems:
    """Collects the nodes of a graph that the format `title` cannot express; `check` raises one
    NotWritable with all of them."""

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
