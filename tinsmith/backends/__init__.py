"""Machines that run a graph: `numpy` (the reference) and `cpu` (generated code)."""
