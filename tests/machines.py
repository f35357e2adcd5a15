"""Machines that tests plan for, whatever this one is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from tinsmith.codegen.cores import CORES
from tinsmith.codegen.target import Target, level

PLAIN: dict[str, Any] = {
    "l1": 32 << 10, "l2": 512 << 10, "l3": 8 << 20, "peak": 100e9, "l2_bandwidth": 80e9,
    "l3_bandwidth": 50e9, "dram_bandwidth": 20e9, "dram_together": inf, "wait": 1e-6, "wide": 1.0,
}  # fmt: skip


def with_core(isa: str) -> Target:
    """A machine of an instruction set that has the caches and rates of Zen 4: what tests say of
    choices that depend on these then holds on every machine."""
    target = level(isa)
    rates = CORES["Zen 4"].rates(target.lanes, target.has_fma)._asdict()
    return replace(target, l1=32 << 10, l2=1 << 20, l3=32 << 20, **rates)


def machine_with(isa: str, **known: Any) -> Target:
    """A machine of an instruction set, of which this is known."""
    return replace(level(isa), model="", **{**PLAIN, **known})
