"""One zoo model in a process of its own: `PYTHON -m benchmarks._zoo_check BASE [onnxruntime]`.

Prints one JSON line: what tinsmith made of the model and how far it is from torch, or how long
ONNX Runtime takes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-3
BUDGET = 0.3  # seconds of measuring


def median_ms(call: Any) -> float:
    times: list[float] = []
    end = time.perf_counter() + BUDGET
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))


def error_of(got: list[Any], want: list[Any]) -> float:
    """The worst max|y - want| / max|want|; infinite where shapes or NaNs differ."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
            return float("inf")
        if b.size:
            scale = float(np.nanmax(np.abs(b.astype(np.float64)))) or 1.0
            off = np.abs(a.astype(np.float64) - b.astype(np.float64))
            worst = max(worst, float(np.nanmax(off)) / scale)
    return worst


def check(base: Path) -> dict[str, Any]:
    import tinsmith as ts
    from tinsmith.errors import ImportFailed, TinsmithError

    with np.load(base.with_suffix(".npz")) as data:
        arrays = dict(data)
    want = [arrays[f"y{i}"] for i in range(sum(n.startswith("y") for n in arrays))]
    start = time.perf_counter()
    try:
        graph = ts.load(base.with_suffix(".onnx"))
    except ImportFailed as error:
        return {"status": "not imported", "reason": str(error)}
    row: dict[str, Any] = {"nodes": len(graph.nodes), "load_s": time.perf_counter() - start}
    given = {n: arrays[n] for n in (v.name for v in graph.inputs)}
    start = time.perf_counter()
    try:
        net = ts.compile(graph)
        row["compile_s"] = time.perf_counter() - start
        got = _list(net(**given))
    except TinsmithError as error:
        return row | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    row["error"] = error_of(got, want)
    steps = [s for s in net.program().plan.steps if s.kind != "view"]
    row["steps"] = len(steps)
    row["numpy"] = sorted({s.op for s in steps if s.kind == "reference"})
    row["ms"] = median_ms(lambda: net(**given))
    row["native_share"] = 1 - net.profile(**given, repeat=3).reference_share
    row["status"] = "agrees" if row["error"] <= TOLERANCE else "differs"
    if row["status"] == "differs":
        exact = ts.compile(graph, backend="numpy")
        row["reference_error"] = error_of(_list(exact(**given)), want)
        wrong = "the kernels" if row["reference_error"] <= TOLERANCE else "importer or reference"
        row["reason"] = f"{wrong}: error {row['error']:.2g}, {row['reference_error']:.2g} in numpy"
    return row


def _list(result: Any) -> list[Any]:
    return list(result.values()) if isinstance(result, dict) else [result]


def peer(base: Path) -> dict[str, Any]:
    import onnxruntime as ort

    with np.load(base.with_suffix(".npz")) as data:
        arrays = dict(data)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(base.with_suffix(".onnx")), options)
    given = {i.name: arrays[i.name] for i in session.get_inputs()}
    return {"ort_ms": median_ms(lambda: session.run(None, given))}


def main() -> None:
    base = Path(sys.argv[1])
    row = peer(base) if sys.argv[2:] == ["onnxruntime"] else check(base)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
