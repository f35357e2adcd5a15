"""Resize: copies by index (nearest) and weighted sums (linear, cubic), from a table for each axis.

The tables are those of the numpy reference. Those of the outer axes say which input rows are summed
with which weights to one output row; that of the innermost axis is then applied along the row.
Plain images that grow are stretched along their rows before rows are summed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import Choice, Emit, Layout, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.resize_axes import (
    NONE,
    Axis,
    Row,
    axes_of,
    cost_of,
    rows_at,
    taps_at,
    weighted_sum,
    with_tables,
    with_vectors,
)
from tinsmith.kernels.resize_computed import Computed
from tinsmith.kernels.resize_plain import plain
from tinsmith.kernels.walk import Position, run
from tinsmith.ops.resize import Sampling, Table, axis_tables
from tinsmith.sizes import Size, same, typical

MOST_TAPS = 64  # the most input elements of one output element; estimated
LONGEST = 1 << 12  # elements of an axis of free size that is repeated; estimated


@kernel("Resize", Tier.VECTOR)
def resize_separable(site: Site) -> list[Choice]:
    """Resizing of any axes, antialiased or not: nearest, and, of float32 only, linear and cubic.
    Sizes may be free, but not of crops, which must lie within the input."""
    x = site.input(0)
    site.need_no_epilogue("the result is not finished in place")
    every = _repeated(site)
    computed = _computed(site, every)
    known = set(range(len(x.dims))) - {*every} - {t.axis for t in computed}
    fixed = _tables(site, every, known)
    tables = [*fixed, *computed]
    if any(t.weighted for t in tables) and x.dtype != np.float32:
        raise Skip(f"interpolates float32, not {x.dtype}")
    crop = site.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crop and computed:
        raise Skip("crops images of free sizes")
    if crop and any(t.outside.any() for t in fixed):
        raise Skip("places outside of the input are wanted")
    return choices_for(site, tables, site.attr("mode"), every)


def choices_for(
    site: Site, tables: Sequence[Table | Computed], detail: str, every: Mapping[int, int] = NONE
) -> list[Choice]:
    """The choices of a resize: on plain data, and on blocked data if only spatial axes change. Each
    axis that changes has one of `tables`, or is in `every`: {axis: how often each element is
    repeated}. Weights of several axes are multiplied. Raises Skip where nothing changes, or too
    many taps are summed."""
    x, y = site.input(0), site.out
    if not tables and not every:
        raise Skip("nothing changes")
    lead = min([*(t.axis for t in tables), *every])
    if prod(t.taps for t in tables) > MOST_TAPS:
        raise Skip(f"more than {MOST_TAPS} elements are summed")
    choices = [plain(site, axes_of(site, tables, lead, every), lead, detail)]
    if x.dtype == np.float32 and 3 <= len(x.dims) <= 5 and lead >= 2 and y.dims[:2] == x.dims[:2]:
        choices.append(_blocked(site, axes_of(site, tables, 2, every), detail))
    return choices


def _given(site: Site, i: int) -> Any:
    return site.const(i) if site.has(i) else None


def _repeated(site: Site) -> dict[int, int]:
    """{axis: times} for the axes of free sizes along which nearest resizing repeats each element
    `times` times, a whole number > 1. This is tested on an axis of LONGEST elements; that none is
    longer becomes a condition on the sizes. Raises Skip if the example has a longer one."""
    dims, outs = site.input(0).dims, site.out.dims
    plain = site.attr("coordinate_transformation_mode") in ("asymmetric", "half_pixel")
    if site.attr("mode") != "nearest" or not plain:
        return {}
    found = {}
    for a, (n, m) in enumerate(zip(dims, outs, strict=True)):
        times = m // n if isinstance(n, Size) else 0
        if isinstance(times, int) and times > 1 and same(n * times, m):
            found[a] = times
    for t in _tables(site, found, list(found)):
        even = np.arange(len(t.places)) // found.get(t.axis, 1)
        if t.axis in found and not np.array_equal(t.places[:, 0], even):
            del found[t.axis]
    if any(dims[a] > LONGEST for a in found):
        raise Skip(f"an axis is longer than {LONGEST}")
    return found


def _scale(site: Site, axis: int) -> float | None:
    """The scale that the model gives for an axis, 1 for an axis that it does not resize; None
    where it gives sizes."""
    scales, axes = _given(site, 2), site.attr("axes")
    if scales is None or not scales.size:
        return None
    rank = len(site.input(0).dims)
    chosen = [a % rank for a in (range(rank) if axes is None else axes)]
    return float(scales[chosen.index(axis)]) if axis in chosen else 1.0


def _computed(site: Site, every: Mapping[int, int]) -> list[Computed]:
    """The tables of the axes of free sizes that change and are not in `every`. Raises Skip where
    such an axis is empty."""
    sampling, found = Sampling(*map(site.attr, Sampling._fields)), []
    for a, (n, m) in enumerate(zip(site.input(0).dims, site.out.dims, strict=True)):
        factor = _scale(site, a)
        free = isinstance(n, Size) or isinstance(m, Size)
        if a in every or not free or (same(n, m) and factor in (None, 1)):
            continue
        if not n:
            raise Skip("there is nothing to resize")
        found.append(Computed(a, n, m, factor, sampling))
    return found


def _tables(site: Site, every: Mapping[int, int], wanted: Collection[int]) -> list[Table]:
    """The tables (`ops/resize`) of those of the `wanted` axes that change. Axes in `every` have
    free sizes; their tables are made for LONGEST elements."""
    dims = [LONGEST if a in every else n for a, n in enumerate(site.input(0).dims)]
    own = [a % len(dims) for a in site.attr("axes") or range(len(dims))]
    kept = [i for i, a in enumerate(own) if a in wanted]
    axes, (roi, scales, sizes) = [own[i] for i in kept], [_given(site, i) for i in (1, 2, 3)]
    if not axes:
        return []
    if roi is not None and roi.size:
        roi = roi.reshape(2, -1)[:, kept].reshape(-1)
    if scales is not None and scales.size:
        scales = scales[kept]
    if sizes is not None and sizes.size:
        given = zip(axes, [sizes.tolist()[i] for i in kept], strict=True)
        sizes = np.array([LONGEST * every[a] if a in every else n for a, n in given], object)
    return axis_tables(
        dims, (roi, scales, sizes), axes, Sampling(*map(site.attr, Sampling._fields))
    )


def _blocked(site: Site, axes: list[Axis], detail: str) -> Choice:
    block = block_of(site.target)
    layout = Layout(block)
    n, channels = site.out.dims[:2]
    blocks = -(-channels // block)
    lines = prod(a.out for a in axes[:-1])

    def emit(em: Emit) -> None:
        source, out = em.input(0), em.outs[0]
        steps = [source.spec.strides[2:], out.spec.strides[2:]]
        with em.b.loop(em.begin, em.end) as tile:
            flat, plane = tile % lines, tile // lines
            image, c = plane // blocks, plane % blocks
            src, dst = (v.at(image, c) for v in (source, out))
            rows, dst = rows_at(em, axes, flat, src, dst, steps)
            _pixels(em, axes[-1], with_vectors(rows, block), dst, steps[0][-1], steps[1][-1], block)

    vectors = typical(n * blocks * lines * axes[-1].out)
    choice = Choice(
        cost_of(site, axes, 0.4 * vectors), site.reads_first(layout, layout), (layout,),
        one_phase(n * blocks * lines, emit), detail=detail,
    )  # fmt: skip
    return with_tables(choice, axes)


def _pixels(
    em: Emit, axis: Axis, rows: Sequence[Row], dst: Ptr, src_step: int, dst_step: int, block: int
) -> None:
    """Emit one row of output pixels at `dst`, each a vector of `block` channels. The input rows
    `rows` are summed first; the table or the repetition of `axis` tells which pixels of this sum
    make each result. `src_step`, `dst_step`: elements from one pixel to the next."""
    b = em.b

    def vertical(at: Position) -> Val:
        return weighted_sum([((p + at).load(block), w) for p, w in rows])

    if axis.repeats:
        times = axis.repeats

        def several(i: Position) -> None:
            value = vertical(i * src_step)
            for k in range(times):
                (dst + i * (times * dst_step) + k * dst_step).store(value)

        run(b, 0, axis.size, several)
        return

    def pixel(i: Position) -> None:
        if axis.table is None:
            value = vertical(i * src_step)
        else:
            value = weighted_sum(
                [
                    (vertical(place * src_step), None if w is None else w.splat(block))
                    for place, w in taps_at(em, axis, i)
                ]
            )
        (dst + i * dst_step).store(value)

    run(b, 0, axis.out, pixel)
