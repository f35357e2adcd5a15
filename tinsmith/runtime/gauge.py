"""Measures this machine's cores with generated loops: arithmetic, reading memory, and the time of
synchronisation. For reports and for rows of `codegen/cores.py`; no kernel is chosen by it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Module
from tinsmith.codegen.cores import Rates
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.library import load_library
from tinsmith.codegen.products import FLOAT32, Product
from tinsmith.codegen.sync import AWAIT, add_await, team_text
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32, I64, PTR, U8
from tinsmith.codegen.workers import Workers, begin
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.runtime.threads import Team

ROUNDS, PHASES = 20_000, 100  # of a measured loop; estimated
STREAMS = 8  # independent vectors that are read at a time; estimated
PIECE = 1 << 17  # floats that are read from memory at a time; estimated


def measure(target: Target) -> Rates:
    """Measure the rates of this machine, each as the best of several short runs."""
    peak = peak_of(target)
    wide = peak / peak_of(target, 8) if target.lanes >= 16 else 1.0
    read = read_loop(target)
    near = []
    for nbytes, times in ((target.l2 // 2, 40), (min(target.l3 // 4, 8 << 20), 12)):
        data = np.ones(nbytes // 4, np.float32)
        count = data.size // (STREAMS * target.lanes) * STREAMS * target.lanes
        seconds = _best(lambda d=data, n=count: read(d.ctypes.data, n), times)
        near.append(4.0 * count / seconds)
    data = _ones(min(4 * target.l3, 256 << 20))
    alone = _memory_rate(read, data)
    together = max(alone, _rate_together(read, data, STREAMS * target.lanes))
    wait = phase_of_two(target) if usable_cores() > 1 else target.wait
    return Rates(peak, near[0], near[1], alone, together, wait, wide)


def _memory_rate(read: Callable[[int, int], None], data: np.ndarray[Any, Any]) -> float:
    """Return the bytes/s that one core reads from memory. `read(address, count)` reads `count`
    floats; `data` are float32, larger than the caches, and read twice in pieces of PIECE floats.
    The lower quartile of their times counts, as other processes disturb the rest. They take some
    ten microseconds, so that most lie within one time slice of the scheduler."""
    seconds = []
    for start in [*range(0, data.size - PIECE + 1, PIECE)] * 2:
        began = perf_counter()
        read(data.ctypes.data + 4 * start, PIECE)
        seconds.append(perf_counter() - began)
    return 4.0 * PIECE / sorted(seconds)[len(seconds) // 4]


def _rate_together(
    read: Callable[[int, int], None], data: np.ndarray[Any, Any], unit: int
) -> float:
    """Return the bytes/s that all usable cores read together, each an equal share of `data`,
    rounded down to a multiple of `unit` floats; 0 if a share is empty. `data` should be larger than
    all caches."""
    cores = usable_cores()
    share = data.size // cores // unit * unit

    def one(number: int) -> None:
        read(data.ctypes.data + 4 * share * number, share)

    workers = Workers(cores)

    def all_at_once() -> None:
        for call in [workers.submit(one, number) for number in range(cores)]:
            call.result()

    try:
        return 4.0 * share * cores / _best(all_at_once, 6)
    finally:
        workers.close()


def _ones(nbytes: int) -> np.ndarray[Any, Any]:
    """Return `nbytes` bytes of float32 ones, or fewer if memory is short."""
    while True:
        try:
            return np.ones(nbytes // 4, np.float32)
        except MemoryError:
            if nbytes < 8 * PIECE:
                raise
            nbytes //= 2


def peak_of(target: Target, lanes: int = 0, row: Product = FLOAT32) -> float:
    """Measure the operations per second of `fma_loop`, as the best of several runs."""
    multiply, flops = fma_loop(target, lanes, row)
    return flops / _best(multiply, 15)


def fma_loop(
    target: Target, lanes: int = 0, row: Product = FLOAT32
) -> tuple[Callable[[], None], float]:
    """Return (run, operations): a function that sums products in registers by the instructions of
    `row`, a row of the table of products, and the operations of a call, two for each product.
    Vectors have `lanes` lanes (0: as those of kernels)."""
    lanes = lanes or block_of(target)
    chains = min(target.registers - 4, 24)  # hides the latency of two pipes; one is the factor
    module = Module(target)
    b = module.function("fma_peak", [("x", PTR)])
    x = b.pointer("x", row.lane)
    factor = x.splat(lanes)
    rest = (x + lanes).cast(row.sums)
    sums = [(rest + lanes * i).load(lanes) for i in range(chains)]
    with b.loop(0, ROUNDS, carry=sums) as loop:
        # a factor that changes, or LLVM would multiply only once
        wide = row.group > 1
        loop.next(
            [row.step(s, s.bitcast(factor.ty) if wide else factor, factor) for s in loop.vars]
        )
    for i, s in enumerate(loop.out):
        (rest + lanes * i).store(s)
    b.ret()
    library = load_library({"fma_peak": module.text()}, target)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("fma_peak"))
    data = np.full(lanes * (chains + 1), 0.5, np.float32)
    run = lambda keep=library: call(data.ctypes.data)  # type: ignore[misc]  # noqa: E731
    return run, 2.0 * ROUNDS * chains * lanes * row.group


def read_loop(target: Target) -> Callable[[int, int], None]:
    """Return a function (address, count) that reads `count` floats, a multiple of STREAMS
    vectors."""
    lanes = target.lanes
    module = Module(target)
    b = module.function("read_peak", [("x", PTR), ("n", I64)])
    x = b.pointer("x", F32)
    sums = [b.zero(F32.x(lanes)) for _ in range(STREAMS)]
    with b.loop(0, b.args["n"], STREAMS * lanes, carry=sums) as loop:
        place = (x + loop.index).fixed()
        loop.next([s + (place + i * lanes).load(lanes) for i, s in enumerate(loop.vars)])
    total = loop.out[0]
    for s in loop.out[1:]:
        total = total + s
    with b.when(total.reduce("add").eq(-1.0)):  # keeps the sums alive; never true of ones
        x.store(total)
    b.ret()
    library = load_library({"read_peak": module.text()}, target)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("read_peak"))
    return lambda address, count, keep=library: call(address, count)  # type: ignore[misc]


def phase_of_two(target: Target, lines: int = 0) -> float:
    """Measure the seconds of a phase of two threads that wait for each other at its end. In each,
    both read and write `lines` cache lines that the other wrote in the phase before."""
    module = Module(target)
    b = module.function("phases", [("table", PTR), ("tid", I64)])
    table = b.pointer("table", PTR)
    block, done = (table + 0).load_pointer(U8), (table + 1).load_pointer(I64)
    data = (table + 2).load_pointer(F32)
    with b.loop(0, PHASES) as phase:
        if lines:
            half = (data + (phase + b.args["tid"]) % 2 * (lines * LINE)).fixed()
            with b.loop(0, lines) as line:
                one = (half + line * LINE).fixed()
                one.store(one.load() + 1.0)
        done.atomic("add", 1, "release")
        b.call(AWAIT, [done, (phase + 1) * 2, block])
    b.ret()
    add_await(module)
    codes = {"phases": module.text(), "team": team_text(target)}
    library = load_library(codes, target)
    team = begin(Team, 2, library.address).result()
    counter = np.zeros(1, np.int64)
    data = np.zeros((2 * lines + 1) * LINE, np.float32)
    pointers = np.array([team.address, counter.ctypes.data, data.ctypes.data], np.int64)
    job, at = library.address("phases"), pointers.ctypes.data
    try:
        return _best(lambda: team.run(job, at, counter.ctypes.data, 1, None), 200) / PHASES
    finally:
        team.stop()


def _best(run: Callable[[], object], times: int) -> float:
    """Return the shortest of `times` runs, in seconds."""
    best = float("inf")
    for _ in range(times):
        start = perf_counter()
        run()
        best = min(best, perf_counter() - start)
    return best
