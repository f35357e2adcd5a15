"""What a run of a program goes through: does the last-level cache hold its weights until the next?

Kernels whose weights come from memory are chosen by the bytes of those; where they come from the
last-level cache, which gives them two to three times as fast, arithmetic counts more.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

from tinsmith.graph import Graph, Node, Value

EXPANDED = 5
"""By how much Winograd's weights outgrow the taps they are made of (F(6x6,3x3) as 24 bits: 5.3), if
they are not kept as taps."""
MIB = 1 << 20
MOST = 64 * MIB
"""Beyond this, the cache keeps nothing of weights, however they are packed (`Target.kept`: OURS,
EMPTY times as full, of weights that 24 bits shrink to three quarters)."""


def footprint(graph: Graph) -> float:
    """Bytes that a run goes through, about: the weights as kernels may pack them, and the two
    largest tensors that nodes make. In whole MiB, and infinite beyond MOST: graphs of nearly the
    same then have kernels in common."""
    weights: dict[Value, int] = {}
    windows: set[tuple[int, ...]] = set()
    for node in _with_parts(graph):
        if node.op.name == "Conv" and node.attrs["group"] == 1:
            windows |= {v.dims for v in node.inputs[1:2] if v is not None and v.type.is_static}
        weights |= {v: v.type.nbytes for v in node.inputs if v is not None and v.const is not None}
    packed = [n * EXPANDED if _grows(v.dims, windows) else n for v, n in weights.items()]
    made = [v.type.nbytes for n in graph.nodes for v in n.outputs if v.type.is_static]
    nbytes = sum(packed) + sum(sorted(made)[-2:])
    return inf if nbytes > MOST else float(-(-nbytes // MIB) * MIB)


def _with_parts(graph: Graph) -> Iterator[Node]:
    """All nodes, and those that fused ones are made of."""
    for node in graph.nodes:
        yield node
        if isinstance(body := node.attrs.get("body"), Graph):
            yield from _with_parts(body)


def _grows(dims: tuple[int, ...], windows: set[tuple[int, ...]]) -> bool:
    """Whether Winograd's method may be used for a constant that is one of the convolutions'."""
    return dims in windows and prod(dims[2:]) > 1 and dims[1] > 1
