"""What only moves elements: passes drop it where it moves nothing, and never change a result."""

import numpy as np
import pytest

from tests.ops.moved import MOVED, node_of
from tests.ops.samples import Sample, data, i64
from tinsmith import ops
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import COURSE, run_passes

SQUARE = data((3, 3))
KEPT = [
    Sample("Gather", (SQUARE, i64(2, 0, 1))),
    Sample("Gather", (SQUARE, i64(2, 0, 1)), {"axis": 1}),
    Sample("Transpose", (SQUARE,)),
    Sample("Slice", (SQUARE, i64(-1), i64(-9), i64(0), i64(-1))),
    Sample("Pad", (SQUARE, i64(1, 0, -1, 0))),
    Sample("Concat", (SQUARE, data((0, 3))), {"axis": 0}),
    Sample("ChannelShuffle", (data((2, 6, 2)),), {"groups": 3}),
]
DROPPED = [
    Sample("Transpose", (SQUARE,), {"perm": (0, 1)}),
    Sample("Slice", (SQUARE, i64(0), i64(9), i64(0), i64(1))),
    Sample("Pad", (SQUARE, i64(0, 0, 0, 0)), {"mode": "edge"}),
    Sample("Concat", (SQUARE,), {"axis": 0}),
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
