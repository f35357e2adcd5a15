"""Copies that check what they copy: integers within bounds, and conditions that must hold."""

from __future__ import annotations

from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Tier, kernel, one_phase

ELEMENT = 0.6e-9  # seconds to check and copy an element; estimated


@kernel("Bounded", Tier.VECTOR, dtypes="int32 int64")
def bounded_copy(site: Site) -> Choice:
    """A copy of integers that must lie between bounds: one outside is a fault.

    They are copied one by one: there are as many as sequences in a batch.
    """
    site.need_no_epilogue("a copy has no epilogue")
    least, most, count = site.attr("least"), site.attr("most"), site.out.type.size

    def emit(em: Emit) -> None:
        source = em.input(0)
        with em.b.loop(em.begin, em.end) as i:
            number = (source.pointer + i).load()
            wide = number.to("i64")
            em.fault((wide < least) | (wide > most))
            (em.outs[0].pointer + i).store(number)

    return Choice(1e-6 + count * ELEMENT, (PLAIN,), (PLAIN,), one_phase(count, emit), scratch=64,
                  fault=f"{site.attr('what')} must lie in [{least}, {most}]")  # fmt: skip


@kernel("Required", Tier.VECTOR, dtypes="bool")
def required_copy(site: Site) -> Choice:
    """A copy of conditions that all must equal the attribute `value`: any other is a fault."""
    site.need_no_epilogue("a copy has no epilogue")
    value, count = bool(site.attr("value")), site.out.type.size

    def emit(em: Emit) -> None:
        source = em.input(0)
        with em.b.loop(em.begin, em.end) as i:
            held = (source.pointer + i).load()
            em.fault(held.eq(0) if value else held.ne(0))
            (em.outs[0].pointer + i).store(held)

    return Choice(1e-6, (PLAIN,), (PLAIN,), one_phase(count, emit), scratch=64,
                  fault=site.attr("message"))  # fmt: skip
