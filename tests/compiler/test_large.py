"""Models whose weights lie in a large external file: mapped, packed once, never held twice.

`TINSMITH_LARGE=1` also runs one of 2.4 GB, beyond what one protobuf message or a signed 32-bit
offset can hold. It needs as much memory and, for a moment, twice as much room on the disk.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.fresh import said
from tinsmith.codegen.target import level

LOADED = """
import json, resource, sys, time
import numpy as np, tinsmith as ts
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
def private():
    rows = dict(row.split(":", 1) for row in open("/proc/self/status"))
    return int(rows["RssAnon"].split()[0]) << 10
start = time.perf_counter()
graph = ts.load(sys.argv[1])
loaded = {"load": time.perf_counter() - start, "load_private": private()}
net = ts.compile(sys.argv[1])
np.save(sys.argv[2] + ".y.npy", net(np.load(sys.argv[2])))
print(json.dumps({**loaded, "all": time.perf_counter() - start, "peak": peak(),
                  "private": private(), "weights": net.memory.weights,
                  "stored": net.program().stored}))
"""


def write_model(folder: Path, size: int, layers: int) -> tuple[Path, np.ndarray, np.ndarray]:
    """y = relu(... relu(x w0) w1 ...), the weights one after the other in weights.bin; a model, an
    input and its output."""
    random = np.random.default_rng(3)
    base = random.standard_normal((size, size), np.float32) * np.float32((2 / size) ** 0.5)
    x = random.standard_normal((2, size), np.float32)
    y, nodes, weights, name = x, [], [], "x"
    with open(folder / "weights.bin", "wb") as file:
        for k in range(layers):
            w = np.roll(base, 7 * k, axis=1)
            y = np.maximum(y @ w, 0)
            t = TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=w.shape)
            t.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", file.tell()),
                               ("length", w.nbytes)):  # fmt: skip
                t.external_data.add(key=key, value=str(value))
            file.write(w.data)
            weights.append(t)
            nodes.append(helper.make_node("MatMul", [name, t.name], [f"m{k}"]))
            nodes.append(helper.make_node("Relu", [f"m{k}"], [name := f"r{k}"]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "large",
        [info("x", TensorProto.FLOAT, x.shape)], [info(name, TensorProto.FLOAT, y.shape)], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "large.onnx"
    onnx.save(model, path)
    return path, x, y


def run_twice(folder: Path, size: int, layers: int) -> list[dict[str, float]]:
    """What two processes, one after the other, tell of loading, compiling and running it."""
    path, x, want = write_model(folder, size, layers)
    np.save(folder / "x.npy", x)
    told = []
    for _ in range(2):
        own = {"TINSMITH_CACHE": str(folder / "cache")}
        told.append(json.loads(said(LOADED, path, folder / "x.npy", timeout=600, **own)))
        got = np.load(folder / "x.npy.y.npy")
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())
    return told


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc/self/status")
def test_external_weights_are_mapped_and_packed_into_the_store(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path, 1024, 16)
    weights = 16 * 4 * 1024 * 1024
    assert 0.75 * weights <= first["weights"] <= weights
    if level("host").registers >= 32:  # of 24 bits each, where unpacking them pays
        assert first["weights"] < weights
    assert not first["stored"] and second["stored"]
    assert second["private"] < first["weights"], second  # the store's file is mapped
    assert first["load_private"] < weights, first


@pytest.mark.skipif(
    os.environ.get("TINSMITH_LARGE") != "1", reason="2.4 GB of weights: set TINSMITH_LARGE=1"
)
def test_a_model_beyond_two_gigabytes(tmp_path: Path) -> None:
    told = run_twice(tmp_path, 4096, 36)
    (tmp_path / "weights.bin").unlink()
    print(json.dumps(told, indent=1))
    weights = 36 * 4 * 4096 * 4096
    assert weights > 1 << 31
    for row in told:
        assert 0.75 * weights <= row["weights"] < weights
        assert row["load_private"] < 1 << 29
        assert row["peak"] < 3 * weights
