"""Fork-join in generated code, without C and without system call numbers.

Workers are Python threads parked inside `team_worker`. Nobody waits for a thread to arrive: a job
counts the tiles that are taken and done, and closes its gate when all are done. A worker that has
not arrived by then misses the job. One that has entered delays the job only by the tiles that it
took, and the next job until it has left.

Waiting is a bounded spin, then yields, then a semaphore (between jobs) or naps (inside a job). So a
caller that calls again at once finds the workers awake, and other processes get the core otherwise.
Inside a job, a thread for which others wait so long has probably lost its core to another process;
a nap frees a core to which the system can move it. If threads of a team share a core, every spin
fails: inside a job each failed spin halves the next, until one succeeds. Semaphore, yield and nap
are function pointers in the sync block (`sync_block.py`): the code is the same on every system.

A post of the semaphore may come late: to a worker that took its job without sleeping, or when the
job is over. So a worker that wakes looks at the gate first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen.builder import Builder, Function, Module, Ptr, Val
from tinsmith.codegen.sync_block import (
    ARGUMENT,
    FLAGS,
    INSIDE,
    JOB,
    LINGER,
    NAP,
    NUMBER,
    OPEN,
    PATIENCE,
    POST,
    SEMAPHORES,
    SPINS,
    STOP,
    WAIT,
    YIELD,
)
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32, I64, PTR, U8, Ty

YIELDS, MICROSECONDS = 200, 50
"""Inside a job: yields, some 100 us altogether, before naps of MICROSECONDS each. Estimated."""
LEAST_SPINS = 64
"""The fewest spins inside a job. Most waits for another thread's last tile are shorter, and so
lengthen the next spins again. Estimated."""

AWAIT = Function("await", [("counter", PTR), ("goal", I64), ("block", PTR)])
WORKER = Function("team_worker", [("block", PTR), ("tid", I64)])
SUBMIT = Function(
    "team_submit",
    [("block", PTR), ("threads", I64), ("job", PTR), ("argument", PTR), ("counters", PTR),
     ("words", I64)],
)  # fmt: skip
_JOB = Function("", [("argument", PTR), ("tid", I64)])
_SEMAPHORE = Function("", [("semaphore", PTR)])
_YIELD = Function("", [])
_NAP = Function("", [("microseconds", I32)])


def team_text(target: Target) -> str:
    """The LLVM text of two functions: in `team_worker(block, tid)` a worker waits for jobs until
    the team stops; `team_submit(block, threads, job, argument, counters, words)` runs one job on
    all threads.

    A job is `void job(ptr argument, i64 tid)`. Its call on thread 0 must return only when all its
    work is done; its memory must stay until the next submission has returned. When no worker is
    inside the last job, and before the next starts, `words` i64 at `counters` are set to 0. If the
    stop flag is set, no job runs: the gate stays open, and workers that enter end.
    """
    module = Module(target)
    _add_worker(module)
    _add_submit(module)
    return module.text()


def add_await(module: Module) -> None:
    """Add the function `void await(ptr counter, i64 goal, ptr block)`: it waits until the i64
    counter is at least the goal; its caller then sees all that others stored before that."""
    b = module.function(AWAIT.name, AWAIT.params)
    block, counter = _Block(b), b.pointer("counter", I64)
    patience = block.at(PATIENCE, I32)
    spins = patience.load_atomic("monotonic")
    looks = b.stack(I32, 1)
    looks.store(b.zero(I32))
    with b.repeat() as leave_if:
        leave_if(counter.load_atomic("acquire") >= b.args["goal"])
        _after_a_look(b, looks, spins, block.give_way)
    looked = looks.load()
    with b.when(looked > 0):  # the next spin is half as long if this was in vain, else the longest
        most, half = block.load(SPINS, I32), spins // 2
        less = half.max(LEAST_SPINS).min(most)
        new = (looked >= spins).select(less, most)
        with b.when(new.ne(spins)):
            patience.store_atomic(new, "monotonic")
    b.ret()


def _add_worker(module: Module) -> None:
    """Add `team_worker`: spin, then yield, then sleep until the gate is open for a new job; count
    up the gate, run the job, count down; end if the stop flag is set."""
    b = module.function(WORKER.name, WORKER.params)
    block, tid = _Block(b), b.args["tid"]
    flag, semaphore = block.of_thread(FLAGS, tid), block.of_thread(SEMAPHORES, tid)
    old, entered, looks = b.stack(I64, 1), b.stack(I64, 1), b.stack(I32, 1)
    old.store(b.zero(I64))

    def asks(gate: Val) -> Val:
        """Whether a gate is open for another job than the last that this worker ran."""
        return (gate // NUMBER).ne(old.load()) & (gate & OPEN).ne(0)

    with b.repeat() as leave_if:
        looks.store(b.zero(I32))
        spins, lingers = block.load(SPINS, I32), block.load(LINGER, I32)
        with b.repeat() as go_on_if:
            go_on_if(asks(block.gate.load_atomic("acquire")))

            def linger(vain: Val) -> None:
                b.choose(vain > lingers, sleep, block.let_others)

            def sleep() -> None:
                flag.atomic("xchg", 1, "seq_cst")
                with b.when(asks(block.gate.load_atomic("seq_cst"))):
                    go_on_if(flag.atomic("xchg", 0, "seq_cst").eq(1))
                with b.repeat() as awake_if:
                    awake_if(block.call(WAIT, _SEMAPHORE, [semaphore]).eq(0))

            _after_a_look(b, looks, spins, linger)
        entered.store(b.zero(I64))
        with b.repeat() as stop_if:
            gate = block.gate.load_atomic("monotonic")
            stop_if(asks(gate).eq(0))
            inside = block.gate.compare_exchange(gate, gate + 1, "acquire")
            entered.store(inside.select(gate, 0))
            stop_if(inside)
        with b.when(entered.load().ne(0)):
            quit_ = block.at(STOP, I32).load_atomic("acquire").ne(0)
            with b.when(quit_):
                block.gate.atomic("sub", 1, "release")
            leave_if(quit_)
            block.call_job(tid)
            block.gate.atomic("sub", 1, "release")
            old.store(entered.load() // NUMBER)
    b.ret()


def _add_submit(module: Module) -> None:
    """Add `team_submit`: wait until no worker is inside, clear the counters, set the job, open the
    gate, wake sleepers; unless stopped, run the job as thread 0 and close the gate."""
    b = module.function(SUBMIT.name, SUBMIT.params)
    block, threads = _Block(b), b.args["threads"]
    looks, spins = b.stack(I32, 1), block.load(SPINS, I32)
    looks.store(b.zero(I32))
    with b.repeat() as leave_if:
        gate = block.gate.load_atomic("acquire")
        leave_if((gate & INSIDE).eq(0))
        _after_a_look(b, looks, spins, block.give_way)
    with b.loop(0, b.args["words"]) as word:
        (b.pointer("counters", I64) + word).store(b.zero(I64))
    block.at(JOB, PTR).store(b.args["job"])
    block.at(ARGUMENT, PTR).store(b.args["argument"])
    block.gate.atomic("xchg", gate + (NUMBER + OPEN), "seq_cst")
    with b.loop(1, threads) as thread:
        asleep = block.of_thread(FLAGS, thread).atomic("xchg", 0, "seq_cst").eq(1)
        with b.when(asleep):
            block.call(POST, _SEMAPHORE, [block.of_thread(SEMAPHORES, thread)])
    with b.when(block.at(STOP, I32).load_atomic("acquire").eq(0)):
        block.call_job(b.index(0))
        block.gate.atomic("and", ~OPEN, "release")
    b.ret()


def _after_a_look(b: Builder, looks: Ptr, spins: Val, give_way: Callable[[Val], None]) -> None:
    """Emit what a waiting loop does after a failed check: pause, and count the check in `looks`.
    From the check number `spins` on, also `give_way(n)`, with n the number of checks since then."""
    b.pause()
    looked = looks.load() + 1
    looks.store(looked)
    with b.when(looked >= spins):
        give_way(looked - spins)


class _Block:
    """Access to the sync block (`sync_block.py`) at the function's parameter `block`."""

    def __init__(self, b: Builder) -> None:
        self.b, self.gate = b, b.pointer("block", I64)

    def at(self, offset: int, elem: Ty) -> Ptr:
        return (self.gate.cast(U8) + offset).cast(elem)

    def of_thread(self, offset: int, tid: Val) -> Ptr:
        return (self.gate.cast(U8) + (tid * 64 + offset)).cast(I32)

    def load(self, offset: int, ty: Ty) -> Val:
        return self.at(offset, ty).load()

    def call(self, offset: int, kind: Function, args: Sequence[Ptr | int] = ()) -> Val:
        """Emit a call of the function of type `kind` whose address lies at `offset` in the block;
        return its result, an i32."""
        return self.at(offset, PTR).load_pointer(U8).call(kind, args, I32)

    def call_job(self, tid: Val) -> None:
        argument = self.at(ARGUMENT, PTR).load_pointer(U8)
        self.at(JOB, PTR).load_pointer(U8).call(_JOB, [argument, tid])

    def give_way(self, vain: Val) -> None:
        """Emit how a thread frees its core after failed check number `vain` beyond the spins: it
        yields, or, if that is above YIELDS, naps for MICROSECONDS."""
        self.b.choose(vain > YIELDS, self.nap, self.let_others)

    def nap(self) -> None:
        self.call(NAP, _NAP, [MICROSECONDS])

    def let_others(self) -> None:
        """Emit a yield of the core to whoever waits for it."""
        self.call(YIELD, _YIELD)
