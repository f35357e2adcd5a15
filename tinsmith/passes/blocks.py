"""Chains of 1x1 and depthwise convolutions, and what scales the channels that 1x1 convolutions
read, become Block nodes, which one kernel may compute.

The planner decides whether it does: it may place a block's nodes one by one.
"""

from __future__ import annotations

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._arithmetic import multiplies
from tinsmith.ops._weights import is_convolution
from tinsmith.ops.control import anchors_of
from tinsmith.passes.manager import Context, register
from tinsmith.passes.regions import enclose
from tinsmith.records import dataclass

NAME = "fuse-blocks"
RANK = 4  # of images: batch, channels, height, width


@register("machine", name=NAME)
@dataclass(frozen=True)
class FuseBlocks:
    """1x1 -> depthwise -> 1x1, 1x1 -> depthwise, and depthwise -> 1x1 become one Block node.

    So does a 1x1 convolution outside such chains with a Mul before it that scales the channels of
    its input. Every value between two nodes of a block is read once, by a convolution, and is no
    graph output; weights and biases are constants.
    """

    def run(self, graph: Graph, context: Context) -> int:
        outputs = set(graph.outputs)
        order = {node: i for i, node in enumerate(graph.nodes)}
        chains: list[list[Node]] = []
        taken: set[Node] = set()
        for node in graph.nodes:
            conv = _conv(node)
            if conv is None or not _is_depthwise(conv) or node in taken:
                continue
            if reason := _unfit(node, conv):
                context.refuse(NAME, node.name, reason)
                continue
            chain = [node]
            before = _before(node, conv, outputs)
            if isinstance(before, Node) and before not in taken:
                chain.insert(0, before)
            after = _after(node, outputs)
            if isinstance(after, Node):
                chain.append(after)
            if len(chain) == 1:
                context.refuse(NAME, node.name, _why_alone(node, conv, outputs))
                continue
            taken.update(chain)
            chains.append(chain)
        for node in graph.nodes:
            product = "" if node in taken else _scaled(node, outputs)
            if isinstance(product, Node):
                chains.append([product, node])
            elif product:
                context.refuse(NAME, node.name, product)
        for chain in chains:
            chain = sorted(chain, key=order.__getitem__)
            enclose(graph, "Block", chain, chain[-1], None)
        return len(chains)


def _conv(node: Node) -> Node | None:
    """The convolution in a node: the node itself, or the only anchor of a Fused node, which is a
    node of that node's body (`_operand` gives its operands outside). None for any other node."""
    anchors = anchors_of(node)
    return anchors[0] if len(anchors) == 1 and is_convolution(anchors[0]) else None


def _operand(node: Node, conv: Node, index: int) -> Value | None:
    """Operand `index` of `conv`, the convolution of `node`, as a value of the graph in which `node`
    is; a constant of the node's body as it is. None if the operand is absent or computed inside."""
    v = conv.inputs[index] if index < len(conv.inputs) else None
    if v is None or conv is node or v.const is not None:
        return v
    inputs = node.attrs["body"].inputs
    return node.inputs[inputs.index(v)] if v in inputs else None


def _also_elsewhere(node: Node, conv: Node) -> bool:
    """Whether the epilogue of a Fused node also reads the input of its convolution `conv`."""
    x = conv.inputs[0]
    return conv is not node and x is not None and len(x.uses) > 1


def _is_depthwise(conv: Node) -> bool:
    x, w = conv.operand(0), conv.operand(1)
    if x.shape is None or w.shape is None or len(x.shape) != RANK:
        return False
    return conv.attrs["group"] == x.shape[1] == w.shape[0] and conv.attrs["group"] != 1


def _unfit(node: Node, conv: Node) -> str:
    values = (*conv.inputs[:2], conv.output)
    if not all(v is not None and v.type.is_static for v in values):
        return "its shape is not static"
    return "" if _has_constants(node, conv) else "its weights are not constants"


def _is_pointwise(node: Node, conv: Node) -> bool:
    w = conv.inputs[1]
    if w is None or w.shape is None or len(w.shape) != RANK or conv.attrs["group"] != 1:
        return False
    if w.shape[2:] != (1, 1) or not conv.output.type.is_static:
        return False
    x, y = conv.inputs[0], conv.output
    if x is None or x.shape is None or y.shape is None or x.shape[2:] != y.shape[2:]:
        return False
    return _has_constants(node, conv)


def _has_constants(node: Node, conv: Node) -> bool:
    given = [_operand(node, conv, i) for i, v in enumerate(conv.inputs) if i and v is not None]
    return all(v is not None and v.const is not None for v in given)


def _before(node: Node, conv: Node, outputs: set[Value]) -> Node | str:
    """The 1x1 convolution with constant weights before `node`: only the depthwise convolution
    `conv` of `node` reads its result. If there is none, the reason, as text."""
    x = _operand(node, conv, 0)
    producer = None if x is None else x.producer
    if x is None or producer is None:
        return "it reads an input of the graph"
    inner = _conv(producer)
    if inner is None or not _is_pointwise(producer, inner):
        return f"{producer.name!r} before it is no 1x1 convolution with constant weights"
    return _other_readers(x, producer, node, conv, outputs) or producer


def _other_readers(x: Value, producer: Node, node: Node, conv: Node, outputs: set[Value]) -> str:
    """What reads x, the result of `producer`, besides the convolution `conv` of `node`, as text; ""
    if nothing does."""
    if x in outputs:
        return f"the result of {producer.name!r} is a graph output"
    if len(x.uses) != 1:
        return f"the result of {producer.name!r} is read {len(x.uses)} times"
    if _also_elsewhere(node, conv):
        return f"its epilogue reads the result of {producer.name!r} once more"
    return ""


def _after(node: Node, outputs: set[Value]) -> Node | str:
    """The 1x1 convolution with constant weights after `node`: it alone reads the node's result. If
    there is none, the reason, as text."""
    y = node.output
    if y in outputs:
        return "its result is a graph output"
    if len(y.uses) != 1:
        return f"its result is read {len(y.uses)} times"
    user = y.uses[0]
    conv = _conv(user)
    if conv is None or not _is_pointwise(user, conv) or _operand(user, conv, 0) is not y:
        return f"{user.name!r} after it is no 1x1 convolution with constant weights"
    if _also_elsewhere(user, conv):
        return f"the epilogue of {user.name!r} reads its result once more"
    return user


def _scaled(node: Node, outputs: set[Value]) -> Node | str:
    """The Mul before `node` that scales each channel of an image by one number, if `node` is a 1x1
    convolution that alone reads its result. If there is such a Mul, but it cannot be in a block
    with `node`, the reason, as text; "" if `node` is no convolution, or reads no such Mul."""
    conv = _conv(node)
    y = None if conv is None else _operand(node, conv, 0)
    product = None if y is None else y.producer
    if conv is None or y is None or product is None or not multiplies(product):
        return ""
    shapes = [v.shape for v in product.inputs if v is not None]
    if y.shape not in shapes or y.shape is None or (*y.shape[:2], 1, 1) not in shapes:
        return ""
    if not _is_pointwise(node, conv):
        return f"{product.name!r} scales what it reads, but it is no 1x1 convolution of one group"
    return _other_readers(y, product, node, conv, outputs) or product


def _why_alone(node: Node, conv: Node, outputs: set[Value]) -> str:
    reasons = (_before(node, conv, outputs), _after(node, outputs))
    return "; ".join(r for r in reasons if isinstance(r, str)) or "its neighbour is in a block"
