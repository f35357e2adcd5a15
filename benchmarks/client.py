"""The measuring side: a worker process, asked one thing at a time."""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.places import ROOT, default_home

T = TypeVar("T")


class EngineFailed(Exception):
    """A worker answered with an error, died, or did not answer in time."""


class Client:
    """A worker process, which runs a module (`_worker.serve`). Stopped (SIGSTOP) unless it is asked
    something, so that threads of an engine that spin while idle take no time from the others."""

    def __init__(
        self, python: str | Path, seconds: float = 900.0, env: Mapping[str, str] | None = None,
        module: str = "benchmarks._worker",
    ) -> None:  # fmt: skip
        """`env` adds to the environment. Bytecode is kept, as it is of installed packages, but
        away from the sources."""
        self.seconds = seconds
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        bytecode = {"PYTHONPYCACHEPREFIX": str(default_home() / "bytecode")}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the worker
        self._process = subprocess.Popen(
            [str(python), "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**inherited, **bytecode, **(env or {})},
        )
        self._awake = True

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """Send one command and wait for its answer. Raises EngineFailed."""
        self.wake()
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"do": do, **options}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise EngineFailed(self._obituary()) from None
        answer = self._answer()
        self.sleep()
        if "failed" in answer:
            raise EngineFailed(answer["failed"])
        return answer

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], self.seconds)[0]:
            self._process.kill()
            self._process.wait()
            raise EngineFailed(f"no answer after {self.seconds:.0f} s")
        line = stdout.readline()
        if not line:
            raise EngineFailed(self._obituary())
        return json.loads(line)

    def _obituary(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        tail = " | ".join(self._log.read().strip().splitlines()[-3:])
        return f"the worker ended with {code}: {tail}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def sleep(self) -> None:
        if self._awake and not self.ended:
            os.kill(self._process.pid, signal.SIGSTOP)
            self._awake = False

    def wake(self) -> None:
        if not self._awake:
            os.kill(self._process.pid, signal.SIGCONT)
            self._awake = True

    def close(self) -> None:
        """End the worker, kindly where it still listens."""
        if not self.ended:
            self.wake()
            try:
                self._process.communicate('{"do": "stop"}\n', timeout=10)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()


def in_turns(
    base: Path, engines: Iterable[str], times: int, sample: Callable[[str], T],
    summary: Callable[[list[T]], dict[str, Any]], unseen: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each engine on a model: the summary of so many samples, which engines give in
    turns, after `unseen` ones that do not count; or why one failed."""
    taken: dict[str, list[T]] = {engine: [] for engine in engines}
    failed: dict[str, str] = {}
    for _ in range(unseen + times):
        for engine in [e for e in taken if e not in failed]:
            try:
                taken[engine].append(sample(engine))
            except EngineFailed as error:
                failed[engine] = str(error)
    return [
        {"model": base.name, "engine": engine}
        | ({"failed": failed[engine]} if engine in failed else summary(samples[unseen:]))
        for engine, samples in taken.items()
    ]


def medians(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each number over some samples."""
    return {key: statistics.median(s[key] for s in samples) for key in samples[0]}
