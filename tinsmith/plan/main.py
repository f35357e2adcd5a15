"""The functions that run a plan's native segments: one call after the other, no dispatch.

`void seg<i>(ptr table, i64 tid)` runs segment i for thread `tid`; every thread of the team calls
it, and it ends in a barrier. The table holds pointers: arena, weights, workspace, sync block,
time stamps, then inputs and outputs. Where there is room for time stamps (not null), thread 0
stores a cycle count after every step.
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Builder, Function, Module, Ptr, Val
from tinsmith.codegen.sync import CLAIMS, barrier_text, declarations
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I64, PTR, U8
from tinsmith.plan.plan import (
    ARENA,
    PORTS,
    STAMPS,
    SYNC,
    WEIGHTS,
    WORKSPACE,
    Call,
    Plan,
    Ref,
    Step,
)

BARRIER = Function("barrier", [("c", PTR)])
CHUNKS = 4
"""Pieces for each thread into which the tiles of a call are cut."""


def main_text(plan: Plan, target: Target) -> str:
    """LLVM IR of all segment functions of a plan."""
    module = Module(target)
    native = [steps for kind, steps in plan.segments() if kind == "native"]
    for index, steps in enumerate(native):
        _segment(module, plan, steps, f"seg{index}")
    text = module.text()
    if plan.threads > 1:
        head, _, rest = text.partition("define ")
        text = f"{head}{declarations(target)}\n{barrier_text(target, plan.threads)}\ndefine {rest}"
    return text


def _segment(module: Module, plan: Plan, steps: list[Step], name: str) -> None:
    b = module.function(name, [("table", PTR), ("tid", I64)])
    table = b.pointer("table", PTR)
    used = {(r.space, r.index) for s in steps for c in s.calls for r in c.refs}
    bases = {key: _base(table, plan, *key) for key in sorted(used)}
    sync = (table + SYNC).load_pointer(U8)
    stamps = (table + STAMPS).load_pointer(I64)
    tid = b.args["tid"]
    claimed = 0
    stamped = tid.eq(0) & (table + STAMPS).cast(I64).load().ne(0)
    _stamp(b, stamps, 0, stamped)
    for k, step in enumerate(steps):
        for call in step.calls:
            run = _caller(b, module, plan.threads, bases, call, tid)
            claims = plan.threads > 1 and call.barrier and call.repeat == 1
            if claims and call.tiles > plan.threads:
                _claim(b, sync, claimed, call.tiles, plan.threads, tid, run)
                b.call(BARRIER, [sync])
                claimed += 1
            else:
                _divide(b, sync, call, plan.threads, tid, run)
        _stamp(b, stamps, k + 1, stamped)
    if plan.threads > 1:
        # Two claims in a row reset each other's counter: an odd one out is reset here, and the
        # barrier tells that every thread is done.
        with b.when(tid.eq(0)):
            for offset in CLAIMS:
                (sync + offset).cast(I64).store(b.const(0, I64))
        b.call(BARRIER, [sync])
    b.ret()


def _divide(
    b: Builder, sync: Ptr, call: Call, threads: int, tid: Val, run: Callable[..., None]
) -> None:
    """Each thread takes its equal part of the tiles, the same at each repetition."""

    def once(step: Val | int) -> None:
        if threads == 1:
            run(0, call.tiles, step)
            return
        begin = tid * call.tiles // threads
        end = (tid + 1) * call.tiles // threads
        with b.when(begin < end):
            run(begin, end, step)
        if call.barrier:
            b.call(BARRIER, [sync])

    if call.repeat == 1:
        once(0)
    else:
        with b.loop(0, call.repeat) as step:
            once(step)


def _claim(
    b: Builder,
    sync: Ptr,
    index: int,
    tiles: int,
    threads: int,
    tid: Val,
    run: Callable[..., None],
) -> None:
    """Threads take the next tiles as they become free, so that one that is held up holds up
    nobody. The other counter is reset meanwhile: the last barrier ended its use."""
    counter = (sync + CLAIMS[index % 2]).cast(I64)
    with b.when(tid.eq(0)):
        (sync + CLAIMS[(index + 1) % 2]).cast(I64).store(b.const(0, I64))
    chunk = max(1, tiles // (threads * CHUNKS))
    with b.repeat() as leave_if:
        begin = counter.atomic_add(chunk)
        leave_if(begin >= tiles)
        run(begin, b.minimum(begin + chunk, tiles), 0)


def _base(table: Ptr, plan: Plan, space: str, index: int) -> Ptr:
    slot = {"arena": ARENA, "weights": WEIGHTS, "workspace": WORKSPACE}.get(space)
    if slot is None:
        slot = PORTS + index + (len(plan.inputs) if space == "output" else 0)
    return (table + slot).load_pointer(U8)


def _caller(
    b: Builder,
    module: Module,
    threads: int,
    bases: dict[tuple[str, int], Ptr],
    call: Call,
    tid: Val,
) -> Callable[..., None]:
    """What emits the call of one function: `run(begin, end, step)`."""
    params = [(f"p{i}", PTR) for i in range(len(call.refs))]
    params += [(n, I64) for n in ("begin", "end", "step")[: 3 if call.repeat > 1 else 2]]
    function = Function(call.symbol, params)
    signature = ", ".join(t.llvm for _, t in params)
    module.declare(call.symbol, f"declare void @{call.symbol}({signature})")

    def address(ref: Ref) -> Ptr:
        place = bases[ref.space, ref.index] + ref.offset
        if ref.space == "workspace" and threads > 1:
            place = place + tid * call.workspace
        return place.fixed()

    pointers = [address(r) for r in call.refs]

    def run(begin: Val | int, end: Val | int, step: Val | int) -> None:
        b.call(function, [*pointers, begin, end, step][: len(params)])

    return run


def _stamp(b: Builder, stamps: Ptr, index: int, stamped: Val) -> None:
    with b.when(stamped):
        now = b.intrinsic("llvm.readcyclecounter", I64)
        (stamps + index).store(now)
