"""The importer of Gradient (ai.onnx.preview.training): derivatives as nodes of the same graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.graph import Node, Value

Rule = Callable[[Call, Node, Value], tuple[Value | None, ...]]
"""From a node and the derivative by its output to the derivatives by its inputs."""

RULES: dict[str, Rule] = {
    "Identity": lambda c, n, g: (g,),
    "Neg": lambda c, n, g: (c.emit("Neg", g),),
    "Add": lambda c, n, g: (g, g),
    "Sub": lambda c, n, g: (g, c.emit("Neg", g)),
    "Mul": lambda c, n, g: (c.emit("Mul", g, n.inputs[1]), c.emit("Mul", g, n.inputs[0])),
    "Div": lambda c, n, g: _quotient(c, n, g),
    "Exp": lambda c, n, g: (c.emit("Mul", g, n.output),),
    "Log": lambda c, n, g: (c.emit("Div", g, n.inputs[0]),),
    "Tanh": lambda c, n, g: (_times_rest(c, g, c.emit("Mul", n.output, n.output)),),
    "Sigmoid": lambda c, n, g: (_times_rest(c, c.emit("Mul", g, n.output), n.output),),
    "MatMul": lambda c, n, g: _product(c, n, g),
}


def _quotient(call: Call, node: Node, g: Value) -> tuple[Value | None, ...]:
    by_x = call.emit("Div", g, node.inputs[1])
    return by_x, call.emit("Neg", call.emit("Mul", by_x, node.output))


def _times_rest(call: Call, g: Value, part: Value) -> Value:
    """g * (1 - part)"""
    return call.emit("Mul", g, call.emit("Sub", call.number(1, g), part))


def _product(call: Call, node: Node, g: Value) -> tuple[Value | None, ...]:
    a, b = node.inputs
    assert a is not None and b is not None
    if a.rank != 2 or b.rank != 2:
        raise Unsupported(f"the derivative of the product of {a.type} and {b.type} is not known")
    flip = (1, 0)
    by_a = call.emit("MatMul", g, call.emit("Transpose", b, perm=flip))
    return by_a, call.emit("MatMul", call.emit("Transpose", a, perm=flip), g)


@importer("ai.onnx.preview.training.Gradient")
def gradient(call: Call) -> Result:
    """The derivatives of the sum of y by each of xs, through the nodes that lead from them to y."""
    call.ignore("zs")
    names, goal = call.required("xs"), call.required("y")
    y, xs = call.scope.look_up(goal), [call.scope.look_up(n) for n in names]
    if not isinstance(y, Value) or y.const is not None:
        raise Unsupported(f"y ({goal!r}) is not computed before it")
    if list(xs) != call.inputs[: len(xs)]:
        raise Unsupported("its inputs are other values than those that xs names")
    found: dict[Value, Value] = {y: _filled(call, y, 1)}
    leads = _leading(call, set(xs))
    for node in reversed([n for n in call.scope.graph.nodes if n in leads]):
        g = found.get(node.outputs[0])
        if g is not None:
            _through(call, node, g, found, leads, set(xs))
    return tuple(found[x] if x in found else _filled(call, x, 0) for x in xs)


def _filled(call: Call, like: Value, number: int) -> Value:
    if like.type.is_static:
        call.scope.shared.model.spend(like.type.nbytes, f"the gradient of {like.name!r}")
        return call.const(np.full(like.dims, number, like.dtype))
    shape = call.emit("Shape", like)
    return call.emit("ConstantOfShape", shape, value=number, dtype=like.dtype.name)


def _leading(call: Call, xs: set[Value]) -> set[Node]:
    """The nodes whose outputs depend on xs."""
    found: set[Node] = set()
    for node in call.scope.graph.nodes:
        if any(v in xs or (v is not None and v.producer in found) for v in node.inputs):
            found.add(node)
    return found


def _through(
    call: Call, node: Node, g: Value, found: dict[Value, Value], leads: set[Node], xs: set[Value]
) -> None:
    rule = RULES.get(node.op.name)
    if rule is None or len(node.outputs) != 1:
        raise Unsupported(f"the derivative of {node.op.name} ({node.name!r}) is not known")
    for v, part in zip(node.inputs, rule(call, node, g), strict=True):
        if v is None or part is None or not (v in xs or v.producer in leads):
            continue
        part = _summed(call, part, v)
        found[v] = call.emit("Add", found[v], part) if v in found else part


def _summed(call: Call, part: Value, v: Value) -> Value:
    """Summed over the axes along which v was repeated."""
    if part.shape == v.shape and v.shape is not None:
        return part
    if part.shape is None or v.shape is None or not (v.type.is_static and part.type.is_static):
        raise Unsupported(f"{v!r} may be repeated to {part.type}: the shapes must be known")
    lead = len(part.dims) - len(v.dims)
    axes = [i for i, d in enumerate(part.dims) if i < lead or (d != 1 and v.dims[i - lead] == 1)]
    total = call.emit("Reduce", part, call.ints(*axes), kind="sum", keepdims=True)
    return call.emit("Reshape", total, call.ints(*v.dims))
