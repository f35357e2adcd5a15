"""`verify` and `profile` of programs for free sizes: what is wrong is found, at which sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.chains import chain
from tests.cli.harness import tinsmith
from tests.models import GRAPHS
from tests.transformer import transformer
from tests.wrong import misplaced, spoiled
from tinsmith.compiler.bisect import Bisection
from tinsmith.compiler.build import Compilation
from tinsmith.compiler.free import leaving_free
from tinsmith.compiler.options import Options, machine_of
from tinsmith.compiler.verify_sizes import Freed, sizes_for
from tinsmith.graph import Graph, Type
from tinsmith.graph.copy import with_numbers
from tinsmith.kernels._kernel import KERNELS, Skip, Tier, kernel
from tinsmith.ops import OPS
from tinsmith.sizes import Size

HINTS = {"n": (1, 40)}


@pytest.fixture
def wrong_kernels() -> Any:
    """`free_wrong` has other weights where it is made for sizes that are free, `free_misplaced`
    only behind other products."""

    @kernel("MatMul", Tier.VECTOR, dtypes="float32")
    def free_wrong(site: Any) -> Any:
        """Wrong on purpose where sizes are free."""
        free = any(isinstance(d, Size) for d in site.input(0).dims)
        return spoiled(site) if free else KERNELS["matmul_packed"].rule(site)

    @kernel("MatMul", Tier.VECTOR, dtypes="float32")
    def free_misplaced(site: Any) -> Any:
        """Wrong on purpose, unless it reads the graph's inputs."""
        return misplaced(site)

    yield
    KERNELS.remove("free_wrong")
    KERNELS.remove("free_misplaced")


@pytest.mark.parametrize("where", ["first", "second", "third"])
@pytest.mark.parametrize("sizes", [None, HINTS])
def test_a_kernel_that_is_wrong_for_free_sizes_is_found(
    wrong_kernels: None, where: str, sizes: Any, tmp_path: Path
) -> None:
    kernels = {where: "free_wrong"}
    options: dict[str, Any] = {"kernels": kernels, "cache": False, "sizes": sizes}
    assert ts.verify(ts.load(chain()), {"x": np.ones((8, 16), np.float32)}, **options).ok
    found = ts.verify(ts.load(chain()), save=tmp_path, shapes="free", **options)
    culprit = found.culprit
    assert not found and culprit is not None
    assert (culprit.kind, culprit.kernel) == ("kernel", "free_wrong") and where in culprit.origin
    assert "n = 1" in found.note  # no kernel of that name takes it
    assert ts.load(culprit.replay).inputs


def test_a_free_kernel_that_is_wrong_in_its_place_only(wrong_kernels: None) -> None:
    options: dict[str, Any] = {"kernels": {"MatMul": "free_misplaced"}, "cache": False}
    found = ts.verify(ts.load(chain()), shapes="free", **options)
    assert found.culprit is not None
    assert found.culprit.kind == "plan" and "second" in found.culprit.origin


def test_at_the_sizes_of_inputs_that_are_given(wrong_kernels: None) -> None:
    given = {"x": np.random.default_rng(1).standard_normal((9, 16), np.float32)}
    kernels = {"second": "free_wrong"}
    found = ts.verify(ts.load(chain()), given, shapes="free", kernels=kernels, cache=False)
    assert found.culprit is not None and found.culprit.kernel == "free_wrong"
    assert [d.at for d in found.outputs] == ["", ""]


def test_a_kernel_that_takes_free_sizes_alone_is_not_told_to_be_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rule(site: Any) -> Any:
        if not any(isinstance(d, Size) for d in site.input(0).dims):
            raise Skip("its sizes are numbers")
        return KERNELS["matmul_packed"].rule(site)

    monkeypatch.setattr(Freed, "sized", lambda *_: None)
    x = np.ones((8, 16), np.float32)
    made = Compilation(ts.load(chain()), machine_of(None), Options(kernels=""), False)
    search = Bisection(made, {"x": x}, 1e-3, leaving_free(made, ((8, 16),))[1])
    placed = made.place(search.shapes)
    kernel("MatMul", Tier.VECTOR, dtypes="float32", name="free_only")(rule)
    try:
        search.kernels = {n.name: "free_only" for n in placed.nodes}
        _, forced = search._run(placed, {"x": x}, placed.node("first"))
    finally:
        KERNELS.remove("free_only")
    assert not forced


def test_programs_for_free_sizes_agree_at_several() -> None:
    found = ts.verify(ts.load(transformer()), shapes="free", sizes={"seq": (2, 33)}, cache=False)
    assert found.ok
    assert [d.at for d in found.outputs][::2] == [
        "batch = 16, seq = 8",
        "batch = 1, seq = 2",
        "batch = 7, seq = 5",
        "batch = 16, seq = 2",
        "batch = 16, seq = 33",
    ]
    assert "hidden at batch = 7, seq = 5: float32[7, 5, 32]" in str(found)


def test_sizes_that_a_model_does_not_take_are_left_out() -> None:
    graph = Graph("halves")
    x = graph.input("x", Type("float32", ("n",)))
    graph.outputs = [OPS["Relu"](OPS["Reshape"](x, np.array([-1, 2])))]
    tried = [sizes for sizes, _ in sizes_for(graph, {"n": (2, 9)})]
    assert tried == [{"n": 4}, {"n": 2}]
    assert ts.verify(graph, shapes="free", sizes={"n": (2, 9)}, cache=False).ok
    assert [sizes for sizes, _ in sizes_for(GRAPHS["residual"](), None)] == [{}]


def test_the_command_compares_at_several_sizes(tmp_path: Path) -> None:
    file = tmp_path / "chain.onnx"
    onnx.save(chain(), file)
    said = tinsmith("verify", file, "--shapes", "free", "--dim", "n=1..40").stdout
    assert "y at n = 8: float32[8, 16]" in said and "y at n = 40: float32[40, 16]" in said
    plain = json.loads(tinsmith("verify", file, "--shapes", "free", "--json").stdout)
    assert [d["at"] for d in plain["outputs"]][::2] == ["n = 16", "n = 1", "n = 7"]
    said = tinsmith("verify", file, "--shapes", "free", "--dim", "n=5").stdout
    assert "y: float32[5, 16]" in said


def test_a_graph_with_numbers_computes_as_it_did(tmp_path: Path) -> None:
    from tinsmith.ops.interpret import run_graph

    graph = ts.load(transformer())
    made = Compilation(graph, machine_of(None), Options(kernels=""), False)
    _, shapes, *_ = leaving_free(made, ((4, 8), (4, 8)))
    sizes = {"batch": 3, "seq": 5}
    placed = with_numbers(made.place(shapes), lambda s: eval(str(s), {}, sizes))
    ids, mask = np.ones((3, 5), np.int64), np.ones((3, 5), np.float32)
    want = run_graph(graph, [ids, mask])
    for a, b in zip(run_graph(placed, [ids, mask]), want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_profile_of_a_program_for_free_sizes() -> None:
    net = ts.compile(transformer(), shapes="free", cache=False)
    for n, t in ((2, 9), (3, 17)):
        ids, mask = np.ones((n, t), np.int64), np.ones((n, t), np.float32)
        found = net.profile(ids, mask, repeat=2)
        assert {row.name for row in found.rows} <= {s.name for s in net.program().plan.steps}
        assert (
            len(found.rows) > 20
            and all(row.ms > 0 for row in found.rows)
            and found.program == "free"
        )
        assert "the program for free sizes" in str(found)
        planned = (n, t) == (2, 9)  # the sizes for which operations were counted
        assert all((row.gbytes_per_s is not None) == planned for row in found.rows)
    fixed = ts.compile(transformer(), shapes="fixed", cache=False).profile(ids, mask, repeat=2)
    assert fixed.program == "fixed" and "free" not in str(fixed)
