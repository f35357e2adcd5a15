"""How far apart two cores are: what a cache line takes from one to the other.

`python -m benchmarks.apart` prints it. The cores of a virtual machine may be two threads of one
core, neighbours, or far from each other, and may change that from minute to minute; two threads
then are hardly faster than one, whoever runs on them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

LINES = 512
"""Half of a first-level cache."""


def line_ns(cores: Sequence[int]) -> float:
    """Nanoseconds in which a line is read and written by one of two cores after the other."""
    from tinsmith.codegen.target import host
    from tinsmith.runtime.gauge import phase_of_two

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return 1e9 * phase_of_two(host(), LINES) / LINES
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    print(f"{line_ns(sorted(os.sched_getaffinity(0))[-2:]):.2f} ns a cache line")
