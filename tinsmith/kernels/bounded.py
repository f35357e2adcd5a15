"""Copies that check what they copy: integers within bounds, and conditions that must hold."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Tier, kernel, one_phase

ELEMENT = 0.6e-9  # seconds to check and copy an element; estimated


@kernel("Bounded", Tier.VECTOR, dtypes="int32 int64")
def bounded_copy(site: Site) -> Choice:
    """A copy of integers that must lie in [`least`, `most`]: one outside is a fault.

    Both are attributes, as is `what`, by which the message calls them. They are copied one by one,
    as there are few: one for each sequence in a batch.
    """
    least, most = site.attr("least"), site.attr("most")

    def is_bad(number: Val) -> Val:
        wide = number.to("i64")
        return (wide < least) | (wide > most)

    fault = f"{site.attr('what')} must lie in [{least}, {most}]"
    return _checked(site, is_bad, 1e-6 + site.out.type.size * ELEMENT, fault)


@kernel("Required", Tier.VECTOR, dtypes="bool")
def required_copy(site: Site) -> Choice:
    """A copy of conditions that all must equal the attribute `value`: any other is a fault."""
    wanted = bool(site.attr("value"))
    is_bad = lambda held: held.eq(0) if wanted else held.ne(0)  # noqa: E731
    return _checked(site, is_bad, 1e-6, site.attr("message"))


def _checked(site: Site, is_bad: Callable[[Val], Val], cost: float, fault: str) -> Choice:
    """The choice of a copy of input 0, one element after the other. An element for which `is_bad`
    gives a true i1 is a fault with the message `fault`."""
    site.need_no_epilogue("a copy has no epilogue")

    def emit(em: Emit) -> None:
        source = em.input(0)
        with em.b.loop(em.begin, em.end) as i:
            value = (source.pointer + i).load()
            em.fault(is_bad(value))
            (em.outs[0].pointer + i).store(value)

    phases = one_phase(site.out.type.size, emit)
    return Choice(cost, (PLAIN,), (PLAIN,), phases, scratch=64, fault=fault)
