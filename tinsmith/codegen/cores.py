"""How fast processor cores are: the rates by which the cost model chooses kernels.

Rates come from this table alone, by vendor, family and model: the same processor always gets the
same kernels, and so the same bits of results. The true speed of a machine is measured for reports
only (`runtime/limits.py`). Only ratios matter: a machine of another clock gets the same kernels.

A row marked `measured` holds the best of several runs of `python -m benchmarks.peak --row` on one
machine. Other rows are estimated: published clocks and widths of caches, times the shares that
measured cores reach of theirs. A core that is not in the table gets the row that its instruction
set names (`Isa.core`).
"""

from __future__ import annotations

from tinsmith.records import NamedTuple


class Rates(NamedTuple):
    """The speed of one core, in code with vectors of some width.

    peak            fp32 flop/s
    l2_bandwidth    bytes/s read from L2; likewise l3_ from L3, and dram_ from memory
    dram_together   bytes/s that all cores together read from memory
    wait            seconds for two threads to tell each other that a phase is done
    wide            flop/s with vectors of 16 floats over that with 8; 1 in narrower code
    """

    peak: float
    l2_bandwidth: float
    l3_bandwidth: float
    dram_bandwidth: float
    dram_together: float
    wait: float
    wide: float


class Core(NamedTuple):
    """A row of the table of processor cores, from which `rates` are computed.

    clock     GHz, in code with vectors
    pipes     how many multiply-adds begin in a cycle: in vectors of 4, of 8 and of 16 floats
    l2, l3    bytes read in a cycle
    memory    GB/s that one core reads; `together`: all cores
    wait      ns, as in `Rates`
    apart     whether additions run in further pipes, as many as for products
    measured  on such a core; other rows are estimated
    """

    name: str
    clock: float
    pipes: tuple[int, int, int]
    l2: float
    l3: float
    memory: float
    together: float
    wait: float
    apart: bool = False
    measured: bool = False

    def rates(self, lanes: int, fma: bool) -> Rates:
        """The rates of code with vectors of `lanes` floats; `fma`: with fused multiply-adds,
        without which a core of no further pipes for additions computes half as fast."""
        hertz = self.clock * 1e9
        pipes = self.pipes[_width(lanes)]
        products = pipes if fma or self.apart else pipes / 2
        loads = LOADS * 4 * lanes * hertz
        l2, l3 = min(self.l2 * hertz, loads), min(self.l3 * hertz, loads)
        return Rates(
            peak=2 * lanes * products * hertz, l2_bandwidth=l2, l3_bandwidth=l3,
            dram_bandwidth=min(self.memory * 1e9, l3), dram_together=self.together * 1e9,
            wait=self.wait * 1e-9, wide=2 * self.pipes[2] / self.pipes[1] if lanes >= 16 else 1.0,
        )  # fmt: skip


def _width(lanes: int) -> int:
    """The index into `pipes` for vectors of `lanes` floats."""
    return 0 if lanes <= 4 else 1 if lanes <= 8 else 2


LOADS = 2
"""Vectors that every core of the table can load in a cycle, at least."""

CORES = {
    core.name: core
    for core in (
        # name, clock, pipes, l2, l3, memory, together, wait
        Core("Zen", 3.2, (2, 1, 0), 20.0, 15.0, 18.0, 26.0, 200.0, apart=True),
        Core("Zen 2", 3.3, (2, 2, 0), 21.6, 20.0, 22.0, 30.0, 200.0, apart=True),
        Core("Zen 3", 3.5, (2, 2, 0), 21.6, 24.0, 26.0, 35.0, 200.0, apart=True),
        Core("Zen 4", 3.66, (2, 2, 1), 21.6, 25.7, 32.0, 42.0, 200.0, apart=True, measured=True),
        Core("Zen 5", 4.19, (2, 2, 2), 36.9, 28.0, 39.0, 81.0, 180.0, apart=True, measured=True),
        Core("Zen 5 mobile", 4.0, (2, 2, 1), 21.6, 25.7, 36.0, 45.0, 200.0, apart=True),
        Core("Haswell", 3.2, (2, 2, 0), 22.6, 12.0, 15.0, 25.0, 300.0),
        Core("Skylake", 4.0, (2, 2, 0), 22.6, 12.0, 20.0, 28.0, 200.0),
        Core("Skylake-X", 2.5, (2, 2, 2), 22.6, 9.4, 12.0, 24.0, 400.0),
        Core("Ice Lake", 3.6, (2, 2, 1), 22.6, 14.0, 24.0, 34.0, 200.0),
        Core("Ice Lake-SP", 2.7, (2, 2, 2), 22.6, 9.4, 13.0, 26.0, 400.0),
        Core("Sapphire Rapids", 2.66, (2, 2, 2), 22.6, 9.4, 14.0, 28.0, 400.0, measured=True),
        Core("Granite Rapids", 2.9, (2, 2, 2), 22.6, 9.4, 15.0, 30.0, 400.0),
        Core("Alder Lake", 4.6, (2, 2, 0), 24.0, 16.0, 32.0, 50.0, 200.0),
        Core("Gracemont", 3.4, (2, 1, 0), 20.0, 10.0, 20.0, 28.0, 300.0),
        Core("Arm", 3.0, (4, 0, 0), 26.7, 16.7, 20.0, 30.0, 300.0),
    )
}  # fmt: skip

MODELS: dict[tuple[str, int], tuple[tuple[range, str], ...]] = {
    ("AuthenticAMD", 23): (
        (range(0x30), "Zen"),
        (range(0x30, 0x100), "Zen 2"),
    ),
    ("AuthenticAMD", 25): (
        (range(0x10), "Zen 3"),
        (range(0x10, 0x20), "Zen 4"),
        (range(0x20, 0x60), "Zen 3"),
        (range(0x60, 0x80), "Zen 4"),
        (range(0xA0, 0xB0), "Zen 4"),
    ),
    ("AuthenticAMD", 26): (
        (range(0x20), "Zen 5"),
        (range(0x20, 0x30), "Zen 5 mobile"),
        (range(0x40, 0x50), "Zen 5"),
        (range(0x60, 0x70), "Zen 5 mobile"),
        (range(0x70, 0x80), "Zen 5"),
    ),
    ("GenuineIntel", 6): tuple(
        (range(model, model + 1), name)
        for name, models in {
            "Haswell": (0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56),
            "Skylake": (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
            "Skylake-X": (0x55,),  # and Cascade Lake, Cooper Lake
            "Ice Lake": (0x7D, 0x7E, 0x8C, 0x8D, 0xA7),  # and Tiger Lake, Rocket Lake
            "Ice Lake-SP": (0x6A, 0x6C),
            "Sapphire Rapids": (0x8F, 0xCF),  # and Emerald Rapids
            "Granite Rapids": (0xAD, 0xAE),
            "Alder Lake": (0x97, 0x9A, 0xB7, 0xBA, 0xBF, 0xAA, 0xAC, 0xB5, 0xC5, 0xC6, 0xBD),
            "Gracemont": (0xBE, 0xAF),  # alone: Alder Lake-N, Sierra Forest
        }.items()
        for model in models
    ),
}
"""(vendor, family), as cpuid tells them -> (range of models, name of the row)."""


def core_of(vendor: str, family: int, model: int) -> Core | None:
    """The row of a processor, by what cpuid or /proc/cpuinfo tell of it; None if it is not in the
    table."""
    for models, name in MODELS.get((vendor, family), ()):
        if model in models:
            return CORES[name]
    return None


def rates_of(core: Core | None, generic: str, lanes: int, fma: bool) -> Rates:
    """The rates of a core with vectors of `lanes` floats; those of the row named `generic` if the
    core is unknown (None), or has no such vectors."""
    if core is None or not core.pipes[_width(lanes)]:
        core = CORES[generic]
    return core.rates(lanes, fma)
