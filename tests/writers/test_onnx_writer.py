"""ONNX -> graph -> ONNX -> graph: the same graph, and the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.real import real_file
from tests.writers.cases import MODELS, UNWRITTEN, imported
from tests.writers.structure import structure
from tinsmith.errors import FileNameError, NotWritable, TinsmithError
from tinsmith.graph import Graph, Type, dtype_of
from tinsmith.ops import OPS
from tinsmith.ops.control import run_graph
from tinsmith.writers.onnx.model import write
from tinsmith.writers.onnx.row import row

COMPOSED = """
Mod SwiGLU SpaceToDepth Swish com.microsoft.GroupNorm com.microsoft.QuickGelu
com.microsoft.RotaryEmbedding If SplitToSequence
com.microsoft.Attention com.microsoft.GroupQueryAttention com.microsoft.QAttention
""".split()  # noqa: SIM905
"""Written in several operators, with sequences whose length is known then, or without checks: they
come back as other graphs, which compute the same."""


def again(graph: Graph, folder: Path) -> Graph:
    """A graph that was written and read."""
    write(graph, folder / "model.onnx")
    return ts.load(folder / "model.onnx")


@pytest.mark.parametrize("name", MODELS)
def test_models_of_every_operator(name: str, tmp_path: Path) -> None:
    for graph, feeds in imported(name):
        if {n.op.name for n in graph.nodes} & UNWRITTEN.keys():
            with pytest.raises(NotWritable):
                again(graph, tmp_path)
            continue
        new = again(graph, tmp_path)
        assert name in COMPOSED or structure(new) == structure(graph)
        assert structure(again(new, tmp_path)) == structure(new)
        assert [v.name for v in new.inputs] == [v.name for v in graph.inputs]
        assert [v.name for v in new.outputs] == [v.name for v in graph.outputs]
        drawn = any("impure" in n.op.traits for n in graph.nodes)
        if feeds is None or drawn:
            continue
        try:
            want = run_graph(graph, feeds)
        except TinsmithError:
            continue
        for a, b in zip(run_graph(new, feeds), want, strict=True):
            np.testing.assert_equal(a, b) if isinstance(a, list) or a is None else same(a, b)


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype == object:
        assert np.array_equal(got, want)
        return
    kind = complex if got.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(kind), want.astype(kind), rtol=1e-6, atol=1e-7)


def test_every_operator_has_a_row_or_a_reason() -> None:
    assert set(OPS) - set(row) == UNWRITTEN.keys() - {"Refused"}


def test_all_problems_are_named_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    graph = Graph("two")
    x, y = (graph.input(n, Type(np.dtype("float32"), (3,))) for n in "xy")
    first = graph.add(OPS["Atan2"], x, y, name="angle").output
    odd = graph.add(
        OPS["PairwiseCoupling"], graph.input("p", Type(np.dtype("float32"), (2, 3))), classes=3
    )
    graph.outputs = [first, odd.output]
    path = tmp_path / "model.onnx"
    with pytest.raises(NotWritable, match=r"cannot say 2 nodes(.|\n)*Atan2 x1(.|\n)*PairwiseCou"):
        ts.write(graph, path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNameError, match="says no format"):
        ts.write(graph, tmp_path / "model.xyz")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "uint2", "float8_e4m3fn", "bool"])
def test_weights_of_every_kind_inside_and_beside(dtype: str, tmp_path: Path) -> None:
    graph = Graph("weights")
    array = (np.arange(1501) % 3 - (dtype == "int4")).astype(dtype_of(dtype))
    graph.outputs = [graph.add(OPS["Cast"], graph.const(array, "w"), to="float32").output]
    for inside in (2**31, 0):
        write(graph, tmp_path / "model.onnx", inside)
        found = ts.load(tmp_path / "model.onnx").nodes[0].inputs[0]
        assert found is not None and found.const is not None
        assert np.array_equal(found.const.astype(np.float32), array.astype(np.float32))
        assert (tmp_path / "model.onnx.data").exists() == (inside == 0)


def test_the_file_says_what_a_checker_wants(tmp_path: Path) -> None:
    path = tmp_path / "digits.onnx"
    ts.write("examples/digits/digits.onnx", path, canonical=True)
    onnx.checker.check_model(str(path), full_check=True)
    x = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    want = ts.compile("examples/digits/digits.onnx")(x)
    np.testing.assert_allclose(ts.compile(path)(x), want, rtol=1e-5, atol=1e-6)


REAL = """silero_vad silero_vad_op18_ifless tests_data_upsample slice_slice_1d_tensor
attention_attention_attn_mask_int constant_of_shape_constant_of_shape datasets_logreg_iris
expand_expand_scalar make_test_op_ops_Unsqueeze_var_13 unsqueeze_unsqueeze_runtime_axes
tests_utils_models_coreml_OneHotEncoder_BikeSharing""".split()  # noqa: SIM905


@pytest.mark.parametrize("canonical", [False, True], ids=["imported", "canonical"])
@pytest.mark.parametrize("name", REAL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_real_files(name: str, canonical: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ts.write(real_file("onnx", f"{name}.onnx"), path, canonical=canonical)
    graph = ts.load(path)
    if not canonical:
        assert structure(graph) == structure(ts.load(real_file("onnx", f"{name}.onnx")))
    assert structure(again(graph, tmp_path)) == structure(graph)
