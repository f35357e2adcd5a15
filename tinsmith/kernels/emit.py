"""What a kernel's code is written with: its operands, and the epilogue that finishes results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.expr import emit_expr
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.kernels.layout import Spec
from tinsmith.kernels.site import Site
from tinsmith.ops._weights import weights_of
from tinsmith.records import dataclass


def moved(p: Ptr, strides: Sequence[int], index: Iterable[tuple[int, Val | int]]) -> Ptr:
    """The address p moved by i steps along dimension d, for each (d, i) of `index`."""
    constant = 0
    for d, i in index:
        if isinstance(i, int):
            constant += i * strides[d]
        else:
            p = p + i * strides[d]
    return p + constant


class View:
    """An operand inside a kernel: a pointer to its element (0, ..., 0), and its strides."""

    def __init__(self, pointer: Ptr, spec: Spec) -> None:
        self.pointer, self.spec = pointer, spec

    def at(self, *index: Val | int) -> Ptr:
        """The address of an element. Indices are (n, channel block, *spatial) for blocked tensors,
        else one for each dimension; missing trailing indices are 0."""
        return moved(self.pointer, self.spec.strides, enumerate(index))

    def load(self, index: Sequence[Val | int], lanes: int, mask: Val | None = None) -> Val:
        """A vector of `lanes` neighbouring elements that begins at `index`: channels of one block
        for blocked tensors, elements of the last axis for plain ones. If these are
        broadcast (`Spec.lane` is 0), the element fills all lanes, whatever the mask."""
        place = self.at(*index)
        if self.spec.lane == 0:
            return place.splat(lanes)
        return place.load(lanes, mask if lanes > 1 else None)


@dataclass
class Emit:
    """What the `emit` function of a `Phase` gets: the builder `b`, operands, memory, and the tiles
    [`begin`, `end`) to compute.

    `ins` has one View for each of `site.inputs` (None if it is not read), `extras` one for each
    extra, broadcast to the output's dims. `packed` are pointers in the order of `Choice.packed`, to
    the element type of each array. `step` is the repetition (`Phase.repeat`).
    """

    b: Builder
    site: Site
    ins: tuple[View | None, ...]
    extras: tuple[View, ...]
    outs: tuple[View, ...]
    packed: tuple[Ptr, ...]
    workspace: Ptr
    scratch: Ptr
    begin: Val
    end: Val
    finished: list[Val]  # values that the epilogue was applied to
    step: Val | int = 0
    lanewise: bool = False  # each lane of the result depends on the same lane of the input alone

    @property
    def target(self) -> Target:
        return self.b.target

    def input(self, k: int) -> View:
        """The View of input number k, which the choice must read."""
        view = self.ins[k]
        assert view is not None, f"operand {k} is not read"
        return view

    def epilogue(self, acc: Val, index: Sequence[Val | int], mask: Val | None = None) -> Val:
        """Apply the epilogue to a vector of results for the place `index` of output 0, and return
        what it gives; `acc` itself if the site has none. The extras are loaded at `index` under
        `mask` (see `View.load`)."""
        if self.site.epilogue is None:
            return acc
        self.finished.append(acc)
        lanes = acc.ty.lanes
        extras = [v.load(index, lanes, mask) for v in self.extras]
        return emit_expr(self.b, self.site.epilogue, [acc, *extras])

    def finish(self, acc: Val, index: Sequence[Val | int], mask: Val | None = None) -> None:
        """Apply the epilogue to a vector of results and store it at a place of output 0.

        On blocked outputs `index` is (n, channel block, *spatial) and the vector has V lanes;
        the padding lanes of the last block are kept zero. On plain outputs `index` has one entry
        a dimension and the vector runs along the last axis under `mask`.
        """
        out = self.outs[0]
        value = self.epilogue(acc, index, mask)
        if not out.spec.layout.is_plain:
            value = self.clear_padding(value, index[1], out.spec)
        out.at(*index).store(value, mask if value.ty.lanes > 1 else None)

    def fault(self, bad: Val) -> None:
        """Report a fault if the scalar i1 `bad` holds: the run then raises DataError with
        `Choice.fault`."""
        with self.b.when(bad):
            self.scratch.cast(I32).store(self.b.const(1, I32))

    def place(self, at: Ptr, extent: int, lanes: int = 1, mask: Val | None = None) -> Val:
        """Read `lanes` indices at `at`, those that `mask` turns on (others are 0); negative ones
        count from the end of an axis of `extent` elements. Return them as i64. One that is out of
        range is a fault, and becomes 0, so that what follows reads inside the axis."""
        index = at.load(lanes, mask).to("i64")
        index = (index < 0).select(index + extent, index)
        bad = index.to("u64") >= extent
        self.fault(bad.any())
        return bad.select(0, index)

    def clear_padding(self, value: Val, block: Val | int, spec: Spec) -> Val:
        """The vector `value` of channel block number `block` of a tensor, with zeros in lanes
        beyond the last channel; unchanged if they are zero anyway (`keeps_zero`)."""
        width, channels = spec.layout.block, spec.dims[1]
        if channels % width == 0 or self.keeps_zero:
            return value
        if isinstance(block, int) and block < channels // width:
            return value
        real = self.b.first_lanes(channels - block * width, width)
        return real.select(value, self.b.zero(value.ty))

    @property
    def keeps_zero(self) -> bool:
        """Whether padding lanes need not be cleared: the anchor leaves zeros there, the extras are
        zero there, and the epilogue maps zeros to exactly +0."""
        site = self.site
        if not self.lanewise and _fills_padding(site):
            return False
        if site.epilogue is None:
            return True
        if any(v.spec.lane == 0 or v.spec.layout.is_plain for v in self.extras):
            return False  # broadcast extras are not zero in the padding lanes
        return site.epilogue.keeps_zero


def _fills_padding(site: Site) -> bool:
    """Whether the anchor may leave other values than zero in the padding lanes. Sums over channels
    may (their weights are zero there, but infinity times zero is NaN), and so may maxima over
    windows of nothing but padding."""
    anchor = site.anchor
    if anchor is None:
        return False
    weights = weights_of(anchor)
    if weights is not None and weights.channels == 1:
        return True
    if anchor.op.name == "MaxPool":
        pads = zip(anchor.pad or (), anchor.kernel * 2, strict=False)
        return max(anchor.dilation or (1,)) > 1 or any(pad >= size for pad, size in pads)
    return False
