"""Short rows, folded a vector of them at a time: each lane holds another row."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.places import Position, finish_run
from tinsmith.kernels.transpose import columns
from tinsmith.records import dataclass

LONGEST = 8
"""Elements of a row up to which taking columns out of vectors pays."""


@dataclass(frozen=True)
class ShortRows:
    """`count` rows of `length` elements, one after the other, of which `lanes` are a unit; the last
    unit overlaps the one before."""

    count: int
    length: int
    lanes: int

    @property
    def units(self) -> int:
        return -(-self.count // self.lanes)

    @property
    def overlap(self) -> bool:
        """Whether the last unit finishes rows of the one before again."""
        return self.count % self.lanes > 0

    def emit(self, em: Emit, unit: Position, fold: Callable[[list[Val]], Val]) -> None:
        """Store `fold(columns)`, one element for each row of the unit, to output 0."""
        first = em.b.minimum(unit * self.lanes, self.count - self.lanes)
        x = (em.ins[0].pointer + first * self.length).fixed()  # type: ignore[union-attr]
        finish_run(em, fold(columns(x, self.length, self.lanes)), 0, first, None)


def short_rows(count: int, length: int, lanes: int) -> ShortRows | None:
    """The rows as short ones; None where they are too long, or too few to fill a vector."""
    if length > LONGEST or lanes == 1 or count < lanes:
        return None
    return ShortRows(count, length, lanes)
