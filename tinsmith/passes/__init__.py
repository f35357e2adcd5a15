"""Passes over the graph: the rules, and the manager that runs them. See `manager`."""

from tinsmith.passes.manager import (
    PASSES,
    Context,
    Entry,
    Report,
    list_passes,
    register,
    run_passes,
)

__all__ = ["PASSES", "Context", "Entry", "Report", "list_passes", "register", "run_passes"]
