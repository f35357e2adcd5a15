"""Passes: how they register, and how a stage runs. Which of them run: `choice`.

    @register("portable", devices=("cpu",), priority=250)
    @dataclass(frozen=True)
    class MyPass:
        \"\"\"What it does, in one line.\"\"\"
        limit: int = 8                      # an option: "my-pass{limit=4}"
        def run(self, graph, context) -> int:
            ...                             # how often it changed something

A pass is a frozen dataclass whose fields are its options, or a RuleSet. It runs in the order
(stage, priority, name); `pipelines` has the priorities of Tinsmith's own passes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Protocol, TypeVar, cast

from tinsmith.errors import OptionError, PassError, ReferenceFailed, TinsmithError, TypeRuleError
from tinsmith.graph import Graph, Node
from tinsmith.graph.copy import with_nested
from tinsmith.graph.verify import verify as verify_graph
from tinsmith.passes.choice import COURSE, PASSES, STAGES, Entry, list_passes, parse_spec
from tinsmith.passes.pipelines import place
from tinsmith.passes.report import Matches, Report
from tinsmith.progress import tell
from tinsmith.records import dataclass
from tinsmith.rewrite import Refusal, RuleSet, Start, matching, rewrite
from tinsmith.sizes import NeedsNumber

T = TypeVar("T")


class Pass(Protocol):
    """A pass: `run` edits a graph in place, and returns how often it changed something.

    It may have a class attribute `operators`: a graph that has none of these is skipped. It may
    have a method `applies(graph)` that returns False if there is nothing to do in the graph and its
    nested graphs; `has_work` asks it.
    """

    def run(self, graph: Graph, context: Context) -> int: ...


@dataclass
class Context:
    """What a pass may know besides the graph, and where it reports.

    matches  for each rule set the nodes at which a pattern may match; None: not known
    told     what passes and rules report in a round, without `Report.entries`
    """

    matches: Mapping[RuleSet, list[Node]] | None = None
    byte_rate: float = 1.0
    """How many products of bytes the machine adds up in the time of one product of floats."""
    told: Report = field(default_factory=Report)

    seen: dict[RuleSet, int] = field(default_factory=dict)
    """How much of `Graph.edited` each rule set has seen."""
    open: tuple[int, list[Node]] = (-1, [])
    """(a length of `Graph.edited`, the nodes of which some size was not known at that time)."""

    def start(self, graph: Graph, rules: RuleSet) -> Start | None:
        """Where a rule set must be tried now, for `rewrite`; None: at all nodes. At its first call:
        at the nodes where its patterns may match (all nodes if `matches` is None), and around all
        edits so far. Later: at those of these nodes of which some size is not known, and around the
        edits since its last call. None also if the graph records no edits (`Graph.edited`)."""
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
        return Start([n for n in nodes if not n.is_static], graph.edited[seen:])

    def _open(self, graph: Graph) -> list[Node]:
        """The nodes that read or give values of which some size is not known."""
        edits = len(graph.edited or ())
        if self.open[0] != edits:
            self.open = edits, [n for n in graph.nodes if not n.is_static]
        return self.open[1]

    def refuse(self, rule: str, node: str, reason: str, *others: str) -> None:
        """Record that `rule` (or a pass) did nothing at the node, and why; `others` are the names
        of further nodes concerned."""
        self.told.refusals.append(Refusal(rule, node, reason, (node, *others)))

    def note(self, rule: str, node: str, what: str) -> None:
        """Record what `rule` (or a pass) did at a node, where its step does not show it."""
        self.told.notes.append(Refusal(rule, node, what, (node,)))


FASTER = 2.0
"""Products of bytes replace those of floats if they have at least this many times the rate of
float32 multiply-adds: slower ones lose against Winograd's and Strassen's methods, which take up to
four times fewer multiplications. Estimated."""


def has_fast_bytes(context: Context) -> bool:
    """Whether the machine multiplies bytes at least FASTER times as fast as floats."""
    return context.byte_rate >= FASTER


def has_bytes(context: Context) -> bool:
    """Whether the machine multiplies bytes faster than floats."""
    return context.byte_rate > 1


def has_pairs(context: Context) -> bool:
    """Whether the machine multiplies bytes faster than floats, but less than FASTER times."""
    return has_bytes(context) and not has_fast_bytes(context)


@dataclass(frozen=True)
class RunRules:
    """The pass that runs a rule set to its fixed point, if `when` holds of the context (None:
    always)."""

    rules: RuleSet
    when: Callable[[Context], bool] | None = None

    def run(self, graph: Graph, context: Context) -> int:
        if self.when is not None and not self.when(context):
            return 0
        done = rewrite(graph, self.rules, start=context.start(graph, self.rules))
        context.told.refusals += done.refusals
        context.told.counts += done.counts
        context.told.absorbed |= done.absorbed
        return done.changes


def register(
    stage: str, *, priority: float | None = None, devices: tuple[str, ...] | None = None,
    default: bool = True, name: str | None = None, when: Callable[[Context], bool] | None = None,
) -> Callable[[T], T]:  # fmt: skip
    """Decorator of a pass class, or function to be called with a RuleSet: registers it for a stage.

    priority  order in the stage, the least first; may be left out for passes that `pipelines` lists
    devices   that it supports (None: all)
    default   False leaves it off until `+name` asks for it
    name      None: that of the rule set, or the class's in lower case with hyphens
    when      of a RuleSet: whether it runs, by the context (None: always)

    Raises DuplicateName, and PassError for an unknown stage, a missing priority or what is no pass.
    """

    def decorate(what: T) -> T:
        if stage not in STAGES:
            raise PassError(f"there is no stage {stage!r}; the stages are {', '.join(STAGES)}")
        options: dict[str, Any] = {}
        make: Callable[..., Pass]
        if isinstance(what, RuleSet):
            label, summary, rules = name or what.name, what.summary, what
            make = lambda: RunRules(rules, when)  # noqa: E731
        elif isinstance(what, type) and is_dataclass(what):
            label = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", what.__name__).lower()
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


# ---- running

ROUNDS = 4
"""The portable stage is repeated until nothing changes, but at most so often."""


def run_passes(
    graph: Graph, stage: str, device: str = "cpu", spec: str | None = None, *,
    verify: bool = False, matches: Matches | None = None, byte_rate: float = 1.0,
) -> Report:  # fmt: skip
    """Run the passes of a stage on a graph, in place. Its nested graphs (bodies of If, Loop, Scan)
    are replaced by copies on which the passes have run too. A nested graph whose types or constants
    turn out wrong stays as it is: it may never be run.

    spec       `passes=` text: which passes run, with which options (see `choice`)
    verify     check the graph after every pass that changed it
    matches    `find_matches` of the graph of which this one is a copy for other shapes
    byte_rate  as in `Context`

    Raises PassError naming the pass (and rule and node) if one fails; TypeRuleError and
    ReferenceFailed where sizes of the graph do not fit.
    """
    passes = _chosen(stage, device, spec)
    report = Report()

    def own(node: Node, nested: Graph) -> Graph:
        copy = nested.clone()  # clones of the outer graph share the original
        try:
            report.add(run_passes(copy, stage, device, spec, verify=verify, byte_rate=byte_rate))
        except (TypeRuleError, ReferenceFailed) as error:
            report.refusals.append(Refusal("nested-passes", node.name, str(error), (node.name,)))
            return nested.clone()
        return copy

    for node in graph.nodes:
        if "control" in node.op.traits and "region" not in node.op.traits:
            node.attrs = with_nested(node.attrs, partial(own, node))
    settled: set[str] = set()
    context = Context(byte_rate=byte_rate)
    if matches is not None:
        context.matches = matches.within(graph)
    edited, graph.edited = graph.edited, graph.edited or []
    try:
        for _ in range(ROUNDS if stage == "portable" else 1):
            if not _round(graph, passes, context, report, verify, settled):
                break
    finally:
        if matches is None:
            graph.edited = edited
    return report


def _chosen(stage: str, device: str, spec: str | None) -> list[tuple[str, Pass]]:
    """(name, pass with its options) of the passes of a stage that run, in order. Raises PassError
    for an unknown stage, OptionError if `spec` is no text, and what `parse_spec` raises."""
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
    """Whether a pass of a stage may have something to do in a graph or its nested graphs: one that
    has no method `applies`, or whose `applies` returns True. `device` and `spec` choose the passes,
    as for `run_passes`."""
    tests = [getattr(one, "applies", None) for _, one in _chosen(stage, device, spec)]
    return any(applies is None or applies(graph) for applies in tests)


def find_matches(graph: Graph, device: str, spec: str | None) -> Matches:
    """The nodes at which patterns of rules match, of all stages that a compilation runs, for
    `run_passes(..., matches=)` on copies of the graph with other shapes: patterns see none, so they
    match at the same nodes there. No rule runs. `spec` as in `run_passes`."""
    found = Matches()
    for _, one in chain.from_iterable(_chosen(s, device, spec) for s in dict.fromkeys(COURSE)):
        if isinstance(one, RunRules):
            nodes, misses = matching(graph, one.rules)
            found.names[one.rules] = [n.name for n in nodes]
            found.report.refusals += misses
    return found


def _round(
    graph: Graph, passes: list[tuple[str, Pass]], context: Context, report: Report, verify: bool,
    settled: set[str],
) -> bool:  # fmt: skip
    """Run each of the passes once, in order; add what they did to `report`. Returns whether
    anything changed. `settled` has the names of passes that found nothing to do since the graph
    last changed, and do not run; it is updated."""
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
    told, context.told = context.told, Report()
    fresh = {(r.rule, r.node): r for r in told.refusals}
    report.refusals = [r for r in report.refusals if (r.rule, r.node) not in fresh]
    told.refusals = list(fresh.values())
    report.add(told)
    return changed
