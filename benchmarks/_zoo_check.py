"""One zoo model in a process of its own: `python -m benchmarks._zoo_check BASE`.

Prints one JSON line: what tinsmith made of the model, how far it is from torch, and where its time
goes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks._arrays import error_of, read

TOLERANCE = 1e-3


def check(base: Path) -> dict[str, Any]:
    import tinsmith as ts
    from tinsmith.errors import ImportFailed, TinsmithError

    file, (given, want) = base.with_suffix(".onnx"), read(base)
    try:
        row: dict[str, Any] = {"nodes": len(ts.load(file).nodes)}
    except ImportFailed as error:
        return {"status": "not imported", "reason": str(error)}
    try:
        net = ts.compile(file)
        got = _list(net(**given))
    except TinsmithError as error:
        return row | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    row["error"] = error_of(got, want)
    steps = [s for s in net.program().plan.steps if s.kind != "view"]
    row["steps"] = len(steps)
    row["numpy"] = sorted({s.op for s in steps if s.kind == "reference"})
    profile = net.profile(**given, repeat=5)
    row["native_share"] = 1 - profile.reference_share
    row["heaviest"] = heaviest(profile.rows)
    row["status"] = "agrees" if row["error"] <= TOLERANCE else "differs"
    if row["status"] == "differs":
        exact = ts.compile(file, backend="numpy")
        row["reference_error"] = error_of(_list(exact(**given)), want)
    return row


def heaviest(steps: Any, count: int = 3) -> list[dict[str, Any]]:
    """The kernels that take most of the time: their shares of it, their steps, and the share of
    the peak that they reach, None where they have no arithmetic."""
    by: dict[str, list[Any]] = {}
    for step in steps:
        by.setdefault(step.kernel or step.op, []).append(step)
    found = []
    for kernel, own in by.items():
        rate = sum((s.peak_share or 0.0) * s.ms for s in own) / sum(s.ms for s in own) or None
        found.append(
            {"kernel": kernel, "share": sum(s.share for s in own), "steps": len(own), "peak": rate}
        )
    return sorted(found, key=lambda k: -k["share"])[:count]


def _list(result: Any) -> list[Any]:
    return list(result.values()) if isinstance(result, dict) else [result]


def main() -> None:
    print(json.dumps(check(Path(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
