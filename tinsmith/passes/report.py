"""What passes did to a graph, and where rules may apply in copies of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from tinsmith.graph import Graph, Node
from tinsmith.records import dataclass
from tinsmith.rewrite import Refusal, RuleSet


@dataclass
class Report:
    """What a stage of passes did to a graph.

    entries   (name of the pass, how often it changed something, seconds) for each run of a pass
    refusals  for `explain`: nodes at which something was not done, and why
    notes     for `explain`: what was done at a node, where its step in the plan does not show it
    counts    how often each rule fired
    absorbed  name of a source node -> (rule that merged it into another, name of the other node)
    """

    entries: list[tuple[str, int, float]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[Refusal] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    absorbed: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, int, float]]:
        return iter(self.entries)

    def add(self, other: Report) -> None:
        """Add another report to this one, such as that of a nested graph."""
        self.entries += other.entries
        self.refusals += other.refusals
        self.notes += other.notes
        self.counts += other.counts
        self.absorbed |= other.absorbed

    @property
    def changes(self) -> dict[str, int]:
        """How often each pass changed something, over all rounds."""
        total: dict[str, int] = {}
        for name, count, _ in self.entries:
            total[name] = total.get(name, 0) + count
        return total

    def _rows(self) -> list[tuple[str, int, str]]:
        """(name of a pass, how often it changed something, its milliseconds) for each pass."""
        times: dict[str, float] = {}
        for name, _, seconds in self.entries:
            times[name] = times.get(name, 0.0) + seconds
        return [(name, count, f"{times[name] * 1e3:.2f}") for name, count in self.changes.items()]

    def __str__(self) -> str:
        return "\n".join(f"{n:28} {count:6} {ms:>9} ms" for n, count, ms in self._rows())

    def _repr_html_(self) -> str:
        from tinsmith.html import table

        return table("passes", ["pass", "changes", "ms"], self._rows())


@dataclass(frozen=True)
class Matches:
    """Where the rules of all stages may apply in copies of a graph for other shapes, so that
    patterns are matched only once. `names`: for each rule set, the names of nodes at which a
    pattern matches. `report.refusals`: near misses at other nodes."""

    names: dict[RuleSet, list[str]] = field(default_factory=dict)
    report: Report = field(default_factory=Report)

    def within(self, graph: Graph) -> dict[RuleSet, list[Node]]:
        """For each rule set, the nodes of `graph`, a copy, at whose originals a pattern matched:
        they are found by their names. Missing ones are left out."""
        known = {n.name: n for n in graph.nodes}
        return {
            rules: [known[n] for n in names if n in known] for rules, names in self.names.items()
        }
