"""ONNX's own conformance suite on the cpu backend.

    python -m tests.backend.suite [pattern] [--backend numpy] [--json FILE]

runs all of it but what is excluded, prints what fails, and how many cases of each category run in
generated code, in numpy, and in both.
"""

from __future__ import annotations

import argparse
import json
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from typing import Any, ClassVar

import numpy as np

import tinsmith.onnx_backend as backend
from tests.frontends.conformance import EXCLUDED as NOT_IMPORTED

EXCLUDED = {
    **NOT_IMPORTED,
    "test_loop16_seq_none": "right, but the suite cannot compare a tensor of rank 0 in a sequence",
    "test_dft_inverse*": "expects the rounding error 1.9e-7 of one FFT where the exact value is 0",
}
"""Cases that are not expected to pass under the suite's own tolerances, with the reason."""


class Recorder(backend.TinsmithBackend):
    """The backend with nothing kept on disk; remembers what it prepared last."""

    options: ClassVar[dict[str, Any]] = {"cache": False}
    last: backend.TinsmithRep | None = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> backend.TinsmithRep:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Recorder.last = super().prepare(model, device, **{**cls.options, **kwargs})
        return Recorder.last


@cache
def runner() -> Any:
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return BackendTest(Recorder, __name__)


def reason(name: str) -> str | None:
    """Why a case (with or without its device) is excluded; None if it must pass."""
    bare = name.removesuffix("_cpu")
    return next((why for pattern, why in EXCLUDED.items() if fnmatch(bare, pattern)), None)


def cases() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """(category, name, run) of every case for this device; `run` raises what went wrong."""
    for category, items in sorted(runner()._test_items.items()):
        for name, item in sorted(items.items()):
            if name.endswith("_cpu"):
                yield category.removesuffix("Model"), name, lambda f=item.func: f(None)


def kinds() -> str:
    """Where the steps of the model that was prepared last are computed."""
    assert Recorder.last is not None
    try:
        steps = Recorder.last.net.program().plan.steps
    except Exception:
        return "numpy"
    found = {s.kind for s in steps} - {"view"}
    if found == {"native", "reference"}:
        return "both"
    return "numpy" if found == {"reference"} else "native"


def main() -> None:
    parser = argparse.ArgumentParser(description="ONNX's conformance suite")
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--json", dest="file")
    args = parser.parse_args()
    Recorder.options = {"backend": args.backend, "cache": False}
    table: dict[str, Counter[str]] = {}
    rows = []
    for category, name, run in cases():
        if not fnmatch(name, args.pattern):
            continue
        counts = table.setdefault(category, Counter())
        why = reason(name)
        if why is None:
            try:
                run()
            except unittest.SkipTest as skip:
                why = f"FAILS: skipped: {skip}"
            except Exception as error:
                why = f"FAILS: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if why:
                print(f"{name}: {why}", flush=True)
        key = "excluded" if reason(name) else "failed" if why else kinds()
        counts[key] += 1
        rows.append({"category": category, "name": name, "result": key, "why": why})
    print(f"{'':20}{'native':>8}{'both':>8}{'numpy':>8}{'failed':>8}{'excluded':>10}{'passed':>14}")
    for category, c in table.items():
        passed = c["native"] + c["both"] + c["numpy"]
        print(
            f"{category:20}{c['native']:8}{c['both']:8}{c['numpy']:8}{c['failed']:8}"
            f"{c['excluded']:10}{f'{passed}/{c.total()}':>14}"
        )
    if args.file:
        with open(args.file, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
