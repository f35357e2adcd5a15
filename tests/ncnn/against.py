"""ncnn itself, where it is installed, and whether outputs agree with its."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

PEER = Path(os.environ.get("TINSMITH_BENCH_DIR", "none")) / "peers" / "bin" / "python"


def run_peer(folder: Path) -> None:
    script = Path(__file__).with_name("peer.py")
    command = [str(PEER), str(script), str(folder)]
    subprocess.run(command, check=True, timeout=600, capture_output=True)


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, y in found.items():
        most = max(np.abs(wanted[name]).max(initial=0), 1e-30)
        assert y.shape == wanted[name].shape
        assert np.abs(y - wanted[name].astype(np.float64)).max(initial=0) <= 1e-3 * most
