"""Prints a graph as text; `text` describes the form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

import numpy as np

from tinsmith.graph.core import Graph, Node, Value
from tinsmith.graph.types import Holder, Type, element_name
from tinsmith.sizes import Size

_BARE = re.compile(r"[A-Za-z_?/.][\w/.?]*(?::[\w/.?]+)*\Z")
_RESERVED = frozenset((
    "graph", "const", "return", "file", "from", "key", "meta", "none", "true", "false", "inf", "nan"
))  # fmt: skip


def _name(name: str) -> str:
    return name if _BARE.match(name) and name not in _RESERVED else _quoted(name)


def _type(type: Type) -> str:
    if isinstance(type, Holder):
        return f"{type.word}({_type(type.item)})"
    kind = element_name(type.dtype)
    if type.shape is None:
        return f"{kind}[*]"
    return f"{kind}[{','.join(_name(d) if isinstance(d, str) else str(d) for d in type.shape)}]"


def _scalar(x: Any) -> str:
    if isinstance(x, bool | np.bool_):
        return "true" if x else "false"
    if isinstance(x, bytes):
        return json.dumps(x.decode("utf-8", "surrogateescape"))
    if isinstance(x, str):
        return json.dumps(x)
    if isinstance(x, Size):
        return str(x)
    if isinstance(x, int | np.integer):
        return str(int(x))
    if np.iscomplexobj(x):
        return f"({_scalar(x.real)}, {_scalar(x.imag)})"
    f = float(x)
    if math.isnan(f) or math.isinf(f):
        return "nan" if math.isnan(f) else ("inf" if f > 0 else "-inf")
    narrow = getattr(x, "dtype", None) in (np.dtype("float16"), np.dtype("float32"))
    text = str(x) if narrow else repr(f)
    return text if re.search(r"[.e]", text) else text + ".0"


class _Printer:
    """Prints a graph: each method returns the text, or the lines, of one construct. `indent` is the
    white space before its lines; `prefix`, "" in the outermost graph, comes before the key of a
    constant whose elements are left out (`graph_weights`)."""

    def __init__(self, max_inline: int) -> None:
        self.max_inline = max_inline

    def graph(self, g: Graph, indent: str, prefix: str) -> list[str]:
        inputs = ", ".join(f"{_name(v.name)}: {_type(v.type)}" for v in g.inputs)
        head = "graph" + (f" {_name(g.name)}" if g.name else "")
        head += f" file {json.dumps(g.file)}" if g.file else ""
        lines = [f"{head} ({inputs}) {{"]
        inner = indent + "  "
        if meta := {k: v for k, v in g.meta.items() if _is_json(v)}:
            lines.append(f"{inner}meta {json.dumps(meta)}")
        lines += [f"{inner}{self.const(v, prefix)}" for v in g.constants()]
        for node in g.nodes:
            lines += self.node(node, inner, prefix)
        lines.append(f"{inner}return {', '.join(_name(v.name) for v in g.outputs)}")
        lines.append(f"{indent}}}")
        return lines

    def const(self, v: Value, prefix: str) -> str:
        text = f"{_name(v.name)} = const {_type(v.type)}"
        if v.array.size > self.max_inline:
            return text + (f" key {json.dumps(prefix + v.name)}" if prefix else "")
        items = ", ".join(_scalar(x) for x in v.array.ravel())
        return f"{text} = [{items}]"

    def node(self, node: Node, indent: str, prefix: str) -> list[str]:
        defaults = getattr(node.op, "attrs", {})
        args = ["-" if v is None else _name(v.name) for v in node.inputs]
        for key, value in node.attrs.items():
            default = defaults.get(key, node)
            if type(default) is type(value) and default == value:
                continue
            args.append(f"{key}={self.attr(value, indent, f'{prefix}{node.name}.{key}/')}")
        outs = ", ".join(_name(v.name) for v in node.outputs)
        types = ", ".join(_type(v.type) for v in node.outputs)
        text = f"{indent}{outs} = {node.op.name}({', '.join(args)})"
        text += f" : {types}" if types else ""
        if not node.outputs or node.name != node.outputs[0].name:
            text += f" @{_name(node.name)}"
        origin, file = node.origin, node.graph.file
        if (origin.file, origin.name, origin.type) != (file, node.name, node.op.name):
            text += f" from {_quoted(origin.type)} {_quoted(origin.name)}"
            text += f" {_quoted(origin.file)}" if origin.file != file else ""
        return text.split("\n")

    def attr(self, value: Any, indent: str, prefix: str) -> str:
        if value is None:
            return "none"
        if isinstance(value, Graph):
            return "\n".join(self.graph(value, indent, prefix))
        if isinstance(value, tuple | list):
            items = [self.attr(v, indent, f"{prefix}{i}/") for i, v in enumerate(value)]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if isinstance(value, np.dtype):
            return json.dumps(value.name)
        if isinstance(value, np.ndarray):
            items = ", ".join(_scalar(x) for x in value.ravel())
            return f"const {_type(Type(value.dtype, value.shape))} = [{items}]"
        return _scalar(value)


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def format_graph(graph: Graph, max_inline: int = 8) -> str:
    """The text of a graph, which `parse_graph` reads back. Constants of more than `max_inline`
    elements are printed without their elements, which `graph_weights` gives."""
    return "\n".join(_Printer(max_inline).graph(graph, "", "")) + "\n"


def graph_weights(graph: Graph, max_inline: int = 8, prefix: str = "") -> dict[str, np.ndarray]:
    """The constants of more than `max_inline` elements, which `format_graph` leaves out, to be
    stored beside the text: key -> array. The key is `prefix` and the constant's name; between them,
    in nested graphs, `NODE.ATTRIBUTE/` for each node around, the outermost first (and `INDEX/`
    where the attribute is a tuple)."""
    found: dict[str, np.ndarray] = {}
    for v in graph.constants():
        if v.array.size > max_inline:
            found[prefix + v.name] = v.array
    for node in graph.nodes:
        for name, sub in node.graphs.items():
            found |= graph_weights(sub, max_inline, f"{prefix}{node.name}.{name}/")
    return found


def weights_in(graphs: Iterable[Graph]) -> list[np.ndarray]:
    """The arrays of all constants, but for empty ones, of graphs and those nested in them."""
    return [array for graph in graphs for array in graph_weights(graph, 0).values()]
