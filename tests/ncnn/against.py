"""ncnn itself, where it is installed, and whether outputs agree with its."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

PEER = Path(os.environ.get("TINSMITH_BENCH_DIR", "none")) / "peers" / "bin" / "python"


def run_peer(folder: Path) -> None:
    script = Path(__file__).with_name("peer.py")
    command = [str(PEER), str(script), str(folder)]
    subprocess.run(command, check=True, timeout=600, capture_output=True)


def record(file: Path, cases: Iterable[tuple[str, str, bytes, dict[str, Any]]]) -> None:
    """Write to `file` what ncnn computes: arrays by the names CASE/OUTPUT. Each case is its name,
    param and weights of the model, and inputs."""
    found, names = {}, []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for i, (name, param, weights, inputs) in enumerate(cases):
            names.append(name)
            (folder / f"{i:03}.param").write_text(param)
            (folder / f"{i:03}.bin").write_bytes(weights)
            np.savez(folder / f"{i:03}.npz", **inputs)
        run_peer(folder)
        for i, name in enumerate(names):
            out = folder / f"{i:03}.out.npz"
            if out.exists():
                found |= {f"{name}/{k}": v for k, v in np.load(out).items()}
            else:
                print("ncnn does not run", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **found)


@functools.cache
def recorded(file: Path) -> dict[str, Any]:
    """What `record` has written."""
    with np.load(file) as data:
        return {name: data[name] for name in data.files}


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, y in found.items():
        most = max(np.abs(wanted[name]).max(initial=0), 1e-30)
        assert y.shape == wanted[name].shape
        assert np.abs(y - wanted[name].astype(np.float64)).max(initial=0) <= 1e-3 * most
