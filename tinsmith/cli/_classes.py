"""Recognises outputs that are class scores, and names their best classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.records import NamedTuple

USUAL = (10, 100, 1000, 1001, 21841)
"""Sizes of well-known label sets: rows of so many elements are taken for scores, also without
labels."""
MOST_ROWS = 16
"""Rows of an output, at most, that are taken for scores because of such a size."""


class Scores(NamedTuple):
    """Rows of class probabilities [N,C], and whether they are the softmax of the output."""

    probabilities: Any
    softmax: bool


def read_labels(path: Path) -> list[str]:
    """Read the names of classes, one a line. Raises ModelFileError."""
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
    """The class probabilities of an output, or None where it has no class scores.

    Scores are finite floats [N,C], C > 1, perhaps with more axes of size 1. With labels, C must be
    their number. Without, all rows must be probabilities (sum 1), or C one of `USUAL` and N at most
    `MOST_ROWS`. A vector is one row; a usual size, which may be a batch's, does not make it scores.
    Scores that are no probabilities go through softmax.
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
    """The `top` most probable classes of a row of probabilities, best first, as plain data: of
    each its number ("class"), "label" ("class 3" without `labels`) and "probability"."""
    order = np.argsort(-row, kind="stable")[:top]
    return [
        {
            "class": int(i),
            "label": labels[i] if labels else f"class {i}",
            "probability": float(row[i]),
        }
        for i in order
    ]
