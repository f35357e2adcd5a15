"""What kernels offer for a node, and which offer wins."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from tinsmith.errors import CodegenError
from tinsmith.graph import Node, Value
from tinsmith.kernels._kernel import ELEMENTWISE, Site, Skip, Tier
from tinsmith.kernels.select import REFERENCE, Candidate, candidates, forced
from tinsmith.plan.alike import Alike, Arrays
from tinsmith.plan.pick import Preference, lightest, preferred, site_signature

if TYPE_CHECKING:
    from tinsmith.plan.place import Placer


class Offer(NamedTuple):
    """The site of a node and its candidates, or the reason why there are none; and what tells the
    node from all that are not like it, if that is known."""

    site: Site | None
    found: list[Candidate]
    reason: str = ""
    computed: Hashable = None
    arrays: Arrays = ()
    """What the candidates pack is to be exchanged by these."""


def offer_of(placer: Placer, alike: Alike, node: Node, force: str | None, checks: bool) -> Offer:
    """What kernels offer for a node, `force` alone where it is given; with `checks`, those that
    check sizes which only the run can prove."""
    if force == REFERENCE:
        return Offer(None, [], "forced")
    site, computed = None, None
    try:
        placer.check(node)
        if not placer.overrides:
            layouts = [placer.layout(v) for v in node.inputs]
            split = tuple([v in placer.by_channels for v in node.inputs])
            computed = alike.key(node, layouts, placer.threads, split, checks)
            known = alike.again(computed, node)
            if known is not None:
                site, found, arrays = known
                return Offer(site, found, computed=computed, arrays=arrays)
        site = placer.site(node)
        inner = site.anchor.op.name if site.anchor is not None else ELEMENTWISE
        force = force or forced(node.name, inner, placer.overrides)
        if force == REFERENCE:
            return Offer(site, [], "forced")
        found = candidates(site, force, checks)
    except (Skip, CodegenError) as skip:
        return Offer(site, [], str(skip))
    if computed is not None:
        alike.keep(computed, site, found)
    return Offer(site, found, computed=computed)


def rivals_of(
    placer: Placer, site: Site, found: list[Candidate], results: set[Value]
) -> list[tuple[float, Candidate]]:
    """Seconds with conversions, and candidates, of the best tier; least first."""
    tier = max((c.tier for c in found if c.choice is not None), default=Tier.REFERENCE)
    rows = [
        (placer.total(site, c.choice, results), c)
        for c in found
        if c.choice is not None and c.tier == tier
    ]
    return sorted(rows, key=lambda row: (row[0], row[1].kernel))


def best_of(
    placer: Placer, site: Site, rivals: list[tuple[float, Candidate]]
) -> tuple[Candidate | None, Preference | None]:
    """The winner, and what was measured where that decided."""
    ranking = [c for _, c in rivals]
    wanted = placer.preferences.get(site_signature(site)) if placer.preferences else None
    best = preferred(ranking, wanted)
    if placer.small:
        light = lightest(site, [best, *ranking] if best else ranking)
        return light, (wanted if light is best else None)
    if best is not None:
        return best, wanted
    return (ranking[0] if ranking else None), None
