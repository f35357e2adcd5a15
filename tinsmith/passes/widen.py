"""float16 and bfloat16 are computed in float32: halves are what comes in, goes out and is stored.

What is computed between two halves is rounded once, at the end, not after every operator. The
portable passes run before, on halves: activations and norms are recognised by their constants as
halves round them, and a canonical graph holds weights as the file does. They run again after, on
float32: rules that compute new weights wait for that (`RuleSet.halves`).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.precision import HALVES, is_half
from tinsmith.ops.quant import divided_in
from tinsmith.passes.facts import is_small_half
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass

FLOAT32 = np.dtype(np.float32)
PASS = "widen-halves"


@register("precision", name=PASS, devices=("cpu",))
@dataclass(frozen=True)
class WidenHalves:
    """Nodes on float16 and bfloat16 compute in float32, with casts where halves come in or leave.

    Constants are converted once. A QuantizeLinear divides in its half as before. Nodes that only
    move elements of inputs stay as they are, and so do casts to a half and back where nothing is
    computed with halves.
    """

    def applies(self, graph: Graph) -> bool:
        return any("control" in n.op.traits or _reads_or_makes_halves(n) for n in graph.nodes)

    def run(self, graph: Graph, context: Context) -> int:
        nodes = [n for n in graph.nodes if _reads_or_makes_halves(n)]
        work = _Widening(graph, context, any("conversion" not in n.op.traits for n in nodes))
        for node in nodes:
            work.visit(node)
        if work.changes:
            graph.sweep()
        return work.changes


def _reads_or_makes_halves(node: Node) -> bool:
    return any(v is not None and is_half(v.dtype) for v in (*node.inputs, *node.outputs))


@dataclass
class _Widening:
    """The edit of one graph by WidenHalves.

    wide   for each half that is computed: the float32 value from which it was rounded
    casts  for each other half: its float32 value, a constant or the result of an added cast
    """

    graph: Graph
    context: Context
    computing: bool  # whether anything but casts is on halves
    wide: dict[Value, Value] = field(default_factory=dict)
    casts: dict[Value, Value] = field(default_factory=dict)
    changes: int = 0

    def visit(self, node: Node) -> None:
        if "conversion" in node.op.traits:
            self._cast(node)
        elif node.op.traits & {"control", "holder", "impure", "check"}:
            self.context.refuse(PASS, node.name, f"{node.op.name} keeps its own element types")
        elif not self._only_moves(node):
            self._widen(node)

    def _cast(self, node: Node) -> None:
        """Visit a cast from or to a half. One to a half stays; what it rounds is remembered in
        `wide`, if `computing`. One from a half in `wide` reads the float32 value instead,
        unless it makes whole numbers: 2.9999, which is 3 as a half, is to be 3. A constant that is
        cast to float32 becomes a float32 constant, unless `is_small_half`."""
        x, y = node.operand(0), node.output
        if is_small_half(node) or (is_half(x.dtype) and y.dtype.kind in "biu"):
            return
        if is_half(x.dtype):
            source = self.wide.get(x)
            if source is None and x.const is not None and y.dtype == FLOAT32:
                source = self._of_const(x)
            if source is None:
                return
            if is_half(y.dtype):
                self.wide[y] = source
                return
            if source.dtype == y.dtype and y not in self.graph.outputs:
                new = source
            else:
                new = self._made(node, (source,), node.attrs).output
                new.type = y.type
            self.graph.replace(y, new)
            self.changes += 1
        elif not self.computing:
            return
        elif x.dtype == FLOAT32:
            self.wide[y] = x
        elif y.uses and x.dtype.kind in "biu":
            self.wide[y] = self._added(node, x, "float32")

    def _only_moves(self, node: Node) -> bool:
        """Whether a node only moves elements, not all of them constant, and reads no half that is
        computed: it then stays as it is."""
        if not node.op.traits & {"move", "view"} or all(
            v is None or v.const is not None for v in node.inputs
        ):
            return False
        return not any(v in self.wide for v in node.inputs if v is not None)

    def _widen(self, node: Node) -> None:
        inputs = tuple(
            self._source(node, v) if v is not None and is_half(v.dtype) else v for v in node.inputs
        )
        attrs = {
            k: "float32" if isinstance(v, str) and v in HALVES else v for k, v in node.attrs.items()
        }
        if "quantise" in node.op.traits:
            attrs["precision"] = divided_in(node.operand(1), node.precision).name
        try:
            types = node.op.infer(inputs, attrs)
        except TypeRuleError as error:
            self.context.refuse(PASS, node.name, f"{node.op.name} of float32: {error}")
            return
        for old, new in zip(node.outputs, types, strict=True):
            if new.dtype != (FLOAT32 if is_half(old.dtype) else old.dtype):
                why = f"{node.op.name} of float32 gives {new.dtype}"
                self.context.refuse(PASS, node.name, why)
                return
        made = self._made(node, inputs, attrs)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            half = is_half(old.dtype)
            new.type = old.type.like(dtype=FLOAT32) if half else old.type
            result = self._added(node, new, old.dtype.name) if half else new
            self.graph.replace(old, result)
            if result not in self.graph.outputs:
                old.name, new.name = new.name, old.name
            if half:
                self.wide[result] = new
        kinds = {v.dtype.name for v in (*node.inputs, *node.outputs) if v and is_half(v.dtype)}
        what = " and ".join(sorted(kinds))
        self.context.note(PASS, made.name, f"{what} is computed in float32")
        self.changes += 1

    def _source(self, node: Node, v: Value) -> Value:
        """The float32 value of the half v; if there is none yet, of a cast added before `node`."""
        if v in self.wide:
            return self.wide[v]
        if v.const is not None:
            return self._of_const(v)
        if v not in self.casts:
            self.casts[v] = self._added(node, v, "float32")
        return self.casts[v]

    def _of_const(self, v: Value) -> Value:
        if v not in self.casts:
            assert v.const is not None
            with np.errstate(invalid="ignore"):
                new = self.graph.const(np.asarray(v.const).astype(FLOAT32), v.name)
            v.name, new.name = new.name, v.name
            self.casts[v] = new
        return self.casts[v]

    def _added(self, node: Node, v: Value, to: str) -> Value:
        name = f"{v.name}.{to}"
        cast = self.graph.add(OPS["Cast"], v, name=name, origin=node.origin, before=node, to=to)
        cast.output.type = v.type.like(dtype=cast.output.dtype)
        return cast.output

    def _made(self, node: Node, inputs: tuple[Value | None, ...], attrs: dict[str, Any]) -> Node:
        """Add a node that is to replace `node`: of the same operator, with these inputs and
        attributes, and its name."""
        made = self.graph.add(
            node.op, *inputs, name=node.name, origin=node.origin, before=node, **attrs
        )
        made.name, node.name = node.name, made.name
        return made
