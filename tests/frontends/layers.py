"""A format of models that is only here: layers as JSON, and their weights in a file beside it.

    {"layers": 1, "weights": "net.bin", "inputs": {"x": [1, 3, 8, 8]}, "outputs": ["y"],
     "net": [{"type": "Conv", "name": "c", "in": ["x"], "out": ["h"], "shape": [1, 8, 6, 6],
              "weight": [8, 3, 3, 3]},
             {"type": "Relu", "name": "r", "in": ["h"], "out": ["y"]}]}

It is imported as formats of the package are, by `tinsmith.frontends.importing` and `nodes`.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.formats.mapped import opened
from tinsmith.frontends import Frontend
from tinsmith.frontends.importing import Import, Importers, Unsupported
from tinsmith.frontends.nodes import Result, Scope, SourceNode
from tinsmith.graph import Graph, Type

layer = Importers("layer", help="What helps: layers that there are.")


class Layer(SourceNode):
    """A layer, which takes its weights from the file in the order of the layers."""

    def __init__(self, scope: Scope, record: dict[str, Any], weights: list[np.ndarray]) -> None:
        said = dict(record)
        type, name, reads, gives = (said.pop(k) for k in ("type", "name", "in", "out"))
        super().__init__(scope, type, name, reads, gives, said, f"version {said.pop('version', 1)}")
        self.ignore("shape")
        if shape := said.get("shape"):
            scope.declared[gives[0]] = Type("float32", tuple(shape))
        self.weights = weights

    def weight(self) -> np.ndarray:
        shape = self.required("weight")
        flat = self.weights[0]
        if prod(shape) > flat.size:
            raise Unsupported(f"its weight has {prod(shape)} elements, the file {flat.size} more")
        self.weights[0] = flat[prod(shape) :]
        return flat[: prod(shape)].reshape(shape)


@layer("Conv")
def conv(node: Layer) -> Result:
    return node.emit("Conv", node[0], node.weight(), pad=node.attr("pad", (0, 0, 0, 0)))


@layer("Relu", "Sigmoid")
def activation(node: Layer) -> Result:
    return node.emit(node.type, node[0])


@layer("Add")
def add(node: Layer) -> Result:
    return node.emit("Add", node[0], node[1])


@layer("Halves")
def halves(node: Layer) -> Result:
    """Both halves of the channels, where it is asked for them; the second one only here."""
    y = node.emit("Split", node[0], axis=1, num_outputs=2)
    return y if node.attr("both", True) else y[0]


@layer("Clamp")
def clamp(node: Layer) -> Result:
    top = node.required("most")
    if top < 0:
        node.note("it clamps to negative numbers")
    return node.emit("Min", node.emit("Relu", node[0]), node.number(top, node[0]))


def load(source: Any) -> Graph:
    file, data, files = opened(source)
    try:
        said = json.loads(bytes(data))
        weights, records = said.get("weights"), said["net"]
    except (ValueError, KeyError) as error:
        raise ModelFileError(f"{file or 'the model'} is damaged: {error}") from error
    flat = np.zeros(0, np.float32)
    if weights:
        flat = np.frombuffer(files.map(Path(source).parent / weights), np.float32)
    model, graph = Import(layer, file, files), Graph("net", file)
    scope, left = Scope(model, graph), [flat]
    for name, shape in said["inputs"].items():
        scope.add_input(name, Type("float32", tuple(shape)))
    scope.run(records, lambda record: Layer(scope, record, left), said["outputs"])
    scope.set_outputs(said["outputs"])
    return model.finish(graph)


FORMAT = Frontend(
    "layers", (".layers",), lambda head, _: head.startswith(b'{"layers": '), load
)  # fmt: skip
