"""Micro-batches: which nodes may, what one computes, that all of them give the whole."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machines import machine_with
from tests.models import GRAPHS, array, conv, feeds, residual
from tinsmith import ops
from tinsmith.backends.cpu import compile_placed
from tinsmith.codegen.target import level, runnable
from tinsmith.compiler.explain import explain_steps
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import Choice
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph
from tinsmith.passes.manager import run_passes
from tinsmith.plan.arena import workspace_of
from tinsmith.plan.micro_batch import one_micro_batch, runs
from tinsmith.plan.micro_batching import WRITTEN, intervals, prices
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.placed import Placed
from tinsmith.plan.placement import Placement
from tinsmith.plan.rows import RULES, part_of
from tinsmith.plan.tensors import Tensor
from tinsmith.runtime.explanation import by_name

IMAGE = (4, 6, 5, 7)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def rows_of(batch: int) -> list[np.ndarray]:
    """q, k, v and y rows of two items an image, of three rows of two elements each."""
    table = np.arange(batch * 6).reshape(batch * 2, 3) * 2
    return [table] * 4


PARTED = [
    ("Conv", [array(*IMAGE), array(8, 6, 3, 3)], {"pad": (1, 1, 1, 1)}),
    ("ConvTranspose", [array(*IMAGE), array(6, 3, 2, 2)], {"stride": (2, 2)}),
    ("AveragePool", [array(*IMAGE)], {"kernel": (2, 2)}),
    ("LpPool", [array(*IMAGE)], {"kernel": (2, 2)}),
    ("MaxPool", [array(*IMAGE)], {"kernel": (2, 2)}),
    ("GlobalPool", [array(*IMAGE)], {}),
    ("LRN", [array(*IMAGE)], {"size": 3}),
    ("Hardmax", [array(*IMAGE)], {}),
    ("InstanceNorm", [array(*IMAGE), array(6), array(6)], {}),
    ("GroupNorm", [array(*IMAGE), array(6), array(6)], {"groups": 2}),
    ("DepthToSpace", [array(4, 8, 3, 3)], {"blocksize": 2}),
    ("SpaceToDepth", [array(4, 8, 4, 6)], {"blocksize": 2}),
    ("Resize", [array(*IMAGE), None, np.array([1, 1, 2, 2], np.float32)], {}),
    ("Softmax", [array(4, 9)], {"axis": -1}),
    ("LogSoftmax", [array(4, 9)], {"axis": 1}),
    ("LayerNorm", [array(4, 3, 9), array(9)], {"axis": -1}),
    ("RMSNorm", [array(4, 3, 9), array(9)], {"axis": -1}),
    ("LpNorm", [array(4, 3, 9)], {"axis": 1}),
    ("Split", [array(4, 9), ints(2, 7)], {"axis": 1}),
    ("Transpose", [array(8, 3, 5)], {"perm": (0, 2, 1)}),
    ("Reduce", [array(4, 3, 5), ints(1, -1)], {"kind": "mean"}),
    ("Reduce", [array(4, 3, 5), ints(2)], {"kind": "max", "keepdims": False}),
    ("Slice", [array(4, 9, 5), ints(7, 0), ints(1, 4), ints(1, 2), ints(-2, 1)], {}),
    ("Pad", [array(4, 9), ints(0, 1, 0, 2)], {}),
    ("Gather", [array(4, 9, 2), ints(3, 1)], {"axis": 1}),
    ("Reshape", [array(4, 6, 5), ints(8, 15)], {}),
    ("Reshape", [array(8, 15), ints(4, -1, 5)], {}),
    ("Flatten", [array(*IMAGE)], {}),
    ("Unsqueeze", [array(4, 3), ints(1)], {}),
    ("Expand", [array(4, 1, 5), ints(4, 3, 5)], {}),
    ("MatMul", [array(4, 5), array(5, 3)], {}),
    ("MatMul", [array(4, 2, 5), array(5, 3)], {}),
    ("Concat", [array(4, 2), array(4, 3)], {"axis": 1}),
    ("ChannelGather", [array(4, 3), array(4, 2)], {"sources": ((1, 0, 2), (0, 1, 2))}),
    ("Add", [array(4, 2, 3), array(2, 1)], {}),
    ("Mul", [array(4, 2, 3), array(1, 2, 1)], {}),
    ("Relu", [array(4, 5)], {}),
    ("RowAttention", [array(4, 2, 3, 2), array(4, 2, 3, 2), array(4, 2, 3, 2), *rows_of(4)],
     {"width": 2, "value_width": 2, "shape": (4, 2, 3, 2)}),
]  # fmt: skip


def graph_of(op: str, arrays, attrs, run_time: int = 1) -> tuple[Graph, list[np.ndarray]]:
    g = Graph(op)
    fed = [a for a in arrays[:run_time] if a is not None]
    values = [
        None if a is None
        else g.input(f"x{i}", Type(a.dtype, a.shape)) if i < run_time
        else g.const(a, f"c{i}")
        for i, a in enumerate(arrays)
    ]  # fmt: skip
    g.outputs = list(g.add(OPS[op], *values, **attrs).outputs)
    return g, fed


def in_micro_batches(g: Graph, fed: list[np.ndarray], micro_batches: int) -> list[np.ndarray]:
    """All outputs, micro-batch by micro-batch through the references."""
    micro_batch = one_micro_batch(g, g.nodes, micro_batches)
    cut = {inner: outer for outer, inner in micro_batch.cut.items()}
    parts = []
    for i in range(micro_batches):
        inputs = []
        for v in micro_batch.body.inputs:
            outer = cut.get(v) or next(o for o, w in micro_batch.whole.items() if w is v)
            a = fed[g.inputs.index(outer)]
            size = a.shape[0] // micro_batches
            inputs.append(a[i * size : (i + 1) * size] if v in cut else a)
        parts.append(run_graph(micro_batch.body, inputs))
    order = [list(micro_batch.results).index(v) for v in g.outputs]
    return [np.concatenate([p[k] for p in parts]) for k in order]


@pytest.mark.parametrize("micro_batches", [2, 4])
@pytest.mark.parametrize("op, arrays, attrs", PARTED, ids=[p[0] for p in PARTED])
def test_micro_batches_of_one_node_give_the_whole(op, arrays, attrs, micro_batches):
    run_time = {"Concat": 2, "ChannelGather": 2, "RowAttention": 3}.get(op, 1)
    g, fed = graph_of(op, arrays, attrs, run_time)
    for got, want in zip(in_micro_batches(g, fed, micro_batches), run_graph(g, fed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_every_rule_has_its_case():
    declared = {name for name in OPS if OPS[name]._apart is not None}
    assert {p[0] for p in PARTED} >= declared | set(RULES)


def test_products_of_two_batches():
    g, fed = graph_of("MatMul", [array(4, 2, 3), array(4, 3, 5)], {}, 2)
    np.testing.assert_allclose(in_micro_batches(g, fed, 4)[0], run_graph(g, fed)[0], rtol=1e-6)


def test_constants_that_repeat_are_cut():
    token = np.broadcast_to(array(1, 1, 3), (4, 1, 3))
    g, fed = graph_of("Concat", [array(4, 2, 3), token], {"axis": 1})
    np.testing.assert_array_equal(in_micro_batches(g, fed, 4)[0], run_graph(g, fed)[0])


REFUSED = [
    ("Softmax", [array(4, 9)], {"axis": 0}, 1),
    ("Softmax", [array(6, 9)], {"axis": 1}, 1),  # six rows have no four parts
    ("LayerNorm", [array(4, 9)], {"axis": 0}, 1),
    ("Transpose", [array(4, 4)], {"perm": (1, 0)}, 1),
    ("Transpose", [array(4, 4)], {}, 1),
    ("Concat", [array(4, 2), array(4, 2)], {"axis": 0}, 2),
    ("Concat", [array(4, 2), array(4, 3)], {"axis": 1}, 1),  # the constant's rows differ
    ("Add", [array(4, 2), array(4, 2)], {}, 1),
    ("Add", [array(4, 4), array(4)], {}, 2),
    ("Reduce", [array(4, 8), ints(0)], {"kind": "sum"}, 1),
    ("Reduce", [array(4, 8)], {"kind": "sum"}, 1),
    ("CumSum", [array(4, 8), ints(0)], {}, 1),
    ("Slice", [array(8, 8), ints(0), ints(4), ints(0)], {}, 1),
    ("Slice", [array(4, 8), ints(3), ints(-9), ints(0), ints(-1)], {}, 1),
    ("Pad", [array(4, 8), ints(1, 0, -1, 0)], {}, 1),
    ("Gather", [array(4, 8), ints(3, 2, 1, 0)], {"axis": 0}, 1),
    ("Expand", [array(1, 8), ints(4, 8)], {}, 1),
    ("MatMul", [array(4, 4), array(4, 4)], {}, 2),
    ("MatMul", [array(8, 4), array(2, 4, 4)], {}, 1),
    ("MaxPool", [array(*IMAGE)], {"kernel": (2, 2), "with_indices": True}, 1),
    ("Resize", [array(*IMAGE), None, np.array([2, 1, 1, 1], np.float32)], {}, 1),
    ("RowAttention", [array(4, 2, 3, 2), array(4, 2, 3, 2), array(4, 2, 3, 2),
                      rows_of(4)[0], rows_of(4)[0][::-1], *rows_of(4)[:2]],
     {"width": 2, "value_width": 2, "shape": (4, 2, 3, 2)}, 3),
]  # fmt: skip


@pytest.mark.parametrize("op, arrays, attrs, run_time", REFUSED, ids=[r[0] for r in REFUSED])
def test_nodes_that_mix_images_are_no_run(op, arrays, attrs, run_time):
    g, _ = graph_of(op, arrays, attrs, run_time)
    assert list(runs(g, 4)) == []


# ---- whole programs


def placed(g: Graph) -> Graph:
    run_passes(g, "portable", "cpu")
    run_passes(g, "machine", "cpu")
    return g


def batched_branches() -> Graph:
    """Concat and Split within, and at the borders of, what runs in micro-batches."""
    g = Graph("branches")
    x = g.input("x", Type("float32", (6, 16, 7, 9)))
    both = ops.Concat(ops.Relu(conv(g, x, 32, 1)), conv(g, x, 32, 3, seed=2), x, axis=1)
    first, second = ops.Split(both, ints(32, 48), axis=1)
    halves = ops.Relu(conv(g, first, 20, 3, seed=4))
    flat = ops.Flatten(ops.GlobalPool(conv(g, second, 8, 3, seed=6)))
    across = ops.Softmax(flat, axis=0)  # of all images
    y = ops.MatMul(across, g.const(array(8, 12), "w"))
    g.outputs = [halves, ops.Tanh(both), y]
    return g


def scaled() -> Graph:
    """What all micro-batches read whole: a factor that is computed once."""
    g = Graph("scaled")
    x = g.input("x", Type("float32", (6, 16, 7, 9)))
    f = g.input("f", Type("float32", (1, 16, 1, 1)))
    y = conv(g, ops.Mul(conv(g, x, 16, 3), ops.Exp(f)), 16, 3, seed=3)
    g.outputs = [ops.Relu(ops.Add(y, x))]
    return g


def rows() -> Graph:
    """Rows of several images in one axis, and products of two batches."""
    g = Graph("rows")
    x = g.input("x", Type("float32", (6, 10, 16)))
    q = ops.Reshape(ops.MatMul(x, g.const(array(16, 16), "q")), ints(60, 16))
    q = ops.Reshape(ops.LayerNorm(q, array(16)), ints(6, 10, 16))
    k = ops.MatMul(x, g.const(array(16, 16, seed=1), "k"))
    p = ops.Softmax(ops.MatMul(q, ops.Transpose(k, perm=(0, 2, 1))), axis=-1)
    g.outputs = [ops.Add(ops.MatMul(p, x), x)]
    return g


PROGRAMS = GRAPHS | {
    "residual_6": lambda: residual(6, 11),
    "batched_branches": batched_branches,
    "scaled": scaled,
    "rows": rows,
}


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse2", "scalar"])
@pytest.mark.parametrize("name, micro_batches", [
    ("residual_batch", 3), ("residual_6", 2), ("residual_6", 6), ("batched_branches", 3),
    ("batched_branches", 6), ("scaled", 6), ("rows", 6), ("rows", 2), ("branches", 2),
    ("mixed", 4), ("recurrent", 3),
])  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_programs_in_micro_batches_agree_with_the_reference(name, micro_batches, threads, isa):
    if not runnable(level(isa)):
        pytest.skip(f"no {isa} here")
    graph = PROGRAMS[name]()
    fed = list(feeds(graph).values())
    want = run_graph(graph, fed)
    made = compile_placed(placed(graph), level(isa), threads=threads, micro_batches=micro_batches)
    session = made.program.session()
    for _ in range(2):
        session._memory.workspace[:] = 0xFF  # nothing may be read that no micro-batch has written
        session._memory.arena[:] = 0xFF
        for got, expected in zip(session.run(fed), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def test_threads_read_equal_tables_in_two_regions():
    g = Graph("alike")
    x, y = (g.input(name, Type("float32", (6, 32, 40, 40))) for name in "xy")
    first = ops.Exp(g.input("z", Type("float32", (6, 8, 9, 9))))  # its table is another one
    g.outputs = [first, ops.Sub(ops.Exp(ops.Softmax(ops.Sub(ops.Exp(x), y), axis=0)), y)]
    made = compile_placed(placed(g), level("host"), threads=2, micro_batches=3)
    steps = made.program.plan.steps
    places = [(s.region, s.calls[0].sizes) for s in steps if s.calls and s.calls[0].sizes][1:]
    assert [region for region, _ in places] == [1, 2] and len({refs for _, refs in places}) == 1
    assert made.program.plan.threads == 2
    fed = list(feeds(g).values())
    np.testing.assert_allclose(made.run(fed)[1], run_graph(g, fed)[1], rtol=2e-4, atol=2e-5)


def test_what_lies_inside_takes_the_room_of_one_micro_batch():
    def arena(micro_batches: int) -> int:
        graph = placed(residual(6, 32))
        memory = compile_placed(graph, level("host"), micro_batches=micro_batches).built.plan.memory
        return memory.peak + memory.workspace

    assert arena(6) < 0.4 * arena(1)


def test_micro_batches_use_the_workspace_of_what_runs_at_once():
    def step(region: int, workspace: int, *writes: Tensor) -> Placed:
        choice = Choice(0.0, (), (), (), workspace=workspace)
        return Placed(
            "step", "Op", "native", "kernel", "", choice=choice, writes=list(writes), region=region
        )

    inside = Tensor("inside", np.dtype("float32"), (1024,), region=1)
    inside.settle()
    offsets: dict[Tensor, int] = {}
    assert workspace_of([step(0, 8192), step(1, 64, inside)], offsets) == 8192
    assert offsets == {inside: 64}
    assert workspace_of([step(0, 4096), step(1, 64, inside)], offsets) == 64 + 4096


def test_profiles_count_all_micro_batches():
    from tinsmith.runtime.profile import profile_session

    x = list(feeds(residual(6, 32)).values())
    flops = []
    for micro_batches in (1, 6):
        made = compile_placed(placed(residual(6, 32)), level("host"), micro_batches=micro_batches)
        profile = profile_session(made.program.session(), x, 3)
        assert all(r.ms > 0 for r in profile.rows)
        flops.append(sum(s.flops for s in made.built.plan.steps))
    assert flops[0] == flops[1]


# ---- when


@pytest.mark.parametrize(
    "gains, found",
    [
        ([], []),
        ([1.0, 1.0, -1.0, 3.0, -5.0, 0.1], [(0, 4)]),
        ([1.0, 1.0, -9.0, 3.0, 3.0], [(0, 2), (3, 5)]),
        ([1.0, 1.0, None, 3.0, 3.0], [(0, 2), (3, 5)]),
        ([-1.0, 9.0, -1.0], []),  # one node alone has nothing between
        ([0.001, 0.001], []),
        ([5.0, -10.0, 2.0, 2.0], [(2, 4)]),
        ([3.0, None, 2.0, 2.0, None, 4.0], [(2, 4)]),
    ],
)
def test_intervals_of_the_largest_gains(gains, found):
    assert intervals(gains, [1.0] * len(gains)) == found


def regions(graph: Graph, threads: int = 1) -> list[str]:
    plan = compile_placed(placed(graph), level("avx2"), threads=threads).built.plan
    return [s.name for s in plan.steps if s.region]


def chain(batch: int, channels: int, size: int, pool: bool) -> Graph:
    g = Graph("chain")
    x = g.input("x", Type("float32", (batch, channels, size, size)))
    for i in range(3):
        x = ops.Relu(conv(g, x, channels, 3, seed=i))
        if pool:
            x = ops.MaxPool(x, kernel=(3, 3), pad=(1, 1, 1, 1))
    g.outputs = [x]
    return g


@pytest.mark.parametrize("threads", [1, 2])
def test_large_images_are_computed_in_micro_batches(threads):
    names = {"conv", "maxpool", "conv.1", "maxpool.1", "conv.2", "maxpool.2"}
    assert names <= set(regions(chain(8, 16, 160, pool=True), threads))


def test_what_fits_in_cache_or_is_one_image_is_computed_at_once():
    assert regions(chain(8, 16, 8, pool=False)) == []
    assert regions(chain(1, 16, 160, pool=True)) == []


def test_heavy_weights_are_read_once():
    assert regions(chain(8, 512, 4, pool=False)) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_tensors_that_leave_the_cache_are_waited_for(threads):
    """Weights are not: the costs of kernels tell when those come from memory."""
    target = machine_with("avx2", l2=1 << 20, l3=32 << 20, dram_together=30e9)

    def waited(batch: int, channels: int, size: int) -> float:
        placement = Placement(target, PlanOptions(threads))
        found = prices(placement, placed(chain(batch, channels, size, pool=False)))
        return sum(filter(None, found.values())) - sum(s.cost for s in placement.steps)

    assert abs(waited(1, 512, 7)) < 1e-12  # 9 MiB of weights a layer
    step = 4 * 8 * 64 * 56 * 56 * (1 + WRITTEN)  # bytes; three layers, and two conversions
    rate = target.dram_bandwidth / target.crowding(threads)
    assert 0.6 * 3 * step / rate < waited(8, 64, 56) < 5 * step / rate


def test_explain_tells_micro_batches():
    made = compile_placed(placed(chain(8, 16, 160, pool=True)), level("avx2"))
    assert "8 micro-batches" in str(by_name(explain_steps(made.built))["maxpool"])


def test_kernels_that_take_no_part_of_a_batch_may_be_asked_for():
    g = Graph("layers")
    x = g.input("x", Type("float32", (2048, 256)))
    y = ops.Relu(ops.MatMul(x, g.const(array(256, 512))))
    y = ops.MatMul(y, g.const(array(512, 256)), name="down")
    g.outputs = [y]
    made = compile_placed(placed(g), level("avx2"), overrides={"down": "matmul_packed"})
    assert next(s.kernel for s in made.built.plan.steps if s.name == "down") == "matmul_packed"


@pytest.mark.parametrize("dims", [(4, 0, 3), (4, 2, 3)])
def test_a_part_of_a_reshape_has_its_share_of_the_elements(dims):
    graph = Graph("parts")
    x = graph.input("x", Type("float32", dims))
    node = graph.add(OPS["Reshape"], x, ints(4, 6, dims[1] // 2), allowzero=True)
    part = part_of(node, [True, False], 4)
    assert part is not None
    given = np.zeros((1, *dims[1:]), np.float32)
    made = OPS["Reshape"](given, part.consts[1], **{**node.attrs, **part.attrs})
    assert made.shape == (1, *node.output.dims[1:])
