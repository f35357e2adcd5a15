"""A step before memory is planned."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from tinsmith.graph import Node
from tinsmith.kernels._kernel import Choice, Packed, Site
from tinsmith.kernels.build import Code
from tinsmith.kernels.select import Candidate
from tinsmith.plan.alike import Arrays, packing
from tinsmith.plan.pick import Preference
from tinsmith.plan.shelf import Kept
from tinsmith.plan.tensors import Tensor
from tinsmith.records import dataclass


@dataclass(eq=False)
class Placed:
    """One step before memory is planned: what runs, on which tensors, and why."""

    name: str
    op: str
    kind: str
    kernel: str
    origin: str
    node: Node | None = None
    site: Site | None = None
    choice: Choice | None = None
    reads: list[Tensor | None] = field(default_factory=list)
    writes: list[Tensor] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    scratch: Tensor | None = None
    reason: str = ""
    rivals: list[tuple[float, Candidate]] = field(default_factory=list)
    """Seconds with conversions, and candidates of the best tier, least first."""
    measured: Preference | None = None
    region: int = 0
    """The region whose turns run the step; 0 for none."""
    turns: int = 1
    computed: Hashable = None
    """What tells the node from all that are not like it, where that was asked for."""
    counted: bool = False
    """Whether the outputs have room for the most, and the last is the count of what is there."""
    stated: int = -1
    """The count that the model states, or -1."""
    arrays: Arrays = ()
    """What to pack in the place of the arrays that the choice, made for another node, mentions."""

    packed: list[Kept] = field(default_factory=list)
    """Where the arrays lie that the choice packs, and the code of its phases, once made."""
    codes: list[Code] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        """What the step reads and writes of the program's memory."""
        return [t for t in (*self.reads, *self.writes) if t is not None and t.is_static]

    @property
    def cost(self) -> float:
        return self.choice.cost if self.choice else 0.0

    @property
    def packings(self) -> list[Packed]:
        """What the choice packs, of the node's own arrays."""
        return [packing(p, self.arrays) for p in self.choice.packed] if self.choice else []

    @property
    def rank(self) -> int:
        """The place of the choice among the candidates."""
        return next((i for i, c in enumerate(self.candidates) if c.choice is self.choice), -1)
