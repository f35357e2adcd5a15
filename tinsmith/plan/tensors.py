"""Tensors in memory: layouts that settle when all readers are known, and who shares whose bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.kernels.layout import PLAIN, Halo, Layout, Spec, spec_of
from tinsmith.records import dataclass


@dataclass(eq=False)
class Tensor:
    """One tensor as some step writes it and others read it.

    space: "arena", "input", "output", "weights", or "python" (a numpy array that only reference
    steps see). A tensor with a `parent` shares its memory: the whole of it under other dims
    (`part` None), or the part that begins at `part` channels (blocked) or elements (plain).
    `pinned` tensors take no halo. `array` is a constant's buffer, already in the layout.
    `in_turns`: the part of the parent along axis 0 that a turn of a region sees. `region`: only
    that region's turns see the tensor, each thread its own.
    """

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]
    block: int = 0
    space: str = "arena"
    index: int = 0
    array: np.ndarray[Any, Any] | None = None
    parent: Tensor | None = None
    part: int | None = None
    pinned: bool = False
    halo: Halo = ()
    spec: Spec | None = None
    in_turns: bool = False
    region: int = 0

    @property
    def root(self) -> Tensor:
        return self if self.parent is None else self.parent.root

    @property
    def top(self) -> Tensor:
        """The root, or the part of it that one turn sees."""
        return self if self.parent is None or self.in_turns else self.parent.top

    @property
    def is_static(self) -> bool:
        return self.space != "python"

    def covers(self, wanted: Layout) -> bool:
        """Whether a reader that wants this layout can read the tensor, now or once widened."""
        if self.block != wanted.block:
            return False
        if not any(map(any, wanted.halo)):
            return True
        if self.space in ("input", "weights") or self.is_pinned:
            return Layout(self.block, self.halo).covers(wanted)
        return True

    @property
    def is_pinned(self) -> bool:
        if self.pinned or self.parent is None:
            return self.pinned
        return self.parent.is_pinned or self.part is None

    def pin(self) -> None:
        """Refuse halos from now on (a reader relies on gapless memory)."""
        self.pinned = True
        if self.parent is not None:
            self.parent.pin()

    def widen(self, wanted: Layout) -> None:
        """Ask for at least this halo."""
        if self.block and any(map(any, wanted.halo)):
            merged = Layout(self.block, self.halo).widened(wanted)
            self.halo = merged.halo
            if self.parent is not None:
                self.parent.widen(merged)

    @property
    def has_halo(self) -> bool:
        return any(map(any, self.halo))

    def settle(self) -> None:
        """Fix `spec`, from the root down; call when every reader has been placed."""
        if self.spec is not None:
            return
        if self.parent is None:
            layout = Layout(self.block, self.halo) if self.block else PLAIN
            self.spec = spec_of(self.dtype, self.dims, layout)
            return
        self.parent.settle()
        above = self.parent.spec
        assert above is not None
        if self.part is None or not self.block:
            self.spec = spec_of(self.dtype, self.dims, Layout(self.block))
            return
        self.halo = above.layout.halo
        whole = spec_of(self.dtype, self.dims, above.layout)
        size = whole.size if self.dims[0] == 1 else -1
        self.spec = Spec(self.dtype, self.dims, above.layout, above.strides, 1, above.before, size)

    @property
    def settled(self) -> Spec:
        assert self.spec is not None, f"{self.name} has not been settled"
        return self.spec

    @property
    def lies_inside(self) -> bool:
        """Whether no part of a whole batch is above it."""
        return not self.in_turns and (self.parent is None or self.parent.lies_inside)

    def stride(self) -> int:
        """Bytes from the part that one turn sees to that of the next."""
        if self.parent is None:
            return 0
        if not self.in_turns:
            return self.parent.stride()
        return self.parent.settled.strides[0] * self.dims[0] * self.dtype.itemsize

    def shift(self) -> int:
        """Bytes from the root's element (0, ...) to this tensor's."""
        if self.parent is None:
            return 0
        above = self.parent.shift()
        if not self.part:
            return above
        step = self.part * self.dtype.itemsize
        if self.block:
            step = self.part // self.block * self.settled.strides[1] * self.dtype.itemsize
        return above + step
