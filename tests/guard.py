"""Guard pages: memory in which every access outside a tensor ends the process.

Inside `guarded(side)` each tensor, scratch and workspace of a program that is compiled there, each
of its weights, and each input and output of a run has pages of its own, and pages that nobody may
touch lie around them. What the contract in docs/kernels.md allows is allowed, and no more:

                      may be read                              may be written
    arena, workspace  4 KiB beyond the end, which hold 0xFF    the tensor, up to 63 bytes of filling
    weights           4 KiB beyond the end, which hold 0xFF    nothing
    inputs            the tensor                               nothing
    outputs           the tensor                               the tensor

With "after" the end of everything (of whole lines of 64 bytes, but for inputs and outputs) is the
end of a page, with "before" its beginning is the beginning of one: only that side is exact to the
byte. Memory holds 0xFF (NaN, -1) before each run, and what is left of the pages must after it:
`Overrun` tells of it. A tensor that another takes over, and parts inside a whole, share its memory.

A fault ends the process: run what is guarded in a child (`tests.fuzz.cage`).
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np

from tinsmith.backends import cpu
from tinsmith.errors import PlanError
from tinsmith.plan import arena, planner
from tinsmith.plan.memory import Buffer, align
from tinsmith.plan.placed import Placed
from tinsmith.plan.plan import SLACK, Ref, Step
from tinsmith.plan.planner import Built
from tinsmith.plan.tensors import Tensor
from tinsmith.runtime import outputs
from tinsmith.runtime import program as programs
from tinsmith.runtime.later import Cycles
from tinsmith.runtime.program import Program
from tinsmith.runtime.results import RunMemory
from tinsmith.runtime.session import Session

Array = np.ndarray[Any, Any]
Rows = Sequence[tuple[int, int]]
"""Offset and bytes of each tensor in a space."""

PAGE = mmap.PAGESIZE
NONE, READ, WRITE = 0, 1, 3
SIDES = ("after", "before")
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Overrun(Exception):
    """Something was written outside of every tensor."""


def pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def protect(memory: Array, start: int, stop: int, how: int) -> None:
    if stop > start and _protect(memory.ctypes.data + start, stop - start, how):
        raise OSError(ctypes.get_errno(), "mprotect")


def place(at: int, nbytes: int, side: str, line: int = 64) -> int:
    """The offset of a tensor in pages of its own, from the first border from `at` on, behind one
    page that nobody may touch."""
    start, whole = pages(at) + PAGE, -(-nbytes // line) * line
    return start + (-whole % PAGE if side == "after" else 0)


@dataclass
class Space:
    """Where tensors lie."""

    side: str
    rows: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0

    def add(self, nbytes: int) -> int:
        offset = place(self.size, nbytes, self.side)
        self.rows.append((offset, nbytes))
        self.size = pages(offset + align(nbytes)) + SLACK
        return offset


class Memory:
    """Mapped memory for rows, each with pages of its own (`place`), and `slack` bytes behind it."""

    def __init__(self, rows: Rows, slack: int = SLACK) -> None:
        self.rows = [row for row in rows if row[1]]
        ends = [pages(offset + nbytes) + slack for offset, nbytes in self.rows]
        size = max(ends, default=0) + PAGE
        try:
            self.bytes = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        except (OSError, OverflowError) as error:
            raise PlanError(f"{size} bytes between guard pages cannot be had") from error
        at = 0
        for (offset, _), end in sorted(zip(self.rows, ends, strict=True)):
            start = offset // PAGE * PAGE
            self.bytes[start:end] = 0xFF
            protect(self.bytes, at, start, NONE)
            protect(self.bytes, end - slack, end, READ)
            at = end
        protect(self.bytes, at, size, NONE)

    def fill(self) -> None:
        for offset, nbytes in self.rows:
            self.bytes[offset : offset + nbytes] = 0xFF

    def only_read(self) -> Memory:
        for offset, nbytes in self.rows:
            protect(self.bytes, offset // PAGE * PAGE, pages(offset + nbytes), READ)
        return self

    def check(self, what: str, line: int = 64) -> None:
        """Raise Overrun where what lies around the rows, on their pages, is not as it was."""
        for offset, nbytes in self.rows:
            end = offset + -(-nbytes // line) * line
            around = offset // PAGE * PAGE, offset, end, pages(end)
            for start, stop in (around[:2], around[2:]):
                touched = np.flatnonzero(self.bytes[start:stop] != 0xFF)
                if touched.size:
                    at = int(touched[0]) + start - offset
                    raise Overrun(f"byte {at} of a tensor of {nbytes} bytes of the {what}")


def alone(dims: Sequence[int], dtype: np.dtype[Any], side: str) -> tuple[Memory, Array]:
    """Memory of one array, and the array there, of 0xFF."""
    nbytes = prod(dims) * dtype.itemsize
    offset = place(0, nbytes, side, 1)
    memory = Memory([(offset, nbytes)], 0)
    return memory, memory.bytes[offset : offset + nbytes].view(dtype).reshape(dims)


@dataclass
class Layout:
    """Where what a plan needs lies."""

    arena: Space
    workspace: Space
    own: dict[Placed, int] = field(default_factory=dict)
    """Where each step finds the workspace that its kernel asks for."""

    def offsets(self, buffers: Sequence[Buffer]) -> int:
        """In the place of `plan.memory.assign_offsets`: no two buffers share memory."""
        for buffer in buffers:
            buffer.offset = self.arena.add(buffer.nbytes)
        return self.arena.size

    def workspace_of(self, placed: list[Placed], offsets: dict[Tensor, int]) -> int:
        """In the place of `plan.arena.workspace_of`."""
        for step in placed:
            if step.choice is not None and step.choice.workspace:
                self.own[step] = self.workspace.add(step.choice.workspace)
            roots = {t.root for t in (*step.reads, *step.writes, step.scratch) if t is not None}
            for root in roots - offsets.keys():
                if root.region and root.region == step.region:
                    offsets[root] = self.workspace.add(root.settled.nbytes)
        return self.workspace.size

    def moved(self, placed: Placed, step: Step) -> Step:
        """A step that finds its kernel's workspace."""
        own = Ref("workspace", self.own.get(placed, 0))
        calls = [
            c._replace(refs=tuple(own if r == Ref("workspace") else r for r in c.refs))
            for c in step.calls
        ]
        return step._replace(calls=tuple(calls))


class _RunMemory(RunMemory):
    """Guarded memory, with each result in memory of its own."""

    def __init__(self, layout: Layout, rows: Rows) -> None:
        super().__init__()
        self.side = layout.arena.side
        self.spaces = {"arena": Memory(layout.arena.rows), "workspace": Memory(rows)}
        self.arena, self.workspace = (space.bytes for space in self.spaces.values())
        self.results: dict[int, Memory] = {}

    def fit(self, arena: int, workspace: int) -> None:
        """It is as large as the layout says."""

    def maker(
        self, result: int, dims: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[], Array]:
        def made() -> Array:
            self.results[result], found = alone(dims, dtype, self.side)
            return found

        return made


class _Session(Session):
    """A session whose memory is guarded."""

    _memory: _RunMemory

    def __init__(self, program: Program, memory: RunMemory | None = None) -> None:
        plan, layout = program.plan, _LAYOUTS[id(program.plan.steps)][1]
        each = plan.memory.workspace // plan.threads
        rows = [(o + t * each, n) for t in range(plan.threads) for o, n in layout.workspace.rows]
        super().__init__(program, _RunMemory(layout, rows))

    def run_checked(
        self,
        inputs: Sequence[Array],
        cycles: Cycles | None = None,
        into: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        spaces = self._memory.spaces
        for memory in spaces.values():
            memory.fill()
        given = [self._given(a) for a in inputs]
        results = super().run_checked([a for _, a in given], cycles, into)
        for name, memory in spaces.items():
            memory.check(name)
        for memory in self._memory.results.values():
            memory.check("output", 1)
        return results

    def _given(self, array: Any) -> tuple[Memory | None, Any]:
        if not isinstance(array, np.ndarray) or array.dtype == object or not array.size:
            return None, array
        memory, inside = alone(array.shape, array.dtype, self._memory.side)
        inside[...] = array
        return memory.only_read(), inside


_LAYOUTS: dict[int, tuple[Any, Layout]] = {}
"""By the identity of a plan's steps (which it keeps alive): where what they need lies."""


@contextmanager
def guarded(side: str = "after") -> Iterator[None]:
    """Guard what is compiled meanwhile, without the cache, on one side. Not for several threads."""
    make, step, put = planner.make_plan, planner._step, planner.State._put

    def make_plan(*args: Any, **options: Any) -> Built:
        layout = Layout(Space(side), Space(side))

        def moved(placed: Placed, *rest: Any) -> Step:
            return layout.moved(placed, step(placed, *rest))

        with (
            patch.object(arena, "assign_offsets", layout.offsets),
            patch.object(planner, "workspace_of", layout.workspace_of),
            patch.object(planner, "_step", moved),
        ):
            built = make(*args, **options)
        _LAYOUTS[id(built.plan.steps)] = built.plan.steps, layout
        return built

    def spread(state: Any, array: Array, key: Any) -> Any:
        before = state.own_bytes
        state.own_bytes = place(before + SLACK if before else 0, array.nbytes, side)
        kept = put(state, array, key)
        if kept.blob is not None:
            state.own_bytes = before
        return kept

    def finish(heap: cpu.Heap, nbytes: int) -> Array:
        parts = [(offset, a.reshape(-1).view(np.uint8)) for offset, a in heap._parts]
        memory = Memory([(offset, a.nbytes) for offset, a in parts])
        for offset, a in parts:
            memory.bytes[offset : offset + a.nbytes] = a
        return memory.only_read().bytes

    try:
        with (
            patch.object(planner, "make_plan", make_plan),
            patch.object(planner.State, "_put", spread),
            patch.object(cpu.Heap, "finish", finish),
            patch.object(programs, "Session", _Session),
            # No memory of a caller's lies between guard pages: results are copied there.
            patch.object(outputs, "direct", lambda *_: False),
        ):
            yield
    finally:
        _LAYOUTS.clear()
