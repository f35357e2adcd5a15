"""Zeroing the halo of a blocked tensor before its producer runs."""

from __future__ import annotations

from tinsmith.codegen.builder import Builder, Module, Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I64, PTR, from_dtype
from tinsmith.hashing import blake2b
from tinsmith.kernels.build import Code
from tinsmith.kernels.layout import Spec


def zero_halo(spec: Spec, target: Target) -> tuple[Code, int]:
    """Code that zeroes everything but the elements, and its tiles: one for each (n, block).

    The pointer is that of element (0, ..., 0). Rows of a plane are contiguous with their halos, so
    a plane's halo is: all before the first row's elements, the gap between two rows (right halo of
    one, left halo of the next), and all after the last.
    """
    module = Module(target)
    b = module.function("kernel", [("x", PTR), ("begin", I64), ("end", I64)])
    ty = from_dtype(spec.dtype)
    x = b.pointer("x", ty)
    plane = spec.strides[1]
    *outer, width = spec.spatial
    run = width * spec.layout.block
    with b.loop(Val(b, I64, "%begin"), Val(b, I64, "%end")) as tile:
        n, c = tile // spec.blocks, tile % spec.blocks
        start = x + n * spec.strides[0] + c * plane
        _zero(b, start + -spec.before, spec.before, target.lanes)
        gaps, last = _gaps(tuple(outer), spec.strides[2:], run)
        for count, stride, at, length in gaps:
            if length <= 0 or count <= 0:
                continue
            with b.loop(0, count) as i:
                _zero(b, start + i * stride + at, length, target.lanes)
        _zero(b, start + last, plane - spec.before - last, target.lanes)
    b.ret()
    text = module.text()
    symbol = f"z_{blake2b(text.encode(), digest_size=10).hexdigest()}"
    return Code(symbol, text.replace("@kernel(", f"@{symbol}(", 1), 1), spec.dims[0] * spec.blocks


def _gaps(
    outer: tuple[int, ...], strides: tuple[int, ...], run: int
) -> tuple[list[tuple[int, int, int, int]], int]:
    """Gaps as (count, stride, start, length), and where the last element's row ends."""
    if not outer:
        return [], run
    if len(outer) == 1:
        return [(outer[0] - 1, strides[0], run, strides[0] - run)], (outer[0] - 1) * strides[
            0
        ] + run
    gaps: list[tuple[int, int, int, int]] = []
    inner, end = _gaps(outer[1:], strides[1:], run)
    for i in range(outer[0]):
        gaps += [(c, s, at + i * strides[0], n) for c, s, at, n in inner]
        if i + 1 < outer[0]:
            gaps.append((1, 0, i * strides[0] + end, strides[0] - end))
    return gaps, (outer[0] - 1) * strides[0] + end


def _zero(b: Builder, at: Ptr, count: int, lanes: int) -> None:
    if count <= 0:
        return
    at = at.fixed()

    def body(i: Val | int, width: int, mask: Val | None) -> None:
        (at + i).store(b.zero(at.elem.x(width)), mask)

    b.vectors(count, lanes, body)
