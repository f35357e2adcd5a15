"""Tensors in memory: their layouts, which settle when all readers are known, and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import numpy as np

from tinsmith.kernels.layout import PLAIN, Halo, Layout, Spec, spec_of
from tinsmith.records import dataclass


@dataclass(eq=False)
class Tensor:
    """One tensor in memory, as one step writes it and others read it. A tensor without a parent (a
    root) has memory of its own; any other lies in its parent's.

    block     channels side by side in its layout; 0: plain
    space     "arena", "input", "output", "weights", "made" (once for each set of sizes), or
              "python" (an array that only reference steps see)
    index     the number of the input or output, if its space is "input" or "output"
    parent    the tensor whose memory it shares: the whole of it under other dims (`part` is None),
              or the part that begins at channel (blocked) or element (plain) `part`
    pinned    it must not get a halo
    array     the buffer of a constant, already in the layout
    halo      the halo that readers have asked for so far
    spec      where its elements lie; None until it is settled
    is_batch_part  it is the part of its parent, along axis 0, that one micro-batch of a region sees
    region    if not 0: only micro-batches of that region see it, and each thread has its own
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
    is_batch_part: bool = False
    region: int = 0
    far: Tensor | None = None
    """A tensor above this one that was the root when last asked for (a shortcut)."""
    seen: Tensor | None = None
    """The part that one micro-batch sees: this tensor or one above it, once settled."""
    shift: int = 0
    """Bytes from element (0, ...) of the root to that of this tensor, once settled."""

    @property
    def line(self) -> Iterator[Tensor]:
        """The tensor, its parent, and so on up to the root. There may be thousands."""
        t: Tensor | None = self
        while t is not None:
            yield t
            t = t.parent

    @property
    def root(self) -> Tensor:
        """The tensor without a parent in whose memory this one lies; itself, if it has none."""
        t, passed = self, []
        while (above := t.far or t.parent) is not None:
            passed.append(t)
            t = above
        for below in passed:
            below.far = t
        return t

    @property
    def top(self) -> Tensor:
        """The part of a batch that one micro-batch sees and that this tensor is or lies in; the
        root, if there is none, or `settle` has not run."""
        return self.seen or self.root

    @property
    def is_static(self) -> bool:
        """Whether it has a place in the program's memory, and is not an array in Python."""
        return self.space != "python"

    def covers(self, wanted: Layout) -> bool:
        """Whether a reader that asks for the layout `wanted` can read the tensor without a
        conversion: it has the same block, and its halo suffices or may still be widened."""
        if self.block != wanted.block:
            return False
        if not any(map(any, wanted.halo)):
            return True
        if self.space in ("input", "weights", "made") or self.is_pinned:
            return Layout(self.block, self.halo).covers(wanted)
        return True

    @property
    def is_pinned(self) -> bool:
        """Whether it must not get a halo, because a reader of it or of a tensor above it relies on
        memory without gaps, or because it or one above lies in its parent under other dims."""
        return any(t.pinned or (t.parent is not None and t.part is None) for t in self.line)

    def pin(self) -> None:
        """Refuse halos from now on, also for all tensors above this one: a reader relies on memory
        without gaps. Call it for a tensor that has no halo yet: this is not checked."""
        for t in self.line:
            t.pinned = True

    def widen(self, wanted: Layout) -> None:
        """Give the tensor, and those above it up to the first plain one, at least the halo of
        `wanted`. Call it before `settle`."""
        for t in self.line:
            if not t.block or not any(map(any, wanted.halo)):
                return
            wanted = Layout(t.block, t.halo).widened(wanted)
            t.halo = wanted.halo

    @property
    def has_halo(self) -> bool:
        return any(map(any, self.halo))

    def settle(self) -> None:
        """Fix where the elements of the tensor lie (`spec`, `shift`, `seen`), and first those of
        all tensors above it. Does nothing if that was done. Call it when every reader of a value in
        this memory has been placed: no halo may be widened afterwards."""
        for t in reversed(list(takewhile(lambda t: t.spec is None, self.line))):
            t._settle()

    def _settle(self) -> None:
        if self.parent is None:
            layout = Layout(self.block, self.halo) if self.block else PLAIN
            self.spec = spec_of(self.dtype, self.dims, layout)
            return
        above, part = self.parent.settled, self.part
        if part is None or not self.block:
            self.spec = spec_of(self.dtype, self.dims, Layout(self.block))
            step = part or 0
        else:
            self.halo = above.layout.halo
            whole = spec_of(self.dtype, self.dims, above.layout)
            size = whole.size if self.dims[0] == 1 else -1
            at = above.strides, 1, above.before, size
            self.spec = Spec(self.dtype, self.dims, above.layout, *at)
            step = part // self.block * above.strides[1]
        self.shift = self.parent.shift + step * self.dtype.itemsize
        self.seen = self if self.is_batch_part else self.parent.seen

    @property
    def settled(self) -> Spec:
        """Where the elements lie. AssertionError before `settle`."""
        assert self.spec is not None, f"{self.name} has not been settled"
        return self.spec

    @property
    def lies_inside(self) -> bool:
        """Whether it lies inside one micro-batch: neither it nor a tensor above it is the part of
        a whole batch's tensor that one micro-batch sees (`is_batch_part`)."""
        return not any(t.is_batch_part for t in self.line)

    def stride(self) -> int:
        """Bytes from this tensor's data in one micro-batch to those in the next; 0 if it does not
        lie in the part that a micro-batch sees of a whole batch's tensor."""
        t = self.top
        if t.parent is None:
            return 0
        return t.parent.settled.strides[0] * t.dims[0] * t.dtype.itemsize
