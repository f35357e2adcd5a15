"""An If gives way to the branch that it takes, where that is known."""

from __future__ import annotations

from typing import ClassVar

from tinsmith.graph import Graph, Node
from tinsmith.ops import OPS
from tinsmith.ops.interpret import Refusal, infer_graph
from tinsmith.passes.manager import Context, register
from tinsmith.passes.regions import inlined
from tinsmith.records import NamedTuple, dataclass
from tinsmith.rewrite import replace_outputs


@register("portable")
@dataclass(frozen=True)
class TakeBranches:
    """An If whose branch is known becomes the nodes of that branch.

    The branch is known if the condition is a constant, or if the other branch cannot run, as its
    operators refuse the types of its inputs: then a node Required checks, when the model runs, that
    the condition does not take it. So shapes behind an If may become known.
    """

    operators: ClassVar = frozenset(("If",))

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            taken = _taken(node) if "branch" in node.op.traits else None
            if taken is None:
                continue
            branch = _branch(node, taken.value)
            if replace_outputs(graph, node, inlined(graph, node, branch, node.inputs[1:])):
                changes += 1
                if taken.refusal:
                    graph.add(
                        OPS["Required"], node.inputs[0], value=taken.value, message=taken.refusal,
                        name=f"{node.name}/Required", origin=node.origin,
                    )  # fmt: skip
            else:
                context.refuse("take-branches", node.name, "a graph output would lose its name")
            graph.sweep()  # of the If and its branches' captured values, or of the refused copy
        return changes


class _Taken(NamedTuple):
    """The known `value` of an If's condition, and by what: `refusal` says why the other branch
    cannot run; "" if the condition is a constant."""

    value: bool
    refusal: str = ""


def _taken(node: Node) -> _Taken | None:
    condition = node.operand(0)
    if condition.const is not None:
        return _Taken(bool(condition.const.reshape(())))
    refused: list[_Taken] = []
    for value in (True, False):
        try:
            infer_graph(_branch(node, value), node.inputs[1:])  # type: ignore[arg-type]
        except Refusal as refusal:
            refused.append(_Taken(not value, str(refusal)))
    return refused[0] if len(refused) == 1 else None


def _branch(node: Node, value: bool) -> Graph:
    return node.attrs["then_branch" if value else "else_branch"]
