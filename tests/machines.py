"""Machines that tests plan for, whatever this one is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from tinsmith.codegen.target import Target, level

PLAIN: dict[str, Any] = {
    "l1": 32 << 10, "l2": 512 << 10, "l3": 8 << 20, "peak": 100e9, "l2_bandwidth": 80e9,
    "l3_bandwidth": 50e9, "dram_bandwidth": 20e9, "dram_together": inf, "wait": 1e-6, "wide": 1.0,
}  # fmt: skip


def machine_with(isa: str, **known: Any) -> Target:
    """A machine of an instruction set, of which this is known."""
    return replace(level(isa), model="", **{**PLAIN, **known})
