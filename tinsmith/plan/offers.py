"""What kernels offer for a node, and which offer wins."""

from __future__ import annotations

from collections.abc import Hashable

from tinsmith.errors import CodegenError
from tinsmith.graph import Node, Value
from tinsmith.kernels._kernel import ELEMENTWISE, Choice, Site, Skip, Tier
from tinsmith.kernels.select import REFERENCE, Candidate, candidates, forced, left_out
from tinsmith.plan.equivalence import Arrays
from tinsmith.plan.pick import Preference, lightest, preferred, site_signature
from tinsmith.plan.placement import Placement
from tinsmith.records import NamedTuple
from tinsmith.sizes import Size


class Offer(NamedTuple):
    """The answers of kernels for a node.

    site      what kernels see of the node; None if it cannot be made, or was not needed
    found     the candidates; empty if kernels were not asked
    reason    why kernels were not asked; "" if they were
    computed  the node's `EquivalenceClass`; None where it is not known, as with overrides
    """

    site: Site | None
    found: list[Candidate]
    reason: str = ""
    computed: Hashable = None
    arrays: Arrays = ()
    """Pairs (old, new): the arrays by which to replace those that the candidates pack."""


def offer_of(placement: Placement, node: Node, force: str | None, checks: bool) -> Offer:
    """Ask the kernels what they offer for a node; for a node of a class that is known, repeat the
    answers (`equivalence.py`). `force`: ask this kernel alone (REFERENCE: none; None: all, or what
    an override says of the anchor). `checks`: ask only kernels that check the node's sizes, because
    only the run can prove them."""
    if force == REFERENCE:
        return Offer(None, [], "forced")
    site, computed = None, None
    try:
        placement.check(node)
        if not placement.overrides:
            layouts = [placement.layout(v) for v in node.inputs]
            split = tuple([v in placement.by_channels for v in node.inputs])
            computed = placement.answers.key(node, layouts, placement.threads, split, checks)
            known = placement.answers.again(computed, node)
            if known is not None:
                site, found, arrays = known
                return Offer(site, found, computed=computed, arrays=arrays)
        site = placement.site(node)
        inner = site.anchor.op.name if site.anchor is not None else ELEMENTWISE
        force = force or forced(node.name, inner, placement.overrides)
        if force == REFERENCE:
            return Offer(site, [], "forced")
        found = candidates(site, force, checks, left_out(placement.overrides))
    except (Skip, CodegenError) as skip:
        return Offer(site, [], str(skip))
    if computed is not None:
        placement.answers.keep(computed, site, found)
    return Offer(site, found, computed=computed)


def rivals_of(
    placement: Placement, site: Site, found: list[Candidate], results: set[Value]
) -> list[tuple[float, Candidate]]:
    """The candidates among which costs decide, as (seconds with the conversions of layouts that
    they need, candidate), the fastest first. Left out are candidates that decline, those that want
    blocks of channels where only the call tells how many there are, those that fix more free sizes
    to numbers (`Candidate.fixes`) than others do, and of the rest all but the best tier. `results`
    are the values that leave the program: they must end up plain."""
    found = [c for c in found if c.choice is not None and not _blocks_free(site, c.choice)]
    fewest = min((c.fixes for c in found), default=0)
    found = [c for c in found if c.fixes == fewest]
    tier = max((c.tier for c in found if c.choice is not None), default=Tier.REFERENCE)
    rows = [
        (placement.total(site, c.choice, results), c)
        for c in found
        if c.choice is not None and c.tier == tier
    ]
    return sorted(rows, key=lambda row: (row[0], row[1].kernel))


def _blocks_free(site: Site, choice: Choice) -> bool:
    """Whether a choice reads or writes, blocked, a tensor whose number of channels is free."""
    if not site.is_free:
        return False
    reads = zip(site.operands, choice.reads, strict=True)
    pairs = [*reads, *zip(site.outputs, choice.writes, strict=True)]
    return any(
        v is not None
        and layout is not None
        and layout.block
        and any(isinstance(channels, Size) for channels in v.dims[1:2])  # a scalar has none
        for v, layout in pairs
    )


def best_of(
    placement: Placement, site: Site, rivals: list[tuple[float, Candidate]]
) -> tuple[Candidate | None, Preference | None]:
    """(the winner among `rivals`, which are the fastest first, None if there are none; the measured
    preference, if that decided, else None). The candidate that a preference of the site names wins,
    else the fastest. With `memory="small"`, the first in this order whose packed weights are small
    enough (`lightest`)."""
    ranking = [c for _, c in rivals]
    wanted = placement.preferences.get(site_signature(site)) if placement.preferences else None
    best = preferred(ranking, wanted)
    if placement.small:
        light = lightest(site, [best, *ranking] if best else ranking)
        return light, (wanted if light is best else None)
    if best is not None:
        return best, wanted
    return (ranking[0] if ranking else None), None
