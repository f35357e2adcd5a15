"""The measuring side: a worker process, asked one thing at a time."""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.places import ROOT, default_home


class EngineFailed(Exception):
    """A worker answered with an error, died, or did not answer in time."""


class Client:
    """A worker process. Stopped (SIGSTOP) unless it is asked something, so that threads of an
    engine that spin while idle take no time from the others."""

    def __init__(
        self, python: str | Path, seconds: float = 900.0, env: Mapping[str, str] | None = None
    ) -> None:
        """`env` adds to the environment. Bytecode is kept, as it is of installed packages, but
        away from the sources."""
        self.seconds = seconds
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        bytecode = {"PYTHONPYCACHEPREFIX": str(default_home() / "bytecode")}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the worker
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks._worker"],
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

    def sleep(self) -> None:
        if self._awake and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGSTOP)
            self._awake = False

    def wake(self) -> None:
        if not self._awake:
            os.kill(self._process.pid, signal.SIGCONT)
            self._awake = True

    def close(self) -> None:
        """End the worker, kindly where it still listens."""
        if self._process.poll() is None:
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


def medians(
    sample: Callable[[], dict[str, float]], times: int, warm: bool = True
) -> dict[str, Any]:
    """The medians of what some samples of an engine measure, or why one failed; with `warm`, after
    one that fills its caches."""
    try:
        if warm:
            sample()
        taken = [sample() for _ in range(times)]
    except EngineFailed as error:
        return {"failed": str(error)}
    return {key: statistics.median(t[key] for t in taken) for key in taken[0]}
