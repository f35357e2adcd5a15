"""What programs for free sizes ask for is bounded: memory by the largest sizes, sizes by what can
be addressed; what is beyond is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.fresh import said
from tests.models import free as batched
from tinsmith.errors import (
    InputShapeError,
    OutOfMemory,
    OutsideHint,
    TinsmithError,
    TypeRuleError,
)
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

MOST = {"n": 4, "h": 64, "w": 64}
CALLS = 1000


def layers() -> Graph:
    """Convolutions, a pooling, and a result as large as what is between."""
    graph, rng = Graph("layers"), np.random.default_rng(1)
    x = graph.input("x", Type("float32", ("n", 3, "h", "w")))
    pads = {"pad": (1, 1, 1, 1)}
    for k, (a, b) in enumerate(((3, 8), (8, 8))):
        weights = graph.const(rng.standard_normal((b, a, 3, 3)).astype(np.float32), f"w{k}")
        x = OPS["Relu"](OPS["Conv"](x, weights, **pads))
    graph.outputs = [x, OPS["MaxPool"](x, kernel=(2, 2), stride=(2, 2))]
    return graph


def held(net: Any) -> int:
    """The bytes that the calling thread's sessions of all programs for free sizes have."""
    found = net._model._free.found
    memories = {id(m): m for m in (free.memory() for free, _ in found)}.values()
    return sum(len(m.arena) + len(m.workspace) + m.kept_bytes for m in memories)


RESIDENT = """
import mmap
import numpy as np
from tinsmith.runtime.results import RunMemory

memory, dtype = RunMemory(), np.dtype(np.uint8)
for nbytes in (1 << 20, 3 << 20, 5 << 19):
    memory.maker(0, (nbytes,), dtype)()[:] = 1
(kept,) = memory._kept.values()
(raw,) = kept.arrays
assert memory.kept_bytes == 3 << 20 and raw.nbytes == (6 << 20) + 64
with open("/proc/self/pagemap", "rb") as pages:
    pages.seek(raw.ctypes.data // mmap.PAGESIZE * 8)
    flags = np.frombuffer(pages.read(raw.nbytes // mmap.PAGESIZE * 8), np.uint64)
print(np.count_nonzero(flags >> np.uint64(63)) * mmap.PAGESIZE)
"""


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="only Linux tells of pages")
def test_memory_kept_for_results_beyond_the_largest_is_not_touched() -> None:
    """Pages that nobody has written are not resident. In a new process, as an old one has memory
    that was used for other things; a large page may reach 2 MiB beyond."""
    assert int(said(RESIDENT)) < (3 << 20) + (2 << 20)


@pytest.mark.parametrize("least", [2, 1])
@pytest.mark.parametrize("hints", [None, {n: (1, most) for n, most in MOST.items()}])
def test_memory_of_random_shapes_is_that_of_the_largest(least: int, hints: Any) -> None:
    """With a least of 1 two programs take the shapes, which share their memory."""
    rng, graph = np.random.default_rng(7), layers()
    one = ts.compile(graph, shapes="free", sizes=hints, cache=False)
    for _ in range(3):
        y, _ = one.run([np.ones((MOST["n"], 3, MOST["h"], MOST["w"]), np.float32)])
    net = ts.compile(graph, shapes="free", sizes=hints, cache=False)
    for _ in range(CALLS):
        n, h, w = rng.integers(least, 5), *rng.integers(8, 65, 2)
        y, _ = net.run([np.ones((n, 3, h, w), np.float32)])
        assert y.shape == (n, 8, h, w)
    assert 0 < held(net) <= 1.1 * held(one)


# ---- sizes that cannot be


def test_sizes_that_contradict_each_other() -> None:
    net = ts.compile(batched(), shapes="free", cache=False)
    given = [
        np.ones([d if isinstance(d, int) else 3 + k for d in t.shape or ()], t.dtype)
        for k, t in enumerate(net.inputs.values())
    ]
    out = [np.full(1, 9, np.float32)] * len(net.output_names)
    if len(given) > 1:
        with pytest.raises(InputShapeError, match=r"is 3 in .* and 4 in"):
            net.run(given, out=out)
    with pytest.raises(TinsmithError, match="shape"):
        net.program(((2,),) * len(net.inputs))


@pytest.mark.parametrize("shapes", ["free", "fixed"])
def test_sizes_that_contradict_what_has_no_elements(shapes: str) -> None:
    graph = Graph("g")
    x = graph.input("x", Type("float32", ("n", 4)))
    graph.outputs = [OPS["Relu"](OPS["Mul"](x, graph.const(np.zeros((0, 4), np.float32), "c")))]
    net = ts.compile(graph, cache=False, shapes=shapes)
    for n in (0, 1):
        assert net(np.zeros((n, 4), np.float32)).shape == (0, 4)
    with pytest.raises(TypeRuleError, match="do not broadcast"):
        net(np.zeros((8, 4), np.float32))


@pytest.mark.parametrize("size", [1 << 40, 1 << 61, (1 << 63) - 1])
def test_sizes_beyond_what_can_be_addressed(size: int) -> None:
    graph = Graph("outer")
    x = graph.input("x", Type("float32", ("a", 1)))
    y = graph.input("y", Type("float32", (1, "b")))
    graph.outputs = [OPS["Softmax"](OPS["Relu"](OPS["Add"](x, y)), axis=1)]
    net = ts.compile(graph, shapes="free", cache=False)
    net(np.ones((3, 1), np.float32), np.ones((1, 4), np.float32))
    with pytest.raises(TinsmithError) as refused:
        net.session(((size, 1), (1, size)))
    assert isinstance(refused.value, OutOfMemory) or "size" in str(refused.value)
    y = net(np.ones((5, 1), np.float32), np.ones((1, 4), np.float32))
    assert y.shape == (5, 4)


def test_no_plan_for_more_memory_than_there_is() -> None:
    graph = Graph("rows")
    x = graph.input("x", Type("float32", ("n", 64)))
    graph.outputs = [OPS["Softmax"](OPS["Softmax"](x, axis=0), axis=1)]
    net = ts.compile(graph, shapes="free", cache=False)
    net(np.ones((3, 64), np.float32))
    with pytest.raises(OutOfMemory, match=r"rows needs .* for its tensors at these sizes"):
        net.program(((1 << 40, 64),))
    assert net(np.ones((5, 64), np.float32)).shape == (5, 64)


def test_sizes_beyond_hints_come_before_those_beyond_memory() -> None:
    graph = Graph("rows")
    graph.outputs = [OPS["Softmax"](graph.input("x", Type("float32", ("a", "b"))), axis=1)]
    net = ts.compile(graph, shapes="free", sizes={"a": (2, 9), "b": (2, 9)}, cache=False)
    with pytest.raises(OutsideHint, match="'a' of rows is 4611686018427387904"):
        net.session(((1 << 62, 1 << 62),))
