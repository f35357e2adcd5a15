"""What is written as ONNX gives the same numbers in ONNX Runtime as the model that it came from.

Skipped where there is no environment of peers (`benchmarks/places.py` says where it is sought).
"""

from __future__ import annotations

import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from benchmarks.places import Places
from tests.frontends.models import model
from tests.writers.cases import MODELS, imported
from tests.writers.structure import structure
from tinsmith.errors import NotWritable
from tinsmith.frontends import load
from tinsmith.graph import Graph
from tinsmith.ops.control import run_graph
from tinsmith.writers.onnx.model import write

PLACES = Places.find()
SCRIPT = Path(__file__).with_name("runtime.py")
pytestmark = pytest.mark.skipif(
    not PLACES.peers.exists(), reason=f"no environment of peers at {PLACES.peers}"
)
OTHER = {"com.microsoft.MatMulNBits": "ONNX Runtime rounds what it multiplies by to bytes"}
"""Operators that ONNX Runtime computes less exactly than the common ones that we write."""
PANEL = sorted(PLACES.models.glob("*.onnx")) if PLACES.models.is_dir() else []


def differences(folder: Path) -> dict[str, str]:
    """What ONNX Runtime finds different, by name; not of sources that it does not run."""
    command = [str(PLACES.peers), str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    ran = {name: why for name, why in found.items() if not why.startswith("source:")}
    assert len(ran) > 0.9 * len(found)
    return {name: why for name, why in ran.items() if why}


def taken(feeds: list[Any] | None) -> bool:
    """Whether .npz files hold these inputs as they are."""
    return feeds is not None and all(
        isinstance(f, np.ndarray) and f.dtype.name in np.sctypeDict and f.dtype != object
        for f in feeds
    )


@pytest.mark.parametrize("opset", [19, 21, 23, 25])
def test_halves_are_quantised_alike(opset: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0, 3, (64, 64)).astype(np.float16)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    if opset >= 23:
        code = TensorProto.FLOAT
        nodes += [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["other"], precision=code)]
    numbers = {"s": np.array(0.0321, np.float16), "z": np.array(100, np.uint8)}
    proto = model(nodes, {"x": x}, [n.output[0] for n in nodes], numbers, opset=opset)
    graph = load(proto)
    onnx.save(proto, tmp_path / "q.source.onnx")
    write(graph, tmp_path / "q.written.onnx")
    np.savez(tmp_path / "q.npz", x=x)
    assert not differences(tmp_path)
    script = (
        "import sys, numpy, onnxruntime; folder = sys.argv[1]; "
        "session = onnxruntime.InferenceSession(folder + '/q.source.onnx'); "
        "numpy.savez(folder + '/y.npz', *session.run(None, dict(numpy.load(folder + '/q.npz'))))"
    )
    subprocess.run([str(PLACES.peers), "-c", script, str(tmp_path)], check=True)
    want = list(np.load(tmp_path / "y.npz").values())
    np.testing.assert_equal(run_graph(graph, [x]), want)


def test_operators(tmp_path: Path) -> None:
    count = 0
    for name in MODELS.keys() - OTHER:
        for i, ((proto, _), (graph, feeds)) in enumerate(
            zip(MODELS[name], imported(name), strict=True)
        ):
            drawn = any("impure" in n.op.traits for n in graph.nodes)
            if drawn or not taken(feeds):
                continue
            assert feeds is not None
            key = f"{name}_{i}"
            try:
                write(graph, tmp_path / f"{key}.written.onnx")
            except NotWritable:  # which these are is told in test_onnx_writer
                continue
            onnx.save(proto, tmp_path / f"{key}.source.onnx")
            fed = dict(zip((v.name for v in graph.inputs), feeds, strict=True))
            np.savez(tmp_path / f"{key}.npz", **fed)
            count += 1
    assert count > 1500
    assert differences(tmp_path) == {}


def drawn_inputs(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {}
    for v in graph.inputs:
        dims = [d if isinstance(d, int) else 1 for d in v.shape or ()]
        found[v.name] = rng.random(dims).astype(v.dtype)
    return found


@pytest.mark.skipif(not PANEL, reason=f"no models at {PLACES.models}")
@pytest.mark.parametrize("canonical", [False, True], ids=["imported", "canonical"])
@pytest.mark.parametrize("path", PANEL, ids=lambda p: p.stem)
def test_panel(path: Path, canonical: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ts.write(path, tmp_path / "m.written.onnx", canonical=canonical)
    if not canonical:
        assert structure(ts.load(tmp_path / "m.written.onnx")) == structure(ts.load(path))
    (tmp_path / "m.source.onnx").symlink_to(path.resolve())
    np.savez(tmp_path / "m.npz", **drawn_inputs(ts.load(path)))
    assert differences(tmp_path) == {}
