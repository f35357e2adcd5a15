"""Merging dimensions: kernels walk a tensor as few flat axes, whatever its rank.

A run of dimensions is one axis for a set of views if every view steps through it evenly. Flat
positions are then plain multiplications; only where views disagree are they taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import Emit, View

Position = Val | int


def merged(dims: Sequence[int], views: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """`dims` as few axes: (extent, dimension whose stride is the axis's), outermost first.

    `views` are the strides of each view, one a dimension. Extents of 1 vanish.
    """
    axes: list[tuple[int, int]] = []
    for d, extent in enumerate(dims):
        if extent == 1:
            continue
        if axes:
            outer, at = axes[-1]
            if all(s[at] == s[d] * extent for s in views):
                axes[-1] = (outer * extent, d)
                continue
        axes.append((extent, d))
    return axes


def unravel(flat: Position, dims: Sequence[int], views: Sequence[Sequence[int]]) -> list[Position]:
    """The index, one entry a dimension, of the flat position within `dims`, for `View.at` of views
    with these strides. An entry may exceed its dimension where dimensions are merged."""
    index: list[Position] = [0] * len(dims)
    axes = merged(dims, views)
    for k in range(len(axes) - 1, -1, -1):
        extent, d = axes[k]
        if k == 0:
            index[d] = flat
        else:
            index[d] = flat % extent
            flat = flat // extent
    return index


def strides_of(views: Sequence[View], first: int, count: int) -> list[tuple[int, ...]]:
    """The strides of dimensions first .. first + count - 1 of plain views."""
    return [v.spec.strides[first : first + count] for v in views]


def shifted(em: Emit, index: Sequence[Position]) -> Emit:
    """The same emission with element `index` of the output as its new (0, ..., 0): `finish` and
    `epilogue` with constant indices then address by constants only."""

    def move(v: View) -> View:
        return View(v.at(*index).fixed(), v.spec)

    return replace(em, extras=tuple(map(move, em.extras)), outs=(move(em.outs[0]), *em.outs[1:]))
