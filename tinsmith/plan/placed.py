"""A step as it is placed, before memory is planned."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from tinsmith.graph import Node
from tinsmith.kernels._kernel import Choice, Packed, Site
from tinsmith.kernels.build import Code
from tinsmith.kernels.select import Candidate
from tinsmith.plan.equivalence import Arrays, packing
from tinsmith.plan.pick import Preference
from tinsmith.plan.shared_weights import Kept
from tinsmith.plan.tensors import Tensor
from tinsmith.records import dataclass


@dataclass(eq=False)
class Placed:
    """One step before memory is planned: what runs, on which tensors, and why.

    name, op, kind, kernel, origin  as in `Step`
    node        the graph's node; None for conversions of layouts and other added steps
    site        what the kernel saw of it, and `choice`, what the kernel answered; None for steps
                without a kernel
    reads       the tensors of the operands; None for one that is absent or not read in the run
    candidates  the answers of all kernels that were asked; `reason`: why a reference computes it
    scratch     the step's scratch, once memory is planned
    measured    the measured preference (`tune=True`), if that chose the kernel; else None
    """

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
    """The candidates of the best tier with their seconds, conversions included; least first."""
    measured: Preference | None = None
    region: int = 0
    """The number of the region that the step belongs to (its micro-batches run the step), or 0."""
    micro_batches: int = 1
    computed: Hashable = None
    """The node's equivalence class (an `EquivalenceClass`), if it is known."""
    counted: bool = False
    """Whether the outputs have space for the most elements, and the last output is their count."""
    stated: int = -1
    """If `counted`: the count that the model states; -1 if it states none."""
    arrays: Arrays = ()
    """Pairs (old, new): the arrays to pack in place of those that the choice mentions, if the
    choice was made for an equivalent node."""

    packed: list[Kept] = field(default_factory=list)
    """Where each of `packings` lies, once it is packed; `codes` likewise: the code of each phase
    of the choice."""
    codes: list[Code] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the step reads and writes, in any space but "python" (`Tensor.space`):
        also constants, and inputs and outputs of the caller. `scratch` is not among them."""
        return [t for t in (*self.reads, *self.writes) if t is not None and t.is_static]

    @property
    def cost(self) -> float:
        return self.choice.cost if self.choice else 0.0

    @property
    def packings(self) -> list[Packed]:
        """What the choice packs, to be made of the node's own constants, also where an equivalent
        node's choice is reused."""
        return [packing(p, self.arrays) for p in self.choice.packed] if self.choice else []

    @property
    def rank(self) -> int:
        """The position of the choice among the candidates; -1 if it is none of them."""
        return next((i for i, c in enumerate(self.candidates) if c.choice is self.choice), -1)
