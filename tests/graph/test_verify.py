"""verify finds each way in which a graph can be broken."""

import numpy as np
import pytest

from tinsmith import ops
from tinsmith.errors import GraphError
from tinsmith.graph import Graph, Origin, Type
from tinsmith.graph.verify import verify


def graph():
    g = Graph("g")
    x = g.input("x", Type("float32", (2, 3)))
    a = ops.Relu(x, origin=Origin("m.onnx", "act", "Relu"))
    g.outputs.append(ops.Add(a, g.const(np.ones(3, np.float32), "w")))
    return g


def test_a_good_graph():
    verify(graph())


def cycle(g):
    relu, add = g.nodes
    g.set_input(relu, 0, add.output)


def missing_use(g):
    g.inputs[0].uses.pop(g.nodes[0])


def extra_use(g):
    g.inputs[0].uses.append(g.nodes[0])


def foreign(g):  # an input: what it reads has no producer
    other = graph()
    node = g.nodes[0]
    node.inputs = (other.inputs[0],)


def wrong_type(g):
    g.nodes[0].output.type = Type("float32", (4, 3))


def wrong_constant(g):
    g.constants()[0].const = np.ones(4, np.float32)


def two_names(g):
    g.nodes[0].output.name = "x"


def two_node_names(g):
    g.nodes[0].name = g.nodes[1].name


def lost_output(g):
    g.outputs.append(graph().outputs[0])


def swept_producer(g):
    del g._nodes[g.nodes[0]]
    g._order = None


def undefined(g):
    g.inputs.clear()


def bad_attribute(g):
    g.nodes[0].attrs["alpha"] = 1


def test_an_order_without_a_producer():
    g = graph()
    swept_producer(g)
    with pytest.raises(GraphError, match="'add' reads 'relu' of a node that is not in it"):
        _ = g.nodes


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (cycle, "cycle"),
        (missing_use, "Relu.*act.*uses 'x' 1 times, the value lists 0"),
        (extra_use, "the value lists 2"),
        (foreign, "of the graph"),
        (wrong_type, r"Relu 'relu' \(Relu 'act' of m.onnx\).*\[4,3\]"),
        (wrong_constant, r"'w' is float32\[3\]"),
        (two_names, "two values are named 'x'"),
        (two_node_names, "two nodes are named"),
        (lost_output, "the output 'add' is not in the graph"),
        (swept_producer, "not in the graph|no longer"),
        (undefined, "nothing produces"),
        (bad_attribute, "alpha"),
    ],
)
def test_broken(break_it, says):
    g = graph()
    break_it(g)
    with pytest.raises(GraphError, match=says):
        verify(g)
