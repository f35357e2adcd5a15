"""A whole graph -> an ONNX model and its files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.formats.onnx_messages import save, type_proto
from tinsmith.graph import Graph, Holder, Node, Type, Value
from tinsmith.version import __version__
from tinsmith.writers.onnx.row import ML, MS, ROWS, Operand, Row, Unsaid
from tinsmith.writers.registry import WRITERS, Problems, Writer

OPSETS = {"": 21, ML: 3, MS: 1}
"""The oldest versions that are written, by domain; a node that is newer raises them."""
_TYPES = {"float4_e2m1fn": 23, "float8_e8m0fnu": 24, "int2": 25, "uint2": 25}
"""Element types that came after that, with their opset."""


class Writing:
    """One model while it is written: its names, versions, weights and problems."""

    def __init__(self, graph: Graph) -> None:
        self.problems = Problems("ONNX")
        self.used: set[str] = set()
        self.opsets = {"": OPSETS[""]}
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.top = Scope(self, graph)

    def need(self, type: str, domain: str, attributes: frozenset[str]) -> None:
        """Raise the version of a domain to the first that has an operator with these attributes."""
        version = self.opsets.setdefault(domain, OPSETS[domain])
        if domain != MS:
            self.opsets[domain] = _first(type, domain, attributes, version)

    def need_type(self, type: Type) -> None:
        """Raise the version to the first that has this element type."""
        while isinstance(type, Holder):
            type = type.item
        self.opsets[""] = max(self.opsets[""], _TYPES.get(type.dtype.name, 0))

    def proto(self) -> Any:
        """The ModelProto without its weights, which are in `weights`. Raises NotWritable."""
        from onnx import ModelProto, helper

        graph = self.top.proto()
        self.problems.check(repr(self.top.graph.name))
        model = ModelProto(producer_name="tinsmith", producer_version=__version__)
        opsets = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        model.opset_import.extend(opsets)
        model.ir_version = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        model.graph.CopyFrom(graph)
        return model


@cache
def _first(type: str, domain: str, attributes: frozenset[str], version: int) -> int:
    """The first version from `version` on that has an operator with these attributes."""
    from onnx import defs

    newest = max(s.since_version for s in defs.get_all_schemas() if s.domain == domain)
    for found in range(version, newest + 1):
        if defs.has(type, found, domain) and attributes <= set(
            defs.get_schema(type, found, domain).attributes
        ):
            return found
    raise Unsaid(f"no version of ONNX has {type} with {', '.join(sorted(attributes))}")


class Scope:
    """One graph while it is written: the names of its values, and ONNX nodes."""

    def __init__(
        self, writing: Writing, graph: Graph, above: Scope | None = None,
        captured: dict[Value, str] | None = None,
    ) -> None:  # fmt: skip
        self.writing, self.graph, self.above = writing, graph, above
        self.names: dict[Value, str] = dict(captured or {})
        self.nodes: list[Any] = []
        self.weights = writing.weights if above is None else {}
        self.said: dict[str, Type] = {}
        self._node: Node | None = None
        for v in (*graph.inputs, *graph.outputs):
            self.name(v)
        self._follow_checks()

    def _follow_checks(self) -> None:
        """What a check of sizes reads has the name of what it gives, where nothing else reads it:
        the check becomes the declared type of that name."""
        for node in self.graph.nodes:
            if node.op.name != "Declared":
                continue
            x, y = node.inputs[0], node.output
            assert x is not None
            self.said[self.name(y)] = y.type
            alone = x.producer is not None and len(x.uses) == 1 and x not in self.names
            if alone and x not in self.graph.outputs:
                self.names[x] = self.name(y)

    # ---- what rows ask

    def fresh(self, name: str) -> str:
        used, found, i = self.writing.used, name or "value", 0
        while found in used:
            i += 1
            found = f"{name}.{i}"
        used.add(found)
        return found

    def name(self, v: Value) -> str:
        if v not in self.names:
            self.names[v] = self.fresh(v.name)
            self.writing.need_type(v.type)
            if v.const is not None:
                self.weights[self.names[v]] = v.const
        return self.names[v]

    def operand(self, v: Operand, near: str) -> str:
        if v is None or isinstance(v, str):
            return v or ""
        if isinstance(v, Value):
            return self.name(v)
        name = self.fresh(f"{near}/const")
        self.weights[name] = v
        return name

    def alias(self, y: Value, x: Value, row: Row) -> None:
        """`y` is `x`: the same name, or an Identity where an output needs its own."""
        if y in self.names and self.names[y] != self.names.get(x):
            row.end("Identity", x)
        else:
            self.names[y] = self.name(x)

    def body(self, graph: Graph) -> Any:
        """The GraphProto of a graph that the present node holds: the last inputs of its graph are
        the last of the node's, whose names it sees."""
        assert self._node is not None
        count = captured_of(self._node)
        inner, outer = graph.inputs, self._node.inputs
        names = {
            v: self.operand(o, "") for v, o in zip(inner[len(inner) - count :],
                                                  outer[len(outer) - count :], strict=True)
        }  # fmt: skip
        return Scope(self.writing, graph, self, names).proto(len(inner) - count)

    def add(
        self, type: str, inputs: list[str], outputs: list[str], attrs: list[Any], domain: str,
        name: str,
    ) -> None:  # fmt: skip
        from onnx import NodeProto

        self.writing.need(type, domain, frozenset(a.name for a in attrs))
        proto = NodeProto(op_type=type, name=name, domain=domain, input=inputs, output=outputs)
        proto.attribute.extend(attrs)
        self.nodes.append(proto)

    # ---- the whole

    def proto(self, own: int | None = None) -> Any:
        """The GraphProto, of the first `own` inputs; weights of the outermost are left out."""
        from onnx import GraphProto

        from tinsmith.formats.onnx_messages import tensor_proto

        graph = GraphProto(name=self.graph.name or "graph")
        for node in self.graph.nodes:
            self._write(node)
        inputs = self.graph.inputs[:own]
        graph.input.extend(self._info(self.name(v), v.type) for v in inputs)
        taken = {self.name(v) for v in inputs} if self.above is not None else set()
        made = {o for n in self.nodes for o in n.output}
        for v in self.graph.outputs:
            name = self.name(v)
            if name in taken or (self.above is not None and name not in made):
                name = self.fresh(f"{name}/out")
                self.add("Identity", [self.name(v)], [name], [], "", name)
            taken.add(name)
            graph.output.append(self._info(name, v.type, v.producer))
        shown = {info.name for info in (*graph.input, *graph.output)}
        said = {n: t for n, t in self.said.items() if n not in shown}
        graph.value_info.extend(self._info(n, t) for n, t in said.items())
        graph.node.extend(self.nodes)
        if self.above is not None:
            graph.initializer.extend(tensor_proto(a, n) for n, a in self.weights.items())
        return graph

    def _write(self, node: Node) -> None:
        write = ROWS.get(node.op.name)
        before, self._node = self._node, node
        try:
            if write is None:
                raise Unsaid("ONNX has no such operator, and no row says how to write it in others")
            write(Row(self, node))
        except Unsaid as error:
            self.writing.problems.add(node, str(error))
        finally:
            self._node = before

    def _info(self, name: str, type: Type, producer: Node | None = None) -> Any:
        from onnx import ValueInfoProto

        zipped = producer is not None and producer.op.name == "ZipMap"
        text = zipped and isinstance(producer.attrs["keys"][0], str)
        return ValueInfoProto(name=name, type=type_proto(type, "object" if text else "int64"))


def captured_of(node: Node) -> int:
    """How many of the last inputs are values that the node's graphs see without being given."""
    return len(node.inputs) - 1 if node.op.name == "If" else node.attrs["captured"]


def write(graph: Graph, path: Path, inside: int = 2**31) -> None:
    """Write an ONNX file, its weights inside where they take at most `inside` bytes."""
    writing = Writing(graph)
    save(writing.proto(), writing.weights, path, inside)


WRITERS.register("onnx", Writer("ONNX", (".onnx",), write))
