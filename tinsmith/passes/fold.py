"""Nodes of constants are computed before the model runs. `shapes` does so for sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.errors import BudgetExceeded, OutOfMemory, ReferenceFailed
from tinsmith.graph import Graph, Holder, Node, Value, shapes_agree
from tinsmith.graph.infer import check_types
from tinsmith.passes.facts import is_small_half
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import replace_outputs

TINY = 1 << 10
"""Bytes of a result that is folded even if the budget is spent, as for shapes. Estimated."""


def is_pure(node: Node) -> bool:
    """Whether a node's results follow from its inputs and it does nothing else: it is no random
    number, no check, and holds no graph (If, Loop, Scan, Fused)."""
    return not node.op.traits & {"impure", "check", "control"}


def is_constant(node: Node) -> bool:
    """Whether all inputs of a node, if it has any, are constants whose numbers are known before the
    call, so not free sizes."""
    return all(
        [
            v is None or (v.const is not None and (v.const.dtype != object or v.dtype == object))
            for v in node.inputs
        ]
    )


def widens(node: Node) -> bool:
    """Whether a node's result has wider elements than its first input."""
    x = node.inputs[0] if node.inputs else None
    return x is not None and x.dtype.itemsize < node.output.dtype.itemsize


def put(graph: Graph, node: Node, arrays: tuple[np.ndarray, ...]) -> bool:
    """Replace a node's outputs by constants (`arrays`, one for each output) of the same names and
    element types, and drop the node. Returns False, with nothing replaced, if an output is a graph
    output. Raises TypeRuleError if a constant does not fit a node that reads it."""
    new = tuple(graph.const(a, v.name, v.dtype) for v, a in zip(node.outputs, arrays, strict=True))
    both = list(zip(node.outputs, new, strict=True))
    unsure = [user for old, value in both if old.type != value.type for user in old.uses]
    if not replace_outputs(graph, node, new):
        return False
    check_types(unsure)
    graph.sweep([node])
    for old, value in both:
        old.name, value.name = value.name, old.name
    return True


@register("portable")
@dataclass(frozen=True)
class FoldConstants:
    """Nodes of constants become constants, unless they would take much more memory.

    max_growth: how many bytes more than its inputs a folded result may take; the budget "constants"
    limits all together. Nodes beyond either stay.
    keep: operators whose nodes stay if the result has wider elements than the first input, so that
    quantised weights stay small until kernels are chosen. If it is not empty, casts of large
    weights from float16 and bfloat16 stay as well (`is_small_half`).
    """

    max_growth: int = 1 << 20
    keep: tuple[str, ...] = ("DequantizeLinear",)

    def run(self, graph: Graph, context: Context) -> int:
        changes, spare = 0, budget.limit("constants")
        for node in list(graph.nodes):
            if not is_constant(node) or not is_pure(node):
                continue
            if (node.op.name in self.keep and widens(node)) or (self.keep and is_small_half(node)):
                continue
            if any(isinstance(v.type, Holder) for v in node.outputs):
                continue
            if self._too_large(node, spare, context):
                continue
            dropped = _dropped(node)
            try:
                arrays = evaluate(node)
            except (BudgetExceeded, OutOfMemory) as error:
                context.refuse("fold-constants", node.name, str(error))
                continue
            if reason := mismatch(node, arrays):
                context.refuse("fold-constants", node.name, reason)
                continue
            if put(graph, node, arrays):
                changes += 1
                spare -= sum(a.nbytes for a in arrays) - dropped
        return changes

    def _too_large(self, node: Node, spare: int, context: Context) -> bool:
        """Whether a node's results would take over `max_growth` bytes more than its inputs, or over
        `spare` (what is left of the budget; at least TINY) more than the constants dropped with it;
        the context notes why. Strings count as long as the longest of the inputs."""
        texts = [v.const for v in node.inputs if v is not None and v.dtype == object]
        longest = sum(max(map(len, a.reshape(-1)), default=0) for a in texts if a is not None)
        static = [v.type for v in node.outputs if v.type.is_static]
        after = sum(t.nbytes + t.size * longest * (t.dtype == object) for t in static)
        growth = after - _bytes_of(v for v in node.inputs if v is not None)
        if growth > self.max_growth:
            context.refuse(
                "fold-constants", node.name, f"the result would take {growth} bytes more"
            )
        elif after - _dropped(node) > max(spare, TINY):
            context.refuse("fold-constants", node.name, "the budget of constants is spent")
        else:
            return False
        return True


def _bytes_of(values: Iterable[Value]) -> int:
    """The bytes of constants, each counted once."""
    return sum(v.const.nbytes for v in set(values) if v.const is not None)


def _dropped(node: Node) -> int:
    """Bytes of the constants that only this node reads, which are dropped with it."""
    return _bytes_of(
        v for v in node.inputs if v is not None and all([user is node for user in v.uses])
    )


@register("machine", name="fold-remaining")
@dataclass(frozen=True)
class FoldRemaining(FoldConstants):
    """Constants that the portable stage kept in a smaller form are computed as well."""

    max_growth: int = 1 << 30
    keep: tuple[str, ...] = ()


def evaluate(node: Node) -> tuple[np.ndarray, ...]:
    """The outputs of a node of constants, by its reference. Raises BudgetExceeded, OutOfMemory,
    and ReferenceFailed for any other error."""
    op: Any = node.op
    inputs = tuple(None if v is None else v.const for v in node.inputs)
    try:
        return op.evaluate(inputs, node.attrs)
    except BudgetExceeded:
        raise
    except MemoryError as error:
        raise OutOfMemory(f"{op.name} {node.name!r} cannot be computed: {error}") from error
    except Exception as error:
        shown = ", ".join("-" if v is None else str(v.type) for v in node.inputs)
        raise ReferenceFailed(
            f"{op.name}({shown}) {node.name!r} ({node.origin}) cannot be computed: "
            f"{type(error).__name__}: {error}"
        ) from error


def mismatch(node: Node, arrays: tuple[np.ndarray, ...]) -> str:
    """A text that tells how arrays contradict the types of a node's outputs; "" if they do not."""
    for v, a in zip(node.outputs, arrays, strict=True):
        if a.dtype != v.dtype or not shapes_agree(v.shape, a.shape):
            return f"the reference gives {a.dtype}{list(a.shape)}, the type is {v.type}"
    return ""
