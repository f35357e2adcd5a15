"""PNNX models that tests write line by line."""

from __future__ import annotations

from typing import Any

import tinsmith as ts


def param(*lines: str) -> bytes:
    return "\n".join(["7767517", f"{len(lines)} 9", *lines, ""]).encode()


def run(model: Any, *arrays: Any, **options: Any) -> Any:
    return ts.compile(model, backend="numpy", **options).run(list(arrays))[0]
