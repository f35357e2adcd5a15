"""The models that the onnx package ships, with their expected outputs; most are of opset 6."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.frontends.conformance import differs
from tinsmith.formats.onnx import OnnxModel
from tinsmith.frontends import load
from tinsmith.graph.verify import verify
from tinsmith.ops.interpret import run_graph

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
MODELS = sorted(DATA.glob("*/*/model.onnx"))
LIGHT = sorted((DATA / "light").glob("*.onnx"))
pytestmark = pytest.mark.skipif(not MODELS, reason="this onnx package ships no models")


def tensors(folder: Path, kind: str) -> list[np.ndarray[Any, Any]]:
    files = [folder / f"{kind}_{i}.pb" for i in range(len(list(folder.glob(f"{kind}_*.pb"))))]
    return [tensor(file) for file in files]


def tensor(file: Path) -> np.ndarray[Any, Any]:
    return OnnxModel(None).tensor(onnx.TensorProto.FromString(file.read_bytes()))


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.parent.name)
def test_models_and_their_data(path: Path) -> None:
    graph = load(path)
    verify(graph)
    for folder in sorted(path.parent.glob("test_data_set_*")):
        feeds = tensors(folder, "input")[: len(graph.inputs)]
        got, expected = run_graph(graph, feeds), tensors(folder, "output")
        for v, a, b in zip(graph.outputs, got, expected, strict=True):
            assert differs(a, b, 1e-3, v.type) is None


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("TINSMITH_FULL_CONFORMANCE"),
    reason="takes half a minute; set TINSMITH_FULL_CONFORMANCE=1",
)
@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_classic_networks(path: Path) -> None:
    """Weights are made by the model itself; the input counts from 0 to 1."""
    graph = load(path)
    verify(graph)
    dims = graph.inputs[0].dims
    count = int(np.prod(dims))
    x = (np.arange(count).reshape(dims) / count).astype(np.float32)
    want = tensor(path.with_name(path.stem + "_output_0.pb"))
    assert differs(run_graph(graph, [x])[0], want, 1e-4, graph.outputs[0].type) is None
