"""Cases in child processes: what ends a process, takes too long, or too much memory, is told by its
seed, and the next case goes on.

A module of cases has `check(seed)`, which returns a verdict of one line. Each case may take
`SECONDS` of processor time and `PATIENCE` seconds in all, and `MEGABYTES` of memory more than the
process has before it, or as many as the module says.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SECONDS = 10
PATIENCE = 300
"""Long, since whoever measures on a machine may stop all else meanwhile."""
MEGABYTES = 256
CRASHED, LATE = "crashed", "took too long"
ENDED_BY = {
    signal.SIGPROF: f"{LATE}: more than {SECONDS} s of processor time",
    signal.SIGALRM: f"{LATE}: more than {PATIENCE} s",
}


def run(module: str, seeds: range, arguments: Iterable[str] = ()) -> dict[int, str]:
    """The verdict of every seed: `check`'s, or CRASHED or LATE and why."""
    command = [sys.executable, "-m", __name__, module, str(seeds.start), str(seeds.stop)]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *arguments], cwd=root, capture_output=True, text=True)
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        seed, _, verdict = line.partition("\t")
        found[int(seed)] = verdict
    if done.returncode or set(found) != set(seeds):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return found


def parent(module: str, start: int, stop: int) -> None:
    """Print the verdicts of seeds, tried in children that are forked from here: one does until it
    ends."""
    import llvmlite.binding  # noqa: F401  its memory is no case's

    cases = importlib.import_module(module)
    most = getattr(cases, "MEGABYTES", MEGABYTES)
    sys.stdout.flush()
    while start < stop:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            _child(cases.check, range(start, stop), write, most)
        os.close(write)
        with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                print(line, end="", flush=True)
                start = int(line.partition("\t")[0]) + 1
        _, status = os.waitpid(pid, 0)
        if start < stop:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            code = f"signal {number}" if number else f"exit code {os.WEXITSTATUS(status)}"
            print(start, ENDED_BY.get(number, f"{CRASHED}: {code}"), sep="\t", flush=True)  # type: ignore[call-overload]
            start += 1


def _child(check: object, seeds: range, write: int, megabytes: int) -> None:
    """Write the verdict of each seed, and end the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for seed in seeds:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # whose signal ends the process
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + (megabytes << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            verdict = check(seed).replace("\n", " ")  # type: ignore[operator]
            os.write(write, f"{seed}\t{verdict}\n".encode())
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    parent(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
