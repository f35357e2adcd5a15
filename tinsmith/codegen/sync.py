"""Fork-join in generated code, without C and without system call numbers.

Workers are Python threads parked inside `team_worker`. Nobody waits for a thread to arrive: a job
counts the tiles that are claimed and done, so a worker that the system has set aside holds up no
more than the tiles it took. Only the next job waits until every worker has left the last.

Waiting is a bounded spin, then yields (inside a job) or a semaphore (between jobs); semaphore and
yield are function pointers in the sync block, so the code is the same on every system.

A post may come late, to a worker that took its job without sleeping, did it and went to sleep
since: whoever wakes looks at the generation first.

Sync block, in bytes: 0 generation, 64 how many times workers have left a job, 192 stop flag,
256 job function, 264 job argument, 320 wait, 328 post, 336 yield, 344 spins (i32);
for thread t: FLAGS + 64 t is 1 while it sleeps, SEMAPHORES + 64 t is its semaphore.
"""

from __future__ import annotations

from tinsmith.codegen.target import Target

LEFT, STOP, JOB, ARGUMENT = 64, 192, 256, 264
WAIT, POST, YIELD, SPINS = 320, 328, 336, 344
FLAGS, SEMAPHORES = 4096, 8192
MAX_THREADS = 64
BLOCK_BYTES = SEMAPHORES + 64 * MAX_THREADS

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def _at(name: str, offset: int) -> str:
    return f"  {name} = getelementptr i8, ptr %c, i64 {offset}\n"


def _pause(target: Target) -> tuple[str, str]:
    return _PAUSE.get(target.triple.split("-")[0].replace("arm64", "aarch64"), ("", ""))


def _spin(pause: str, look: str, before: str, *, ready: str, idle: str, back: str) -> str:
    """Blocks `spin` to `again`: `look`, which sets %ready, is repeated %spins times, from block
    `before`; then they go to `idle`, and look once more for each time that `back` returns."""
    return f"""\
spin:
  %i = phi i32 [ 0, %{before} ], [ %i1, %again ], [ %spins, %{back} ]
{look}
  br i1 %ready, label %{ready}, label %pause
pause:
  {pause}
  %i1 = add i32 %i, 1
  %more = icmp slt i32 %i1, %spins
  br i1 %more, label %again, label %{idle}
again:
  br label %spin
"""


def await_text(target: Target) -> str:
    """`void @await(ptr counter, i64 goal, ptr block)`: returns once the
    i64 counter has reached the goal, with all that was stored before it did."""
    _, pause = _pause(target)
    look = """\
  %v = load atomic i64, ptr %counter acquire, align 8
  %ready = icmp sge i64 %v, %goal"""
    return f"""
define void @await(ptr %counter, i64 %goal, ptr %c) #0 {{
entry:
{_at("%ps", SPINS)}  %spins = load i32, ptr %ps, align 4
  br label %spin
{_spin(pause, look, "entry", ready="out", idle="hand", back="hand")}hand:
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
    """A module with `team_worker(block, tid)` and
    `team_submit(block, threads, job, argument, counters, words)`.

    A job is `void job(ptr argument, i64 tid)`; it returns on thread 0 when its work is done, and
    its memory must stay until the next submission has returned. Before a job starts, and once
    all workers have left the last, `words` i64 counters are cleared.
    """
    declare, pause = _pause(target)
    return f"""target triple = "{target.triple}"
{declare}
{_worker_text(pause)}{_submit_text()}attributes #0 = {{ nounwind }}
"""


def _worker_text(pause: str) -> str:
    look = """\
  %v = load atomic i32, ptr %c acquire, align 4
  %ready = icmp ne i32 %v, %old"""
    return f"""\
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
{_spin(pause, look, "next", ready="go", idle="park", back="sleep")}park:
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
  br i1 %woken, label %spin, label %sleep
go:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %quit = icmp ne i32 %stop, 0
  br i1 %quit, label %out, label %run
run:
  %job = load ptr, ptr %jobp, align 8
  %arg = load ptr, ptr %argp, align 8
  call void %job(ptr %arg, i64 %tid)
{_at("%pl", LEFT)}  %left = atomicrmw add ptr %pl, i32 1 release
  %new = add i32 %old, 1
  br label %next
out:
{_at("%pg", LEFT)}  %gone = atomicrmw add ptr %pg, i32 1 release
  ret void
}}
"""


def _submit_text() -> str:
    return f"""\
define void @team_submit(ptr %c, i64 %n, ptr %job, ptr %arg, ptr %counters, i64 %words) #0 {{
entry:
{_at("%jobp", JOB)}{_at("%argp", ARGUMENT)}{_at("%stopp", STOP)}{_at("%pl", LEFT)}
  %jobs = load i32, ptr %c, align 4
  %n32 = trunc i64 %n to i32
  %others = sub i32 %n32, 1
  %all = mul i32 %jobs, %others
  br label %join
join:
  %left = load atomic i32, ptr %pl acquire, align 4
  %joined = icmp eq i32 %left, %all
  br i1 %joined, label %cleared, label %late
late:
{_at("%py", YIELD)}  %yield = load ptr, ptr %py, align 8
  %ignored = call i32 %yield()
  br label %join
cleared:
  %some = icmp sgt i64 %words, 0
  br i1 %some, label %clear, label %start
clear:
  %w = phi i64 [ 0, %cleared ], [ %w1, %clear ]
  %pw = getelementptr i64, ptr %counters, i64 %w
  store i64 0, ptr %pw, align 8
  %w1 = add i64 %w, 1
  %wm = icmp slt i64 %w1, %words
  br i1 %wm, label %clear, label %start
start:
  store ptr %job, ptr %jobp, align 8
  store ptr %arg, ptr %argp, align 8
  %g = atomicrmw add ptr %c, i32 1 seq_cst
  %many = icmp sgt i64 %n, 1
  br i1 %many, label %each, label %work
each:
  %t = phi i64 [ 1, %start ], [ %t1, %after ]
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
"""
