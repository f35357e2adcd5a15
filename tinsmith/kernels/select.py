"""Which kernels may compute a site, and what each of them answered.

The best tier wins; within a tier the least cost; ties go to the first name. `TINSMITH_KERNELS` and
`compile(kernels=...)` force kernels:

    reference                                   the numpy reference everywhere
    Conv=reference,layer1.0.conv1=conv_direct   one operator, one node (by name)
    -conv_direct                                all but this kernel
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import field

from tinsmith.conditions import Conditions, trial
from tinsmith.errors import KernelChoiceError, NoKernel, OptionError, UnknownName
from tinsmith.graph import Graph
from tinsmith.kernels._kernel import ELEMENTWISE, KERNELS, Choice, Site, Skip, Tier, kernels_for
from tinsmith.ops import OPS
from tinsmith.ops.control import fused_body
from tinsmith.records import dataclass
from tinsmith.sizes import NeedsNumber

REFERENCE = "reference"
OUT = "-"
"""In overrides {kernel: OUT}, in place of {operator or node: kernel}: the kernel is left out."""


@dataclass(frozen=True)
class Candidate:
    """A kernel's answer for one site: a choice, or None and the reason why it declines."""

    kernel: str
    tier: Tier
    choice: Choice | None
    reason: str = ""
    conditions: Conditions = field(default_factory=dict)
    """Conditions on free sizes under which the choice holds; {}: it holds for all."""

    @property
    def fixes(self) -> int:
        """How many of the conditions are equations, such as H == 224: the fewer, the more sizes the
        choice serves."""
        return sum(relation == "==" for _, relation in self.conditions)


def parse_overrides(text: str | Mapping[str, str] | None) -> dict[str, str]:
    """`kernels=`, or if it is None the environment's `TINSMITH_KERNELS`, as {operator or node:
    kernel}; the key "*" is all nodes. A kernel that is left out is {kernel: "-"}: "winograd*"
    stands for all that begin so, and becomes an entry for each.

    Raises UnknownName, with suggestions, for a kernel that does not exist; OptionError for `text`
    that is neither text nor a mapping.
    """
    said = os.environ.get("TINSMITH_KERNELS", "")
    text = said if text is None else text
    source = " in TINSMITH_KERNELS" if said and text == said else ""
    if isinstance(text, str):
        parts = [p.strip() for p in text.split(",") if p.strip()]
        parts = [f"{p[1:]}={OUT}" if p.startswith("-") else p for p in parts]
        pairs = (p.rpartition("=") for p in parts)
        text = {key.strip() or "*": name.strip() for key, _, name in pairs}
    if not isinstance(text, Mapping):
        raise OptionError(f"kernels must be text or a mapping, not {text!r}")
    found: dict[str, str] = {}
    for key, name in text.items():
        if name == OUT:
            some = [k for k in KERNELS if key.endswith("*") and k.startswith(key[:-1] or "*")]
            found |= dict.fromkeys(some, OUT) or {KERNELS[key].name: OUT}  # raises UnknownName
            continue
        found[key] = name
        if name != REFERENCE and name not in KERNELS:
            own = [k.name for k in kernels_for(key)]
            kind = f"kernel of {key}{source}" if own else f"kernel{source}"
            command = f"tinsmith kernels {key}" if own else KERNELS.command
            raise UnknownName(kind, name, [*(own or KERNELS), REFERENCE], command)
    return found


def check_overrides(overrides: Mapping[str, str], nodes: set[str]) -> None:
    """Raise UnknownName for an override of neither an operator nor one of the `nodes` (names).
    Those of "*" and of `ELEMENTWISE`, and kernels that are left out, pass."""
    for key, name in overrides.items():
        known = key in ("*", ELEMENTWISE) or key in nodes or key in OPS
        if name != OUT and not known:
            raise UnknownName("operator or node", key, [*nodes, *OPS])


def idle(overrides: Mapping[str, str], placed: Graph) -> list[str]:
    """The keys of overrides that reach no node of `placed`, a graph after all passes, since what
    they name was fused into others or replaced. For a warning; kernels that are left out do not
    count."""
    reached = {"*"} | _reached(placed)
    return [key for key, name in overrides.items() if name != OUT and key not in reached]


def _reached(graph: Graph) -> set[str]:
    """The keys of overrides that reach a node of a graph or of graphs nested in it: the names of
    its nodes and operators; for fused nodes also `ELEMENTWISE` and the operators in them that have
    kernels."""
    names: set[str] = set()
    for node in graph.nodes:
        names |= {node.name, node.op.name}
        body = fused_body(node)
        if body is not None:  # one kernel, of its anchor's operator
            inner = {n.op.name for n in body.nodes}
            names |= {ELEMENTWISE} | {name for name in inner if kernels_for(name)}
        else:
            names = names.union(*map(_reached, node.graphs.values()))
    return names


def forced(site_name: str, op: str, overrides: Mapping[str, str]) -> str | None:
    """The kernel that is demanded for a node, by its name, else its operator, else "*"; or None."""
    for key in (site_name, op, "*"):
        if key in overrides and overrides[key] != OUT:
            return overrides[key]
    return None


def left_out(overrides: Mapping[str, str]) -> frozenset[str]:
    """The kernels that the overrides leave out."""
    return frozenset(key for key, name in overrides.items() if name == OUT)


UNPROVEN = "only the run can prove its sizes"


def candidates(
    site: Site,
    force: str | None = None,
    checks: bool = False,
    without: Collection[str] = frozenset(),
) -> list[Candidate]:
    """What every kernel of the site's operator, or only `force`, answers, best tier first: its
    choices or its reason. Kernels in `without` decline. `checks`: only the run can prove the site's
    sizes, so kernels that do not check them decline, too.

    Raises KernelChoiceError if `force` names a kernel of another operator, NoKernel if it declines
    the site.
    """
    op = site.anchor.op.name if site.anchor is not None else ELEMENTWISE
    rows = kernels_for(op)
    if force is not None:
        rows = tuple(k for k in rows if k.name == force)
        if not rows:
            raise KernelChoiceError(f"{site.node.origin}: kernel {force!r} does not compute {op}")
    found: list[Candidate] = []
    for row in rows:
        try:
            if row.name in without:
                raise Skip("left out by kernels=")
            if checks and not row.checks:
                raise Skip(f"{UNPROVEN}, and this kernel does not check them")
            with trial() as conditions:
                offered = row.offer(site)
            found += [Candidate(row.name, row.tier, c, "", conditions) for c in offered]
        except Skip as skip:
            found.append(Candidate(row.name, row.tier, None, str(skip)))
        except (NeedsNumber, TypeError, ValueError) as why:
            if not site.is_free:
                raise
            reason = f"it needs numbers where sizes are free: {why}"
            found.append(Candidate(row.name, row.tier, None, reason))
    if force is not None and not any(c.choice for c in found):
        raise NoKernel(f"{site.node.origin}: kernel {force!r} declines: {found[0].reason}")
    return found
