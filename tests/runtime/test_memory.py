"""What memory cannot hold is said; kept programs are bounded; outputs are the caller's own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tinsmith as ts
from tests.models import array, feeds, free, residual
from tinsmith import ops
from tinsmith.errors import InputError, OutOfMemory, PlanError
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.plan import arena
from tinsmith.runtime.memory import aligned


@pytest.mark.parametrize("nbytes", [0, 1, 64, 100_001])
def test_memory_begins_at_a_cache_line(nbytes: int) -> None:
    memory = aligned(nbytes)
    assert memory.dtype == np.uint8 and memory.size == nbytes
    memory[...] = 255
    if nbytes:
        assert memory.ctypes.data % 64 == 0 and memory[-1] == 255


def test_memory_that_cannot_be_had_is_told() -> None:
    with pytest.raises(PlanError, match="cannot be had"):
        aligned(1 << 60)


def test_outputs_belong_to_the_caller() -> None:
    net = ts.compile(residual(), cache=False)
    first = net(array(1, 3, 12, 12))
    kept = first.copy()
    net(array(1, 3, 12, 12, seed=9))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_model_beyond_the_memory_is_refused(backend: str) -> None:
    g = Graph("huge")
    x = g.input("x", Type("float32", (1, 1 << 20)))
    y = ops.Expand(x, np.array([1 << 20, 1 << 20]))
    g.outputs = [ops.Reduce(ops.Exp(y), kind="sum")]
    with pytest.raises(PlanError, match="GiB for "):
        ts.compile(g, backend=backend, cache=False)


def test_tensors_that_together_are_beyond_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "machine_memory", lambda: 1_000_000)
    g = Graph("wide")
    x = g.input("x", Type("float32", (480, 480)))
    g.outputs = [ops.MatMul(ops.Softmax(x, axis=0), ops.Softmax(x, axis=1))]
    with pytest.raises(PlanError, match=r"1\.8 MiB for its tensors, .* has 1\.0 MiB;"):
        ts.compile(g, cache=False)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_outputs_share_no_memory(backend: str) -> None:
    g = Graph("shared")
    x = g.input("x", Type("float32", (2, 3)))
    y = ops.Reshape(x, np.array([3, 2]))
    g.outputs = [y, x, g.const(np.ones(3, np.float32)), ops.Reshape(y, np.array([6]))]
    a = array(2, 3)
    got = ts.compile(g, backend=backend, cache=False).run([a])
    for i, one in enumerate(got):
        assert one.flags.writeable and not np.shares_memory(one, a)
        assert not any(np.shares_memory(one, other) for other in got[i + 1 :])


def test_an_output_that_no_memory_can_hold() -> None:
    g = Graph("outer")
    x, y = g.input("x", Type("float32", ("N", 1))), g.input("y", Type("float32", (1, "M")))
    g.outputs = [ops.MatMul(x, y)]
    net = ts.compile(g, cache=False)
    with pytest.raises(PlanError):
        net(np.ones((1 << 20, 1), np.float32), np.ones((1, 1 << 20), np.float32))


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_an_input_whose_copy_cannot_be_had(backend):
    g = Graph("g")
    g.outputs = [g.add(ops.Relu, g.input("x", Type(np.dtype("float32"), ("N",)))).output]
    net = ts.compile(g, backend=backend, cache=False)
    with pytest.raises(InputError, match="is not contiguous, and 16384"):
        net(np.broadcast_to(np.float32(1), (1 << 42,)))


@pytest.mark.parametrize("scale", [1 << 44, 1 << 61])
@pytest.mark.parametrize("op", ["Tile", "Resize"])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_result_larger_than_memory(backend, op, scale):
    g = Graph("g")
    x = g.input("x", Type(np.dtype("float32"), (4,)))
    if op == "Tile":
        y = g.add(ops.Tile, x, g.const(np.array([scale]), "n"))
    else:
        y = g.add(ops.Resize, x, None, None, g.const(np.array([scale]), "n"))
    g.outputs = [y.output]
    with pytest.raises(PlanError, match="this machine has"):
        ts.compile(g, backend=backend, cache=False)


@pytest.mark.parametrize("n", [1 << 31, 1 << 40])
def test_a_result_of_free_sizes_that_is_larger_than_memory(n: int) -> None:
    """Of inputs without elements, which need none."""
    g = Graph("g")
    x, y = (g.input(name, Type("float32", (name, "k"))) for name in "xy")
    g.outputs = [ops.MatMul(x, ops.Transpose(y))]
    net = ts.compile(g, cache=False, shapes="free")
    given = np.ones((3, 0), np.float32)
    np.testing.assert_array_equal(net(given, given), np.zeros((3, 3)))
    with pytest.raises(OutOfMemory, match="more memory than the system gives"):
        net(*[np.empty((n, 0), np.float32)] * 2)
    np.testing.assert_array_equal(net(given, given), np.zeros((3, 3)))


def test_kept_programs_are_bounded_by_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = free()
    net = ts.compile(graph, cache=False, shapes="fixed")
    for t in range(1, 21):
        given = feeds(graph, N=1, T=t)
        net(**given)
    assert len(net._programs.kept()) == len(net._local.sessions) == 16
    monkeypatch.setattr("tinsmith.runtime.programs.PLAN_BYTES", 1)
    given = feeds(graph, N=2, T=2)
    for got, want in zip(net(**given).values(), run_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(net._programs.kept()) == len(net._local.sessions) == 1


def counted(graph: Graph) -> tuple[ts.Net, Counter]:
    """A net, and how often it has built a program for each signature."""
    net, built = ts.compile(graph, cache=False, shapes="fixed"), Counter()
    build = net._model.build

    def count(signature):
        built[signature] += 1
        return build(signature)

    net._model.build = count
    return net, built


def test_the_shapes_used_last_are_kept() -> None:
    g = Graph("g")
    g.outputs = [ops.Relu(g.input("x", Type("float32", ("N",))))]
    net, built = counted(g)
    hot = np.ones(1, np.float32)
    for n in range(2, 40):
        net(np.ones(n, np.float32))
        net(hot)
    assert set(built.values()) == {1}
    assert net.program(((1,),)) is net.session(((1,),)).program
    assert built[((1,),)] == 1, "what a session holds is found"
    net(np.ones(2, np.float32))
    assert built[((2,),)] == 2, "what nobody has used for long is not"
