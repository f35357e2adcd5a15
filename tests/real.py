"""Real model files that the repository does not carry: `../shared/data/FORMAT/FILE` beside it.

TINSMITH_DATA names another folder. Tests of a file that is not there are skipped, and say so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("TINSMITH_DATA") or Path(__file__).parents[2] / "shared" / "data")


def real_file(format: str, name: str) -> Path:
    """The path of a file of a format (`onnx`, `ncnn`, ...); skips the test where it is missing."""
    path = FOLDER / format / name
    if not path.exists():
        pytest.skip(f"{path} is missing; TINSMITH_DATA names the folder of real model files")
    return path
