"""The sizes of a recurrent layer, and what the native kernel does not do."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.recurrent.functions import Function, gate_functions
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Layer:
    """Sizes of one recurrent layer: T steps, N rows, I inputs, H units in blocks of V, D
    directions; `gates` columns of each unit in the product. With `lens` the input 4 tells how many
    steps each row has. `peepholes` is the number of their input, if there is one. `apart`: a bias
    of the last gate is added inside the step. `batch_first`: x is (N, T, I), y (N, T, D, H),
    states (N, D, H) rather than (T, N, I), (T, D, N, H) and (D, N, H)."""

    site: Site
    gates: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: tuple[bool, ...]  # True: from the last step to the first
    lanes: int
    functions: tuple[Function, ...]
    lens: bool
    peepholes: int | None
    apart: bool
    batch_first: bool

    @property
    def product_strides(self) -> tuple[int, int]:
        """From one step, and from one row, to the next, in the products of all inputs."""
        step, row = (1, self.steps) if self.batch_first else (self.batch, 1)
        return step * self.columns, row * self.columns

    @property
    def output_strides(self) -> tuple[int, int, int]:
        """From one step, direction and row to the next, in y."""
        ways, hidden = len(self.directions), self.hidden
        if self.batch_first:
            return ways * hidden, hidden, self.steps * ways * hidden
        return ways * self.batch * hidden, self.batch * hidden, hidden

    @property
    def state_strides(self) -> tuple[int, int]:
        """From one direction, and from one row, to the next, in initial and last states."""
        if self.batch_first:
            return self.hidden, len(self.directions) * self.hidden
        return self.batch * self.hidden, self.hidden

    @property
    def weights(self) -> list[int]:
        """The numbers of the inputs that hold weights."""
        return [i for i in (1, 2, 3, self.peepholes) if i is not None and self.site.has(i)]

    @property
    def computed(self) -> bool:
        """Whether some weights are known only when the model runs; all are packed then."""
        return any(self.site.input(i).const is None for i in self.weights)

    @property
    def blocks(self) -> int:
        return -(-self.hidden // self.lanes)

    @property
    def padded(self) -> int:
        return self.blocks * self.lanes

    @property
    def columns(self) -> int:
        return self.blocks * self.gates * self.lanes

    @property
    def rows(self) -> int:
        return self.steps * self.batch


def layer_of(
    site: Site, gates: int, states: int, plain: Sequence[str], apart: bool = False
) -> Layer:
    """The layer of a site, or Skip for what the native kernel does not do."""
    if site.has(4) and site.input(4).dtype.kind not in "iu":
        raise Skip(f"sequence_lens is {site.input(4).dtype}")
    batch_first = bool(site.attr("layout"))
    t, n, i = site.input(0).dims
    if batch_first:
        t, n = n, t
    count, hidden = site.input(1).dims[0], site.input(2).dims[2]
    functions = gate_functions(site, plain, count)
    way = site.attr("direction")
    directions = (False, True) if way == "bidirectional" else (way == "reverse",)
    return Layer(
        site, gates, t, n, i, hidden, directions, block_of(site.target), functions, site.has(4),
        5 + states if site.has(5 + states) else None, apart, batch_first,
    )  # fmt: skip
