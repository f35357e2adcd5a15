"""The nets of this folder, the images that calibrate and test them, and accuracies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parent
NETS = ("residual", "depthwise", "squeeze", "transformer", "gru")


def path_of(net: str) -> Path:
    """The ONNX file of a net."""
    return FOLDER / f"{net}.onnx"


class Digits:
    """Images as the nets take them, float32 [N, 1, 8, 8] from 0 to 1, and labels."""

    def __init__(self) -> None:
        self.calibrate, self.calibrate_labels = _held("calibration")
        self.test, self.test_labels = _held("test")

    def accuracy(self, net: Callable[[Array], Array]) -> float:
        """Percent of the test images that a net recognises."""
        return 100 * float((net(self.test).argmax(1) == self.test_labels).mean())


def _held(name: str) -> tuple[Array, Array]:
    with np.load(FOLDER / f"{name}.npz") as held:
        return held["image"], held["labels"]
