"""Small graphs for the tests of passes."""

import numpy as np

import tinsmith as ts
from tinsmith.graph import Graph, Type
from tinsmith.graph.verify import verify
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import COURSE, run_passes
from tinsmith.rewrite.rule import Refusal


class Builder:
    """`b.x(...)` inputs, `b.w(...)` random constants; operators are called from `tinsmith.ops`."""

    def __init__(self, dtype="float32", seed=0):
        self.graph, self.dtype = Graph("g"), np.dtype(dtype)
        self.rng = np.random.default_rng(seed)

    def x(self, *shape, name="x"):
        return self.graph.input(name, Type(self.dtype, shape))

    def array(self, *shape):
        return self.rng.standard_normal(shape).astype(self.dtype)

    def w(self, *shape, name="w"):
        return self.graph.const(self.array(*shape), name)

    def c(self, value, dtype=None):
        return self.graph.const(np.asarray(value, dtype or self.dtype), "c")

    def i(self, *values):
        return self.graph.const(np.asarray(values, np.int64), "i")

    def out(self, *values):
        self.graph.outputs += values
        return self.graph


def refused(refusals: list[Refusal], node: str) -> list[Refusal]:
    """The near misses in which the node of that name took part."""
    return [r for r in refusals if node in r.nodes or r.node == node]


def ops_of(graph):
    return [n.op.name for n in graph.nodes]


def feeds_of(graph, sizes=None, seed=1):
    rng = np.random.default_rng(seed)
    out = []
    for v in graph.inputs:
        shape = [d if isinstance(d, int) else (sizes or {}).get(d, 3) for d in v.shape]
        if v.dtype.kind == "f":
            out.append(rng.standard_normal(shape).astype(v.dtype))
        else:
            out.append(rng.integers(0, 3, shape).astype(v.dtype))
    return out


def check(graph, *stages, spec=None, tolerance=2e-5, sizes=None):
    """Run passes; the results must stay. Returns the report of the last stage."""
    feeds = feeds_of(graph, sizes)
    names = [v.name for v in graph.outputs]
    before = run_graph(graph, feeds)
    report = None
    for stage in stages or COURSE:
        report = run_passes(graph, stage, spec=spec, verify=True)
        verify(graph)
        for a, b in zip(before, run_graph(graph, feeds), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            scale = max(1.0, float(np.max(np.abs(a), initial=0))) if a.dtype.kind == "f" else 1
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale)
    assert [v.name for v in graph.outputs] == names, "outputs keep their names"
    return report


def native(g, feeds, exact=False):
    """The graph runs without any reference, and right."""
    want = run_graph(g, feeds)
    net = ts.compile(g, cache=False)
    for got, right in zip(net.run(feeds), want, strict=True):
        assert got.dtype == right.dtype and got.shape == right.shape
        if exact or right.dtype.kind in "iu":
            np.testing.assert_array_equal(got, right)
        else:
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)
    steps = net.program().plan.steps
    assert not [s.name for s in steps if s.kind == "reference"]
