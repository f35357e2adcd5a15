"""PNNX models that tests write line by line, and the numbers that belong to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tinsmith as ts

FOLDER = Path(__file__).parent.parent / "data" / "pnnx"


def numbers(name: str) -> tuple[list[Any], list[Any]]:
    """The inputs of a model of that folder, and what PyTorch gives for them."""
    with np.load(FOLDER / f"{name}.npz") as data:
        each = [
            [data[f"{k}{i}"] for i in range(len(data.files)) if f"{k}{i}" in data] for k in "xy"
        ]
    return each[0], each[1]


def param(*lines: str) -> bytes:
    return "\n".join(["7767517", f"{len(lines)} 9", *lines, ""]).encode()


def run(model: Any, *arrays: Any, **options: Any) -> Any:
    return ts.compile(model, backend="numpy", **options).run(list(arrays))[0]
