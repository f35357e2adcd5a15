"""Passes edit graphs: their table and choice (`choice`) and how they run (`manager`)."""

from tinsmith.passes.choice import COURSE, FILED, PASSES, Entry, list_passes
from tinsmith.passes.manager import Context, Report, register, run_passes

__all__ = [
    "COURSE", "FILED", "PASSES", "Context", "Entry", "Report", "list_passes", "register",
    "run_passes",
]  # fmt: skip
