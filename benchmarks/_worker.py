"""One engine in one process: JSON lines in, JSON lines out. Run as `PYTHON -m benchmarks._worker`.

Between two commands it blocks on its input. Commands:
    {"do": "load", "engine", "base", "threads", "cpus", "options"}
        -> {"version", "error", "import_ms", "load_ms", "first_ms", "bare_mb", "peak_mb"}
    {"do": "run", "seconds", "least"} -> {"ms": [each run]}
    {"do": "vary", "calls"} -> {"ms": [each run]}, of shapes by input, once each, in order
    {"do": "serve", "callers", "seconds"} -> {"per_second": calls of all threads together}
    {"do": "decoder", "engine", "file", "cpus"} -> {}
    {"do": "generate", "cache", "tokens"} -> {"ms": of all tokens, "tokens": which}
    {"do": "stop"}
Any answer may instead be {"failed": why}. `error` is max|y - want| / max|want| of the worst
output; `bare_mb` is what the process takes before the engine is imported, `peak_mb` the most up to
the first result.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_UPS = 2


def _megabytes(field: str) -> float:
    """A line of /proc/self/status. The system's own count of the peak (getrusage) would not do: it
    starts with that of the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


class Worker:
    def load(
        self,
        engine: str,
        base: str,
        threads: int,
        cpus: list[int],
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        # Before the engine is imported: thread pools look at the affinity when they are made.
        if cpus:
            os.sched_setaffinity(0, cpus)
        import numpy as np

        from benchmarks._arrays import error_of, read
        from benchmarks._engines import ENGINES

        self.inputs, want = read(Path(base))
        bare = _megabytes("VmRSS")
        module, loader = ENGINES[engine]
        start = time.perf_counter()
        importlib.import_module(module)
        import_ms, start = _since(start), time.perf_counter()
        self.call, version = loader(Path(base), threads, **(options or {}))
        load_ms, start = _since(start), time.perf_counter()
        got = self.call(self.inputs)
        first_ms, peak = _since(start), _megabytes("VmHWM")
        # ncnn leaves out axes of one.
        shaped = [np.asarray(a).reshape(b.shape) for a, b in zip(got, want, strict=True)]
        error = error_of(shaped, want)
        shown = {"version": version, "error": error, "bare_mb": bare, "peak_mb": peak}
        return shown | {"import_ms": import_ms, "load_ms": load_ms, "first_ms": first_ms}

    def run(self, seconds: float, least: int) -> dict[str, Any]:
        for _ in range(WARM_UPS):
            self.call(self.inputs)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < least or time.perf_counter() < end:
            start = time.perf_counter()
            self.call(self.inputs)
            times.append(_since(start))
        return {"ms": times}

    def vary(self, calls: list[dict[str, list[int]]]) -> dict[str, Any]:
        """Inputs of these shapes hold the numbers of the model's own, over again."""
        import numpy as np

        times: list[float] = []
        for call in calls:
            given = {n: np.resize(self.inputs[n], shape) for n, shape in call.items()}
            start = time.perf_counter()
            self.call(given)
            times.append(_since(start))
        return {"ms": times}

    def decoder(self, engine: str, file: str, cpus: list[int]) -> dict[str, Any]:
        if cpus:
            os.sched_setaffinity(0, cpus)
        from benchmarks._decoders import DECODERS

        self.begin, self.step = DECODERS[engine](Path(file), 1)
        return {}

    def generate(self, cache: dict[str, int], tokens: int) -> dict[str, Any]:
        """The likeliest tokens after a cache of small random numbers: its heads, width, layers and
        length (`past`) are given. The first one takes no part in the time."""
        import numpy as np

        random = np.random.default_rng(1)
        dims = 1, cache["heads"], cache["past"], cache["width"]
        self.begin({
            f"past.{n}.{kind}": random.standard_normal(dims, np.float32)
            for n in range(cache["layers"])
            for kind in ("key", "value")
        })  # fmt: skip
        said: list[int] = []
        token = int(self.step(1)[0, -1].argmax())
        start = time.perf_counter()
        for _ in range(tokens):
            token = int(self.step(token)[0, -1].argmax())
            said.append(token)
        return {"ms": _since(start), "tokens": said}

    def serve(self, callers: int, seconds: float) -> dict[str, Any]:
        """So many threads call at once, each as fast as it can."""
        counts = [0] * callers
        ready, stop = threading.Barrier(callers + 1), threading.Event()

        def caller(k: int) -> None:
            self.call(self.inputs)
            ready.wait()
            while not stop.is_set():
                self.call(self.inputs)
                counts[k] += 1

        pool = [threading.Thread(target=caller, args=(k,)) for k in range(callers)]
        for thread in pool:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        time.sleep(seconds)
        stop.set()
        for thread in pool:
            thread.join()
        return {"per_second": sum(counts) / (time.perf_counter() - start)}


def serve(make: Callable[[], Any]) -> None:
    """Answer commands from standard input by the methods of the worker that `make` returns, until
    "stop" or the end of the input ends this process."""
    # Engines print to standard output; the answers go to a copy of it that they do not know.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = make()
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("do")
        if verb == "stop":
            break
        try:
            answer = getattr(worker, verb)(**command)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    # Several engines crash while they are torn down; the answers are out by now.
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(Worker)
