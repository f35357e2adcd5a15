"""The contract between a kernel and the planner.

A kernel is a row of one table: operator, tier, backend, dtypes, what the machine must have, and a
function that looks at a `Site` (one node, or one fused region, with static shapes on one machine)
and either raises `Skip("why")` or returns a `Choice` (or several): its cost, the layouts it reads
and writes, the weights it wants packed, and phases, which generate its code once the planner has
settled where every operand lies. docs/adding.md shows a complete kernel.

A phase has a number of tiles and a function `emit(em)`, which writes by the builder `em.b` the body
of a function `kernel(operands..., begin, end)`. This computes the tiles [begin, end); different
tiles may run on different threads.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from tinsmith.codegen.cores import CORES
from tinsmith.codegen.target import ISAS
from tinsmith.codegen.types import Ty, from_dtype
from tinsmith.errors import OptionError, UnknownName
from tinsmith.graph import Array, Value
from tinsmith.graph.types import name_of
from tinsmith.kernels.emit import Emit, View
from tinsmith.kernels.layout import PLAIN, Layout, Spec
from tinsmith.kernels.site import Site, Skip
from tinsmith.records import dataclass
from tinsmith.registry import Registry
from tinsmith.sizes import Number, as_numbers


class Tier(IntEnum):
    """How specialised a kernel is (see docs/kernels.md). The highest tier wins; costs compare only
    within a tier.

    REFERENCE  no kernel: the numpy function that defines the operator
    VECTOR     code for any shape
    SHAPED     code made for the very shapes of a site
    ISA        only for the instruction sets that the kernel's row names
    CORE       only for the processor cores that the kernel's row names
    MEASURED   no kernel has it: a choice that was timed as the fastest gets it
    """

    REFERENCE = 0
    VECTOR = 1
    SHAPED = 2
    ISA = 3
    CORE = 4
    MEASURED = 5


@dataclass(frozen=True)
class Packed:
    """A constant array that a kernel reads in its own order: `pack(*args)`, made once when the plan
    is built. `name` is for messages.

    It is data, so that it can be compared, shared, and made elsewhere: `pack` is a function defined
    in a module, `args` are whole constants of the site, perhaps reshaped, and hashable values.
    Equal calls are made once for all programs of a model.

    A kernel is asked once for all equivalent nodes (`plan/equivalence.py`). Its answer must
    therefore not depend on the values of large float constants (`kernels/memo.py`), except through
    `fits`: a node is asked for on its own if `fits` is false for one of its arrays in `args`.

    `nbytes`: the result's, given if making it takes long; 0: unknown.
    """

    name: str
    pack: Callable[..., Array]
    args: tuple[Any, ...] = ()
    nbytes: int = 0
    fits: Callable[[Array], bool] | None = None

    def __post_init__(self) -> None:
        assert "<" not in self.pack.__qualname__, f"{self.name} is packed by a closure"

    @property
    def arrays(self) -> list[Array]:
        """The arrays among the arguments: constants of the site."""
        return [a for a in self.args if isinstance(a, np.ndarray)]

    def make(self) -> Array:
        """The packed array. Free sizes in it become the numbers of the plan's example, for which
        alone the program then holds."""
        made = self.pack(*self.args)
        return made if made.dtype != object else as_numbers(made, np.int64)


def packed_table(name: str, numbers: Array) -> Packed:
    """A `Packed` that gives numbers which a kernel works out itself, such as a table of offsets, as
    a flat array: of the dtype that they have, or of int64 if they are free sizes, which become
    numbers as by `Packed.make`."""
    flat = np.ascontiguousarray(as_numbers(numbers, np.int64)).reshape(-1)
    return Packed(name, _from_bytes, (flat.tobytes(), flat.dtype.str), flat.nbytes)


def _from_bytes(data: bytes, dtype: str) -> Array:
    return np.frombuffer(data, dtype)


@dataclass(frozen=True)
class Phase:
    """One parallel loop over so many `tiles`, whose code `emit` writes.

    barrier  all tiles are done before the next phase begins. Without it a thread goes on to the
             next phase as soon as no tile is left to take; then neither phase may read or write
             what the other writes.
    repeat   how often the loop runs, once after the other (`em.step` counts); each thread gets the
             same tiles every time
    copies   the index of the operand that the phase only copies to output 0: the phase is left out
             where both lie in one place. None: it does more
    sweep    so many consecutive tiles pass once over the positions of the outputs, and the next
             `sweep` tiles pass over them again. Threads share each sweep, so that each keeps its
             positions. 0: all tiles are one sweep. `tiles` is a multiple of `sweep`.
    generic  if not None: `emit` gets these numbers after its `Emit`, and the code is generic
             (`kernels/generic.py`). Then it may depend on extents and strides only by the specs of
             its views and these numbers, and on no constant's values
    """

    tiles: int
    emit: Callable[..., None]
    repeat: int = 1
    sweep: int = 0
    barrier: bool = True
    copies: int | None = None
    generic: tuple[Number, ...] | None = None

    def __post_init__(self) -> None:
        assert not self.sweep or self.tiles % self.sweep == 0, (self.tiles, self.sweep)
        assert self.barrier or self.repeat == 1, "repetitions wait for each other"


@dataclass(frozen=True)
class Choice:
    """One way to compute a site.

    cost       seconds on one core
    reads      for each of `site.operands`: the layout (halo: the least that is needed) in which the
               kernel reads it; None if it is not read at run time
    writes     for each output: its layout. A kernel that writes blocked data must cope with any
               halo and strides that the planner settles (`em.outs[i].spec`); the planner zeroes
               halos, the kernel keeps padding lanes zero (`em.finish` does)
    phases     loops that run in this order (see `Phase.barrier`)
    packed     constant arrays in the kernel's own order (`em.packed`)
    unseen     numbers of constant inputs on whose values code does not depend: it gets them, or
               packed arrays of them, when it runs
    workspace  bytes for each thread
    scratch    bytes for the step, shared by its threads
    by_channels  whether threads share the channels of the outputs rather than their positions, if
               that is known
    inplace    index of an operand whose buffer output 0 may take over, if both lie alike
    repeats    whether some elements of the outputs are finished more than once (overlapping tiles):
               then no extra's buffer may be taken over
    detail     a few words for `explain`: tile sizes, the variant
    fault      the message of the DataError that the run raises if the kernel has set the first four
               bytes of its scratch (they are 0 before a run)
    """

    cost: float
    reads: tuple[Layout | None, ...]
    writes: tuple[Layout, ...]
    phases: tuple[Phase, ...]
    packed: tuple[Packed, ...] = ()
    unseen: tuple[int, ...] = ()
    workspace: int = 0
    scratch: int = 0
    by_channels: bool = False
    inplace: int | None = None
    repeats: bool = False
    detail: str = ""
    fault: str = ""

    def __post_init__(self) -> None:
        assert not self.fault or self.scratch >= 4, "there is no room for the report of a fault"
        assert not self.phases or self.phases[-1].barrier, "the next step would not wait"

    def may_take_over(self, inputs: int) -> list[int]:
        """The indices of operands whose buffers output 0 may take over if they lie alike: `inplace`
        and, unless `repeats`, all extras. The first `inputs` operands are the anchor's."""
        found = [] if self.inplace is None else [self.inplace]
        return found if self.repeats else [*found, *range(inputs, len(self.reads))]


Rule = Callable[[Site], "Choice | list[Choice]"]

CPU = "cpu"
"""The `backend` of kernels that generate code for the processor."""


@dataclass(frozen=True)
class Kernel:
    """A row of the kernel table: a `rule`, and what tells for which sites it is asked."""

    name: str
    op: str
    tier: Tier
    dtypes: frozenset[str]
    isas: frozenset[str]
    """The instruction sets that it is for, and those of the same vectors (`Isa.vectors`): "avx512"
    is for "avx512vnni", "avx512bf16" and "amx" too. Empty: all."""
    rule: Rule
    backend: str = CPU
    """The name of the backend that may use it."""
    numbers: bool = False
    """Whether it needs all sizes as numbers, and so declines sites with free sizes."""
    checks: bool = False
    """Whether its code checks sizes that only the run can prove: it counts its results, or reports
    a fault if an operand asks for other sizes than were planned."""
    cores: frozenset[str] = frozenset()
    """The rows of `codegen/cores.py` that it is for; empty: all."""

    @property
    def summary(self) -> str:
        return (self.rule.__doc__ or "").strip().split("\n")[0]

    def offer(self, site: Site) -> list[Choice]:
        """The choices of this kernel for a site. Raises Skip if there is none."""
        target = site.target
        if self.isas and self.isas.isdisjoint((target.isa, target.vectors)):
            raise Skip(f"needs {' or '.join(sorted(self.isas))}, the target is {target.isa}")
        if self.cores and site.target.core not in self.cores:
            here = site.target.core or "a core that is not in the table"
            raise Skip(f"is for {' or '.join(sorted(self.cores))}, this is {here}")
        first = site.inputs[0] if site.inputs else None
        dtype = name_of((site.out if first is None else first).dtype)
        if self.dtypes and dtype not in self.dtypes:
            raise Skip(f"takes {' or '.join(sorted(self.dtypes))}, not {dtype}")
        if self.numbers and site.is_free:
            raise Skip("it needs all sizes as numbers, and some are free")
        got = self.rule(site)
        return got if isinstance(got, list) else [got]


KERNELS: Registry[Kernel] = Registry("kernel", "tinsmith.kernels", "tinsmith kernels")

ELEMENTWISE = "Elementwise"
"""The pseudo-operator under which kernels for elementwise nodes and anchorless regions register."""


def kernel(
    op: str, tier: Tier, *, dtypes: str = "", isas: str = "", checks: bool = False,
    numbers: bool = False, backend: str = CPU, name: str = "", cores: tuple[str, ...] = (),
) -> Callable[[Rule], Rule]:  # fmt: skip
    """Decorator that registers a kernel under `name`, by default its function's. `dtypes` (of the
    first input, or of the output where that is absent) and `isas` are space-separated; empty takes
    all. `isas`, `checks`, `numbers`, `backend`, `cores`: see `Kernel`. Raises UnknownName for an
    instruction set or a core that no table has, OptionError for Tier.ISA without `isas`, and
    Tier.CORE without `cores`.
    """
    for isa in isas.split():
        if isa not in ISAS:
            raise UnknownName("instruction set", isa, ISAS)
    for core in cores:
        if core not in CORES:
            raise UnknownName("core", core, CORES)
    if (tier == Tier.ISA and not isas) or (tier == Tier.CORE and not cores):
        raise OptionError(f"a kernel of the tier {tier.name} names the machines that it is for")

    def register(rule: Rule) -> Rule:
        own = name or rule.__name__
        kinds, sets = frozenset(dtypes.split()), frozenset(isas.split())
        row = Kernel(own, op, tier, kinds, sets, rule, backend, numbers, checks, frozenset(cores))
        KERNELS.register(own, row)
        return rule

    return register


def kernels_for(op: str, backend: str = CPU) -> tuple[Kernel, ...]:
    """All kernels that a backend has of an operator, best tier first, then by name."""
    KERNELS.load()
    return _kernels_for(op, backend, KERNELS.edition)


@lru_cache(512)
def _kernels_for(op: str, backend: str, edition: int) -> tuple[Kernel, ...]:
    rows = (k for k in KERNELS.rows() if k.op == op and k.backend == backend)
    return tuple(sorted(rows, key=lambda k: (-k.tier, k.name)))


def one_phase(tiles: int, emit: Callable[..., None], sweep: int = 0) -> tuple[Phase, ...]:
    return (Phase(tiles, emit, sweep=sweep),)


def elem(value: Value | Spec) -> Ty:
    """The type in generated code of a value's elements. Raises CodegenError for a dtype that has
    none (`codegen/types.from_dtype`)."""
    return from_dtype(value.dtype)


__all__ = [
    "ELEMENTWISE", "KERNELS", "PLAIN", "Choice", "Emit", "Kernel", "Layout", "Packed", "Phase",
    "Site", "Skip", "Spec", "Tier", "View", "elem", "kernel", "kernels_for", "one_phase",
]  # fmt: skip
