"""Fork-join in generated code, without C and without system call numbers.

Workers are Python threads parked inside `team_worker`. Nobody waits for a thread to arrive: a job
counts the tiles that are taken and done, and closes its gate when all are done. A worker that the
system has not scheduled by then misses the job. A worker that has entered delays the job only by
the tiles that it took, and the next job until it has left.

Waiting is a bounded spin, then yields, then a semaphore (between jobs) or naps (inside a job). So a
caller that calls again at once finds the workers awake, and other processes get the core otherwise.
Inside a job, a thread that others wait for so long has probably been descheduled in favour of
another process; napping frees this core, to which the system can move it. If threads of a team
share one core, because another process has the second, every spin would be in vain: inside a job
each spin in vain halves the next one, until one succeeds. Semaphore, yield and nap are function
pointers in the sync block, so that the code is the same on every system.

A post may come late: to a worker that took its job without sleeping, or when the job is over. So a
worker that wakes up looks at the gate first.

The sync block, in bytes: 0 gate (i64: the number of the last job, the flag OPEN, and how many
workers are inside), 192 stop flag, 256 job function, 264 job argument, 320 wait, 328 post, 336
yield, 344 nap, 352 most spins (i32), 356 most yields between jobs (i32), 448 spins inside a job
(i32). For thread t: FLAGS + 64 t is 1 while it sleeps, SEMAPHORES + 64 t is its semaphore.
"""

from __future__ import annotations

from tinsmith.codegen.target import Target

NUMBER, OPEN, INSIDE = 1 << 32, 1 << 31, (1 << 31) - 1
"""Parts of the gate: what one job adds, the flag, and the mask of the workers inside."""
STOP, JOB, ARGUMENT = 192, 256, 264  # offsets in the sync block, in bytes; a cache line is 64
WAIT, POST, YIELD, NAP, SPINS, LINGER, PATIENCE = 320, 328, 336, 344, 352, 356, 448  # likewise
FLAGS, SEMAPHORES = 4096, 8192  # likewise; 64 bytes for each thread
MAX_THREADS = 64  # of a team
BLOCK_BYTES = SEMAPHORES + 64 * MAX_THREADS
YIELDS, MICROSECONDS = 200, 50
"""Inside a job: yields, some 100 us altogether, before naps of MICROSECONDS each. Estimated."""
LEAST_SPINS = 64
"""The fewest spins inside a job. Most waits for another thread's last tile are shorter, and so
lengthen the next spins again. Estimated."""

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def _at(name: str, offset: int) -> str:
    return f"  {name} = getelementptr i8, ptr %c, i64 {offset}\n"


def _pause(target: Target) -> tuple[str, str]:
    return _PAUSE.get(target.triple.split("-")[0].replace("arm64", "aarch64"), ("", ""))


def _spin(pause: str, look: str, before: str, *, ready: str, idle: str, back: str) -> str:
    """The blocks `spin` to `again`: %spins times, entered from block `before`, do `look`, which
    sets %ready. Then go to `idle`; each time one of the blocks `back` returns from there, look once
    more. %i1 counts all looks."""
    returns = "".join(f", [ %i1, %{block} ]" for block in back.split())
    return f"""\
spin:
  %i = phi i32 [ 0, %{before} ], [ %i1, %again ]{returns}
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


def _give_way() -> str:
    """The blocks `hand` to `handed`, after a spin in vain: yield or nap, then go to `spin`."""
    return f"""\
hand:
  %tired = sub i32 %i1, %spins
  %long = icmp sgt i32 %tired, {YIELDS}
  br i1 %long, label %rest, label %give
{_yield("handed")}rest:
{_at("%pn", NAP)}  %nap = load ptr, ptr %pn, align 8
  %slept = call i32 %nap(i32 {MICROSECONDS})
  br label %handed
handed:
  br label %spin
"""


def _yield(then: str) -> str:
    """The block `give`: yield."""
    return f"""\
give:
{_at("%py", YIELD)}  %yield = load ptr, ptr %py, align 8
  %ignored = call i32 %yield()
  br label %{then}
"""


def await_text(target: Target) -> str:
    """`void @await(ptr counter, i64 goal, ptr block)`: returns once the i64 counter has reached the
    goal. What other threads stored before is then visible."""
    _, pause = _pause(target)
    look = """\
  %v = load atomic i64, ptr %counter acquire, align 8
  %ready = icmp sge i64 %v, %goal"""
    return f"""
define void @await(ptr %counter, i64 %goal, ptr %c) #0 {{
entry:
{_at("%pp", PATIENCE)}  %spins = load atomic i32, ptr %pp monotonic, align 4
  br label %spin
{_spin(pause, look, "entry", ready="out", idle="hand", back="handed")}{_give_way()}out:
  %at.once = icmp eq i32 %i, 0
  br i1 %at.once, label %done, label %learn
learn:
{_at("%pm", SPINS)}  %most = load i32, ptr %pm, align 4
  %half = lshr i32 %spins, 1
  %few = icmp slt i32 %half, {LEAST_SPINS}
  %some = select i1 %few, i32 {LEAST_SPINS}, i32 %half
  %above = icmp sgt i32 %some, %most
  %less = select i1 %above, i32 %most, i32 %some
  %in.vain = icmp sge i32 %i, %spins
  %next = select i1 %in.vain, i32 %less, i32 %most
  %same = icmp eq i32 %next, %spins
  br i1 %same, label %done, label %store
store:
  store atomic i32 %next, ptr %pp monotonic, align 4
  br label %done
done:
  ret void
}}
"""


def declarations(target: Target) -> str:
    return _pause(target)[0]


def team_text(target: Target) -> str:
    """A module with `team_worker(block, tid)` and
    `team_submit(block, threads, job, argument, counters, words)`.

    A job is `void job(ptr argument, i64 tid)`. It returns on thread 0 when its work is done; its
    memory must stay until the next submission has returned. Before a job starts, and when nobody is
    inside any more, `words` i64 counters are cleared. If the stop flag is set, there is no job: the
    gate stays open, and workers that enter end.
    """
    declare, pause = _pause(target)
    return f"""target triple = "{target.triple}"
{declare}
{_worker_text(pause)}{_submit_text(pause)}attributes #0 = {{ nounwind }}
"""


def _worker_text(pause: str) -> str:
    look = f"""\
  %v = load atomic i64, ptr %c acquire, align 8
{_asks("%ready", "%v")}"""
    return f"""\
define void @team_worker(ptr %c, i64 %tid) #0 {{
entry:
  %o = mul i64 %tid, 64
  %fo = add i64 %o, {FLAGS}
  %flag = getelementptr i8, ptr %c, i64 %fo
  %so = add i64 %o, {SEMAPHORES}
  %sem = getelementptr i8, ptr %c, i64 %so
{_at("%stopp", STOP)}{_at("%jobp", JOB)}{_at("%argp", ARGUMENT)}{_at("%ps", SPINS)}\
{_at("%pl", LINGER)}  br label %next
next:
  %old = phi i64 [ 0, %entry ], [ %old, %enter ], [ %number, %run ]
  %spins = load i32, ptr %ps, align 4
  %lingers = load i32, ptr %pl, align 4
  br label %spin
{_spin(pause, look, "next", ready="enter", idle="linger", back="give sleep")}linger:
  %yields = sub i32 %i1, %spins
  %tired = icmp sgt i32 %yields, %lingers
  br i1 %tired, label %park, label %give
{_yield("spin")}park:
  %x = atomicrmw xchg ptr %flag, i32 1 seq_cst
  %v2 = load atomic i64, ptr %c seq_cst, align 8
{_asks("%late", "%v2")}
  br i1 %late, label %unpark, label %sleep
unpark:
  %y = atomicrmw xchg ptr %flag, i32 0 seq_cst
  %mine = icmp eq i32 %y, 1
  br i1 %mine, label %enter, label %sleep
sleep:
{_at("%pw", WAIT)}  %wait = load ptr, ptr %pw, align 8
  %r = call i32 %wait(ptr %sem)
  %woken = icmp eq i32 %r, 0
  br i1 %woken, label %spin, label %sleep
enter:
  %e = load atomic i64, ptr %c monotonic, align 8
{_asks("%open", "%e")}
  br i1 %open, label %try, label %next
try:
  %e1 = add i64 %e, 1
  %pair = cmpxchg ptr %c, i64 %e, i64 %e1 acquire monotonic
  %in = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %in, label %go, label %enter
go:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %quit = icmp ne i32 %stop, 0
  br i1 %quit, label %out, label %run
run:
  %job = load ptr, ptr %jobp, align 8
  %arg = load ptr, ptr %argp, align 8
  call void %job(ptr %arg, i64 %tid)
  %left = atomicrmw sub ptr %c, i64 1 release
  %number = udiv i64 %e, {NUMBER}
  br label %next
out:
  %gone = atomicrmw sub ptr %c, i64 1 release
  ret void
}}
"""


def _asks(name: str, gate: str) -> str:
    """Set `name` to whether a gate is open for another job than number %old."""
    return f"""\
  {name}.n = udiv i64 {gate}, {NUMBER}
  {name}.other = icmp ne i64 {name}.n, %old
  {name}.flag = and i64 {gate}, {OPEN}
  {name}.open = icmp ne i64 {name}.flag, 0
  {name} = and i1 {name}.other, {name}.open"""


def _submit_text(pause: str) -> str:
    look = f"""\
  %gate = load atomic i64, ptr %c acquire, align 8
  %inside = and i64 %gate, {INSIDE}
  %ready = icmp eq i64 %inside, 0"""
    return f"""\
define void @team_submit(ptr %c, i64 %n, ptr %job, ptr %arg, ptr %counters, i64 %words) #0 {{
entry:
{_at("%jobp", JOB)}{_at("%argp", ARGUMENT)}{_at("%stopp", STOP)}{_at("%ps", SPINS)}\
  %spins = load i32, ptr %ps, align 4
  br label %spin
{_spin(pause, look, "entry", ready="cleared", idle="hand", back="handed")}{_give_way()}cleared:
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
  %open = add i64 %gate, {NUMBER + OPEN}
  %before = atomicrmw xchg ptr %c, i64 %open seq_cst
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
  %last = atomicrmw and ptr %c, i64 {~OPEN} release
  br label %out
out:
  ret void
}}
"""
