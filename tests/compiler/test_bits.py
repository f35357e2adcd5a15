"""The same model on the same machine gives the same bits, whatever the cache holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.models import digits, residual
from tests.transformer import transformer
from tinsmith import ops
from tinsmith.codegen import cache as code_cache
from tinsmith.codegen.cores import CORES, MODELS, core_of
from tinsmith.codegen.target import ISAS, host, level
from tinsmith.graph import Graph, Type
from tinsmith.plan.plan import Plan
from tinsmith.runtime import gauge
from tinsmith.runtime.limits import _peak


def wide() -> Graph:
    """Layers for which several kernels are near: Winograd's tiles, Strassen's levels, vectors."""
    g = Graph("wide")
    rng = np.random.default_rng(0)
    x = g.input("x", Type("float32", (1, 64, 14, 14)))
    for i, c in enumerate((128, 256)):
        w = rng.standard_normal((c, x.dims[1], 3, 3)).astype(np.float32) / 24
        x = ops.Relu(ops.Conv(x, w, pad=(1, 1, 1, 1), name=f"conv{i}"))
    x = ops.Reshape(x, np.array([256, 196]))
    g.outputs = [ops.MatMul(x, rng.standard_normal((196, 512)).astype(np.float32), name="y")]
    return g


MODELS_OF = {
    "residual": residual,
    "wide": wide,
    "transformer": lambda: transformer(d=48, heads=2, layers=1),
}
SIGNATURES = {"transformer": ((2, 9), (2, 9)), "digits": ((3, 1, 8, 8),)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    found = {"digits": digits()}
    for name, make in MODELS_OF.items():
        found[name] = folder / f"{name}.tin"
        ts.save(ts.load(make()), found[name])
    return found


def outcome(path: Path, name: str, threads: int) -> tuple[Plan, list[np.ndarray]]:
    """The plan, and what comes out."""
    return outcome_of(ts.compile(path, threads=threads), name)


def outcome_of(net: ts.Net, name: str) -> tuple[Plan, list[np.ndarray]]:
    program = net.program(SIGNATURES.get(name))
    rng = np.random.default_rng(1)
    feeds = []
    for port in program.plan.inputs:
        numbers = rng.standard_normal(port.dims) if "float" in port.dtype else np.ones(port.dims)
        feeds.append(numbers.astype(port.dtype))
    return program.plan, net.run(feeds)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def use(name: str) -> Path:
        folder = tmp_path / name
        monkeypatch.setenv("TINSMITH_CACHE", str(folder))
        code_cache._open.cache_clear()
        _peak.cache_clear()
        code_cache.open_cache()
        return folder

    yield use
    code_cache._open.cache_clear()
    _peak.cache_clear()


def doctored(folder: Path) -> None:
    """Absurd measurements, wherever this or an earlier version would look for them."""
    from tinsmith.hashing import blake2b

    row = dict.fromkeys(("peak", "l2_bandwidth", "l3_bandwidth", "wait"), 1e3)
    row |= {"dram_bandwidth": 1e15, "dram_together": 1e15, "wide": 7.0}
    for isa in ISAS:
        key = f"{level(isa).key}|{level(isa).model}".encode()
        name = blake2b(key, digest_size=8).hexdigest()
        (folder / f"limits-{name}.json").write_text(json.dumps(row))


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_cache(
    caches: Any, files: dict[str, Path], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(files)
    caches("first")
    want = {n: outcome(files[n], n, threads) for n in names}
    turns = [("first", names), ("doctored", names[::-1]), ("doctored", names)]
    for folder, order in turns:
        path = caches(folder)
        if folder == "doctored":
            doctored(path)
        for n in order:
            plan, results = outcome(files[n], n, threads)
            assert plan == want[n][0], n
            for a, b in zip(results, want[n][1], strict=True):
                np.testing.assert_array_equal(a, b)
            for _ in range(5):  # whoever of two threads is first
                again = outcome(files[n], n, threads)[1]
                assert all(map(np.array_equal, again, results))


def test_what_other_shapes_left_changes_no_bits(caches: Any, files: dict[str, Path]) -> None:
    """Programs of one model share packed weights with those that were made before."""
    caches("one")
    want = outcome(files["transformer"], "transformer", 1)
    caches("other")
    net = ts.compile(files["transformer"], shapes="fixed")
    for n in (3, 5):
        net.program(((1, n), (1, n)))
    plan, results = outcome_of(net, "transformer")
    assert len(net.program(SIGNATURES["transformer"]).blobs) > 1
    assert [s[:5] for s in plan.steps] == [s[:5] for s in want[0].steps]
    assert all(map(np.array_equal, results, want[1]))


def test_nothing_is_measured_to_compile(
    caches: Any, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> float:
        raise AssertionError("measured")

    monkeypatch.setattr(gauge, "measure", never)
    monkeypatch.setattr(gauge, "peak_of", never)
    folder = caches("unmeasured")
    ts.compile(files["residual"], threads=2)
    ts.compile(files["wide"], tune=True)
    assert not list(folder.glob("limits-*"))


def test_processes_that_compile_at_once_agree(tmp_path: Path, files: dict[str, Path]) -> None:
    code = (
        "import sys, numpy as np, tinsmith as ts; net = ts.compile(sys.argv[1], threads=2)\n"
        "x = np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)\n"
        "print(net(x).tobytes().hex())"
    )
    command = [sys.executable, "-c", code, str(files["wide"])]
    env = os.environ | {"TINSMITH_CACHE": str(tmp_path / "shared")}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env) for _ in range(2)]
    found = [p.communicate(timeout=120)[0] for p in both]
    assert found[0] and found[0] == found[1]


# ---- the table


@pytest.mark.parametrize("name", CORES)
def test_every_core_has_rates_for_what_it_has(name: str) -> None:
    core = CORES[name]
    for lanes, pipes in zip((4, 8, 16), core.pipes, strict=True):
        if not pipes:
            continue
        rates = core.rates(lanes, True)
        assert min(rates) > 0
        assert rates.l3_bandwidth >= rates.dram_bandwidth <= rates.dram_together
        assert 0.05 < rates.l2_bandwidth / rates.peak < 3
    one = core.rates(1, False)
    assert one.peak <= core.rates(4, True).peak / 2 and one.l2_bandwidth <= 8e9 * core.clock


def test_every_row_is_reached_and_no_model_twice() -> None:
    named = {name for rows in MODELS.values() for _, name in rows}
    assert named | {isa.core for isa in ISAS.values()} == set(CORES)
    for (vendor, family), rows in MODELS.items():
        known = [model for models, _ in rows for model in models]
        assert len(known) == len(set(known)), family
        for models, name in rows:
            assert core_of(vendor, family, models[0]) is CORES[name]
    assert core_of("AuthenticAMD", 25, 17) is CORES["Zen 4"]
    assert core_of("GenuineIntel", 6, 0xFF) is None and core_of("nobody", 6, 0x55) is None


def test_an_unknown_core_gets_the_row_of_its_instruction_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinsmith.codegen import target

    monkeypatch.setattr(target, "_core", lambda: None)
    for isa in ISAS.values():
        found, row = level(isa.name), CORES[isa.core].rates(isa.lanes, isa.fma)
        assert {n: getattr(found, n) for n in row._fields} == row._asdict()
    assert host().key == level(host().isa).key
