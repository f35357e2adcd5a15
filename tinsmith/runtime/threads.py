"""Teams of threads that wait for work inside generated code.

A team runs one job at a time. A pool leases a team to each running session, so that any number of
sessions may run at once. Workers are daemon threads inside a ctypes call, which releases the GIL;
while they wait for a job they spin (SPINS), then yield (LINGER), then sleep. After `fork` the child
makes new teams. At interpreter exit, idle teams are stopped and joined; others end with the
process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.codegen import sync_block as sync
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.workers import after, begin
from tinsmith.errors import TargetError

SPINS = 400  # of a worker between jobs; of some 25 ns each: about ten microseconds; estimated
KEPT = 8  # idle teams of one size that are kept, or the number of cores, if larger; estimated
LINGER = 300
"""Yields of a worker between jobs, of some 0.6 us each if nobody else wants the core: Python takes
50 us or more from one call to the next. Estimated."""

_JOB = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int64
)
_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class _Crew:
    """A team's worker threads, and the memory that they watch (the sync block). It does not refer
    to its `Team`, so that the threads can be ended when the team is freed."""

    def __init__(self, threads: int, address: Callable[[str], int]) -> None:
        self.threads, self.process = threads, os.getpid()
        self.raw = np.zeros(sync.BLOCK_BYTES + 64, np.uint8)
        shift = -self.raw.ctypes.data % 64
        self._block = self.raw[shift : shift + sync.BLOCK_BYTES]
        self._gate_word = self._block[:8].view(np.uint64)
        self.address = self._block.ctypes.data
        self._semaphores = _put_semaphores(self)
        if threads <= usable_cores():
            for offset in (sync.SPINS, sync.PATIENCE):
                self.put(offset, SPINS, np.int32)
            self.put(sync.LINGER, LINGER, np.int32)
        self.code = address  # keeps it loaded
        self.submit = _JOB(address("team_submit"))
        worker = _WORKER(address("team_worker"))
        self.workers = [
            threading.Thread(
                target=worker, args=(self.address, t), name=f"tinsmith-{t}", daemon=True
            )
            for t in range(1, threads)
        ]

    def put(self, offset: int, value: int, dtype: type[np.integer[Any]] = np.int64) -> None:
        size = np.dtype(dtype).itemsize
        self._block[offset : offset + size].view(dtype)[0] = value

    @property
    def gate(self) -> int:
        return int(self._gate_word[0])

    def start(self) -> None:
        try:
            for thread in self.workers:
                thread.start()
        except BaseException as error:
            self.abandon()  # a thread that was just started may use the memory
            if isinstance(error, RuntimeError):
                raise TargetError(f"the system gives no {self.threads} threads: {error}") from error
            raise

    def stop(self) -> None:
        """End the workers. The team cannot be used afterwards."""
        if self.process != os.getpid() or not self.workers:
            return  # they are the parent's, or have ended
        self.abandon()  # in case an interrupt comes now
        self.put(sync.STOP, 1, np.int32)
        if not self.gate & sync.OPEN:  # it is open if an earlier stop was interrupted
            self.submit(self.address, self.threads, 0, 0, 0, 0)
        workers, self.workers = self.workers, []
        for thread in workers:
            if thread.ident is not None:
                thread.join(2.0)
        if all(thread.ident is not None and not thread.is_alive() for thread in workers):
            del _abandoned[id(self.raw)]

    def abandon(self) -> None:
        """Keep sync block, code and semaphores for good: a worker may still use them."""
        _abandoned[id(self.raw)] = self.raw, self.code, self._semaphores


class Team:
    """`threads` threads that run jobs together: threads - 1 workers and the caller. Not
    thread-safe: one job at a time. The workers end when nobody refers to the team."""

    def __init__(self, threads: int, address: Callable[[str], int]) -> None:
        if not 1 <= threads <= sync.MAX_THREADS:
            raise TargetError(f"threads must be between 1 and {sync.MAX_THREADS}, not {threads}")
        self.threads = threads
        self.crew = _Crew(threads, address)
        self.address, self._submit = self.crew.address, self.crew.submit
        self._owners: tuple[object, ...] = ()
        after(self, self.crew.stop)
        self.crew.start()

    def run(self, job: int, argument: int, counters: int, words: int, owner: object) -> None:
        """Run the generated function at address `job` with (`argument`, the thread's number), on
        the caller (0) and workers that come in time, after clearing the `words` int64 counters at
        address `counters`. Returns when the job's work is done.

        Workers may still be inside the function then: `owner`, which owns the memory of the job, is
        kept until the next job, or until a lease ends with no worker inside.
        """
        self._owners += (owner,)
        self._submit(self.address, self.threads, job, argument, counters, words)
        self._owners = (owner,)

    def release(self) -> None:
        """Drop the owners of past jobs, if no worker is inside the last one any more."""
        if not self.crew.gate & sync.INSIDE:  # the gate is closed: nobody enters
            self._owners = ()

    @property
    def jobs(self) -> int:
        """The number of jobs submitted, modulo 2**32."""
        return self.crew.gate // sync.NUMBER

    def settle(self, jobs: int) -> None:
        """Wait until no worker is inside job number `jobs` (an earlier value of `self.jobs`). If a
        later job has begun there is nothing to wait for: no job begins with workers inside."""
        if self.crew.process != _process:
            return  # a forked child has no workers
        while (gate := self.crew.gate) & sync.INSIDE and gate // sync.NUMBER == jobs:
            time.sleep(0)

    def stop(self) -> None:
        """End the workers; the team cannot be used afterwards."""
        self.crew.stop()


def _put_semaphores(crew: _Crew) -> tuple[Any, ...]:
    """Make a semaphore for each thread of a crew, and write the addresses of the functions wait,
    post, yield and nap into its sync block: those of POSIX on Linux, elsewhere Python's. Return the
    functions, which must be kept as long as workers run."""
    base = crew.address + sync.SEMAPHORES
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for t in range(crew.threads):
            libc.sem_init(ctypes.c_void_p(base + 64 * t), 0, 0)
        functions = (libc.sem_wait, libc.sem_post, libc.sched_yield, libc.usleep)
    else:
        functions = _portable(base, crew.threads)
    offsets = (sync.WAIT, sync.POST, sync.YIELD, sync.NAP)
    for offset, function in zip(offsets, functions, strict=True):
        crew.put(offset, ctypes.cast(function, ctypes.c_void_p).value or 0)
    return functions


def _portable(base: int, threads: int) -> tuple[Any, ...]:
    """Return C functions wait, post, yield and nap that use Python's semaphores. Native code passes
    the address base + 64 t to wait and post; it stands for the semaphore of thread t."""
    made = [threading.Semaphore(0) for _ in range(threads)]
    one = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

    def wait(address: int) -> int:
        return 0 if made[(address - base) // 64].acquire() else 1

    def post(address: int) -> int:
        made[(address - base) // 64].release()
        return 0

    def give_way() -> int:
        return 0

    def nap(microseconds: int) -> int:
        time.sleep(microseconds / 1e6)
        return 0

    few = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    return one(wait), one(post), ctypes.CFUNCTYPE(ctypes.c_int)(give_way), few(nap)


_process = os.getpid()
_free: dict[int, list[Team]] = {}
_abandoned: dict[int, tuple[object, ...]] = {}  # id of a sync block -> objects that workers use


class Lease:
    """`with Lease(threads, address) as team`: a team that nobody else uses meanwhile, from the pool
    or new; the pool gets it unless full. `address`: name -> address of the team's functions."""

    def __init__(self, threads: int, address: Callable[[str], int]) -> None:
        self._threads, self._address = threads, address

    def __enter__(self) -> Team:
        try:
            self._team = _free.setdefault(self._threads, []).pop()
        except IndexError:
            # Interrupted, Thread.start may keep a lock that the new thread waits for.
            self._team = begin(Team, self._threads, self._address).result()
        return self._team

    def __exit__(self, *_: object) -> None:
        if self._team.crew.process != _process:
            return  # the workers were not forked
        self._team.release()
        free = _free.setdefault(self._threads, [])
        if len(free) < KEPT or len(free) < usable_cores():
            free.append(self._team)
        else:
            self._team.stop()


def _forget() -> None:
    """Forget all teams, in a forked child: the parent's workers do not exist here."""
    global _process
    _process = os.getpid()
    _free.clear()


def _stop_all() -> None:
    for teams in list(_free.values()):
        while teams:
            with contextlib.suppress(IndexError):  # a daemon thread was faster
                teams.pop().stop()
    _free.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
