"""Accuracies of the nets of this folder, quantised in every way: the table of docs/quantize.md.

python examples/quantize/table.py                   by Tinsmith
python examples/quantize/table.py --onnxruntime     by ONNX Runtime's static quantiser, where
                                                    that, onnx and sympy are installed
python examples/quantize/table.py --nncf            by NNCF, where that and onnx are installed
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from nets import NETS, Digits, path_of

METHODS = ("minmax", "average", "percentile", "kl", "tensorrt", "aciq", "mse", "entropy")


def ours(digits: Digits) -> None:
    """A row for each net and method."""
    import tinsmith as ts

    for net in NETS:
        exact = digits.accuracy(ts.compile(path_of(net)))
        for method in METHODS:
            row = [
                digits.accuracy(
                    ts.compile(
                        ts.quantize(
                            path_of(net), digits.calibrate, method=method, per_channel=channel,
                            equalise=equalise, progress=False,
                        ).graph
                    )
                )
                for channel in (True, False)
                for equalise in (True, False)
            ]  # fmt: skip
            print(_row(net, method, exact, *row), flush=True)


def onnxruntime(digits: Digits) -> None:
    """The same by ONNX Runtime, which has three methods and no equalisation; computed without its
    optimisations, which saturate sums on machines without VNNI."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }
    with tempfile.TemporaryDirectory() as folder:
        for net in NETS:
            exact = digits.accuracy(_session(path_of(net)))
            prepared, target = Path(folder, "prepared.onnx"), Path(folder, "quantised.onnx")
            quant_pre_process(path_of(net), prepared, skip_symbolic_shape=True)
            for name, method in methods.items():
                row = []
                for channel in (True, False):
                    quantize_static(
                        prepared, target, _Reader(digits.calibrate), quant_format=QuantFormat.QDQ,
                        per_channel=channel, activation_type=QuantType.QUInt8,
                        weight_type=QuantType.QInt8, calibrate_method=method,
                    )  # fmt: skip
                    row.append(digits.accuracy(_session(target)))
                print(_row(net, name, exact, *row), flush=True)


def nncf(digits: Digits) -> None:
    """The same by NNCF, with its defaults: minmax, scales for each channel, corrected biases."""
    import nncf as theirs
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        for net in NETS:
            exact = digits.accuracy(_session(path_of(net)))
            batches = [{"image": image[None]} for image in digits.calibrate]
            found = theirs.quantize(
                onnx.load(path_of(net)), theirs.Dataset(batches), subset_size=len(batches)
            )
            onnx.save(found, target := Path(folder, "quantised.onnx"))
            print(_row(net, "default", exact, digits.accuracy(_session(target))), flush=True)


class _Reader:
    """Calibration data as ONNX Runtime asks for them."""

    def __init__(self, images: np.ndarray[Any, Any]) -> None:
        self._batches = iter([{"image": part} for part in np.array_split(images, 8)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


def _session(path: Path) -> Callable[[Any], Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"image": x})[0]


def _row(net: str, method: str, *accuracies: float) -> str:
    return f"| {net} | {method} | " + " | ".join(f"{a:.2f}" for a in accuracies) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnxruntime", action="store_true", help="measure its quantiser")
    parser.add_argument("--nncf", action="store_true", help="measure NNCF's")
    asked = parser.parse_args()
    (onnxruntime if asked.onnxruntime else nncf if asked.nncf else ours)(Digits())
