"""The machine that code is generated for: instruction set, registers, caches, peaks.

`host()` reads the machine, without LLVM if it can; `level("avx2")` gives the host restricted to an
instruction set, or another architecture. LLVM aborts the process at names that it does not know:
CPUs and features of code come from the table here alone.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from math import inf

from tinsmith.codegen.cores import Core, core_of, rates_of
from tinsmith.codegen.host import arch, caches, cpuinfo, may_use_matrices
from tinsmith.errors import TargetError, suggest
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import estimate


class Isa(NamedTuple):
    """An instruction set: what kernels may rely on."""

    name: str
    arch: str
    cpu: str
    features: str
    lanes: int  # f32 elements of a vector register
    registers: int
    fma: bool
    masks: bool  # whether masked loads and stores are cheap
    needs: frozenset[str]  # what /proc/cpuinfo must list for the host to run it
    rounding: bool = True  # floor, ceil and rint are one instruction
    vectors: str = ""  # the set whose vector instructions it has, if that is another one
    matrices: bool = False  # registers of 16 x 16 float32, and products of bfloat16 into them
    byte_products: str = ""  # the row of products that adds four products of bytes to each lane
    half_products: bool = False  # vdpbf16ps: two products of bfloat16 are added to each lane
    core: str = "Skylake"  # the row of `cores` that a processor without one of its own gets


AVX2 = frozenset({"avx2", "fma", "bmi2", "f16c"})
AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})

ISAS = {
    isa.name: isa
    for isa in (
        Isa("scalar", "x86_64", "x86-64", "", 1, 16, False, False, frozenset(), rounding=False),
        Isa("sse2", "x86_64", "x86-64", "", 4, 16, False, False, frozenset({"sse2"}),
            rounding=False),
        Isa("avx2", "x86_64", "x86-64-v3", "", 8, 16, True, False,
            AVX2, core="Zen 3"),
        Isa("avxvnni", "x86_64", "x86-64-v3", "+avxvnni", 8, 16, True, False,
            AVX2 | {"avx_vnni"}, vectors="avx2", byte_products="vpdpbusd", core="Alder Lake"),
        Isa("avx512", "x86_64", "x86-64-v4", "", 16, 32, True, True, AVX512,
            core="Zen 4"),
        Isa("avx512vnni", "x86_64", "x86-64-v4", "+avx512vnni", 16, 32, True, True,
            AVX512 | {"avx512_vnni"}, vectors="avx512", byte_products="vpdpbusd", core="Zen 4"),
        Isa("avx512bf16", "x86_64", "x86-64-v4", "+avx512vnni,+avx512bf16", 16, 32, True, True,
            AVX512 | {"avx512_vnni", "avx512_bf16"}, vectors="avx512", byte_products="vpdpbusd",
            half_products=True, core="Zen 4"),
        Isa("amx", "x86_64", "x86-64-v4",
            "+avx512vnni,+avx512bf16,+amx-tile,+amx-bf16,+amx-int8", 16, 32, True, True,
            AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
            vectors="avx512", matrices=True, byte_products="vpdpbusd", half_products=True,
            core="Sapphire Rapids"),
        Isa("neon", "aarch64", "generic", "+neon", 4, 32, True, False, frozenset(), core="Arm"),
        Isa("neondot", "aarch64", "generic", "+neon,+dotprod", 4, 32, True, False,
            frozenset({"asimddp"}), vectors="neon", byte_products="sdot", core="Arm"),
        Isa("i8mm", "aarch64", "generic", "+neon,+dotprod,+i8mm", 4, 32, True, False,
            frozenset({"asimddp", "i8mm"}), vectors="neon", byte_products="usdot", core="Arm"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """The machine to generate code for: its instruction set, on which code depends, and its rates,
    by which kernels are chosen. Frozen."""

    isa: str
    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int
    has_fma: bool
    has_masks: bool
    has_rounding: bool
    vectors: str  # the instruction set whose vector instructions it has
    byte_products: str
    has_half_products: bool
    has_matrices: bool
    # The rates below choose kernels. They come from the table of `cores`.
    peak: float  # fp32 flop/s of one core
    l2_bandwidth: float  # bytes/s of one core
    l3_bandwidth: float
    dram_bandwidth: float
    dram_together: float  # of all cores at once
    wait: float  # seconds from phase to phase; 0 if one thread works alone
    wide: float  # speed of vectors of 16 floats over that of 8; 2 with two pipes for both
    model: str = ""
    core: str = ""  # the name of the machine's row in the table of cores; "" if it has none
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    footprint: float = inf  # bytes that one run of a program goes through (`plan/footprint.py`)

    @property
    def has_byte_products(self) -> bool:
        return bool(self.byte_products)

    @property
    def has_exact_tails(self) -> bool:
        """Whether narrower vectors that fit exactly should read and write the last elements of a
        row, as the target has no cheap masks."""
        return not self.has_masks

    @estimate
    def time(self, flops: float, nbytes: float, efficiency: float = 1.0) -> float:
        """Seconds on one core by the roofline model: arithmetic, at `efficiency` * `peak`, or
        memory traffic, whichever takes longer."""
        far = self.l3_bandwidth if nbytes < self.l3 else self.dram_bandwidth
        bandwidth = self.l2_bandwidth if nbytes < self.l2 else far
        return max(flops / (self.peak * efficiency), nbytes / bandwidth)

    def kept(self, growth: float = 1.0) -> float:
        """The share, 0 to 1, of packed weights that are still in the last-level cache from the last
        run. `growth`: bytes of packed weights over bytes of the model's weights."""
        filled = growth * self.footprint / max(1, min(self.l3, OURS))
        return min(1.0, max(0.0, (EMPTY - filled) / (EMPTY - FULL)))

    def weights_rate(self, threads: int = 1, growth: float = 1.0) -> float:
        """Bytes/s at which each of `threads` threads reads packed weights while all do: those
        `kept` in the last-level cache from there, others from memory. `growth`: as for `kept`."""
        kept, far = self.kept(growth), self.dram_bandwidth / self.crowding(threads)
        return 1 / (kept / self.l3_bandwidth + (1 - kept) / far)

    def crowding(self, threads: int) -> float:
        """The factor, at least 1, by which each of `threads` threads reads from memory more slowly
        while all read than one alone does."""
        return max(1.0, self.dram_bandwidth / (self.dram_together / threads))

    @property
    def pipes(self) -> int:
        """How many multiply-adds of vectors a core begins in a cycle: 2, or 1 where vectors of 16
        floats are hardly faster than of 8."""
        return 2 if self.lanes < 16 or self.wide > 1.5 else 1

    @property
    def key(self) -> str:
        """All on which code depends besides its LLVM text, as text, for keys of caches."""
        return f"{self.triple}|{self.cpu}|{self.features}|{self.isa}"

    def __str__(self) -> str:
        return f"{self.model or self.cpu} ({self.isa}, {self.lanes} lanes)"


OURS = 32 << 20
"""The most bytes of a last-level cache that are counted on: other processes and tenants are assumed
to use the rest. Estimated."""
FULL, EMPTY = 0.4, 1.4
"""Working set of a run over the size of the last-level cache. Up to FULL weights come at the
cache's rate; from EMPTY on at that of memory; in between linearly. Measured on Zen 4 (32 MiB): 80
GB/s at 12 MiB, 72 at 16, 57 at 24, 53 at 32, 34 at 48; the command was not recorded."""
FOREIGN = 0.6
"""The rate at which a core reads what another has just written, over that of the last-level cache.
Estimated; `python -m benchmarks.apart` measures the time of one cache line."""


def foreign_time(target: Target, nbytes: float) -> float:
    """Seconds for a core to read `nbytes` that another core has just written."""
    return nbytes / (FOREIGN * target.l3_bandwidth)


def overlap(busy: float, fetching: float) -> float:
    """Seconds for arithmetic (`busy`) and memory traffic (`fetching`) that mostly overlap: the
    longer plus 0.4 of the shorter (estimated)."""
    return max(busy, fetching) + 0.4 * min(busy, fetching)


SOFT = 3
"""The exponent in `streamed` that blends arithmetic and arriving weights: 1 would be their sum,
infinity their maximum. Measured; neither machine nor command was recorded."""


def streamed(
    busy: float, arriving: float, passes: int, exposed: float, crowded: float = 1.0
) -> float:
    """The time of `passes` passes of arithmetic over weights that arrive from memory in the first.

    `busy` is the time of the arithmetic of all passes, `arriving` that of the weights alone. Both
    overlap: together they take (busy^SOFT + arriving^SOFT)^(1/SOFT), a quarter more than one if
    they are equal. The share exposed * min(1, arriving * passes / busy) of the shorter time is not
    hidden, and is added. `crowded`: the factor on `arriving` as other threads read.
    """
    shown = exposed * min(1.0, arriving * passes / busy)
    both = (busy**SOFT + (crowded * arriving) ** SOFT) ** (1 / SOFT)
    return both + shown * min(busy, arriving)


def level(name: str) -> Target:
    """The target for a named instruction set, even one that this machine lacks, or for "host".
    Raises TargetError for an unknown name."""
    if name in ("host", "native"):
        return host()
    if name not in ISAS:
        raise TargetError(
            f"there is no target named {name!r}.{suggest(name, ISAS)}"
            f" Known: host, {', '.join(ISAS)}."
        )
    return _make(ISAS[name])


def runnable(target: Target) -> bool:
    """Whether this process can run code for the target."""
    return not _obstacle(ISAS[target.isa])


def need_runnable(target: Target) -> None:
    """Raise TargetError, which says why, unless this process can run code for the target."""
    if why := _obstacle(ISAS[target.isa]):
        raise TargetError(
            f"this machine cannot run code for {target.isa}: {why}; leave `target` out for the "
            "host's own"
        )


def _obstacle(isa: Isa) -> str:
    """Why this process cannot run code for an instruction set; "" if it can."""
    if isa.arch != arch():
        return f"that is for {isa.arch}, this is {arch()}"
    if missing := sorted(isa.needs - _flags()):
        return f"its processor lacks {', '.join(missing)}"
    if isa.matrices and not may_use_matrices():
        return (
            "Linux refuses this process its matrix registers, as before version 5.16, or where a "
            "thread has an alternate signal stack of less than 16 KiB"
        )
    return ""


@functools.cache
def host() -> Target:
    """This machine, with the widest instruction set of the table that it has. Raises TargetError if
    it has none."""
    fitting = [isa for isa in ISAS.values() if not _obstacle(isa)]
    if not fitting:
        raise TargetError(f"no instruction set is known for machines of type {arch()!r}")
    return _make(max(fitting, key=_width))


def _width(isa: Isa) -> tuple[int, bool, bool, str]:
    """The key of an instruction set: `host` takes the set of the greatest key that the machine
    has."""
    return isa.lanes, isa.matrices, isa.half_products, isa.byte_products


def _make(isa: Isa) -> Target:
    native = isa.arch == arch()
    core = _core() if native else None
    base = Target(
        isa=isa.name, triple=_triple(isa.arch, native), cpu=isa.cpu, features=isa.features,
        lanes=isa.lanes, registers=isa.registers, has_fma=isa.fma, has_masks=isa.masks,
        has_rounding=isa.rounding, vectors=isa.vectors or isa.name,
        byte_products=isa.byte_products, has_half_products=isa.half_products,
        has_matrices=isa.matrices,
        **rates_of(core, isa.core, isa.lanes, isa.fma)._asdict(),
    )  # fmt: skip
    if not native:
        return base
    if isa.matrices:
        may_use_matrices()  # code that uses them unasked ends in SIGILL
    sizes = caches()
    return replace(
        base, model=_model(), core="" if core is None else core.name,
        l1=sizes.get(1, base.l1), l2=sizes.get(2, base.l2),
        l3=sizes.get(3, sizes.get(2, base.l3)),
    )  # fmt: skip


def _core() -> Core | None:
    """The row of this machine's processor in the table of cores; None if it has none."""
    info = cpuinfo()
    try:
        return core_of(info["vendor_id"], int(info["cpu family"]), int(info["model"]))
    except (KeyError, ValueError):
        return None


def _triple(arch: str, native: bool) -> str:
    system = sys.platform if native else "linux"
    if system == "darwin":
        return f"{'arm64' if arch == 'aarch64' else arch}-apple-macosx13.0.0"
    if system == "win32":
        return f"{arch}-pc-windows-msvc"
    return f"{arch}-unknown-linux-gnu"


@functools.cache
def _flags() -> frozenset[str]:
    info = cpuinfo()
    if info:
        return frozenset((info.get("flags") or info.get("Features") or "").split())
    import llvmlite.binding as llvm

    named = llvm.get_host_cpu_features()
    return frozenset(name for name, on in named.items() if on)


@functools.cache
def _model() -> str:
    info = cpuinfo()
    if "model name" not in info:
        import platform

        return platform.processor() or arch()
    place = "/".join(info.get(k, "") for k in ("cpu family", "model", "stepping"))
    return f"{info['model name']} {place}"
