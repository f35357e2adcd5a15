"""ONNX -> Graph, for opsets 7 to the newest; older ones are tried.

`rows` is the table of operators that are one to one; the other modules hold importer functions.
Operators in neither are replaced by the nodes of their function body, where ONNX defines one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinsmith.formats import onnx as files
from tinsmith.frontends import FRONTENDS, Frontend
from tinsmith.graph import Graph


def load(source: Any, input_shapes: Mapping[str, Any] | None = None) -> Graph:
    """The graph of an ONNX model: a path, bytes, or an `onnx.ModelProto`; see `frontends.load`."""
    from tinsmith.frontends.onnx.model import import_model

    return import_model(files.read(source), input_shapes)


FRONTENDS.register(
    "onnx", Frontend("ONNX", (".onnx",), files.sniff, load, files.is_proto, ("input_shapes",))
)
