"""The kernels of Strassen's method, for matrix products and pointwise convolutions, whose rows are
pixels of channel-blocked images: where it applies, how operands are packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.graph import Array
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Layout,
    Packed,
    Site,
    Skip,
    Tier,
    View,
    kernel,
    one_phase,
)
from tinsmith.kernels.dot.matmul import flat_rows, right_matrix
from tinsmith.kernels.dot.skeleton import finish_row
from tinsmith.kernels.float_products import LARGE, are_moderate
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.strassen.emit import Ends, Work, clear, rows
from tinsmith.kernels.strassen.form import right_factors
from tinsmith.kernels.strassen.shape import Shape, shape_of
from tinsmith.kernels.strassen.sums import Room, table
from tinsmith.kernels.walk import Position, offsets, share, shifted_to
from tinsmith.kernels.window.geometry import Geometry, steps
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.window.weights import padded_bias

LEAST_ROWS = 24  # fewer rows save less than the additional sums take; estimated
LEAST_DEPTH = 64  # the same for the extent of K; estimated
AT_ONCE = 1 << 18  # elements of the right operand that are packed at a time, as float64; estimated
LEAST_POWER = -126  # the least power of two that scales a column: the least normal float32 exponent


def shapes(site: Site, m: int, w: Array, unit: int) -> list[Shape]:
    """How `m` rows times a constant `w` (`columns_of`) may be cut: a `Shape` for each of the levels
    1 and 2 at which parts of columns are whole vectors and parts of K multiples of `unit`. Raises
    Skip if neither is one, or if the method does not apply."""
    if site.is_strict:
        raise Skip(f"{site.precision} precision asks for the products themselves")
    (k, n), target = columns_of(w).shape, site.target
    if m < LEAST_ROWS or k < LEAST_DEPTH:
        raise Skip(f"{m} rows of {k}: the sums take longer than what they save")
    lanes = block_of(target)
    levels = [v for v in (1, 2) if k % (2**v * unit) == 0 and n % (2**v * lanes) == 0]
    if not levels:
        raise Skip(f"{k} x {n} cannot be halved in whole vectors")
    if not are_moderate(w):
        raise Skip(f"the right operand has elements of {LARGE:g} and more")
    return [shape_of(target, v, m, k, n, site.threads) for v in levels]


def columns_of(w: Array) -> Array:
    """The right operand as a matrix (k, n), from `w`: this matrix, or the weights [n, k, 1, ...] of
    a pointwise convolution."""
    return w if w.ndim == 2 else w.reshape(w.shape[:2]).T


def scales(w: Array) -> Array:
    """For each column of the right operand a power of two, float32 (n); 0 for a column of zeros.
    Packed columns are divided by it, and results multiplied. So the largest element of a packed
    column is 1 to 2, and sums of columns do not round away small ones."""
    w = columns_of(w)
    largest = np.maximum(np.max(w, axis=0), -np.min(w, axis=0))
    powers = np.exp2(np.maximum(np.frexp(largest)[1] - 1.0, LEAST_POWER))
    return np.where(largest > 0, powers, 0).astype(np.float32)


def pack(w: Array, shape: Shape) -> Array:
    """The right factors, of columns divided by `scales`, as [panel][product][depth][column of the
    panel], flat, float32. Sums are computed in float64, a few panels at a time, in cache."""
    columns, side, depth = shape.tiling.columns, shape.side, shape.depth
    w, powers = columns_of(w), scales(w)
    inverse = 1 / np.where(powers, powers, 1).astype(np.float64)  # exact: they are powers of two
    packed = np.empty(shape.products * depth * shape.n // side, np.float32)
    most = max(1, AT_ONCE // (shape.k * side * columns.size))
    pieces = [(p, min(most, columns.full - p), columns.size) for p in range(0, columns.full, most)]
    begin = done = 0
    for _, count, size in (*pieces, (0, int(bool(columns.tail)), sum(columns.tail))):
        end, first = begin + side * count * size, done
        done += shape.products * count * depth * size
        made = packed[first:done].reshape(count, shape.products, depth, size)
        parts = w[:, begin:end].reshape(side, depth, count, side, size).transpose(0, 3, 2, 1, 4)
        by = inverse[begin:end].reshape(count, side, 1, size).swapaxes(0, 1)
        grid = [list(row) for row in np.multiply(parts, by, order="C")]
        for q, factor in enumerate(right_factors(grid)):
            made[:, q] = factor
        begin = end
    return packed


def choice_of(
    site: Site, w: Array, shape: Shape, layout: Layout, ends: Callable[[Emit], Ends],
    more: Sequence[Packed] = (),
) -> Choice:  # fmt: skip
    """The `Choice` of a product by the constant `w` that is cut as `shape`, with left operand and
    result in `layout`. `ends(em)` gives access to rows and results. Packed arrays: the right
    factors, the table of products, the scales of columns, then `more`."""
    cuts, count = shape.cuts, shape.tiling.rows.count
    factors = w.nbytes * shape.products // shape.side**2

    def emit(em: Emit) -> None:
        clear(em.b, shape, em.workspace)
        own = ends(em)
        with em.b.loop(em.begin, em.end) as t:
            rlo, rhi = share(t % cuts, cuts, count)
            clo, chi = share(t // cuts, shape.groups, shape.tiling.columns.count)
            work = Work(em.b, shape, own, em.packed[0], em.packed[1], em.workspace, clo, chi)
            rows(work, rlo, rhi)

    return Choice(
        cost=shape.seconds(site.target, site.threads) * shape.uneven(site.threads),
        reads=site.reads_first(layout, layout),
        writes=(layout,),
        phases=one_phase(cuts * shape.groups, emit),
        packed=(
            Packed("w", pack, (w, shape), factors, are_moderate),
            Packed("products", table, (shape,)),
            Packed("scales", scales, (w,)),
            *more,
        ),
        workspace=4 * Room(shape).end + 256,
        detail=f"{shape.products} products, {shape.tiling}, {shape.groups} groups of columns",
    )


# ---- matrix products


@kernel("MatMul", Tier.SHAPED, dtypes="float32", numbers=True)
def matmul_strassen(site: Site) -> list[Choice]:
    """Matrix product by Strassen's method: seven products of half size for eight, or 49 for 64.

    By a constant right operand. A choice for each of the two levels at which it can be cut."""
    w = right_matrix(site)
    k, n = w.shape
    found = shapes(site, flat_rows(site, n), w, unit=1)
    return [choice_of(site, w, s, PLAIN, lambda em: PlainEnds(em, k)) for s in found]


class PlainEnds:
    """`Ends` of plain arrays, whose rows of `k` elements lie one after the other."""

    def __init__(self, em: Emit, k: int) -> None:
        self.em, self.k, self.input = em, k, em.input(0).pointer
        self.step = block_of(em.target)
        self.lead = len(em.site.out.dims) - 1

    def source(self, row: Position) -> Ptr:
        return self.input + row * self.k

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        em, scales = self.em, (self.em.packed[2] + column).fixed()
        values = [v * (scales + first).load(v.ty.lanes) for first, v in offsets(values)]
        here = shifted_to(em, 0, self.lead, row, column)
        finish_row(here, values, [0] * (self.lead + 1), values[-1].ty.lanes)


# ---- pointwise convolutions

APART = 1.03
"""The factor on the cost for channels of a pixel that do not lie side by side, and for weights that
take more cache than those of a direct convolution. Estimated."""


@kernel("Conv", Tier.SHAPED, dtypes="float32", numbers=True)
def conv_strassen(site: Site) -> list[Choice]:
    """Pointwise convolution by Strassen's method: seven products for eight, or 49 for 64."""
    conv = dense_site(site)
    geo, w, lanes = conv.geo, conv.weights, conv.width
    if geo.taps != 1 or any(geo.begin) or any(geo.after):
        raise Skip("only pointwise convolutions without padding are matrix products")
    more = [Packed("bias", padded_bias, (conv.bias, geo.out_channels))]
    found = [
        choice_of(site, w, shape, Layout(lanes), lambda em: PixelEnds(em, geo), more)
        for shape in shapes(site, geo.points, w, unit=lanes)
    ]
    return [replace(choice, cost=APART * choice.cost) for choice in found]


class PixelEnds:
    """`Ends` of channel-blocked images: rows are pixels, numbered through all images in order."""

    def __init__(self, em: Emit, geo: Geometry) -> None:
        self.em, self.geo, self.input = em, geo, em.input(0)
        self.lanes = block_of(em.target)
        _, self.step, _ = steps(self.input.spec)
        self.reads_even = set(geo.stride) == {1} and _is_even(self.input, geo)
        self.writes_even = all(_is_even(v, geo) for v in (em.outs[0], *em.extras))

    def source(self, row: Position) -> Ptr:
        geo = self.geo
        if self.reads_even:
            n, pixel = self._image(row)
            return self.input.at(n) + pixel * self.lanes
        n, *place = self._place(row)
        strided = [p * s for p, s in zip(place, geo.stride, strict=True)]
        return self.input.at(n, 0, *strided[3 - geo.rank :])

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        em = self.em
        scales, bias = ((em.packed[i] + column).fixed() for i in (2, 3))
        if self.writes_even:
            n, pixel = self._image(row)
            place = [0, 0, pixel]
        else:
            n, *place = self._place(row)
        sink = Sink(em, self.geo).at(n, em.b.index(column) // self.lanes, *place)
        for o, value in enumerate(values):
            scale, more = ((p + o * self.lanes).load(self.lanes) for p in (scales, bias))
            sink.put(value.fma(scale, more), 0, o, 0, 0, 0)

    def _image(self, row: Position) -> tuple[Position, Position]:
        """(the number of the image in which a row's pixel lies, the pixel's number in it)."""
        if self.geo.batch == 1:
            return 0, row
        pixels = prod(self.geo.out)
        return row // pixels, row % pixels

    def _place(self, row: Position) -> tuple[Position, Position, Position, Position]:
        """(n, depth, height, width): the indices of a row's pixel in the output."""
        n, pixel = self._image(row)
        deep, high, wide = self.geo.out
        line = pixel // wide
        return n, (line // high if deep > 1 else 0), line % high, pixel % wide


def _is_even(view: View, geo: Geometry) -> bool:
    """Whether the pixels of an image lie one after the other, a vector each, without halo."""
    strides = steps(view.spec)[2]
    want = (prod(geo.out[1:]), geo.out[2], 1)
    width = view.spec.layout.block
    return all(o == 1 or s == f * width for o, s, f in zip(geo.out, strides, want, strict=True))
