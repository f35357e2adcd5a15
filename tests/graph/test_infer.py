"""Types inferred again agree with what was known, or the node that does not fit is named."""

import numpy as np
import pytest

from tinsmith import ops
from tinsmith.errors import GraphError, TypeRuleError
from tinsmith.graph import Graph, Origin, Type
from tinsmith.graph.infer import check_types, checked_types
from tinsmith.graph.verify import verify


def split() -> Graph:
    g = Graph("g")
    x = g.input("x", Type("float32", (6,)))
    parts = g.const(np.array([2, 4]), "parts")
    g.outputs = list(ops.Split(x, parts, axis=0, origin=Origin("m.onnx", "cut", "Split")))
    return g


def other_parts(g: Graph, *parts: int) -> None:
    g.set_input(g.nodes[0], 1, g.const(np.array(parts), "others"))


def test_what_fits() -> None:
    g = split()
    assert [str(t) for t in checked_types(g.nodes[0])] == ["float32[2]", "float32[4]"]
    check_types(g.nodes)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((3, 3), r"'split.*' was known as float32\[2\].*gives float32\[3\]"),
        ((2, 2, 2), "has 2 outputs, but its operator gives 3"),
        ((2, 5), "does not add up"),
    ],
)
def test_what_does_not_is_named_alike(parts: tuple[int, ...], says: str) -> None:
    g = split()
    other_parts(g, *parts)
    with pytest.raises(TypeRuleError, match=f"Split 'cut' of m.onnx: .*{says}"):
        check_types(g.nodes)
    with pytest.raises(GraphError, match=f"Split 'cut' of m.onnx.*{says}"):
        verify(g)
