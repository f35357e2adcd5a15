"""The importer of Gradient (ai.onnx.preview.training): derivatives as nodes of the same graph."""

from __future__ import annotations

from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.graph import Value
from tinsmith.ops.gradient import derivatives


@importer("ai.onnx.preview.training.Gradient")
def gradient(call: Call) -> Result:
    """Import Gradient: the derivatives of sum(y) by each of xs. The attributes `y` and `xs` name
    values. Raises Unsupported where no node before it computes y, or the inputs are not xs."""
    call.ignore("zs")
    names, goal = call.required("xs"), call.required("y")
    y, xs = call.scope.look_up(goal), [call.scope.look_up(n) for n in names]
    if not isinstance(y, Value) or y.const is not None:
        raise Unsupported(f"y ({goal!r}) is not computed before it")
    if list(xs) != call.inputs[: len(xs)]:
        raise Unsupported("its inputs are other values than those that xs names")
    return derivatives(call.scope.graph, y, xs, call.emit)
