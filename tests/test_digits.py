"""The digits example does what its README says, on every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "digits"


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_the_probabilities_are_those_of_the_training_script(backend: str) -> None:
    import tinsmith as ts

    net = ts.compile(FOLDER / "digits.onnx", backend=backend)
    with np.load(FOLDER / "digits.npz") as data:
        image, label, want = data["image"], data["label"], data["probabilities"]
    for rows in (slice(None), slice(0, 1), slice(3, 10)):
        got = net(image[rows])
        assert got.shape == want[rows].shape
        assert np.allclose(got, want[rows], atol=1e-5)
    assert (net(image=image).argmax(1) == label).mean() >= 0.97


@pytest.mark.parametrize("name", ["zero", "three", "four", "seven", "nine"])
def test_the_pictures_are_recognised(name: str) -> None:
    import tinsmith as ts
    from tinsmith.cli._picture import Picture

    net = ts.compile(FOLDER / "digits.onnx", backend="numpy")
    x = Picture().read(FOLDER / f"{name}.png", net.inputs["image"], "image")
    labels = (FOLDER / "labels.txt").read_text().split()
    assert labels[int(net(x).argmax())] == name
