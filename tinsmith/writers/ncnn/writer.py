"""Writes a whole graph as ncnn's layers, and its two files.

Every value of the graph has the axis of the batch in front; ncnn has no batch, so it is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError, NotWritable
from tinsmith.formats import pairs_of
from tinsmith.formats.ncnn.layers import LAYERS
from tinsmith.formats.ncnn.param import Layer, param_bytes, param_text
from tinsmith.formats.ncnn.weights import write_weights
from tinsmith.formats.whole import whole_file
from tinsmith.frontends.ncnn.node import LETTERS, NAMES
from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.writers.registry import Problems
from tinsmith.writers.rows import Inexpressible, Rows, inputs_of, need, present, unused

writes = Rows("ncnn writer", "tinsmith.writers.ncnn")
"""The functions (Writer, node) that add the layers of a node, by operator."""

claims = Rows("ncnn layer", "tinsmith.writers.ncnn")
"""The functions (Writer, node) that find nodes around a node which are one layer with it, by
operator. Such a function puts one of the nodes, with a function that writes the layer, into
`Writer.claimed`, and the others into `Writer.taken`: it claims them. If it finds none, it raises
Inexpressible, and what it has put into `taken` is removed."""


class Writer:
    """Makes the layers of a graph. `blobs`: value -> its name in ncnn. Raises Inexpressible for a
    graph without inputs, or with one whose rank is 0 or not known."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.layers = graph, list[Layer]()
        self.blobs: dict[Value, str] = {}
        self.names: set[str] = set()
        self.titles: set[str] = set()
        """Names of layers."""
        self.node: Node | None = None
        """The node that is being written."""
        self.taken: set[Node] = set()
        """Nodes that the layer of another node computes."""
        self.claimed: dict[Node, Callable[[], None]] = {}
        """Node -> a function that writes the layer of it and of taken nodes."""
        self.vectors: set[Value] = set()
        """Images of one pixel that are vectors in ncnn."""
        self.factors: dict[Value, float] = {}
        """Product without a layer -> the factor, with which the sum that reads it multiplies."""
        self.edges: dict[Value, tuple[int, ...]] = {}
        """Padding without a layer -> its widths, which the pooling that reads it adds."""
        need(graph.inputs, "it has no inputs")
        shapes = [v.shape for v in graph.inputs]
        need(all(shapes), "an input is of unknown rank, or has no axis of a batch")
        self.batch = shapes[0][0] if shapes[0] else None

    def unique(self, name: str) -> str:
        return unused(re.sub(r"[\s=]+", "_", name)[:200] or "value", self.names)

    def run(self) -> list[Layer]:
        """Return the layers of the graph. Raises NotWritable with all nodes that cannot be
        written."""
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
            try:
                if write := self.claimed.get(node):
                    write()
                    continue
                why = "ncnn has no layer for this operator"
                function = present(writes.get(node.op.name), why)
                for v in node.outputs:
                    self.dims(v)
                function(self, node)
            except Inexpressible as error:
                problems.add(node, str(error))
                for v in (v for n in (node, *self.taken) for v in n.outputs):
                    self.blobs.setdefault(v, "")
        problems.check(self.graph.name)
        outputs = [self.blob(v) for v in self.graph.outputs]
        layers, taken = _ordered(_split(self.layers, outputs), outputs), set[str]()
        for layer in layers:  # unique names: ncnn's calibration tables and cuts use them
            layer.name = unused(layer.name, taken)
        return layers

    def claim(self) -> list[set[Node]]:
        """Find all nodes that are one layer with others, by the functions of `claims`. Return the
        set of nodes of each such layer."""
        groups: list[set[Node]] = []
        for node in self.graph.nodes:
            find = claims.get(node.op.name)
            if find is not None and node not in self.taken:
                before = {*self.taken}, {*self.claimed}
                try:
                    find(self, node)
                    groups.append({*self.taken, *self.claimed}.difference(*before))
                except Inexpressible:
                    self.taken = before[0]
        return groups

    def claim_as(
        self, node: Node, taken: Iterable[Node], type: str, values: Iterable[Any],
        outputs: list[Value], given: dict[str, Any], name: str = "", **weights: Array,
    ) -> None:  # fmt: skip
        """Claim a node and those in `taken` as one layer that reads `values` and gives `outputs`;
        `type`, `given` and `weights` are as in `layer`. The layer's name is the node's by
        default."""
        self.taken.update(taken)
        self.claimed[node] = lambda: self.layer(
            type, name or node.name, [self.blob(v) for v in values], outputs, given, **weights
        )

    # ---- values

    def dims(self, v: Any) -> tuple[Any, ...]:
        """Return the sizes of a value without the batch, its first axis; (1,) if that is all.
        Raises Inexpressible if the first axis of a computed value is neither 1 nor the batch of the
        inputs, the rank is not known or 0, or there are more than 5 axes."""
        need(v.shape, f"the rank of {v.name!r} is not known, or it has no batch")
        need(
            v.const is not None or v.shape[0] in (self.batch, 1),
            f"the first axis of {v.name!r} is no batch",
        )
        need(len(v.shape) <= 5, f"{v.name!r} has more than four axes behind that of the batch")
        return v.shape[1:] or (1,)

    def blob(self, v: Any, rank: int = 0) -> str:
        """Return the name of a value in ncnn. For a constant, a MemoryData layer is added, with at
        least `rank` axes after the batch. Raises Inexpressible."""
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
        """Let v have the blob of `like`; if v is an output of another name, a Noop gives it."""
        if v in self.graph.outputs and v.name != self.blob(like):
            self.layer("Noop", v.name, [self.blob(like)], [v])
        else:
            self.blobs[v] = self.blob(like)

    def layer(
        self, type: str, name: str, inputs: list[str], outputs: list[Value],
        given: dict[str, Any] | None = None, **weights: Array,
    ) -> None:  # fmt: skip
        """Add a layer. `inputs` are names of blobs, `outputs` the values that it gives; `given` are
        its parameters and `weights` its arrays, by the names that `LAYERS` has for them."""
        blobs = [self.unique(v.name) for v in outputs]
        self.blobs |= dict(zip(outputs, blobs, strict=True))
        assert not set(given or {}) - {p.name for p in LAYERS[type].params}, (type, given)
        title = self._title(name) or blobs[0]
        self.layers.append(Layer(type, title, inputs, blobs, dict(given or {}), weights))

    def layer_of(
        self, type: str, node: Node, given: Mapping[str, Any] = {}, **weights: Array
    ) -> None:
        """Add a layer (see `layer`) that reads the first input of a node and gives its output, with
        the parameters `told` and `given`."""
        names = [self.blob(node.inputs[0])]
        given = {**told(type, node), **given}
        self.layer(type, node.name, names, [node.output], given, **weights)

    def layer_of_all(self, type: str, node: Node, given: Mapping[str, Any] = {}) -> None:
        """Add a layer as `layer_of`, but one that reads all inputs of a node. Raises Inexpressible
        if one is absent."""
        inputs = [present(v, f"{type} needs all of its inputs") for v in inputs_of(node)]
        names = [self.blob(v) for v in inputs]
        self.layer(type, node.name, names, [node.output], {**told(type, node), **given})

    def aside(self, v: Value) -> str:
        """Rename the blob of the last layer, which gives v, and return the new name: one more
        layer, added by the caller, will read it and give v."""
        name, outputs = self.blobs.pop(v), self.layers[-1].outputs
        inner = self.unique(f"{name}_")
        self.names.discard(name)
        outputs[outputs.index(name)] = inner
        return inner

    def _title(self, name: str) -> str:
        """Return the name of a new layer: that of the written node in the source model, or, if a
        layer has this name already, `name`."""
        told = self.node.origin.name if self.node is not None else ""
        title = told if told and told not in self.titles else name
        self.titles.add(title)
        return re.sub(r"\s+", "_", title)

    def only_user(self, v: Value, *ops: str) -> Node | None:
        """Return the only node that reads v, if it is of these operators and reads v once; None if
        not, or if v is an output of the graph."""
        users = list(v.uses)
        if len(users) != 1 or v in self.graph.outputs or users[0].op.name not in ops:
            return None
        return users[0] if list(users[0].inputs).count(v) == 1 else None


def told(type: str, node: Node) -> dict[str, Any]:
    """Return the parameters of a layer of this type that are attributes of a node (`NAMES`)."""
    return {theirs: node.attrs[ours] for theirs, ours in pairs_of(NAMES.get(type, ""))}


def _split(layers: list[Layer], outputs: list[str]) -> list[Layer]:
    """Return layers with a Split after each value that has several readers, of which an output of
    the graph counts as one: in ncnn a value has one reader. Changes `layers`."""
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
    """Remove Noop layers that only rename an output of a Split: the output gets the name."""
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
    """Reorder layers so that they give the graph's outputs in order, by which alone a binary file
    identifies outputs. A layer that is too early is moved, or a Noop after it gives the output."""
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
    """Return the groups of nodes for which ncnn has one layer, so that passes leave them as they
    are. [] for a graph for which `Writer` raises Inexpressible."""
    try:
        return Writer(graph).claim()
    except Inexpressible:
        return []


def write(
    graph: Graph, path: str | os.PathLike[str], *, halves: bool = False, binary: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> list[Path]:  # fmt: skip
    """Write a graph as NAME.param and NAME.bin, or with its weights in the file `weights`. `halves`
    stores weights as float16, `binary` writes NAME.param.bin instead of text. Return the paths that
    were written.

    Raises NotWritable, before anything is written, with everything that ncnn has no layer for, and
    ModelFileError if a file cannot be written.
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
