"""`verify` of quantised models: single results one quantum away are allowed, and what is wrong is
found in spite of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.quantised import Net, chain
from tinsmith import ops
from tinsmith.compiler.compare import compare
from tinsmith.compiler.quanta import unlike
from tinsmith.graph import Graph
from tinsmith.kernels._kernel import KERNELS, Packed, Tier, kernel
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph
from tinsmith.passes.choice import PASSES
from tinsmith.passes.manager import register


def quantised() -> Graph:
    """Three convolutions of bytes, of which some sums lie next to half a quantum."""
    net, v = chain(64, 96, 64, 64, size=40)
    net.graph.outputs.append(v[0])
    return net.graph


def test_single_quanta_are_allowed_and_said() -> None:
    quantum = ts.verify(quantised(), cache=False, target="avx2")
    assert quantum.ok and quantum.culprit is None
    if quantum.outputs[0].maximum:
        assert "docs/numerics.md" in quantum.note and "one quantum" in str(quantum)
    assert ts.verify(quantised(), cache=False, bisect=False).ok


def test_means_that_lie_on_half_a_quantum_may_be_rounded_either_way() -> None:
    """A quarter of all means of four bytes do, where bytes before and after have one scale."""
    net = Net(1, 64, 20, 20)
    means = ops.AveragePool(net.real(net.x), kernel=(2, 2), stride=(2, 2))
    net.graph.outputs.append(net.low_of(means, float(net.x[1]), 0)[0])
    bytes_ = np.random.default_rng(5).integers(0, 256, net.x[0].dims).astype(np.uint8)
    (got,) = run_graph(net.graph, [bytes_])
    name = net.graph.outputs[0].name
    sums = bytes_.reshape(1, 64, 10, 2, 10, 2).sum(axis=(3, 5))
    feeds = {net.graph.inputs[0].name: bytes_}
    for off, ok in ((sums % 4 == 2, True), (sums % 4 == 1, False)):
        for values in (np.where(off, got - 1, got), np.where(off, got + 1, got)):
            assert (unlike(net.graph, feeds, {name: values.astype(np.uint8)}, 0.0) is None) == ok


def _every_ninth_is_zero(pack: Any, *args: Any) -> Any:
    weights = np.array(pack(*args))
    weights.reshape(-1)[::9] = 0
    return weights


@pytest.mark.parametrize("where", [(96, 64), (64, 96), (64, 64)])
def test_a_wrong_kernel_of_bytes_is_named(where: tuple[int, int]) -> None:
    @kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
    def conv_integer_wrong(site: Any) -> Any:
        """Wrong on purpose: some weights of one layer are missing."""
        choice: Any = KERNELS["conv_integer"].rule(site)
        if site.input(1).dims[:2] != where:
            return choice
        first, *rest = choice.packed
        spoiled = Packed(first.name, _every_ninth_is_zero, (first.pack, *first.args))
        return replace(choice, packed=(spoiled, *rest))

    try:
        kernels = {"ConvInteger": "conv_integer_wrong"}
        found = ts.verify(quantised(), kernels=kernels, cache=False)
    finally:
        KERNELS.remove("conv_integer_wrong")
    assert not found.ok and found.culprit is not None
    assert (found.culprit.kind, found.culprit.kernel) == ("kernel", "conv_integer_wrong")
    assert f"[1, {where[0]}, 40, 40]" in str(found.culprit.difference)


@pytest.mark.parametrize("defect", ["scale", "rounding"])
@pytest.mark.parametrize("bisect", [True, False])
def test_a_broken_requantisation_is_found(defect: str, bisect: bool) -> None:
    """With the defect "rounding" no result is more than one quantum away, but half of them are."""

    @dataclass(frozen=True)
    class Broken:
        """Wrong on purpose: quantises by another scale, or rounds down."""

        def run(self, graph: Graph, context: Any) -> int:
            node = next(n for n in graph.nodes if n.op.name == "QuantizeLinear")
            x, scale, *zero = node.inputs
            assert scale is not None and scale.const is not None
            if defect == "scale":
                scale = graph.const(np.float32(1.02) * scale.const, "scale")
            else:
                x = OPS["Sub"](x, np.float32(0.5) * scale.const)
            graph.replace(node.output, OPS["QuantizeLinear"](x, scale, *zero))
            graph.sweep()
            return 1

    register("portable", priority=50.5, name="broken")(Broken)
    try:
        found = ts.verify(quantised(), cache=False, bisect=bisect)
    finally:
        PASSES.remove("broken")
    assert not found.ok and "allowed" not in found.note
    if bisect:
        assert found.culprit is not None
        assert (found.culprit.kind, found.culprit.name) == ("pass", "broken")


def test_one_in_ten_thousand_bytes_may_be_a_quantum_away() -> None:
    want = np.full(30_000, 7, np.uint8)
    for count, by, ok in ((3, 1, True), (8, 1, True), (9, 1, False), (1, 2, False)):
        got = want.copy()
        got[:count] += np.uint8(by)
        assert compare("y", got, want, 0.0, 1.0).ok == ok
        assert not compare("y", got, want, 0.0).ok
        half = np.float32(0.5)
        assert compare("y", half * got, half * want, 0.0, 0.5).ok == ok
