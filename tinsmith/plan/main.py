"""The functions that run a plan's native segments: one call after the other, no dispatch.

`void seg<i>(ptr table, i64 tid)` runs segment i; every thread of the team calls it. The table holds
pointers: to the arena, weights and so on, then to inputs and outputs (slots: `plan.py`). If the one
to time stamps is not null, each thread has `stamp_words` words there: word 0 is when the last step
ended, the others add up the cycles of each step.

If a plan is `entered`, `void enter(ptr table, ptr array0, ...)` is a whole call: it gets the array
objects of inputs and outputs, and runs segment 0.

With several threads every call of a kernel has counters: the tiles that are done, and, for each
thread, how many pieces of that thread's part have been taken. A thread takes its own part first,
whose data is in its cache, then helps others. It goes on when all tiles are done (after a call
without a barrier: when all are taken).

Segments differ between plans, so they must be cheap to compile. Functions that all plans share (to
take tiles, to wait, to stamp times) are a module of their own, which the cache holds.

One thread runs the steps of a region for a whole micro-batch: inside, they need no counters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from itertools import groupby

from tinsmith.codegen.builder import Builder, Function, Module, Ptr, Val
from tinsmith.codegen.sync import AWAIT, add_await
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I64, PTR, U8
from tinsmith.plan.plan import (
    ARENA,
    COUNTERS,
    ENTER,
    HEADER,
    LINE,
    MADE,
    PORTS,
    SIZES,
    STAMPS,
    SYNC,
    WEIGHTS,
    WORKSPACE,
    Call,
    Plan,
    Ref,
    Step,
)
from tinsmith.records import dataclass
from tinsmith.sizes import Size

STAMP = Function("stamp", [("stamps", PTR), ("index", I64)])
NUMBERS = ("sweeps", "groups", "tiles", "pieces", "tid")
TAKE = Function("take", [("own", PTR), ("done", PTR), *((name, I64) for name in NUMBERS)])
FIRST, LAST, BEGIN, END, TRIED, OWN = range(6)
"""Words that a thread keeps while it takes tiles: the sweeps [FIRST, LAST) that it has taken, of
each the tiles [BEGIN, END), and how many threads' parts it has TRIED. OWN words in all."""
PIECES = 4
"""The least number of pieces into which a thread's part of a call is cut, if it has as many tiles.
Estimated."""


def main_text(plan: Plan, target: Target) -> tuple[str, list[Size]]:
    """LLVM IR of all segment functions of a plan, and of `enter` if the plan is `entered`; and the
    free sizes that the code reads from the table of numbers, behind `Plan.sizes`."""
    sizes: list[Size] = []
    module = Module(target, quick=True)
    for function in (AWAIT, STAMP, TAKE) if plan.threads > 1 else (STAMP,):
        _declare(module, function)
    native = [steps for kind, steps in plan.segments() if kind == "native"]
    for index, steps in enumerate(native):
        sizes += _segment(module, plan, steps, f"seg{index}", len(plan.sizes) + len(sizes))
    if plan.entered:
        _enter(module, plan)
    return module.text(), sizes


def helpers_text(threads: int, target: Target) -> str:
    """LLVM IR of the functions that the segment functions of every plan for so many `threads` call:
    `stamp` and, for several threads, `take` and the waiting (`sync.add_await`)."""
    module = Module(target)
    _stamp(module)
    if threads > 1:
        _take(module, threads)
        add_await(module)
    return module.text()


def _declare(module: Module, function: Function) -> None:
    types = ", ".join(t.llvm for _, t in function.params)
    module.declare(function.name, f"declare void @{function.name}({types})")


def _stamp(module: Module) -> None:
    """Emit the function `stamp(stamps, index)`, for profiles: it adds the cycles since the last
    stamp to word `index` of `stamps`, and stores the cycle counter in word 0. It does nothing if
    `stamps` is null."""
    b = module.function(STAMP.name, STAMP.params)
    stamps, index = b.pointer("stamps", I64), b.args["index"]
    with b.when(stamps.is_some()):
        now = b.intrinsic("llvm.readcyclecounter", I64)
        place = stamps + index
        place.store(place.load() + now - stamps.load())
        stamps.store(now)
    b.ret()


def _take(module: Module, threads: int) -> None:
    """Emit the function `take`, by which a thread gets its next tiles of a call: it adds the tiles
    that the thread has finished to the number that are done, and takes a piece of the thread's own
    part, or else of another thread's. The piece is in the words FIRST to END of `own`.

    The parameters of `take` (NUMBERS) say how a call is cut. A thread's part is an equal share of
    the `tiles` of every one of the `sweeps`. A piece of it is one stretch of the share, of `pieces`
    equal ones, in all sweeps of one group, of `groups` equal ones. If nothing is left, BEGIN is not
    below END, and the words are ready for the next call.
    """
    b = module.function(TAKE.name, TAKE.params)
    own, done = b.pointer("own", I64), b.pointer("done", I64)
    sweeps, groups, tiles, pieces, tid = (b.args[name] for name in NUMBERS)
    begin, end = (own + BEGIN).load(), (own + END).load()
    with b.when(begin < end):
        done.atomic("add", (end - begin) * ((own + LAST).load() - (own + FIRST).load()), "release")
    for word in (BEGIN, END):
        (own + word).store(b.index(0))
    with b.repeat() as leave_if:
        tried = (own + TRIED).load()
        over = tried >= threads
        (own + TRIED).store(over.select(0, tried))
        leave_if(over)
        whose = (tid + tried) % threads
        start, stop = whose * tiles // threads, (whose + 1) * tiles // threads
        taken = (done + (whose + 1) * LINE).atomic("add", 1)
        group, piece = taken // pieces, taken % pieces
        found = (group < groups) & (start < stop)
        (own + FIRST).store(group * sweeps // groups)
        (own + LAST).store((group + 1) * sweeps // groups)
        (own + BEGIN).store(found.select(start + piece * (stop - start) // pieces, 0))
        (own + END).store(found.select(start + (piece + 1) * (stop - start) // pieces, 0))
        (own + TRIED).store(found.select(tried, tried + 1))
        leave_if(found)
    b.ret()


def _line(threads: int) -> int:
    return LINE * (1 + threads)


def _segment(module: Module, plan: Plan, steps: list[Step], name: str, first: int) -> list[Size]:
    """Emit the function `name`, which runs the `steps` of a segment. Returns the free sizes that
    the function reads: they are to lie in the table of numbers (slot SIZES) from index `first`."""
    b = module.function(name, [("table", PTR), ("tid", I64)])
    table = b.pointer("table", PTR)
    used = {(r.space, r.index) for s in steps for c in s.calls for r in (*c.refs, *c.sizes)}
    stamps = (table + STAMPS).load_pointer(I64)
    if plan.threads > 1:
        row, wanted = stamps + b.args["tid"] * plan.stamp_words, stamps.is_some()
        stamps = row.of(wanted.select(row.value, b.null(I64).value))
    own = b.null(I64)
    if plan.threads > 1:
        own = b.stack(I64, OWN)
        for word in range(OWN):
            (own + word).store(b.index(0))
    emit = _Segment(
        b, module, plan.threads, {key: _base(table, plan, *key) for key in sorted(used)},
        (table + SYNC).load_pointer(U8), (table + COUNTERS).load_pointer(I64), stamps, own,
    )  # fmt: skip
    emit.stamp(-1)
    numbered = list(enumerate(steps))
    for region, group in groupby(numbered, lambda row: row[1].region):
        if region:
            emit.region(list(group))
        else:
            for k, step in group:
                emit.step(k, step)
    emit.flush()
    b.tables.sizes_from = (
        f"%sizes.at = getelementptr ptr, ptr %table, i64 {SIZES}",
        "%sizes.all = load ptr, ptr %sizes.at, align 8",
        f"%sizes = getelementptr i64, ptr %sizes.all, i64 {first}",
    )
    b.ret()
    return list(b.tables.sizes)


def _enter(module: Module, plan: Plan) -> None:
    """Emit the function of a whole call, `enter`: it reads the addresses of elements from the array
    objects of inputs and outputs, puts them into the table, and runs segment 0."""
    count = len(plan.inputs) + len(plan.outputs)
    b = module.function(ENTER, [("table", PTR), *((f"array{k}", PTR) for k in range(count))])
    table = b.pointer("table", PTR)
    header = (table.cast(I64) + HEADER).load()
    read = plan.addressed()
    for k in (k for k in range(count) if k in read or k >= len(plan.inputs)):
        data = (b.pointer(f"array{k}", U8) + header).cast(PTR)
        (table + (PORTS + k)).store(data.load())
    b.call(Function("seg0", [("table", PTR), ("tid", I64)]), [table, 0])
    b.ret()


@dataclass
class _Segment:
    """Emits the steps of one segment.

    bases      pointer to each memory space that the steps use, by (space, index)
    sync       the block of memory by which threads wait for each other
    counters   the segment's counters: for each call, how many tiles are done, and what is taken
    stamps     this thread's time stamps (null: none)
    own        the words that this thread keeps while it takes tiles (FIRST to TRIED)
    waiting    (counter, tiles) of earlier calls that the code so far has not waited for (`flush`)
    lines      how many calls have counters so far
    functions  kernel functions by symbol
    """

    b: Builder
    module: Module
    threads: int
    bases: dict[tuple[str, int], Ptr]
    sync: Ptr
    counters: Ptr
    stamps: Ptr
    own: Ptr
    waiting: list[tuple[Ptr, int]] = field(default_factory=list)
    lines: int = 0
    functions: dict[str, Function] = field(default_factory=dict)
    places: dict[tuple[Ref, int], Ptr] = field(default_factory=dict)
    """Addresses that calls outside of regions share."""

    def step(self, index: int, step: Step) -> None:
        b, tid = self.b, self.b.args["tid"]
        for call in step.calls:
            run = self.caller(call, None)
            if self.threads == 1:
                _alone(b, call, run)
                continue
            done = self.line()
            if call.repeat > 1:
                _repeated(b, done, self.sync, call, self.threads, tid, run)
                self.flush()
            else:
                self.share(done, call.tiles, run, call.sweep)
                self.waiting.append((done, call.tiles))
                if call.barrier:
                    self.flush()
        self.stamp(index)

    def region(self, steps: list[tuple[int, Step]]) -> None:
        """Emit a region, given its steps with their indices in the segment: all of them run for one
        micro-batch after the other. With several threads each takes whole micro-batches, and all
        wait at the end."""
        micro_batches = steps[0][1].micro_batches
        if self.threads == 1:
            self.micro_batches(steps, 0, micro_batches)
            return
        self.flush()
        done = self.line()

        def run(begin: Val | int, end: Val | int, _: Val | int) -> None:
            self.micro_batches(steps, begin, end)

        self.share(done, micro_batches, run)
        self.waiting.append((done, micro_batches))
        self.flush()
        self.stamp(steps[-1][0])

    def micro_batches(
        self, steps: list[tuple[int, Step]], begin: Val | int, end: Val | int
    ) -> None:
        with self.b.loop(begin, end) as micro_batch:
            for index, step in steps:
                for call in step.calls:
                    _alone(self.b, call, self.caller(call, micro_batch))
                self.stamp(index)

    def line(self) -> Ptr:
        self.lines += 1
        return self.counters + (self.lines - 1) * _line(self.threads)

    def flush(self) -> None:
        for counter, tiles in self.waiting:
            self.b.call(AWAIT, [counter, tiles, self.sync])
        self.waiting = []

    def stamp(self, index: int) -> None:
        """Emit a time stamp: the cycles since the last one count for step `index`. With -1, which
        begins a segment, they go to word 0, where the time of the stamp itself replaces them."""
        self.b.call(STAMP, [self.stamps, index + 1])

    def share(self, done: Ptr, tiles: int, run: Callable[..., None], sweep: int = 0) -> None:
        """Emit a loop in which each thread takes tiles of a call, and runs them by `run(begin, end,
        0)`, until none is left to take; it does not wait until all are done. `done` are the call's
        counters. Threads share `sweep` tiles at a time (`Call.sweep`); if these are fewer than the
        threads, or 0, they share all tiles at once."""
        b, own = self.b, self.own
        sweep = sweep if sweep >= self.threads else tiles
        sweeps, part = tiles // sweep, sweep // self.threads
        groups = min(sweeps, PIECES)
        pieces = max(1, part // max(1, part * groups // PIECES))
        with b.repeat() as leave_if:
            b.call(TAKE, [own, done, sweeps, groups, sweep, pieces, b.args["tid"]])
            begin, end = (own + BEGIN).load(), (own + END).load()
            leave_if(begin >= end)
            if sweeps == 1:
                run(begin, end, 0)
            else:
                with b.loop((own + FIRST).load(), (own + LAST).load()) as number:
                    run(number * sweep + begin, number * sweep + end, 0)

    def caller(self, call: Call, micro_batch: Val | None) -> Callable[..., None]:
        """A function `run(begin, end, step)` that emits a kernel's call for tiles [begin, end) in
        repetition `step`; `micro_batch` is the number of the micro-batch, None outside regions."""
        function = self.functions.get(call.symbol)
        if function is None:
            params = [(f"p{i}", PTR) for i in range(len(call.refs))]
            params += [(n, I64) for n in ("begin", "end", "step")[: 3 if call.repeat > 1 else 2]]
            params += [("sizes", PTR)] * len(call.sizes)
            function = self.functions[call.symbol] = Function(call.symbol, params)
            _declare(self.module, function)
        pointers = [self.place(r, call.workspace, micro_batch) for r in call.refs]
        sizes = [self.place(r, 0, micro_batch) for r in call.sizes]

        def run(begin: Val | int, end: Val | int, step: Val | int) -> None:
            numbers = [begin, end, step][: 3 if call.repeat > 1 else 2]
            self.b.call(function, [*pointers, *numbers, *sizes])

        return run

    def place(self, ref: Ref, workspace: int, micro_batch: Val | None) -> Ptr:
        if micro_batch is not None:
            return self.address(ref, workspace, micro_batch)
        found = self.places.get((ref, workspace))
        if found is None:
            found = self.places[ref, workspace] = self.address(ref, workspace, None)
        return found

    def address(self, ref: Ref, workspace: int, micro_batch: Val | None) -> Ptr:
        place = self.bases[ref.space, ref.index] + ref.offset
        if ref.space == "workspace" and self.threads > 1:
            place = place + self.b.args["tid"] * workspace
        if ref.stride and micro_batch is not None:
            place = place + micro_batch * ref.stride
        return place.fixed()


def _alone(b: Builder, call: Call, run: Callable[..., None]) -> None:
    if call.repeat == 1:
        run(0, call.tiles, 0)
        return
    with b.loop(0, call.repeat) as step:
        run(0, call.tiles, step)


def _repeated(
    b: Builder, done: Ptr, sync: Ptr, call: Call, threads: int, tid: Val, run: Callable[..., None],
) -> None:  # fmt: skip
    """Emit a call that is repeated (`Call.repeat`), by several threads: thread `tid` runs the same
    equal share of the tiles in every repetition, by `run(begin, end, repetition)`, and waits for
    the others after each, at the counter `done`."""
    begin = tid * call.tiles // threads
    end = (tid + 1) * call.tiles // threads
    with b.loop(0, call.repeat) as step:
        with b.when(begin < end):
            run(begin, end, step)
            done.atomic("add", end - begin, "release")
        b.call(AWAIT, [done, (step + 1) * call.tiles, sync])


def _base(table: Ptr, plan: Plan, space: str, index: int) -> Ptr:
    ports = len(plan.inputs)
    if space in ("input", "output"):
        slot = PORTS + index + (ports if space == "output" else 0)
    elif index:
        slot = PORTS + ports + len(plan.outputs) + index - 1
    else:
        slot = {"arena": ARENA, "weights": WEIGHTS, "workspace": WORKSPACE, "sizes": SIZES,
                "made": MADE}[space]  # fmt: skip
    return (table + slot).load_pointer(U8)
