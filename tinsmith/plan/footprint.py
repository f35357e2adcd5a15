"""The working set of a run: does the last-level cache hold a program's weights until the next run?

If weights come from memory, kernels are chosen by the bytes of their weights. The last-level cache
gives them two to three times as fast, so arithmetic counts more.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._weights import is_convolution
from tinsmith.sizes import estimate

EXPANDED = 5
"""How many times the bytes of their taps Winograd's packed weights take (F(6x6,3x3) with 24 bits:
5.3), unless they are kept as taps."""
MIB = 1 << 20  # bytes
MOST = 64 * MIB
"""A working set beyond this counts as infinite: the last-level cache then keeps no weights, however
they are packed. It is OURS * EMPTY bytes (`Target.kept`), where 24 bits shrink weights to 3/4."""


@estimate
def footprint(graph: Graph) -> float:
    """An estimate of the bytes that a run goes through: weights, as kernels may pack them, and the
    two largest tensors that nodes make. Rounded up to whole MiB, and infinite beyond MOST, so that
    graphs of nearly the same size share kernels."""
    weights: dict[Value, int] = {}
    windows: set[tuple[int, ...]] = set()
    for node in _with_parts(graph):
        if is_convolution(node) and node.attrs["group"] == 1:
            windows |= {v.dims for v in node.inputs[1:2] if v is not None and v.type.is_static}
        weights |= {v: v.type.nbytes for v in node.inputs if v is not None and v.const is not None}
    packed = [n * EXPANDED if _grows(v.dims, windows) else n for v, n in weights.items()]
    made = [v.type.nbytes for n in graph.nodes for v in n.outputs if v.type.is_static]
    nbytes = sum(packed) + sum(sorted(made)[-2:])
    return inf if nbytes > MOST else float(-(-nbytes // MIB) * MIB)


def _with_parts(graph: Graph) -> Iterator[Node]:
    """All nodes of a graph and, at any depth, those in nodes' bodies."""
    for node in graph.nodes:
        yield node
        if isinstance(body := node.attrs.get("body"), Graph):
            yield from _with_parts(body)


def _grows(dims: tuple[int, ...], windows: set[tuple[int, ...]]) -> bool:
    """Whether weights of these dims may grow when they are packed, as Winograd's method packs those
    of a convolution with several taps and input channels. `windows` are the dims of the weights of
    all convolutions without groups."""
    return dims in windows and prod(dims[2:]) > 1 and dims[1] > 1
