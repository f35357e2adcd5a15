"""Programs of their own for signatures that come often, compiled on another thread.

The program for free sizes computes a new signature at once. A signature whose calls have taken as
long as compiling a program for it (`Takeover.again`) gets one, which takes over when it is ready:
so compiling at most doubles the time spent. The process compiles one such program at a time. That
stops when the process ends or forks, and begins anew in the parent after a fork.
"""

from __future__ import annotations

import atexit
import os
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable

from tinsmith.codegen.workers import Call, begin
from tinsmith.compiler.sections import Told
from tinsmith.errors import Cancelled, TargetError, TinsmithError
from tinsmith.progress import reported
from tinsmith.runtime.forks import working
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.often import NEVER, OFTEN, Again
from tinsmith.runtime.program import Program

MOST_OWN = 8
"""Signatures of a model that get programs of their own, at most. A net keeps 16 programs.
Estimated."""
PRICE = 1.0
"""Seconds that compiling a program is assumed to take before one was compiled. Estimated."""
POLL = 8
"""Calls after which it is asked again whether a program is ready. Estimated."""

TRIES = 8
"""Times that a program is begun anew after forks of the process, at most. Estimated."""

Made = tuple[Program, Told]


class Takeover:
    """Has programs compiled, on another thread, for signatures of one model that come often, and
    returns them when they are ready. Thread-safe.

    make   compiles the program of a signature; a method of the model, which jobs do not keep alive
    note   called with a text that says why a signature has got no program
    price  seconds that compiling a program takes
    """

    def __init__(self, make: Callable[[Signature], Made], note: Callable[[str], object]) -> None:
        self.price = PRICE
        self._make, self._note = make, note
        self._lock = allocate_lock()
        self._weighed: set[Signature] = set()
        self._jobs: dict[Signature, _Job] = {}

    def again(self, signature: Signature, seconds: float) -> Made | Again:
        """Return the program of a signature if it is ready; else the number of calls after which to
        ask again, or NEVER (it failed, or MOST_OWN others have theirs). First asked after OFTEN
        calls, of `seconds` each; begins to compile once the calls have taken as long as compiling
        (`price`)."""
        with working(), self._lock:
            job = self._jobs.get(signature)
            if job is None:
                calls = int(self.price / max(seconds, 1e-9)) - OFTEN
                if signature not in self._weighed and calls > 0:
                    self._weighed.add(signature)
                    return calls
                if len(self._jobs) >= MOST_OWN:
                    return NEVER
                self._jobs[signature] = job = _Job(self._make, signature)
                _line.add(job)
            if not job.ended:
                return POLL
            if job.why:
                self._note(job.why)
                job.why = ""
            return job.take() or NEVER

    def settle(self) -> None:
        """Wait until all programs begun for this model are ready or have failed."""
        while True:
            with working(), self._lock:
                waiting = [job for job in self._jobs.values() if not job.ended]
            if not waiting or not _line.wait():
                return

    def may_have(self, signature: Signature) -> bool:
        """Whether a stored program for this signature alone is to run instead of one for free
        sizes. True for the first MOST_OWN signatures that are asked about or compiled here."""
        with working(), self._lock:
            if signature not in self._jobs and len(self._jobs) < MOST_OWN:
                self._jobs[signature] = job = _Job(self._make, signature)
                job.ended = True  # it need not be made
            return signature in self._jobs


class _Job:
    """The compilation of one program: waiting, `ended` with a program (`take`), or `ended` without
    one; then `why` says the reason."""

    def __init__(self, make: Callable[[Signature], Made], signature: Signature) -> None:
        self._make, self._signature = weakref.WeakMethod(make), signature
        self._made: Made | None = None
        self._taken: weakref.ref[Program] | None = None
        self.why, self.ended = "", False
        self._tries = 0

    def run(self, listener: Callable[[int, int, str], object]) -> None:
        """Compile the program. Raises Cancelled if the `listener` of its progress does: then it can
        be run again, TRIES times in all. Other errors are kept in `why`."""
        try:
            make = self._make()
            if make is not None:  # somebody keeps the model
                with reported(listener, ""):
                    self._made = make(self._signature)
            del make
        except Cancelled as error:
            self._tries += 1
            if self._tries < TRIES:
                raise
            self.why = f"shapes: {self._signature} got no program of its own: {error}"
        except Exception as error:  # also of operators, passes and kernels of users
            what = str(error) if isinstance(error, TinsmithError) else repr(error)
            self.why = f"shapes: {self._signature} got no program of its own: {what}"
        self.ended = True

    def take(self) -> Made | None:
        """Return the program, with its texts, of a job that has ended (it does not wait); None if
        compiling failed. After the first call the job keeps only a weak reference: None also if
        nobody else holds the program any more."""
        made, self._made = self._made, None
        if made is not None:
            self._taken, self.told = weakref.ref(made[0]), made[1]
        program = self._taken() if self._taken is not None else None
        return None if program is None else (program, self.told)


class _Line:
    """The queue of this process's jobs, which one thread runs in turn. Thread-safe."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._jobs: deque[_Job] = deque()
        self._call: Call[None] | None = None
        self._halts = 0

    def add(self, job: _Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._begin()

    def _begin(self) -> None:
        if self._jobs and self._call is None and not self._halts:
            try:
                self._call = begin(self._serve)
            except TargetError as error:  # no thread
                for job in self._jobs:
                    job.why, job.ended = str(error), True
                self._jobs.clear()

    def _serve(self) -> None:
        while True:
            with self._lock:
                if self._halts or not self._jobs:
                    self._call = None
                    return
                job = self._jobs[0]
            try:
                job.run(self._listen)
            except Cancelled:
                continue
            with self._lock:
                self._jobs.remove(job)
            del job

    def _listen(self, done: int, total: int, what: str) -> None:
        if self._halts:
            raise Cancelled("the process forked or ended while it was made")

    def wait(self) -> bool:
        """Wait until the thread has run all jobs. Return whether it was running."""
        with self._lock:
            call = self._call
        if call is not None:
            call.wait()
        return call is not None

    def halt(self) -> None:
        """Cancel the running compilation, wait for its end, and begin none until `go_on`."""
        with self._lock:
            self._halts += 1
        self.wait()

    def go_on(self) -> None:
        with self._lock:
            self._halts -= 1
            self._begin()

    def forget(self) -> None:
        """Drop all jobs, in a forked child: the thread that runs them exists in the parent only."""
        for job in self._jobs:
            job.ended = True
        self.__init__()


_line = _Line()
atexit.register(_line.halt)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_line.halt, after_in_parent=_line.go_on, after_in_child=_line.forget)
