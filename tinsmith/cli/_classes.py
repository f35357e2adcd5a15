"""Outputs that are class scores: recognising them, and the names of the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.records import NamedTuple

# Sizes of well-known label sets: an output of that many scores is read as classes, also unnamed.
USUAL = (10, 100, 1000, 1001, 21841)
MOST_ROWS = 16
"""So many rows of an output may be read as classes for their number alone."""


class Scores(NamedTuple):
    """Rows of class probabilities [N,C], and whether it was softmax that made them of an output."""

    probabilities: Any
    softmax: bool


def read_labels(path: Path) -> list[str]:
    """One name a line; raises ModelFileError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"the labels {path} cannot be read: {error}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ModelFileError(f"the labels {path} hold no line")
    return [line.strip() for line in lines]


def scores_of(array: Any, labels: list[str] | None) -> Scores | None:
    """The class probabilities of an output, or None where it is no class scores.

    With labels, an output is class scores if it has one for each label; without, if its rows are
    distributions, or few and of a usual size. Scores that are no probabilities go through softmax.
    A vector is one row, of a model without a batch; its size alone, which may be that of a batch,
    makes it no scores.
    """
    if array.dtype.kind != "f" or not array.ndim or not array.size:
        return None
    vector = array.ndim == 1
    array = array[None] if vector else array
    if array.size != array.shape[0] * array.shape[1]:
        return None
    rows = array.reshape(array.shape[:2]).astype(np.float64)
    classes = rows.shape[1]
    if classes < 2 or not np.isfinite(rows).all():
        return None
    already = bool((rows >= 0).all() and np.allclose(rows.sum(1), 1, atol=1e-3))
    usual = classes in USUAL and len(rows) <= MOST_ROWS and not vector
    wanted = classes == len(labels) if labels else already or usual
    if not wanted:
        return None
    if already:
        return Scores(rows, False)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return Scores(powers / powers.sum(axis=1, keepdims=True), True)


def best(row: Any, labels: list[str] | None, top: int) -> list[dict[str, Any]]:
    """The `top` most probable classes of a row, best first."""
    order = np.argsort(-row, kind="stable")[:top]
    return [
        {
            "class": int(i),
            "label": labels[i] if labels else f"class {i}",
            "probability": float(row[i]),
        }
        for i in order
    ]
