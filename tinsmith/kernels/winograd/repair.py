"""Computes tiles for which the transforms are not exact enough (`outliers.py`) by the definition of
convolution. Unless weights are kept as taps, the taps are recovered from the transformed weights,
one input channel after the other: keeping both would take memory that hardly any call needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.graph import Array
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.winograd import split_precision
from tinsmith.kernels.winograd.frames import (
    Rooms,
    channels_at,
    data_at,
    extent_inside,
    put_inside,
    result_at,
)
from tinsmith.kernels.winograd.matrices import floats
from tinsmith.kernels.winograd.tiling import WinogradPlan

TOGETHER = 6  # taps that are recovered at a time, in independent chains of additions; estimated


def pack_inverse(plan: WinogradPlan) -> Array:
    """The matrix [tap][position], flat, that recovers taps from transformed weights."""
    rows, cols = (np.linalg.pinv(floats(axis.g)) for axis in (plan.rows, plan.cols))
    return np.kron(rows, cols).astype(np.float32).reshape(-1)


def pack_present(w: Array, plan: WinogradPlan) -> Array:
    """A mask [channel][tap], flat: 0 if the tap is 0 for all output channels, otherwise 1.
    Recovered from transformed weights, such a tap would only be nearly 0."""
    present = np.zeros((plan.depth, w[0, 0].size), np.float32)
    present[: w.shape[1]] = np.any(w, axis=0).reshape(w.shape[1], -1)
    return present.reshape(-1)


def transformed_weights(em: Emit, plan: WinogradPlan, k: Val, channel: Val) -> Callable[[Val], Val]:
    """A function that loads the transformed weights of output block `k` and one input channel at a
    position: a vector of output channels."""
    if plan.split:
        return split_precision.transformed_weights(em, plan, k, channel)
    b, width, panel = em.b, plan.width, k // plan.vectors
    full = panel < plan.panels - 1
    step = full.select(b.index(plan.vectors * width), b.index(plan.last_vectors * width))
    panels = em.packed[0] + panel * (plan.panel_rows * plan.vectors * width)
    panels = (panels + (k % plan.vectors) * width).fixed()
    apart = plan.panel_rows * plan.outputs * width
    if not plan.words:
        at = (panels + channel * step).fixed()
        return lambda position: (at + position * apart).load(width)

    def words(position: Val) -> Val:
        at = (panels + position * apart).fixed()
        (power,) = narrow.powers(at, plan.depth, step, (width,))
        return narrow.line(at, channel, step, width) * power

    return words


def repair(em: Emit, plan: WinogradPlan, rooms: Rooms, k: Val, n: Val, y: Val, x: Val) -> None:
    """Emit code that computes the results of one tile in one output block by the definition, and
    stores them. The first is at image n, output block k, row y, column x."""
    b, width, wide = em.b, plan.width, plan.cols.m
    results = plan.rows.m * wide
    source, sums = rooms.source(em), rooms.edge(em, plan)
    taps = (sums + results * width).fixed()
    corner = data_at(plan, source, n, y, x)
    store_taps = _copy_taps if plan.of_taps else _invert_taps
    bias = (em.packed[1] + k * width).load(width)
    with b.loop(0, results) as i:
        (sums + i * width).store(bias)

    with b.loop(0, plan.channels.count) as c, b.loop(0, plan.channels.stored) as lane:
        store_taps(em, plan, k, c * plan.channels.stored + lane, taps)
        data = (corner + channels_at(plan, source, c) + lane).fixed()
        _add_channel(b, plan, source, data, taps, sums)

    extent = extent_inside(b, plan, y, x)
    out = Sink(em, plan.geo).at(*result_at(plan, n, k), y, x)
    put_inside(b, plan, extent, out, lambda p, q: sums + (p * wide + q) * width)


def _copy_taps(em: Emit, plan: WinogradPlan, k: Val, channel: Val, taps: Ptr) -> None:
    """Emit code that copies the taps of output block k and one input channel, which are packed as
    they are, to `taps`: [tap][lane]."""
    count, width = plan.geo.taps, plan.width
    at = (em.packed[0] + (k * plan.depth + channel) * (count * width)).fixed()
    with em.b.loop(0, count) as t:
        (taps + t * width).store((at + t * width).load(width))


def _invert_taps(em: Emit, plan: WinogradPlan, k: Val, channel: Val, taps: Ptr) -> None:
    """Emit code that recovers the taps of output block k and one input channel from transformed
    weights (`pack_inverse`), or makes them 0 (`pack_present`), and stores them to `taps`:
    [tap][lane]."""
    b, width, positions = em.b, plan.width, plan.positions
    count = plan.geo.taps
    transformed = transformed_weights(em, plan, k, channel)
    present = (em.packed[3] + channel * count).fixed()
    for first in range(0, count, TOGETHER):
        group = range(first, min(first + TOGETHER, count))
        with b.loop(0, positions, carry=[b.zero(F32.x(width))] * len(group)) as at:
            factors = (em.packed[2] + at.index).fixed()
            part = transformed(at.index)
            pairs = zip(group, at.vars, strict=True)
            at.next(
                [part.fma((factors + t * positions).load().splat(width), tap) for t, tap in pairs]
            )
        for t, tap in zip(group, at.out, strict=True):
            (taps + t * width).store(tap * (present + t).load().splat(width))


def _add_channel(
    b: Builder, plan: WinogradPlan, source: View, data: Ptr, taps: Ptr, sums: Ptr
) -> None:
    """Emit code that adds to the results of a tile, at `sums` [row][column][output channel], what
    one input channel contributes: the products of its `taps` [tap][output channel] by its elements,
    which begin at `data` in `source`."""
    width, wide = plan.width, plan.cols.m
    _, _, (_, row, pixel) = steps(source.spec)
    below, right = plan.vertical.dilation * row, plan.horizontal.dilation * pixel
    with b.loop(0, plan.rows.m) as p:
        here = (data + p * (plan.rows.stride * below)).fixed()
        to = (sums + p * (wide * width)).fixed()
        line = [(to + q * width).load(width) for q in range(wide)]
        with b.loop(0, plan.rows.r, carry=line) as i:
            with b.loop(0, plan.cols.r, carry=i.vars) as j:
                near = here + i.index * below + j.index * right
                tap = (taps + (i.index * plan.cols.r + j.index) * width).load(width)
                ones = [(near + q * (plan.cols.stride * right)).load() for q in range(wide)]
                pairs = zip(ones, j.vars, strict=True)
                j.next([one.splat(width).fma(tap, total) for one, total in pairs])
            i.next(j.out)
        for q, total in enumerate(i.out):
            (to + q * width).store(total)
