"""Zeroing the halo of a blocked tensor before its producer runs."""

from __future__ import annotations

from tinsmith.codegen.builder import Builder, Module, Ptr
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I64, PTR, from_dtype
from tinsmith.kernels.build import Code, code_of
from tinsmith.kernels.layout import Spec
from tinsmith.kernels.move.strided import emit_fill
from tinsmith.kernels.walk import Position, run, share


def zero_halo(spec: Spec, target: Target, parts: int) -> tuple[Code, int]:
    """Code that zeroes the halo of a blocked tensor, and its number of tiles: `parts` for each
    plane (n, channel block), plane after plane. Each is an about equal share of the first spatial
    axis; the first and the last one also zero the halo before and behind all rows.

    The code takes a pointer to element (0, ..., 0). The halo of a plane is everything before its
    first row, the gaps between rows (right halo of one, left halo of the next), and everything
    behind the last row.
    """
    b = Module(target).function("kernel", [("x", PTR), ("begin", I64), ("end", I64)])
    x = b.pointer("x", from_dtype(spec.dtype))
    with b.loop(b.args["begin"], b.args["end"]) as tile:
        part, plane = tile % parts, tile // parts
        n, c = plane // spec.blocks, plane % spec.blocks
        start = (x + n * spec.strides[0] + c * spec.strides[1]).fixed()
        if isinstance(part, int):  # there is one
            _before(b, spec, start)
            _after(b, spec, start)
        else:
            with b.when(part.eq(0)):
                _before(b, spec, start)
            with b.when(part.eq(parts - 1)):
                _after(b, spec, start)
        if len(spec.spatial) > 1:
            _gaps(b, spec, start, 0, *share(part, parts, spec.spatial[0]))
    b.ret()
    return code_of(b, "z"), spec.dims[0] * spec.blocks * parts


def _reach(spec: Spec, axis: int) -> int:
    """Elements from the first to the last one, inclusive, of one index of a spatial axis: the halos
    of inner axes between them count, that at the end does not."""
    inner = zip(spec.spatial[axis + 1 :], spec.strides[3 + axis :], strict=True)
    return sum((d - 1) * s for d, s in inner) + spec.layout.block


def _gaps(b: Builder, spec: Spec, at: Ptr, axis: int, lo: Position, hi: Position) -> None:
    """Emit code that zeroes the halo inside and behind each index of [lo, hi) of a spatial axis:
    the gaps of inner axes, and the gap up to the next index, but none behind the last index of the
    axis. `at` points to index 0."""
    pitch, reach, last = spec.strides[2 + axis], _reach(spec, axis), spec.spatial[axis] - 1

    def inside(i: Position) -> None:
        _gaps(b, spec, (at + i * pitch).fixed(), axis + 1, 0, spec.spatial[axis + 1])

    if axis + 2 < len(spec.spatial):
        run(b, lo, hi, inside)
    if pitch > reach:
        hi = b.minimum(hi, last)
        run(b, lo, hi, lambda i: _zero(b, at + i * pitch + reach, pitch - reach))


def _before(b: Builder, spec: Spec, start: Ptr) -> None:
    _zero(b, start + -spec.before, spec.before)


def _after(b: Builder, spec: Spec, start: Ptr) -> None:
    used = (spec.spatial[0] - 1) * spec.strides[2] + _reach(spec, 0)
    _zero(b, start + used, spec.strides[1] - spec.before - used)


def _zero(b: Builder, at: Ptr, count: int) -> None:
    if count > 0:
        emit_fill(b, b.zero(at.elem), at, 0, count, b.target.lanes)
