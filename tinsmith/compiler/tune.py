"""Chooses kernels by measuring (`tune=True`) where the cost model's estimates are close.

The program is compiled with the choices of the cost model (and of earlier measurements), and again
with each step's second, third, ... candidate. The two programs run in turns on random inputs, and
cycle counters give each step's time inside the program: with its real caches, threads and
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from statistics import median
from time import perf_counter

import numpy as np

from tinsmith.backends.cpu import Compiled
from tinsmith.errors import TinsmithError
from tinsmith.graph import Array, dtype_of
from tinsmith.kernels.select import Candidate
from tinsmith.plan.pick import Preference, Preferences, site_signature
from tinsmith.plan.place import Placed
from tinsmith.plan.plan import Plan
from tinsmith.records import dataclass
from tinsmith.runtime.later import Cycles

NEAR, MOST = 2.0, 4
"""Candidates are measured if they cost at most NEAR times the least, and at most MOST of them."""

WORTH = 0.97
"""A candidate replaces the cost model's choice if it takes at most this fraction of its time."""

SECONDS, LEAST, OFTEN = 0.4, 5, 60
"""How long two programs are measured, in seconds, within at least LEAST and at most OFTEN runs."""

Compile = Callable[[Preferences], Compiled]


@dataclass
class Contest:
    """The measurement of the candidates for one kind of site (all sites of one signature).

    steps    names of the steps that compute these sites
    options  the candidates; number 0 is the cost model's choice
    ratios   number of a candidate -> its time / the time of number 0
    seconds  time of number 0, all steps together
    """

    steps: list[str]
    options: list[Candidate]
    ratios: dict[int, float] = field(default_factory=lambda: {0: 1.0})
    seconds: float = 0.0

    @property
    def winner(self) -> int:
        best = min(self.ratios, key=lambda k: (self.ratios[k], k))
        return best if self.ratios[best] <= WORTH else 0

    def preference(self, index: int, note: str = "") -> Preference:
        choice = self.options[index].choice
        assert choice is not None
        return Preference(self.options[index].kernel, choice.detail, note)

    def verdict(self) -> Preference:
        best = self.winner
        rivals = [k for k in self.ratios if k != best]
        if not rivals:
            return self.preference(best)
        rival = min(rivals, key=lambda k: self.ratios[k])
        other, one = self.preference(rival), self.seconds / len(self.steps) * 1e3
        name = f"{other.kernel} {other.detail}".rstrip()
        spent, lost = one * self.ratios[best], one * self.ratios[rival]
        return self.preference(best, f"{spent:.4g} ms against {lost:.4g} ms for {name}")


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`: `winners`, signature of a kind of site -> the fastest candidate (or the
    cost model's choice for all, if the fastest ones made the whole run slower); how many of them
    are not the cost model's choice (`changed`); milliseconds of a whole run `before` and `after`;
    `why` nothing was measured."""

    winners: dict[str, Preference]
    changed: int
    before: float = 0.0
    after: float = 0.0
    why: str = "no kind of layer had candidates that are yet to be measured"

    def __str__(self) -> str:
        if not self.winners:
            return self.why
        kinds = "1 kind" if len(self.winners) == 1 else f"{len(self.winners)} kinds"
        return (
            f"measured {kinds} of layers, {self.changed} of which another kernel "
            f"computes now: {self.after:.4g} ms against {self.before:.4g} ms"
        )


def tune(compile: Compile, known: Preferences) -> tuple[Compiled, Tuning]:
    """Measure, and return (program with the fastest candidates, report). `compile` compiles a
    program with given preferences; `known` are those of earlier measurements, which are used and
    not repeated."""
    base = compile(known)
    contests = find_contests(base.built.placed, known)
    if not contests:
        return base, Tuning({}, 0)
    inputs = made_up(base.program.plan)
    try:
        base.run(inputs)
    except TinsmithError as error:  # some are indices, or sizes
        return base, Tuning({}, 0, why=f"not measured: the model refuses made-up inputs: {error}")
    for rank in range(1, MOST):
        rivals = {s: c.preference(rank) for s, c in contests.items() if len(c.options) > rank}
        if rivals:
            other = compile({**known, **rivals})
            compare(base, other, inputs, {s: contests[s] for s in rivals}, rank)
    winners = {s: c.verdict() for s, c in contests.items()}
    changed = sum(c.winner != 0 for c in contests.values())
    made = compile({**known, **winners})
    times: list[list[float]] = [[], []]
    for k, _, seconds in runs([base, made], inputs, timed=False):
        times[k].append(seconds)
    before, after = map(median, times)
    if changed and after > before:
        # Faster steps make no faster program: the cost model's choices stay.
        winners = {s: c.preference(0) for s, c in contests.items()}
        return compile({**known, **winners}), Tuning(winners, 0, before * 1e3, before * 1e3)
    return made, Tuning(winners, changed, before * 1e3, after * 1e3)


def find_contests(placed: Sequence[Placed], known: Mapping[str, Preference]) -> dict[str, Contest]:
    """Return signature -> contest, for the kinds of sites of a program that are not in `known` and
    have several candidates to measure (`near`)."""
    found: dict[str, Contest] = {}
    for step in placed:
        if step.choice is None or step.site is None or len(step.rivals) < 2:
            continue
        signature = site_signature(step.site)
        if signature in found:
            found[signature].steps.append(step.name)
        elif signature not in known:
            options = near(step)
            if len(options) > 1:
                found[signature] = Contest([step.name], options)
    return found


def near(step: Placed) -> list[Candidate]:
    """Return the candidates to measure for a step, up to MOST: its choice first, then others that
    cost at most NEAR times the least and write the same layouts, so that other steps stay the
    same."""
    chosen = step.choice
    assert chosen is not None
    limit = NEAR * step.rivals[0][0]
    blocks = [w.block for w in chosen.writes]
    first = [c for _, c in step.rivals if c.choice is chosen]
    seen, found = {(c.kernel, chosen.detail) for c in first}, first
    for cost, c in step.rivals:
        choice = c.choice
        if choice is None or cost > limit or [w.block for w in choice.writes] != blocks:
            continue
        if (c.kernel, choice.detail) not in seen:
            seen.add((c.kernel, choice.detail))
            found.append(c)
    return found[:MOST]


def compare(
    base: Compiled, other: Compiled, inputs: list[Array], contests: Mapping[str, Contest], rank: int
) -> None:
    """Run two programs in turns and measure their steps. `other` has candidate number `rank` for
    each contest, `base` number 0; `ratios[rank]` and `seconds` of each contest are set."""
    groups = [step_groups(c.program.plan) for c in (base, other)]
    rows: list[list[Cycles]] = [[], []]
    rate = 1.0
    for k, cycles, seconds in runs([base, other], inputs, timed=True):
        rate = max(rate, sum(c for c in cycles.values() if c > 0) / seconds)
        rows[k].append(cycles)
    for contest in contests.values():
        spent = [
            sum(
                median(sum(row.get(n, 0) for n in groups[k].get(s, [])) for row in rows[k])
                for s in contest.steps
            )
            for k in (0, 1)
        ]
        contest.ratios[rank] = spent[1] / max(spent[0], 1)
        contest.seconds = spent[0] / rate


def step_groups(plan: Plan) -> dict[str, list[int]]:
    """Return name of a native step -> `id` of the steps whose time counts as its own: the layout
    conversions right before it, and itself."""
    groups: dict[str, list[int]] = {}
    before: list[int] = []
    for step in plan.steps:
        if step.kind != "native":
            continue
        before.append(id(step))
        if step.op != "Relayout":
            groups[step.name], before = before, []
    return groups


def runs(
    programs: Sequence[Compiled], inputs: list[Array], timed: bool
) -> Iterator[tuple[int, Cycles, float]]:
    """Run programs in turns, after a warm-up: each as often as the first one fits into SECONDS, but
    LEAST to OFTEN times. Yield (number of the program, cycles of its steps by `id(step)`, seconds)
    of each run; without `timed` steps are not timed, and the cycles are empty."""
    sessions = [p.program.session() for p in programs]
    for session in sessions:
        session.run(inputs)
    start = perf_counter()
    sessions[0].run(inputs)
    wanted = SECONDS / max(perf_counter() - start, 1e-6)
    for turn in range(int(min(OFTEN, max(LEAST, wanted)))):
        for k in range(len(sessions))[:: -1 if turn % 2 == 0 else 1]:
            cycles = Cycles()
            start = perf_counter()
            sessions[k].run(inputs, cycles if timed else None)
            yield k, cycles, perf_counter() - start


def made_up(plan: Plan) -> list[Array]:
    """Make inputs of the plan's types: normal random floats, 1 for integers, True for booleans."""
    random = np.random.default_rng(0)
    arrays = []
    for port in plan.inputs:
        dtype = dtype_of(port.dtype)
        if dtype.kind in "fV":
            arrays.append(random.standard_normal(port.dims).astype(dtype))
        else:
            arrays.append(np.ones(port.dims, dtype))
    return arrays
