"""What only moves elements: passes drop it where it moves nothing, and never change a result."""

import numpy as np
import pytest

import tinsmith as ts
from tests.ops.moved import MOVED, node_of
from tests.ops.samples import Sample, data, i64
from tests.passes.build import Builder, ops_of
from tinsmith import ops
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import COURSE, run_passes

SQUARE = data((3, 3))
KEPT = [
    Sample("Gather", (SQUARE, i64(2, 0, 1))),
    Sample("Gather", (SQUARE, i64(2, 0, 1)), {"axis": 1}),
    Sample("Transpose", (SQUARE,)),
    Sample("Slice", (SQUARE, i64(-1), i64(-9), i64(0), i64(-1))),
    Sample("Pad", (SQUARE, i64(1, 0, -1, 0))),
    Sample("ChannelShuffle", (data((2, 6, 2)),), {"groups": 3}),
]
DROPPED = [
    Sample("Transpose", (SQUARE,), {"perm": (0, 1)}),
    Sample("Slice", (SQUARE, i64(0), i64(9), i64(0), i64(1))),
    Sample("Pad", (SQUARE, i64(0, 0, 0, 0)), {"mode": "edge"}),
    Sample("Concat", (SQUARE,), {"axis": 0}),
    Sample("Concat", (SQUARE, data((0, 3))), {"axis": 0}),
    Sample("Split", (SQUARE,), {"num_outputs": 1}),
    Sample("Tile", (SQUARE, i64(1, 1))),
    Sample("Expand", (SQUARE, i64(3, 1))),
    Sample("DepthToSpace", (data((1, 2, 3, 4)),), {"blocksize": 1}),
]


@pytest.mark.parametrize("sample", [*MOVED, *KEPT, *DROPPED], ids=str)
def test_moves_keep_their_results(sample):
    node = node_of(sample)
    graph = node.graph
    graph.outputs = list(node.outputs)
    fed = [a for v, a in zip(node.inputs, sample.inputs, strict=False) if v in graph.inputs]
    for stage in COURSE:
        run_passes(graph, stage, verify=True)
        for got, want in zip(
            run_graph(graph, fed), node.op.evaluate(sample.inputs, node.attrs), strict=True
        ):
            assert got.dtype == want.dtype and got.shape == want.shape
            assert np.array_equal(got, want) or got.tobytes() == want.tobytes()


@pytest.mark.parametrize("sample", [*KEPT, *DROPPED], ids=str)
def test_what_moves_nothing_is_dropped(sample):
    node = node_of(sample)
    graph = node.graph
    graph.outputs = [ops.Tanh(node.outputs[0])]
    run_passes(graph, "portable")
    moves = [n.op.name for n in graph.nodes if n.op.name != "Tanh"]
    assert bool(moves) == any(sample is kept for kept in KEPT)


def inserted(shape, places, updates, reduction="none"):
    """The operators that a scatter becomes, once its results were compared before and after."""
    x = data(shape)
    if updates is None:
        updates = -data((*places.shape[:-1], *shape[places.shape[-1] :]))
    node = node_of(Sample("ScatterND", (x, places, updates), {"reduction": reduction}))
    graph = node.graph
    graph.outputs = [ops.Tanh(node.outputs[0])]
    fed = [a for v, a in zip(node.inputs, (x, places, updates), strict=True) if v in graph.inputs]
    want = run_graph(graph, fed)
    run_passes(graph, "portable", verify=True)
    for got, before in zip(run_graph(graph, fed), want, strict=True):
        assert np.array_equal(got, before)
    return sorted(n.op.name for n in graph.nodes if n.op.name != "Tanh")


def box(*ranges):
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1).astype(np.int64)


@pytest.mark.parametrize(
    ("shape", "places", "found"),
    [
        ((4,), box(range(4)), []),
        ((4, 3), box(range(1, 4)), ["Concat", "Slice"]),
        ((4, 3), box(range(-3, -1)), ["Concat", "Slice", "Slice"]),
        ((1, 4, 5, 2), box([0], range(1, 4), range(1, 5)), ["Concat"] * 2 + ["Slice"] * 2),
        ((3, 4), box([1], range(1, 3)), ["Concat"] * 2 + ["Slice"] * 4),
        ((3, 3, 3), box([1], [1], [1]), ["ScatterND"]),  # three copies of what is inside
        ((4, 4), box(range(1, 3), range(2))[::-1], ["ScatterND"]),  # counts down
        ((4,), box([3, -4]), ["ScatterND"]),
        ((4,), box([-1, 0]), ["ScatterND"]),  # around the end
        ((4,), box([0, 2]), ["ScatterND"]),
        ((4, 4), box([1, 1]), ["ScatterND"]),  # twice the same
        ((4, 4), box(range(2), range(2)).swapaxes(0, 1), ["ScatterND"]),  # turned
        ((4, 4), box(range(2), range(2)).reshape(4, 2), ["ScatterND"]),
    ],
)
def test_a_scatter_over_a_box_becomes_joins(shape, places, found):
    assert inserted(shape, places, None) == found


def test_a_scatter_that_adds_stays():
    assert inserted((4, 3), box(range(1, 4)), None, "add") == ["ScatterND"]


def test_places_that_are_repeated_are_not_computed_to_recognise_a_box():
    """As torch writes x[1:, 1:] = u: one row or column of numbers for each axis, expanded and
    joined. All of them would take 16 TB."""
    graph = Graph("box")
    rows, columns = 1 << 20, 1 << 20
    x = graph.input("x", Type("float32", (rows + 1, columns + 1)))
    u = graph.input("u", Type("float32", (rows, columns)))
    size = np.array([rows, columns, 1])
    down = ops.Expand(graph.const(np.arange(1, rows + 1)[:, None, None]), size)
    across = ops.Expand(graph.const(np.arange(1, columns + 1)[None, :, None]), size)
    y = ops.ScatterND(x, ops.Concat(down, across, axis=-1), u)
    graph.outputs = [ops.Tanh(y)]
    run_passes(graph, "portable")
    assert sorted(n.op.name for n in graph.nodes) == ["Concat"] * 2 + ["Slice"] * 2 + ["Tanh"]


def test_a_scatter_between_transposes_of_unknown_rank_stays():
    b = Builder()
    x, updates = (b.graph.input(name, Type(b.dtype, None)) for name in "xu")
    y = ops.Transpose(ops.ScatterND(ops.Transpose(x), b.i([0]), updates))
    run_passes(b.out(y), "portable")
    assert ops_of(b.graph) == ["Transpose", "ScatterND", "Transpose"]


@pytest.mark.parametrize("shapes", ["fixed", "free"])
def test_a_reshape_to_sizes_of_another_input_is_checked(shapes):
    b = Builder()
    x, y = b.x("n"), b.x("m", name="y")
    z = ops.Reshape(x, ops.Concat(ops.Shape(y), b.i(4), axis=0))
    net = ts.compile(b.out(ops.Neg(z)), cache=False, shapes=shapes)
    assert net(b.array(20), b.array(5)).shape == (5, 4)
    with pytest.raises(TypeRuleError, match="has"):
        net(b.array(24), b.array(5))
