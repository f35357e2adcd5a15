"""Passes: how they register, and how a stage runs. Which of them run: `choice`.

    @register("portable", devices=("cpu",), priority=250)
    @dataclass(frozen=True)
    class MyPass:
        \"\"\"What it does, in one line.\"\"\"
        limit: int = 8                      # an option: "my-pass{limit=4}"
        def run(self, graph, context) -> int:
            ...                             # how often it changed something

A pass is a frozen dataclass whose fields are its options, or a RuleSet. It runs in the order
(stage, priority, name); the priorities of Tinsmith's own passes are ten times their place in
`pipelines`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

from tinsmith.errors import OptionError, PassError, ReferenceFailed, TinsmithError, TypeRuleError
from tinsmith.graph import Graph, Node
from tinsmith.graph.verify import verify as verify_graph
from tinsmith.passes.choice import COURSE, PASSES, STAGES, Entry, list_passes, parse_spec
from tinsmith.passes.report import Matches, Report
from tinsmith.progress import tell
from tinsmith.records import dataclass
from tinsmith.rewrite import Refusal, RuleSet, Start, rewrite
from tinsmith.sizes import NeedsNumber

T = TypeVar("T")


class Pass(Protocol):
    """Edits a graph in place; returns how often it changed something.

    A class attribute `operators` names operators: a graph that has none of them is skipped. A
    method `applies(graph)` may say of a graph, and of those in it, that there is nothing to do.
    """

    def run(self, graph: Graph, context: Context) -> int: ...


@dataclass
class Context:
    """What a pass may know and tell: where rules may apply, if that is known; near misses, remarks
    and what nodes went into, for `explain`."""

    matches: Mapping[RuleSet, list[Node]] | None = None
    byte_rate: float = 1.0
    """How many products of bytes the machine adds up in the time of one of floats."""
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[Refusal] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    absorbed: dict[str, tuple[str, str]] = field(default_factory=dict)

    seen: dict[RuleSet, int] = field(default_factory=dict)
    """How much of `Graph.edited` each rule set has seen."""
    open: tuple[int, list[Node]] = (-1, [])
    """The nodes whose sizes were open at that length of `Graph.edited`."""

    def start(self, graph: Graph, rules: RuleSet) -> Start | None:
        """Where the rules must be tried; None: at all nodes. The first time these are the nodes
        where they may match (all, if that is not known) and all that was edited, later those whose
        sizes are still open and what was edited since: each call notes that the rules have seen all
        edits so far."""
        if graph.edited is None:
            return None
        seen = self.seen.get(rules)
        self.seen[rules] = len(graph.edited)
        # What declined for a size may not decline once that is known.
        if self.matches is None:
            return None if seen is None else Start(self._open(graph), graph.edited[seen:])
        nodes = self.matches.get(rules, [])
        if seen is None:
            return Start(nodes, graph.edited)
        return Start([n for n in nodes if not _is_static(n)], graph.edited[seen:])

    def _open(self, graph: Graph) -> list[Node]:
        """The nodes whose sizes are not all known."""
        edits = len(graph.edited or ())
        if self.open[0] != edits:
            self.open = edits, [n for n in graph.nodes if not _is_static(n)]
        return self.open[1]

    def refuse(self, rule: str, node: str, reason: str, *others: str) -> None:
        """Record why something was not done at a node."""
        self.refusals.append(Refusal(rule, node, reason, (node, *others)))

    def note(self, rule: str, node: str, what: str) -> None:
        """Record what was done at a node, where its step does not show it."""
        self.notes.append(Refusal(rule, node, what, (node,)))


FASTER = 2.0
"""From how many times the rate of float32 multiply-adds on products of bytes replace those of
floats: slower ones lose against Winograd's and Strassen's methods, which take up to four times
fewer multiplications. Estimated."""


def has_fast_bytes(context: Context) -> bool:
    """Whether the machine that passes run for multiplies bytes much faster than floats."""
    return context.byte_rate >= FASTER


def has_pairs(context: Context) -> bool:
    """Whether it multiplies bytes faster than floats, but not so much that this makes up for
    Winograd's method."""
    return 1 < context.byte_rate < FASTER


def _is_static(node: Node) -> bool:
    return all(v is None or v.type.is_static for v in (*node.inputs, *node.outputs))


@dataclass(frozen=True)
class RunRules:
    """Runs a rule set to its fixed point, for the machines that `when` names."""

    rules: RuleSet
    when: Callable[[Context], bool] | None = None

    def run(self, graph: Graph, context: Context) -> int:
        if self.when is not None and not self.when(context):
            return 0
        done = rewrite(graph, self.rules, start=context.start(graph, self.rules))
        context.refusals += done.refusals
        context.counts += done.counts
        context.absorbed |= done.absorbed
        return done.changes


def register(
    stage: str,
    *,
    priority: float | None = None,
    devices: tuple[str, ...] | None = None,
    default: bool = True,
    name: str | None = None,
    when: Callable[[Context], bool] | None = None,
) -> Callable[[T], T]:
    """Decorator (or call) that registers a pass class or a RuleSet, which runs only `when` that
    holds, if it is given.

    `devices` are those it supports (None: all); `default=False` leaves it off until `+name`. The
    priority may be left out for passes that `pipelines` lists. Raises DuplicateName, PassError.
    """

    def decorate(what: T) -> T:
        from tinsmith.passes.pipelines import place

        if stage not in STAGES:
            raise PassError(f"there is no stage {stage!r}; the stages are {', '.join(STAGES)}")
        options: dict[str, Any] = {}
        make: Callable[..., Pass]
        if isinstance(what, RuleSet):
            label, summary, rules = name or what.name, what.summary, what
            make = lambda: RunRules(rules, when)  # noqa: E731
        elif isinstance(what, type) and is_dataclass(what):
            label = name or _kebab(what.__name__)
            summary = (what.__doc__ or "").strip().split("\n")[0]
            options = {f.name: f.default for f in fields(what)}
            make = cast(Any, what)
        else:
            raise PassError(f"{what!r} is no pass: it must be a frozen dataclass or a RuleSet")
        at = place(stage, label) if priority is None else priority
        if at is None:
            raise PassError(f"the pass {label!r} needs a priority")
        names = None if devices is None else frozenset(devices)
        PASSES.register(label, Entry(label, stage, at, names, default, make, options, summary))
        return cast(Any, what)

    return decorate


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


# ---- running


def run_passes(
    graph: Graph,
    stage: str,
    device: str = "cpu",
    spec: str | None = None,
    *,
    verify: bool = False,
    rounds: int = 4,
    matches: Matches | None = None,
    byte_rate: float = 1.0,
) -> Report:
    """Run the passes of a stage on a graph, in place; nested graphs (If, Loop, Scan) too, but for
    those that hold what cannot be computed: these may never be run, and stay as they are.

    The portable stage is repeated, up to `rounds` times, until nothing changes. `verify` checks
    the graph after every pass that changed it. `matches` are those of the graph that this one is
    a copy of, for other shapes. `byte_rate` is the machine's. Raises PassError
    naming pass and node.
    """
    passes = _chosen(stage, device, spec)
    report = Report()

    def run(sub: Graph) -> None:
        report.add(
            run_passes(sub, stage, device, spec, verify=verify, rounds=rounds, byte_rate=byte_rate)
        )

    for node in graph.nodes:
        if "control" in node.op.traits and "region" not in node.op.traits:
            for key, value in node.attrs.items():
                node.attrs[key] = _own(value, node, run, report)
    settled: set[str] = set()
    context = Context(byte_rate=byte_rate)
    if matches is not None:
        context.matches = matches.within(graph)
    edited, graph.edited = graph.edited, graph.edited or []
    try:
        for _ in range(rounds if stage == "portable" else 1):
            if not _round(graph, passes, context, report, verify, settled):
                break
    finally:
        if matches is None:
            graph.edited = edited
    return report


def _chosen(stage: str, device: str, spec: str | None) -> list[tuple[str, Pass]]:
    """The passes of a stage that run, with their options, in order."""
    if stage not in STAGES:
        raise PassError(f"there is no stage {stage!r}; the stages are {', '.join(STAGES)}")
    if spec is not None and not isinstance(spec, str):
        raise OptionError(f"passes must be text such as '-merge-common', not {spec!r}")
    PASSES.load()
    return _made(stage, device, spec, PASSES.edition)


@lru_cache(32)
def _made(stage: str, device: str, spec: str | None, edition: int) -> list[tuple[str, Pass]]:
    choice = parse_spec(spec)
    return [
        (e.name, e.make(**choice.options.get(e.name, {})))
        for e in list_passes(stage, device, spec or "")
    ]


def has_work(graph: Graph, stage: str, device: str, spec: str | None) -> bool:
    """Whether a pass of a stage may find something to do in a graph, or in one that it holds."""
    tests = [getattr(one, "applies", None) for _, one in _chosen(stage, device, spec)]
    return any(applies is None or applies(graph) for applies in tests)


def find_matches(graph: Graph, device: str, spec: str | None) -> Matches:
    """For `run_passes(..., matches=)` on copies of a graph with other shapes: the nodes at which
    the patterns of rules match, of all stages. Patterns see no shapes, and no rule runs. `spec` as
    there."""
    stages = dict.fromkeys(COURSE)
    passes = [one for stage in stages for _, one in _chosen(stage, device, spec)]
    return Matches.of(graph, [one.rules for one in passes if isinstance(one, RunRules)])


def _round(
    graph: Graph,
    passes: list[tuple[str, Pass]],
    context: Context,
    report: Report,
    verify: bool,
    settled: set[str],
) -> bool:
    """Whether anything changed. Passes that have found nothing to do in the graph as it is are
    `settled`, and do not run."""
    changed = False
    for number, (name, one) in enumerate(passes):
        tell(number, len(passes), "passes")
        if name in settled:
            continue
        needs = getattr(one, "operators", None)
        if needs is not None and needs.isdisjoint(graph.operators()):
            settled.add(name)
            continue
        start = time.perf_counter()
        try:
            changes = one.run(graph, context)
            if verify and changes:
                verify_graph(graph)
        except (TypeRuleError, ReferenceFailed) as error:
            error.add_note(f"in pass {name}")  # most often no fault of it: sizes do not fit
            raise
        except (MemoryError, NeedsNumber):  # the machine's, or of free sizes: no fault of the pass
            raise
        except Exception as error:
            kind = type(error) if isinstance(error, PassError) else PassError
            what = error if isinstance(error, TinsmithError) else f"{type(error).__name__}: {error}"
            raise kind(f"pass {name} failed on graph {graph.name!r}: {what}") from error
        if changes > 0:
            changed = True
            settled.clear()
        else:
            settled.add(name)
        report.entries.append((name, changes, time.perf_counter() - start))
    fresh = {(r.rule, r.node): r for r in context.refusals}
    report.refusals = [r for r in report.refusals if (r.rule, r.node) not in fresh]
    report.refusals += fresh.values()
    report.notes += context.notes
    report.counts += context.counts
    report.absorbed |= context.absorbed
    for told in (context.refusals, context.notes, context.counts, context.absorbed):
        told.clear()
    return changed


def _own(value: Any, node: Node, run: Callable[[Graph], None], report: Report) -> Any:
    """An attribute whose graphs are copies, which `run` has edited: graphs that were cloned share
    them."""
    if isinstance(value, tuple):
        return tuple(_own(v, node, run, report) for v in cast(tuple[Any, ...], value))
    if not isinstance(value, Graph):
        return value
    own = value.clone()
    try:
        run(own)
    except (TypeRuleError, ReferenceFailed) as error:
        report.refusals.append(Refusal("nested-passes", node.name, str(error), (node.name,)))
        return value.clone()
    return own
