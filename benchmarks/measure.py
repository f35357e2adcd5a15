"""One model, several engines, taking turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.client import Client, EngineFailed
from benchmarks.machine import cores_for

OURS = "tinsmith"
FLOAT = f"{OURS} float32"
"""Not an engine of its own: ours on the float model that a quantised one was made of."""
HALVES = f"{OURS} bfloat16"
"""Ours with `precision="bfloat16"`."""


@dataclass
class Result:
    """What one engine did on one model. Times in ms; `error` relative to the largest output."""

    model: str
    threads: int
    engine: str
    version: str = ""
    error: float = 0.0
    import_ms: float = 0.0
    load_ms: float = 0.0
    first_ms: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    failed: str = ""
    tolerance: float = 1e-3

    @property
    def runs(self) -> list[float]:
        return [ms for turn in self.rounds for ms in turn]

    @property
    def median(self) -> float | None:
        return statistics.median(self.runs) if self.runs else None

    @property
    def is_ours(self) -> bool:
        return self.engine.split()[0] == OURS

    @property
    def wrong(self) -> bool:
        return not self.failed and not self.error <= self.tolerance  # a NaN is wrong, too

    @property
    def counts(self) -> bool:
        """Whether the result may be compared: it ran, and its output is right."""
        return bool(self.runs) and not self.failed and not self.wrong

    def to_json(self) -> dict[str, Any]:
        row = {k: v for k, v in asdict(self).items() if k not in ("rounds", "tolerance")}
        runs = sorted(self.runs)
        if runs:
            row["median_ms"] = statistics.median(runs)
            row["min_ms"], row["p90_ms"] = runs[0], runs[int(0.9 * (len(runs) - 1))]
            row["round_medians_ms"] = [statistics.median(turn) for turn in self.rounds]
        return row | {"runs": len(runs), "wrong": self.wrong}


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many rounds, in each of them every engine runs for `seconds`."""

    rounds: int = 5
    seconds: float = 0.5
    least: int = 3


def measure(
    bases: Sequence[Path],
    threads: int,
    engines: dict[str, str | Path],
    effort: Effort,
    tolerance: float,
    say: Callable[[str], None],
) -> list[Result]:
    """Results of all engines (name -> Python) on the model files `base`.*: all of the first model,
    in the given order, then all of the next.

    Every model has a process of its own for each engine, pinned to as many cores as it has
    threads; one of them is awake at any time, and each round begins with another one.
    """
    pairs = list(product(bases, engines))
    results = {(b, e): Result(b.name, threads, e, tolerance=tolerance) for b, e in pairs}
    clients: dict[tuple[Path, str], Client] = {}
    try:
        for base, engine in pairs:
            say(f"{base.name}, {threads} thread{'s' * (threads > 1)}: loading {engine}")
            client = clients[base, engine] = Client(engines[engine])
            with _recorded(results[base, engine]):
                cpus = cores_for(threads)
                loaded = client.ask(
                    "load", engine=engine, base=str(base), threads=threads, cpus=cpus
                )
                vars(results[base, engine]).update(loaded)
        for turn in range(effort.rounds):
            alive = [pair for pair in pairs if not results[pair].failed]
            shift = turn % len(alive) if alive else 0
            for pair in alive[shift:] + alive[:shift]:
                base, engine = pair
                say(f"{base.name}, {threads}T: round {turn + 1}/{effort.rounds}, {engine}")
                with _recorded(results[pair]):
                    answer = clients[pair].ask("run", seconds=effort.seconds, least=effort.least)
                    results[pair].rounds.append(answer["ms"])
    finally:
        for client in clients.values():
            client.close()
    return list(results.values())


@contextmanager
def _recorded(result: Result) -> Iterator[None]:
    """Within it, an engine's failure becomes part of its result."""
    try:
        yield
    except EngineFailed as error:
        result.failed = str(error)
