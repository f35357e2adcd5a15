"""The explanation of a step (`net.explain()`), as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from tinsmith.records import dataclass

Pairs = list[dict[str, Any]]


@dataclass(frozen=True)
class Explanation:
    """Why one step of a program is computed as it is. Plain data: `Explanation(**vars(one))` makes
    an equal one."""

    name: str
    op: str
    kernel: str
    because: str = ""
    """Why no kernel was chosen; "" if one was."""
    origin: str = ""
    """The node of the model that the step comes from."""
    fused: list[str] = field(default_factory=list)
    """The nodes inside the step: operator and name."""
    took_in: Pairs = field(default_factory=list)
    """Nodes of the model that rules merged into this one (printed as "took in"): `node`, `rule`."""
    detail: str = ""
    """How the kernel, or another backend, computes it: tile sizes, variant."""
    estimated_us: float | None = None
    """Microseconds on one core, estimated by the cost model."""
    micro_batches: int = 0
    """In how many micro-batches the batch is computed; 0 for all at once."""
    measured: str = ""
    """Times of the kernel and its best rival, if `tune` measured them."""
    reads: Pairs = field(default_factory=list)
    """`name` and `layout` of each operand; both None for a constant that is packed."""
    writes: Pairs = field(default_factory=list)
    candidates: Pairs = field(default_factory=list)
    """Kernels that were asked: `kernel`, `tier`, `estimated_us` (None if it declines), `says`: its
    detail, or why it declines."""
    notes: Pairs = field(default_factory=list)
    """Remarks of passes on the node: `rule`, `reason`."""
    refused: Pairs = field(default_factory=list)
    """Rules that nearly matched: `rule`, `reason`."""
    aliases: list[str] = field(default_factory=list)
    """Other names by which the step can be asked for."""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        lines = [("origin", self.origin), ("fused", ", ".join(self.fused))]
        lines.append(("took in", ", ".join(f"{t['node']} ({t['rule']})" for t in self.took_in)))
        if self.estimated_us is not None:
            lines.append(("chosen", f"{self.kernel} {self.detail}".rstrip()))
            lines.append(("estimated", f"{self.estimated_us:.1f} us on one core"))
        else:
            lines.append(("computed", self.detail))
        if self.micro_batches:
            lines.append(("batch", f"in {self.micro_batches} micro-batches"))
        lines.append(("measured", self.measured))
        lines += [("reads", _tensors(self.reads)), ("writes", _tensors(self.writes))]
        lines.append(("because", self.because))
        lines += [("candidate", _candidate(c)) for c in self.candidates]
        lines += [("note", f"{n['rule']}: {n['reason']}") for n in self.notes]
        lines += [("not", f"{n['rule']}: {n['reason']}") for n in self.refused]
        head = f"{self.name}: {self.op} -> {self.kernel}"
        return "\n".join([head, *(f"  {word:<10} {text}" for word, text in lines if text)])


def by_name(found: Iterable[Explanation]) -> dict[str, Explanation]:
    """Return name -> explanation, for all names and aliases; for a name of several, the first."""
    names: dict[str, Explanation] = {}
    for one in found:
        for name in (one.name, *one.aliases):
            names.setdefault(name, one)
    return names


def _tensors(rows: Pairs) -> str:
    return ", ".join("-" if r["name"] is None else f"{r['name']} {r['layout']}" for r in rows)


def _candidate(row: Mapping[str, Any]) -> str:
    name = f"{row['kernel']:28} {row['tier']:10}"
    if row["estimated_us"] is None:
        return f"{name} -  {row['says']}"
    return f"{name} {row['estimated_us']:9.1f} us  {row['says']}".rstrip()
