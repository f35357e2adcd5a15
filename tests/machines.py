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


CACHES = {
    "Zen 4": {"l1": 32 << 10, "l2": 1 << 20, "l3": 32 << 20},
    "Sapphire Rapids": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20},
}


def with_core(isa: str, core: str = "Zen 4") -> Target:
    """A machine of an instruction set that has the caches and rates of this core: what tests say of
    choices that depend on these then holds on every machine."""
    target = level(isa)
    rates = CORES[core].rates(target.lanes, target.has_fma)._asdict()
    return replace(target, **CACHES[core], **rates)


def machine_with(isa: str, **known: Any) -> Target:
    """A machine of an instruction set, of which this is known."""
    return replace(level(isa), model="", **{**PLAIN, **known})
