"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from benchmarks import peak


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith(("model name", "Model")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """Plain data for the report: processor, cores that this process may use, software."""
    found = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        **peak.measure(),
        "peak_bytes_gops": peak.measure(types="uint8 int8")["peak_gflops"],
    }
    for package in ("tinsmith", "numpy", "llvmlite"):
        found[package] = metadata.version(package)
    return found


def cores_for(threads: int) -> list[int]:
    """The cores to pin a run to: the last ones, since interrupts favour the first."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[-threads:]
