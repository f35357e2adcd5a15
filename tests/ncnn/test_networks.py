"""ncnn's own networks with seeded weights, in generated code, against what ncnn computes, and what
memory that takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.machines import with_core
from tests.real import real_file

NAMES = [
    "alexnet", "efficientnet_b0", "googlenet", "mnasnet", "mobilenet", "mobilenet_ssd",
    "mobilenet_v2", "mobilenet_v3", "nanodet_m", "regnety_400m", "resnet18", "resnet50",
    "shufflenet", "shufflenet_v2", "squeezenet", "squeezenet_ssd", "vgg16", "yolo-fastest-1.1",
    "yolov4-tiny",
]  # fmt: skip


def gain_of(name: str) -> str:
    """How large the weights are, by the table beside the recorded outputs."""
    told = real_file("ncnn", "expected/README.md").read_text()
    (gain,) = re.findall(rf"^\| {re.escape(name)} \| ([\d.]+) \| [0-9a-f]{{16}} ", told, re.M)
    return gain


@pytest.mark.parametrize("name", NAMES)
def test_a_network_computes_what_ncnn_computes_in_less_memory(name: str, tmp_path: Path) -> None:
    param, weights = real_file("ncnn", f"{name}.param"), tmp_path / "weights.bin"
    make = real_file("ncnn", "expected/make_weights.py")
    recorded = np.load(real_file("ncnn", f"expected/{name}.npz"))
    command = [sys.executable, str(make), str(param), str(weights), gain_of(name)]
    subprocess.run(command, check=True, capture_output=True)
    net = ts.compile((str(param), str(weights)), cache=False, target=with_core("host"))
    (type_,) = net.inputs.values()
    shape = [n for n in type_.shape or () if isinstance(n, int)]
    x = (np.random.default_rng(0).standard_normal(shape) * 0.5).astype(np.float32)
    found = dict(zip(net.output_names, net.run([x[None]]), strict=True))
    for blob, y in found.items():
        told: dict[str, Any] = {k: recorded[f"{blob}.{k}"] for k in ("first", "sample", "maxabs")}
        flat, step = y[0].reshape(-1), int(recorded[f"{blob}.step"])
        sizes = tuple(recorded[f"{blob}.shape"])
        if sizes != y[0].shape:  # detections, with rows of zeros behind
            assert y[0].shape[1:] == sizes[1:] and y[0].shape[0] >= sizes[0]
            flat = y[0][: sizes[0]].reshape(-1)
        for got, want in ((flat, told["first"]), (flat[::step], told["sample"])):
            assert np.abs(got[: len(want)] - want).max() <= 1e-3 * told["maxabs"]
    check_memory(name, net, x[None])


def check_memory(name: str, net: Any, x: Any) -> None:
    """Ours, with all that callers hold, is below ncnn's estimate, which counts activations and
    scratch; what an engine without a plan needs is what ncnn needs without scratch. With the
    kernels of one core: which are chosen depends on its rates."""
    told = real_file("ncnn", f"expected/{name}.log").read_text()
    (estimate,) = re.findall(r"estimated memory footprint = ([\d.]+) KB", told)
    report = ts.memory_report(net, [x])
    planned = report.planned
    ours = planned.peak + planned.workspace + report.input_bytes + report.output_bytes
    assert ours < float(estimate) * 1024
    assert report.measured is not None and report.measured.arena == planned.peak
    assert max(row.alive for row in report.steps) == planned.lower_bound <= planned.peak
    readme = real_file("ncnn", "expected/README.md").read_text()
    columns = r"[^|]*\|" * 5 + r" (\d+) \| \d+ \|$"
    (blobs,) = re.findall(rf"^\| {re.escape(name)} \|{columns}", readme, re.M)
    # ncnn keeps the picture for the prior boxes of detectors, which we know beforehand.
    kept = report.input_bytes if name.endswith("_ssd") else 0
    assert 0 <= int(blobs) - report.allocate_and_free - kept < 2000
