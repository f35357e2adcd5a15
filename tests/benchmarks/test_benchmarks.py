"""The parts of the benchmarks that compute, and one small measurement of each kind."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import parser
from rich.table import Table

from benchmarks import (
    _convert,
    _main,
    _zoo_check,
    apart,
    many_sizes,
    memory,
    overhead,
    plot,
    shapes,
    startup,
    threads,
    zoo,
    zoo_table,
)
from benchmarks._arrays import error_of
from benchmarks._engines import Unsupported
from benchmarks.batch import gains
from benchmarks.client import Client
from benchmarks.measure import Effort, Result, measure
from benchmarks.models import parted
from benchmarks.zoo_models import entries
from tinsmith.runtime.profile import Row

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc")


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return overhead.write_model(tmp_path_factory.mktemp("models"))


def row(model: str, engine: str, ms: float, **more: Any) -> dict[str, Any]:
    base = {"threads": 1, "failed": "", "wrong": False, "runs": 5, "median_ms": ms}
    return {"model": model, "engine": engine, **base, **more}


PANEL = {
    "machine": {"cpu": "Some <CPU>"},
    "settings": {"date": "2030-01-01"},
    "results": [
        row("slow", "tinsmith", 4.0),
        row("slow", "ncnn", 2.0),
        row("slow", "mnn", 8.0),
        row("fast", "tinsmith", 1.0),
        row("fast", "ncnn", 3.0),
        row("fast", "openvino", 0.1, wrong=True),
        row("fast", "mnn", 1.0, failed="no"),
        row("alone", "tinsmith", 1.0),
        row("slow", "tinsmith", 1.0, threads=2),
        row("slow", "ncnn", 2.0, threads=2),
    ],
}


def test_bars_are_relative_to_the_fastest_right_peer() -> None:
    found = plot.bars(PANEL, 1)
    assert [b.model for b in found] == ["fast", "slow"]
    assert found[0].speeds == {"tinsmith": 3.0, "ncnn": 1.0}
    assert found[1].speeds == {"tinsmith": 0.5, "ncnn": 1.0, "mnn": 0.25}
    assert plot.bars(PANEL, 2)[0].ours == 2.0


def test_the_picture_is_well_formed(tmp_path: Path) -> None:
    source, target = tmp_path / "panel.json", tmp_path / "panel.svg"
    source.write_text(json.dumps(PANEL))
    assert CliRunner().invoke(plot.main, [str(source), str(target)]).exit_code == 0
    root = ElementTree.fromstring(target.read_text())
    texts = [e.text or "" for e in root.iter() if e.tag.endswith("text")]
    assert "3.00x" in texts and "0.50x" in texts and any("Some <CPU>" in t for t in texts)
    widths = [float(e.get("width", 0)) for e in root.iter() if e.tag.endswith("rect")]
    assert max(widths[1:]) < plot.WIDTH - plot.LABEL
    assert CliRunner().invoke(plot.main, [str(source), str(target), "--threads", "3"]).exit_code


@pytest.mark.parametrize(
    "name, want",
    [("resnet50", ("resnet50", 1)), ("resnet50_b8", ("resnet50", 8)), ("vit_b8", ("vit_b8", 1))],
)
def test_names_tell_the_batch(name: str, want: tuple[str, int]) -> None:
    assert parted(name) == want


def test_gains_are_of_throughput() -> None:
    runs, batched = [[4.0, 3.0, 9.0]], [[16.0, 8.0, 20.0]]
    one = [Result("m", 1, "tinsmith", rounds=runs), Result("m", 1, "mnn", failed="no")]
    many = [Result("m_b8", 1, "tinsmith", rounds=batched), Result("m_b8", 1, "mnn", failed="no")]
    ours, peer = gains(one, many, 8)
    assert ours["gain"] == pytest.approx(2.0) and ours["one"] == pytest.approx(250.0)
    assert ours["shortest"] == pytest.approx(3.0)
    assert peer["failed"] == "no"


def test_memory_is_that_of_a_fresh_process(relu: Path) -> None:
    ballast = bytearray(200 << 20)  # the measuring process must not count
    ballast[::4096] = b"x" * len(ballast[::4096])
    _, found = (memory.sample("tinsmith", sys.executable, relu, 1) for _ in range(2))
    cold = memory.sample("tinsmith cold", sys.executable, relu, 1)
    assert 15 < found["bare_mb"] < found["peak_mb"] < 150
    assert cold["peak_mb"] > found["peak_mb"]


def test_a_cold_start_compiles_anew(relu: Path) -> None:
    samples = [startup.sample(way, sys.executable, relu, 1) for way in ["tinsmith", _main.COLD] * 2]
    _, first, warm, second = (s["load_ms"] for s in samples)
    assert warm < min(first, second)


def test_new_shapes_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shapes, "SHAPES", [(1, 2), (2, 3)])
    found = shapes.measure(1, 16, 1, tmp_path)
    assert 0 < found["stored_ms"] <= found["most_stored_ms"]
    assert 0 < found["kernels_exist_ms"] <= found["most_ms"]
    assert found["no_kernel_exists_ms"] > 0


def test_many_sizes_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(many_sizes, "LAYERS", 1)
    base, calls = many_sizes.write_encoder(tmp_path, 5)
    assert [sorted(call) for call in calls] == [["x0", "x1"]] * 5
    [row] = many_sizes.measure(base, calls, {"tinsmith": sys.executable}, 1)
    assert row["calls"] == 5 and 0 < row["most_ms"] <= row["all_ms"]


def test_overhead_is_measured(relu: Path) -> None:
    found = overhead.measure("tinsmith", sys.executable, relu, 1)
    assert 0 < found["least_us"] <= found["call_us"] < 1000
    failed = overhead.measure("mnn", sys.executable, relu, 1)
    assert "MNN" in failed["failed"]


def test_a_command_writes_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "overhead.json"
    options = ["--engines", "tinsmith", "--times", "1", "--json", str(out)]
    done = CliRunner().invoke(overhead.main, options)
    assert done.exit_code == 0 and "one node" in done.output
    document = json.loads(out.read_text())
    assert document["machine"]["cores"] > 0
    assert [r["engine"] for r in document["results"]] == ["tinsmith"]


@pytest.mark.parametrize(("engine", "code"), [("tinsmith cold", 1), ("mnn", 0)])
def test_a_command_fails_where_we_do(tmp_path: Path, engine: str, code: int) -> None:
    out, rows = tmp_path / "rows.json", [{"model": "m", "engine": engine, "failed": "no"}]
    command = click.Command("some", callback=lambda: _main.deliver(Table(), rows, out, times=3))
    done = CliRunner().invoke(command)
    assert done.exit_code == code and f"m: {engine}: no" in done.output
    assert json.loads(out.read_text())["times"] == 3


def test_callers_are_served(relu: Path) -> None:
    client = Client(sys.executable)
    try:
        client.ask("load", engine="tinsmith", base=str(relu), threads=1, cpus=[])
        assert client.ask("serve", callers=3, seconds=0.05)["per_second"] > 100
    finally:
        client.close()


def test_threads_are_measured_beside_a_neighbour(relu: Path) -> None:
    cores = threads.cores_for(1)
    with threads.workers(relu, [1], cores) as clients:
        alone = threads.in_turns(clients, 1, 0.05)[1]
        with threads.neighbour(cores[0]):
            beside = threads.in_turns(clients, 1, 0.05)[1]
    assert min(alone) > 0 and min(beside) > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_lines_take_time_from_core_to_core() -> None:
    before = os.sched_getaffinity(0)
    assert apart.line_ns(sorted(before)[-2:]) > 0
    assert os.sched_getaffinity(0) == before


def test_workers_take_inputs_of_any_type_and_check_all_outputs(tmp_path: Path) -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        lookup (int64[2, 3] x0, float[9, 4] x1) => (float[2, 3, 4] y0, int64[2, 3] y1)
        { y0 = Gather(x1, x0)  y1 = Neg(x0) }
    """)
    onnx.save(model, tmp_path / "lookup.onnx")
    ids, table = np.array([[0, 8, 3], [1, 1, 7]]), np.arange(36, dtype=np.float32).reshape(9, 4)
    right = {"x0": ids, "x1": table, "y0": table[ids], "y1": -ids}
    for wrong in (0.0, 7.0):
        np.savez(tmp_path / "lookup.npz", **{**right, "y1": right["y1"] + wrong})
        engines: dict[str, str | Path] = {"tinsmith": sys.executable}
        effort = Effort(rounds=2, seconds=0.01)
        (found,) = measure([tmp_path / "lookup"], 1, engines, effort, 1e-3, lambda _: None)
        assert not found.failed and len(found.rounds) == 2
        assert found.error == pytest.approx(wrong / np.abs(right["y1"] + wrong).max())
        assert found.counts == (wrong == 0)


def test_a_conversion_onto_a_full_disk_is_neither_kept_nor_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(text: str) -> list[Path]:
        def make(folder: Path) -> None:
            (folder / "net.bin").write_text(text)

        return _convert._once(tmp_path / "net", "some", [".bin"], make)

    with monkeypatch.context() as full:
        full.setattr(_convert, "ROOM", 1 << 80)
        with pytest.raises(Unsupported, match="is full"):
            convert("cut o")
    assert not list((tmp_path / "converted").iterdir())
    assert convert("whole")[0].read_text() == "whole"
    assert convert("never made again")[0].read_text() == "whole"


def test_a_conversion_that_fails_is_remembered(tmp_path: Path) -> None:
    for make in (lambda _: None, lambda folder: (folder / "net.bin").touch()):
        with pytest.raises(Unsupported, match=r"not written net\.bin"):
            _convert._once(tmp_path / "net", "some", [".bin"], make)


def test_an_error_is_of_the_worst_output() -> None:
    one, two = np.array([1.0, 4.0]), np.array([np.nan, 2.0])
    assert error_of([one, two], [one, two]) == 0
    assert error_of([one + 1, two], [one, two]) == pytest.approx(1 / 4)
    assert error_of([one, two[::-1]], [one, two]) == float("inf")
    assert error_of([one[None]], [one]) == float("inf")


def animal(name: str, **more: Any) -> dict[str, Any]:
    base = {"name": name, "family": "cats", "source": "timm", "shape": [1, 3], "status": "agrees"}
    heavy = [{"kernel": "conv_direct", "share": 0.5, "steps": 2, "peak": 0.25}]
    times = {"ms": 2.0, "ort_ms": 4.0, "ort_error": 1e-6, "error": 1e-6, "native_share": 1.0}
    return {**base, **times, "heaviest": heavy, **more}


def test_the_heaviest_kernels_and_their_shares_of_the_peak() -> None:
    def step(kernel: str, ms: float, share: float | None) -> Row:
        return Row("s", "Op", kernel, "native", ms, ms / 8, None, share, None, None, "")

    steps = [step("conv", 2.0, 0.5), step("conv", 1.0, 0.2), step("topk", 5.0, None)]
    topk, conv = _zoo_check.heaviest(steps)
    assert topk == {"kernel": "topk", "share": 0.625, "steps": 1, "peak": None}
    assert conv == {"kernel": "conv", "share": 0.375, "steps": 2, "peak": pytest.approx(0.4)}


def test_the_zoo_counts_what_is_right_and_says_what_is_slow() -> None:
    rows = [
        animal("fast"),
        animal("slow", ms=8.0),
        animal("apart", status="differs", error=0.5, reference_error=0.25, ort_error=0.125),
        animal("alone", ort_ms=None, ort_failed="no such operator"),
        animal("off", ort_error=0.5),
        animal("absent", status="not exported", reason="no | such call"),
    ]
    page = zoo_table.markdown(rows)
    assert "6 architectures: 4 agree, 1 differs, 1 not exported." in page
    assert "Of the 5 that torch exports, from 1 families, **4 agree (80.0 %)**" in page
    assert "**1.00** in the geometric mean of 2 models, from 0.50 to 2.00; less than 1 in 1" in page
    assert "| timm/slow | 2.00 | 8 | conv_direct 50% (2 steps, 25% of peak) |" in page
    assert "| timm/apart | differs | error 0.5; 0.25 in numpy; 0.12 in ONNX Runtime |" in page
    assert "| timm/absent | not exported | no \\| such call |" in page
    lines = {line.split(" | ")[1]: line for line in page.splitlines() if line.startswith("| cats")}
    assert lines["timm/fast"].endswith("| 2 | 0.50 |  |")
    assert lines["timm/alone"].endswith("| 2 |  | ONNX Runtime fails |")
    assert lines["timm/off"].endswith("| 2 |  | ONNX Runtime differs |")


def test_what_the_zoo_lacks() -> None:
    assert zoo.incomplete({}, timed=False)
    assert zoo.incomplete(animal("apart", status="differs"), timed=False)
    untimed = animal("new")
    del untimed["ort_ms"]
    assert zoo.incomplete(untimed, timed=True) and not zoo.incomplete(untimed, timed=False)
    assert not zoo.incomplete(animal("alone", ort_ms=None), timed=True)


def test_the_zoo_is_large_and_its_names_are_unique() -> None:
    found = {e.key: e for e in entries()}
    assert len(found) == len(entries()) >= 300
    assert len({e.family for e in found.values()}) >= 150
    mixed = found["torch/dlrm"]
    assert mixed.shapes == ((4, 13), (4, 6)) and mixed.kinds == ("normal", "ids")
    assert found["timm/hiera_tiny_224"].shapes == ((1, 3, 224, 224),)
