"""Writes a whole graph as an ONNX model and its files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.formats.onnx_messages import save, type_proto
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.records import dataclass
from tinsmith.version import __version__
from tinsmith.writers.onnx.row import ML, MS, Operand, Row, row
from tinsmith.writers.registry import WRITERS, Problems, Writer
from tinsmith.writers.rows import Inexpressible, present, unused

OPSETS = {"": 21, ML: 3, MS: 1}
"""Domain -> the opset that is written, unless a node needs a newer one."""


@dataclass(frozen=True)
class Wanted:
    """The features of an ONNX operator that a node uses, by which the opset is chosen: names of its
    attributes, and types of inputs and outputs, "tensor(float)", or "" if unknown."""

    type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: frozenset[str]


class Writing:
    """The state of writing one model, shared by its nested graphs: names of values (`used`) and
    nodes (`labels`), opsets by domain, weights of the outermost graph by name, and problems."""

    def __init__(self, graph: Graph) -> None:
        self.problems = Problems("ONNX")
        self.used: set[str] = set()
        self.labels: set[str] = set()
        self.opsets = {"": OPSETS[""]}
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.top = Scope(self, graph)

    def need(self, wanted: Wanted) -> None:
        """Raise the domain's opset to the first that has `wanted`; com.microsoft's is not checked.
        Raises Inexpressible if none has."""
        version = self.opsets.setdefault(wanted.domain, OPSETS[wanted.domain])
        if wanted.domain != MS:
            self.opsets[wanted.domain] = _first(wanted, version)

    def proto(self) -> Any:
        """Return the ModelProto without its weights, which are in `weights`. Raises NotWritable."""
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
def _first(wanted: Wanted, version: int) -> int:
    """Return the first version of the domain, from `version` on, whose operator has the features
    `wanted`. Raises Inexpressible if none has."""
    from onnx import defs

    newest = max(s.since_version for s in defs.get_all_schemas() if s.domain == wanted.domain)
    for found in range(version, newest + 1):
        if defs.has(wanted.type, found, wanted.domain):
            schema = defs.get_schema(wanted.type, found, wanted.domain)
            if _has(schema, wanted):
                return found
    shown = f"inputs {', '.join(t or '-' for t in wanted.inputs)}"
    raise Inexpressible(f"no version of ONNX has {wanted.type} with {shown} and attributes "
                 f"{', '.join(sorted(wanted.attributes)) or 'none'}")  # fmt: skip


def _has(schema: Any, wanted: Wanted) -> bool:
    """Whether an operator's schema admits the wanted types and attributes."""
    for formal, types in ((schema.inputs, wanted.inputs), (schema.outputs, wanted.outputs)):
        for i, type in enumerate(types):
            variadic = formal and formal[-1].option == schema.FormalParameterOption.Variadic
            if i >= len(formal) and not variadic:
                return False
            if type and type not in formal[min(i, len(formal) - 1)].types:
                return False
    return wanted.attributes <= set(schema.attributes)


class Scope:
    """The state of writing one graph, the model's or a nested one: the names of its values, and the
    NodeProtos so far. `above`: the scope around it, if nested; `captured`: input that stands for a
    captured value -> the value's name in `above`. `said`: name -> declared type (see
    `_follow_checks`)."""

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
        """Put the types that `Declared` nodes, checks of sizes, declare into `said`, by the names
        of their outputs. The input of such a node gets the same name, so that no node is written
        (`expanded.declared`), if only the check reads it, a node computes it, and it is no input or
        output of the graph."""
        for node in self.graph.nodes:
            if node.op.name != "Declared":
                continue
            x, y = node.operand(0), node.output
            self.said[self.name(y)] = y.type
            alone = x.producer is not None and len(x.uses) == 1 and x not in self.names
            if alone and x not in self.graph.outputs:
                self.names[x] = self.name(y)

    # ---- for rows

    def fresh(self, name: str) -> str:
        return unused(name or "value", self.writing.used, ".")

    def name(self, v: Value) -> str:
        if v not in self.names:
            self.names[v] = self.fresh(v.name)
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
        """Let y, the output of a node that ONNX does not need, have the name of x; if it has
        another as an output of the graph, `row` writes an Identity."""
        if y in self.names and self.names[y] != self.names.get(x):
            row.end("Identity", x)
        else:
            self.names[y] = self.name(x)

    def body(self, graph: Graph) -> Any:
        """Return the GraphProto of a graph that is an attribute of the node being written. The last
        inputs of both are captured values: in ONNX no inputs, but read by their outer names."""
        node = self._node
        assert node is not None
        inner, outer = graph.inputs, node.inputs
        count = len(outer) - 1 if "branch" in node.op.traits else node.attrs["captured"]
        names = {
            v: self.operand(o, "") for v, o in zip(inner[len(inner) - count :],
                                                  outer[len(outer) - count :], strict=True)
        }  # fmt: skip
        return Scope(self.writing, graph, self, names).proto(len(inner) - count)

    def add(self, proto: Any, types: dict[str, str]) -> None:
        """Add a NodeProto, and choose the opset for it. `types`: name of a value -> its type as in
        `Wanted`, if known. Raises Inexpressible."""
        ins, outs = (
            tuple(types.get(n, "") for n in names) for names in (proto.input, proto.output)
        )
        names = frozenset(a.name for a in proto.attribute)
        self.writing.need(Wanted(proto.op_type, proto.domain, ins, outs, names))
        proto.name = unused(proto.name or "value", self.writing.labels, ".")
        self.nodes.append(proto)

    # ---- the whole

    def proto(self, own: int | None = None) -> Any:
        """Write the nodes; return the graph as a GraphProto. Only the first `own` inputs (None:
        all) are its inputs in ONNX. The weights of the outermost graph are left out; the caller
        adds them."""
        from onnx import GraphProto, NodeProto

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
                self.add(NodeProto(op_type="Identity", input=[self.name(v)], output=[name]), {})
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
        write = row.get(node.op.name)
        before, self._node = self._node, node
        try:
            why = "ONNX has no such operator, and no row says how to write it in others"
            present(write, why)(Row(self, node))
        except Inexpressible as error:
            self.writing.problems.add(node, str(error))
        finally:
            self._node = before

    def _info(self, name: str, type: Type, producer: Node | None = None) -> Any:
        from onnx import ValueInfoProto

        keys = producer.attrs.get("keys", (0,)) if producer is not None else (0,)
        text = isinstance(keys[0], str)
        return ValueInfoProto(name=name, type=type_proto(type, "object" if text else "int64"))


def write(graph: Graph, path: Path, inside: int = 2**31) -> None:
    """Write an ONNX file; weights go inside if they take at most `inside` bytes, else into a file
    beside it. Raises NotWritable, OSError."""
    writing = Writing(graph)
    save(writing.proto(), writing.weights, path, inside)


WRITERS.register("onnx", Writer("ONNX", (".onnx",), write, small=True))
