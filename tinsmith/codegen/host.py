"""What the system says of the machine that this process runs on, read without LLVM."""

from __future__ import annotations

import functools
import os
import sys

PERMIT, MATRIX_STATE, SYSCALL = 0x1023, 18, 158  # ARCH_REQ_XCOMP_PERM, XTILEDATA, arch_prctl
CACHES = "/sys/devices/system/cpu/cpu0/cache"


@functools.cache
def may_use_matrices() -> bool:
    """Ask Linux for permission to use matrix registers, and return whether this process has it
    (Documentation/arch/x86/xstate.rst)."""
    if sys.platform != "linux":
        return False
    import ctypes

    return ctypes.CDLL(None).syscall(SYSCALL, PERMIT, MATRIX_STATE) == 0


@functools.cache
def arch() -> str:
    """The type of this machine's processor, as the table of instruction sets names it: "x86_64",
    "aarch64"."""
    if hasattr(os, "uname"):
        machine = os.uname().machine.lower()  # what `platform` says, without its 1 ms
    else:
        import platform

        machine = platform.machine().lower()
    return {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@functools.cache
def cpuinfo() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo, by name; {} on other systems."""
    try:
        with open("/proc/cpuinfo", "rb", 0) as file:
            first = file.read().partition(b"\n\n")[0].decode(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@functools.cache
def caches() -> dict[int, int]:
    """Level of a data or unified cache -> its bytes, as Linux tells them; {} on other systems."""
    sizes: dict[int, int] = {}
    try:
        names = [n for n in os.listdir(CACHES) if n.startswith("index")]
    except OSError:
        return sizes
    for name in names:
        try:
            kind, size, depth = (_word(f"{CACHES}/{name}/{w}") for w in ("type", "size", "level"))
            if kind in ("Data", "Unified") and size[-1:] in ("K", "M"):
                sizes[int(depth)] = int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]
        except (OSError, ValueError):
            continue
    return sizes


def _word(path: str) -> str:
    with open(path, "rb", 0) as file:
        return file.read().decode().strip()


TOLD = (
    "vendor_id", "cpu family", "model", "stepping", "model name", "flags", "Features",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part",
)  # fmt: skip
"""The lines of `cpuinfo` that do not change while a machine runs."""


def identity() -> str:
    """A text that differs between machines for which different code is made; "" where /proc/cpuinfo
    does not tell. It says whether this process may use matrix registers, for which it asks."""
    info = cpuinfo()
    told = [info.get(name, "") for name in TOLD]
    matrices = "amx_tile" in info.get("flags", "").split() and may_use_matrices()
    rest = sys.platform, arch(), matrices, sorted(caches().items())
    return repr((*told, *rest)) if any(told) else ""


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
