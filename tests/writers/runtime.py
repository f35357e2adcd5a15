"""Runs pairs of models in ONNX Runtime, in its own environment: a script without our packages.

    PEERS_PYTHON tests/writers/runtime.py FOLDER

For each NAME.npz of the folder, of inputs: NAME.source.onnx and NAME.written.onnx. Prints JSON: by
name what differs, "" where nothing does, or "source: why" where the source itself does not run.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-not-found]


def run(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in feeds.items() if k in names})


def difference(got, want):
    if isinstance(want, list | dict) or want is None:
        return "" if repr(got) == repr(want) else f"{got!r:.80} for {want!r:.80}"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    if want.dtype.kind not in "fiub":
        return "" if np.array_equal(got, want) else "other elements"
    a, b = got.astype(np.float64), want.astype(np.float64)
    largest = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
    fits = np.allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, largest), equal_nan=True)
    return "" if fits else f"off by {np.nanmax(np.abs(a - b)):.3g} of {largest:.3g}"


def verdict(folder, name):
    feeds = dict(np.load(folder / f"{name}.npz"))
    try:
        want = run(folder / f"{name}.source.onnx", feeds)
    except Exception as error:
        return f"source: {error}"
    try:
        got = run(folder / f"{name}.written.onnx", feeds)
    except Exception as error:
        return f"written: {error}"
    return "; ".join(filter(None, map(difference, got, want)))


def main():
    folder = Path(sys.argv[1])
    names = sorted(path.stem for path in folder.glob("*.npz"))
    print(json.dumps({name: verdict(folder, name) for name in names}))


if __name__ == "__main__":
    main()
