"""Fork-join and barriers in generated code, without C and without system call numbers.

Workers are Python threads parked inside `worker`. Waiting is a bounded spin, then yields (inside a
job) or a semaphore (between jobs); semaphore and yield are function pointers in the sync block, so
the code is the same on every system.

Sync block, in bytes: 0 generation, 64 barrier count, 128 barrier generation, 192 stop flag,
256 job function, 264 job argument, 320 wait, 328 post, 336 yield, 344 spins (i32), 384 and 448
counters from which tiles are claimed;
for thread t: FLAGS + 64 t is 1 while it sleeps, SEMAPHORES + 64 t is its semaphore.
"""

from __future__ import annotations

from tinsmith.codegen.target import Target

GENERATION, COUNT, BARRIER, STOP, JOB, ARGUMENT = 0, 64, 128, 192, 256, 264
WAIT, POST, YIELD, SPINS = 320, 328, 336, 344
CLAIMS = (384, 448)
FLAGS, SEMAPHORES = 4096, 8192
MAX_THREADS = 64
BLOCK_BYTES = SEMAPHORES + 64 * MAX_THREADS

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def _at(name: str, offset: int, base: str = "%c") -> str:
    return f"  {name} = getelementptr i8, ptr {base}, i64 {offset}\n"


def _pause(target: Target) -> tuple[str, str]:
    return _PAUSE.get(target.triple.split("-")[0].replace("arm64", "aarch64"), ("", ""))


def barrier_text(target: Target, threads: int) -> str:
    """`void @barrier(ptr block)` for a team of `threads`, as an internal function."""
    _, pause = _pause(target)
    return f"""
define internal void @barrier(ptr %c) #0 {{
entry:
{_at("%pc", COUNT)}{_at("%pg", BARRIER)}{_at("%ps", SPINS)}
  %g = load atomic i32, ptr %pg acquire, align 4
  %spins = load i32, ptr %ps, align 4
  %k = atomicrmw add ptr %pc, i32 1 acq_rel
  %last = icmp eq i32 %k, {threads - 1}
  br i1 %last, label %open, label %spin
open:
  store atomic i32 0, ptr %pc release, align 4
  %g1 = add i32 %g, 1
  store atomic i32 %g1, ptr %pg release, align 4
  ret void
spin:
  %i = phi i32 [ 0, %entry ], [ %i1, %again ], [ %spins, %hand ]
  %v = load atomic i32, ptr %pg acquire, align 4
  %done = icmp ne i32 %v, %g
  br i1 %done, label %out, label %wait
wait:
  {pause}
  %i1 = add i32 %i, 1
  %more = icmp slt i32 %i1, %spins
  br i1 %more, label %again, label %hand
again:
  br label %spin
hand:
{_at("%py", YIELD)}  %yield = load ptr, ptr %py, align 8
  %ignored = call i32 %yield()
  br label %spin
out:
  ret void
}}
"""


def declarations(target: Target) -> str:
    return _pause(target)[0]


def team_text(target: Target) -> str:
    """A module with `worker(block, tid)` and `submit(block, threads, job, argument)`.

    A job is `void job(ptr argument, i64 tid)` and must end in a barrier of the whole team.
    """
    declare, pause = _pause(target)
    return f"""target triple = "{target.triple}"
{declare}
define void @team_worker(ptr %c, i64 %tid) #0 {{
entry:
  %o = mul i64 %tid, 64
  %fo = add i64 %o, {FLAGS}
  %flag = getelementptr i8, ptr %c, i64 %fo
  %so = add i64 %o, {SEMAPHORES}
  %sem = getelementptr i8, ptr %c, i64 %so
{_at("%stopp", STOP)}{_at("%jobp", JOB)}{_at("%argp", ARGUMENT)}{_at("%ps", SPINS)}  br label %next
next:
  %old = phi i32 [ 0, %entry ], [ %new, %run ]
  %spins = load i32, ptr %ps, align 4
  br label %spin
spin:
  %i = phi i32 [ 0, %next ], [ %i1, %again ]
  %v = load atomic i32, ptr %c acquire, align 4
  %changed = icmp ne i32 %v, %old
  br i1 %changed, label %go, label %pause
pause:
  {pause}
  %i1 = add i32 %i, 1
  %more = icmp slt i32 %i1, %spins
  br i1 %more, label %again, label %park
again:
  br label %spin
park:
  %x = atomicrmw xchg ptr %flag, i32 1 seq_cst
  %v2 = load atomic i32, ptr %c seq_cst, align 4
  %late = icmp ne i32 %v2, %old
  br i1 %late, label %unpark, label %sleep
unpark:
  %y = atomicrmw xchg ptr %flag, i32 0 seq_cst
  %mine = icmp eq i32 %y, 1
  br i1 %mine, label %go, label %sleep
sleep:
{_at("%pw", WAIT)}  %wait = load ptr, ptr %pw, align 8
  %r = call i32 %wait(ptr %sem)
  %woken = icmp eq i32 %r, 0
  br i1 %woken, label %go, label %sleep
go:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %quit = icmp ne i32 %stop, 0
  br i1 %quit, label %out, label %run
run:
  %job = load ptr, ptr %jobp, align 8
  %arg = load ptr, ptr %argp, align 8
  call void %job(ptr %arg, i64 %tid)
  %new = add i32 %old, 1
  br label %next
out:
  ret void
}}
define void @team_submit(ptr %c, i64 %n, ptr %job, ptr %arg) #0 {{
entry:
{_at("%jobp", JOB)}{_at("%argp", ARGUMENT)}{_at("%stopp", STOP)}  store ptr %job, ptr %jobp, align 8
  store ptr %arg, ptr %argp, align 8
  %g = atomicrmw add ptr %c, i32 1 seq_cst
  %many = icmp sgt i64 %n, 1
  br i1 %many, label %each, label %work
each:
  %t = phi i64 [ 1, %entry ], [ %t1, %after ]
  %o = mul i64 %t, 64
  %fo = add i64 %o, {FLAGS}
  %flag = getelementptr i8, ptr %c, i64 %fo
  %y = atomicrmw xchg ptr %flag, i32 0 seq_cst
  %asleep = icmp eq i32 %y, 1
  br i1 %asleep, label %wake, label %after
wake:
  %so = add i64 %o, {SEMAPHORES}
  %sem = getelementptr i8, ptr %c, i64 %so
{_at("%pp", POST)}  %post = load ptr, ptr %pp, align 8
  %r = call i32 %post(ptr %sem)
  br label %after
after:
  %t1 = add i64 %t, 1
  %m = icmp slt i64 %t1, %n
  br i1 %m, label %each, label %work
work:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %quit = icmp ne i32 %stop, 0
  br i1 %quit, label %out, label %run
run:
  call void %job(ptr %arg, i64 0)
  br label %out
out:
  ret void
}}
attributes #0 = {{ nounwind }}
"""
