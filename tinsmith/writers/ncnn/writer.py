"""A whole graph -> the layers of ncnn, and its two files.

Every value has the axis of the batch in front, which ncnn has not: it is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError, NotWritable
from tinsmith.formats.ncnn.layers import LAYERS
from tinsmith.formats.ncnn.param import Layer, param_bytes, param_text
from tinsmith.formats.ncnn.weights import write_weights
from tinsmith.formats.whole import whole_file
from tinsmith.frontends.ncnn.node import LETTERS
from tinsmith.graph import Graph, Node, Value
from tinsmith.writers.registry import Problems
from tinsmith.writers.rows import Array, Inexpressible, Rows, need, unused

writes = Rows("ncnn writer", "tinsmith.writers.ncnn")
"""Decorator and table of the functions of a Writer and a node that add the layers of the node."""

claims = Rows("ncnn layer", "tinsmith.writers.ncnn")
"""Decorator and table of the functions of a Writer and a node that look for the nodes around it
which are one layer with it. Such a function puts what writes that layer into `Writer.claimed`, by
one of the nodes, and the others into `Writer.taken`; where there are no such nodes it raises
Inexpressible, and has changed nothing."""


class Writer:
    """The layers of a graph while they are made."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.layers = graph, list[Layer]()
        self.blobs: dict[Value, str] = {}
        self.names: set[str] = set()
        self.titles: set[str] = set()
        """Names of layers."""
        self.node: Node | None = None
        """The node that is being written."""
        self.taken: set[Node] = set()
        """Nodes that the layer of another one computes."""
        self.claimed: dict[Node, Callable[[], None]] = {}
        """What writes nodes that are one layer with others."""
        self.vectors: set[Value] = set()
        """Images of one pixel that are vectors in ncnn."""
        self.factors: dict[Value, float] = {}
        """What values are multiplied by in the sum that reads them, and not before."""
        self.edges: dict[Value, tuple[int, ...]] = {}
        """The edges of values that the pooling which reads them makes."""
        need(graph.inputs, "it has no inputs")
        shapes = [v.shape for v in graph.inputs]
        need(all(shapes), "an input is of unknown rank, or has no axis of a batch")
        self.batch = shapes[0][0] if shapes[0] else None

    def unique(self, name: str) -> str:
        return unused(re.sub(r"[\s=]+", "_", name)[:200] or "value", self.names)

    def run(self) -> list[Layer]:
        """All layers. Raises NotWritable with all nodes that cannot be written."""
        problems = Problems("ncnn")
        for v in self.graph.inputs:
            dims = [d if isinstance(d, int) else 0 for d in self.dims(v)]
            sizes = dict(zip(LETTERS[len(dims)], dims, strict=True))
            self.layer("Input", v.name, [], [v], sizes if all(dims) else {})
        self.claim()
        for node in self.graph.nodes:
            if node in self.taken:
                continue
            self.node = node
            if write := self.claimed.get(node):
                write()
                continue
            try:
                function = writes.get(node.op.name)
                need(function is not None, "ncnn has no layer for this operator")
                for v in node.outputs:
                    self.dims(v)
                assert function is not None
                function(self, node)
            except Inexpressible as error:
                problems.add(node, str(error))
                for v in node.outputs:
                    self.blobs.setdefault(v, "")
        problems.check(self.graph.name)
        outputs = [self.blob(v) for v in self.graph.outputs]
        layers, taken = _ordered(_split(self.layers, outputs), outputs), set[str]()
        for layer in layers:  # one name is one layer's: ncnn's tables and cuts go by it
            layer.name = unused(layer.name, taken)
        return layers

    def claim(self) -> list[set[Node]]:
        """Look for all nodes that are one layer with others: those of each such layer."""
        groups: list[set[Node]] = []
        for node in self.graph.nodes:
            find = claims.get(node.op.name)
            if find is not None and node not in self.taken:
                before = {*self.taken, *self.claimed}
                with contextlib.suppress(Inexpressible):
                    find(self, node)
                    groups.append({*self.taken, *self.claimed} - before)
        return groups

    # ---- values

    def dims(self, v: Any) -> tuple[Any, ...]:
        """The sizes of a value without its first axis, that of the batch, which ncnn does not have.
        Raises Inexpressible where there is none."""
        need(v.shape, f"the rank of {v.name!r} is not known, or it has no batch")
        need(
            v.const is not None or v.shape[0] in (self.batch, 1),
            f"the first axis of {v.name!r} is no batch",
        )
        need(len(v.shape) <= 5, f"{v.name!r} has more than four axes behind that of the batch")
        return v.shape[1:] or (1,)

    def blob(self, v: Any, rank: int = 0) -> str:
        """The name of a value; a constant becomes a layer, of so many axes behind the batch."""
        if v in self.blobs:
            return self.blobs[v]
        need(v.const is not None, f"{v.name!r} is computed by nothing")
        array = v.const.reshape((1,) * max(0, rank + 1 - v.const.ndim) + v.const.shape)
        need(array.dtype.kind == "f", f"the constant {v.name!r} is not of real numbers")
        need(array.ndim > 1 and array.shape[0] == 1, f"the constant {v.name!r} has a batch")
        need(array.size and array.ndim <= 5, f"the constant {v.name!r} has the shape {array.shape}")
        names = LETTERS[array.ndim - 1]
        name = self.unique(v.name)
        given = dict(zip(names, array.shape[1:], strict=True))
        weights = {"data": np.ascontiguousarray(array, np.float32)}
        self.layers.append(Layer("MemoryData", name, [], [name], given, weights))
        if rank in (0, v.const.ndim - 1):
            self.blobs[v] = name
        return name

    def alias(self, v: Value, like: Value) -> None:
        """v is the same as another value, in ncnn."""
        if v in self.graph.outputs and v.name != self.blob(like):
            self.layer("Noop", v.name, [self.blob(like)], [v])
        else:
            self.blobs[v] = self.blob(like)

    def layer(
        self, type: str, name: str, inputs: list[str], outputs: list[Value],
        given: dict[str, Any] | None = None, **weights: Array,
    ) -> None:  # fmt: skip
        """Add a layer that gives values."""
        blobs = [self.unique(v.name) for v in outputs]
        self.blobs |= dict(zip(outputs, blobs, strict=True))
        assert not set(given or {}) - {p.name for p in LAYERS[type].params}, (type, given)
        title = self._title(name) or blobs[0]
        self.layers.append(Layer(type, title, inputs, blobs, dict(given or {}), weights))

    def layer_of(
        self, type: str, node: Node, given: dict[str, Any] | None = None, **weights: Array
    ) -> None:
        """Add a layer that reads the first input of a node and gives its output."""
        self.layer(type, node.name, [self.blob(node.inputs[0])], [node.output], given, **weights)

    def aside(self, v: Value) -> str:
        """The blob of the last layer, which gives v, under another name, for one more layer that
        then gives v under its own."""
        name, outputs = self.blobs.pop(v), self.layers[-1].outputs
        inner = self.unique(f"{name}_")
        self.names.discard(name)
        outputs[outputs.index(name)] = inner
        return inner

    def _title(self, name: str) -> str:
        """What a layer is called: as the source calls the node that is being written, or, where a
        layer is called so already, by a name of its own."""
        told = self.node.origin.name if self.node is not None else ""
        title = told if told and told not in self.titles else name
        self.titles.add(title)
        return re.sub(r"\s+", "_", title)

    def only_user(self, v: Value, *ops: str) -> Node | None:
        """The one node that reads v, if it is of these operators."""
        users = list(v.uses)
        if len(users) != 1 or v in self.graph.outputs or users[0].op.name not in ops:
            return None
        return users[0] if list(users[0].inputs).count(v) == 1 else None


def _split(layers: list[Layer], outputs: list[str]) -> list[Layer]:
    """A Split behind each value that several layers read, or one and the caller."""
    readers: dict[str, int] = dict.fromkeys(outputs, 0)
    for layer in layers:
        for blob in layer.inputs:
            readers[blob] = readers.get(blob, 0) + 1
    left: dict[str, list[str]] = {}
    done: list[Layer] = []
    names = {name for layer in layers for name in layer.outputs}
    for layer in layers:
        layer.inputs = [left[b].pop(0) if b in left else b for b in layer.inputs]
        done.append(layer)
        for i, blob in enumerate(layer.outputs):
            count = readers.get(blob, 0) + (blob in outputs)
            if count < 2:
                continue
            inner = f"{blob}_whole" if blob in outputs else blob
            while inner != blob and inner in names:
                inner += "_"
            layer.outputs[i] = inner
            parts = [f"{inner}_{k}" for k in range(readers[blob])]
            left[blob] = list(parts)
            done.append(
                Layer(
                    "Split", f"split_{inner}", [inner], parts + [blob] * (blob in outputs), {}, {}
                )
            )
    return _named_by_splits(done)


def _named_by_splits(layers: list[Layer]) -> list[Layer]:
    """Without those Noops that give a part of a Split another name: the part has it."""
    parts = {b: (la, i) for la in layers if la.type == "Split" for i, b in enumerate(la.outputs)}
    left: list[Layer] = []
    for layer in layers:
        if layer.type == "Noop" and len(layer.inputs) == 1 and layer.inputs[0] in parts:
            split, i = parts[layer.inputs[0]]
            split.outputs[i] = layer.outputs[0]
        else:
            left.append(layer)
    return left


def _ordered(layers: list[Layer], outputs: list[str]) -> list[Layer]:
    """The layers so that outputs come in their order, which is all that a binary file tells of
    them: what gives one too early comes later, or is followed by a Noop which gives it."""
    done, last, taken = list(layers), (-1, -1), {b for la in layers for b in la.outputs}
    for name in outputs:
        i, k = next((i, la.outputs.index(name)) for i, la in enumerate(done) if name in la.outputs)
        if (i, k) > last:
            last = i, k
            continue
        if done[i].type == "Input":
            continue
        if done[i].outputs == [name]:
            done.insert(last[0], done.pop(i))
            last = last[0], 0
            continue
        inner = unused(f"{name}_early", taken)
        done[i].outputs[k] = inner
        done.insert(last[0] + 1, Layer("Noop", name, [inner], [name], {}, {}))
        last = last[0] + 1, 0
    return done


def groups_of(graph: Graph) -> list[set[Node]]:
    """The nodes of each layer of ncnn that is several nodes here."""
    try:
        return Writer(graph).claim()
    except Inexpressible:
        return []


def write(
    graph: Graph, path: str | os.PathLike[str], *, halves: bool = False, binary: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> list[Path]:  # fmt: skip
    """Write a graph as NAME.param and NAME.bin, or with its `weights` in another file; `halves`
    stores them as float16, `binary` writes NAME.param.bin instead of the text. The paths that were
    written.

    Raises NotWritable with everything that ncnn has no layer for, before anything is written.
    """
    param = Path(path)
    stem = param.name.removesuffix(".bin").removesuffix(".param")
    bin = param.with_name(stem + ".bin") if weights is None else Path(weights)
    if binary:
        param = param.with_name(stem + ".param.bin")
    alive = graph.clone()
    alive.sweep()  # what nothing reads would be an output
    try:
        layers = Writer(alive).run()
    except Inexpressible as error:
        raise NotWritable(f"{graph.name} cannot be written as ncnn: {error}") from error
    data = b"".join(write_weights(layers, halves))
    try:
        with whole_file(bin) as file, whole_file(param) as lines:
            file.write(data)
            lines.write(param_bytes(layers) if binary else param_text(layers).encode())
    except OSError as error:
        raise ModelFileError(f"{param} cannot be written: {error.strerror or error}") from error
    return [param, bin]
