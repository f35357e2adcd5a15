"""Files that change under a running program: those of the cache, and those of models."""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tests.models import digits
from tinsmith.codegen import cache as code_cache
from tinsmith.compiler import store
from tinsmith.errors import ModelFileError
from tinsmith.formats.container import LARGE, PAGE, Container, digest, write_container
from tinsmith.formats.mapped import mappings
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.runtime.limits import _peak

WIDE = 600  # features: enough weights for them to be mapped from the model, and checked by pages


def fresh() -> None:
    """Forget what this process knows of the cache: the next compilation reads it."""
    code_cache._open.cache_clear()
    _peak.cache_clear()


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """y = relu(x w), of a batch of any size; z = rows of w that are gathered by numpy too."""
    w = np.random.default_rng(3).standard_normal((WIDE, WIDE)).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "wide",
        [info("x", TensorProto.FLOAT, ["N", WIDE])],
        [info("y", TensorProto.FLOAT, ["N", WIDE])],
        [numpy_helper.from_array(w, "w")],
    )
    path = tmp_path / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def batch(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, WIDE)).astype(np.float32)


# ---- the cache


def flip(file: Path, at: int) -> None:
    """A bit of what the next reader sees; who has mapped the file keeps what he has."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << at % 8
    damaged = file.with_suffix(".damaged")
    damaged.write_bytes(data)
    os.replace(damaged, file)


@pytest.mark.parametrize("kind", ["*.so", "limits-*.json", "*/*.json", "*/*.digest", "*/*.tin"])
def test_no_flipped_bit_does_harm(
    kind: str,
    cache: Path,
    wide: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever in a file it is: what is damaged counts as absent."""
    monkeypatch.setattr(store, "RECENT", -1.0)  # else a file that was just written has no digest
    fresh()
    net = ts.compile(wide, threads=2)
    want = net(batch(2))
    draw = random.Random(kind)
    for _ in range(20):
        fresh()
        assert net.profile(batch(2), repeat=1).peak_gflops > 0  # keeps what it measures
        files = sorted(cache.glob(kind))
        file = draw.choice(files)
        data = file.read_bytes()
        # Most of a program's file is holes and weights: half of the damage is done elsewhere.
        used = [i for i in (draw.randrange(len(data)) for _ in range(4000)) if data[i]]
        head = draw.randrange(min(len(data), 3000))
        flip(file, draw.choice([head, used[0] if used else head]))
        if kind == "*.so":  # which is read where there is no program
            shutil.rmtree(cache / "programs")
        net = ts.compile(wide, threads=2)
        np.testing.assert_array_equal(net(batch(2)), want)
        assert net.graph("placed") and net.explain()


def test_a_bit_in_the_weights_is_noticed(cache: Path, wide: Path) -> None:
    want = ts.compile(wide)(batch(2))
    (file,) = cache.glob("programs/*.tin")
    data = file.read_bytes()
    row = np.frombuffer(data[: len(data) // 4 * 4], np.uint32)
    flip(file, int(np.flatnonzero(row[(1 << 20) // 4 :])[WIDE * 7]) * 4 + (1 << 20) + 2)
    net = ts.compile(wide)
    np.testing.assert_array_equal(net(batch(2)), want)
    assert not net.program(((2, WIDE),)).stored


@pytest.mark.parametrize("size", [0, 7, PAGE, LARGE - 1, LARGE, LARGE + 5, LARGE + PAGE])
def test_every_bit_counts_in_a_check(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    want = digest(data)
    for at in {0, size // 2, max(size - 1, 0)} if size else ():
        data[at] ^= 4
        assert digest(data) != want
        data[at] ^= 4
    assert digest(bytes(data)) == want
    if size > LARGE:
        swapped = np.concatenate([data[PAGE : 2 * PAGE], data[:PAGE], data[2 * PAGE :]])
        assert digest(swapped) != want


@pytest.mark.parametrize("number", ["1e999", "-1", "9" * 30, "NaN", "null", '"a"', "[]"])
def test_places_that_no_file_has(tmp_path: Path, number: str) -> None:
    path = tmp_path / "some.tin"
    write_container(path, {"constants": bytes(100)})
    data = path.read_bytes()
    start = data.index(f"[{PAGE},".encode())
    end = data.index(b",", start)
    damaged = data[: start + 1] + number.encode() + data[end:]
    length = int.from_bytes(data[8:16], "little") + len(damaged) - len(data)
    path.write_bytes(damaged[:8] + length.to_bytes(8, "little") + damaged[16:])
    with pytest.raises(ModelFileError, match=r"corrupt.* 'constants'"):
        Container(path)


def test_a_cache_that_is_deleted_while_it_is_used(cache: Path, wide: Path) -> None:
    net = ts.compile(wide, threads=2)
    want = net(batch(2))
    shutil.rmtree(cache)
    np.testing.assert_array_equal(net(batch(2)), want)
    assert net(batch(3)).shape == (3, WIDE)
    np.testing.assert_array_equal(ts.compile(wide, threads=2)(batch(2)), want)
    shutil.rmtree(cache)  # it was made anew
    cache.write_text("a file where the folder was")
    np.testing.assert_array_equal(ts.compile(wide)(batch(2)), want)


FULL = """
import resource, signal, sys
import numpy as np
import tinsmith as ts
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for n in (1, 2):
    net = ts.compile(sys.argv[1])
    assert net(np.ones((n, 1, 8, 8), np.float32)).shape == (n, 10)
"""


@pytest.mark.parametrize("room", [0, 300, 5_000, 100_000, 1 << 20])
def test_a_disk_that_is_full_at_any_point(room: int, cache: Path) -> None:
    """Files end after so many bytes. Where not even memory takes the code, that is said."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(digits()), str(room)],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        said = done.stderr.strip().splitlines()
        assert not said or ("CodegenError" in said[-1] and room < 100_000), done.stderr


# ---- models


CHANGES = {
    "truncated": lambda path: os.truncate(path, 1000),
    "emptied": lambda path: os.truncate(path, 0),
    "written": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "removed": lambda path: path.unlink(),
    "replaced": lambda path: os.replace(shutil.copy(digits(), path.with_suffix(".new")), path),
}


@pytest.mark.parametrize("suffix", [".onnx", ".tin"])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_while_it_is_used(
    change: str, backend: str, suffix: str, wide: Path
) -> None:
    """Never another process than this: a signal would end it."""
    if suffix == ".tin":
        ts.save(ts.load(wide), wide.with_suffix(".tin"))
        wide = wide.with_suffix(".tin")
    os.utime(wide, (1e9, 1e9))
    options = {"backend": backend} | ({"cache": False} if backend == "cpu" else {})
    net = ts.compile(wide, **options)
    want = net(batch(2))
    CHANGES[change](wide)
    if backend == "cpu":
        np.testing.assert_array_equal(net(batch(2)), want)
    if change in ("removed", "replaced"):
        np.testing.assert_allclose(net(batch(3))[:0], want[:0])
        return
    with pytest.raises(ModelFileError, match=r"was (truncated|written to) while its weights"):
        net(batch(3))


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("elements", [100, 1 << 19], ids=["small", "large"])
def test_constants_of_a_tin_file_that_are_damaged(tmp_path, backend, elements):
    """Found when they are read, not when the file is loaded."""
    graph = Graph("g")
    x = graph.input("x", Type(np.dtype("float32"), (elements,)))
    w = graph.const(np.arange(elements, dtype=np.float32), "w")
    graph.outputs = [graph.add(OPS["Add"], x, w).output]
    path = tmp_path / "g.tin"
    ts.save(graph, path)
    given = np.ones(elements, np.float32)
    np.testing.assert_array_equal(
        ts.compile(path, backend=backend, cache=False)(given)[:3], [1, 2, 3]
    )
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(90, 96, dtype=np.float32).tobytes())] ^= 1
    path.write_bytes(data)
    loaded = ts.load(path)
    for model in (loaded, path, loaded):
        with pytest.raises(ModelFileError, match="'constants' does not have its hash"):
            ts.compile(model, backend=backend, cache=False)(given)
    with pytest.raises(ModelFileError, match="'constants' does not have its hash"):
        ts.save(loaded, tmp_path / "again.tin")


def test_a_file_whose_arrays_are_gone_is_mapped_no_longer(tmp_path):
    """Not only when Python next looks for cycles."""
    path = tmp_path / "some.tin"
    write_container(path, {"constants": bytes(100)})
    data = Container(path).array_checked_later("constants")
    (mapped,) = map(weakref.ref, mappings([data]))
    gc.disable()
    try:
        del data
        assert mapped() is None
    finally:
        gc.enable()


def branches(path: Path, weights: np.ndarray) -> None:
    """A .tin file of an If, both bodies of which add `weights`."""
    graph = Graph("g")
    condition = graph.input("c", Type(np.dtype(bool), ()))
    x = graph.input("x", Type(np.dtype("float32"), weights.shape))
    bodies = [Graph("then"), Graph("else")]
    for body in bodies:
        inner = body.input("inner", x.type)
        w = body.const(weights, "w")
        body.outputs = [body.add(OPS["Add"], inner, w).output]
    node = graph.add(OPS["If"], condition, x, then_branch=bodies[0], else_branch=bodies[1])
    graph.outputs = [node.output]
    ts.save(graph, path)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_damaged_constants_of_a_branch(tmp_path, backend):
    weights, path = np.arange(100, dtype=np.float32), tmp_path / "g.tin"
    branches(path, weights)
    data = bytearray(path.read_bytes())
    data[data.index(weights[90:96].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="'constants' does not have its hash"):
        ts.compile(path, backend=backend, cache=False)(np.array(True), weights)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("change", ["truncated", "written"])
def test_a_branch_whose_constants_change_while_it_is_used(tmp_path, backend, change):
    weights, path = np.arange(100, dtype=np.float32), tmp_path / "g.tin"
    branches(path, weights)
    os.utime(path, (1e9, 1e9))
    net = ts.compile(path, backend=backend, cache=False)
    np.testing.assert_array_equal(net(np.array(True), weights), 2 * weights)
    CHANGES[change](path)
    with pytest.raises(ModelFileError, match=r"was (truncated|written to) while its weights"):
        net(np.array(True), weights)


def test_what_is_wrong_with_bytes_names_no_file(tmp_path: Path) -> None:
    path = tmp_path / "some.tin"
    ts.save(ts.load(digits()), path)
    for size in (12, 100):
        with pytest.raises(ModelFileError, match=r"^the model (is|has) "):
            ts.load(path.read_bytes()[:size])
