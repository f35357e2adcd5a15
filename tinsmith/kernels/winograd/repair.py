"""Tiles that the transforms do not do for (`outliers.py`), computed again by the definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.winograd import halves
from tinsmith.kernels.winograd.frames import channels_at, data_at, result_at
from tinsmith.kernels.winograd.matrices import floats
from tinsmith.kernels.winograd.plan import Plan
from tinsmith.kernels.winograd.weights import Array

TOGETHER = 6  # taps that are summed side by side


def pack_inverse(plan: Plan) -> Array:
    """What gives the taps from the transformed weights: [tap][position], flat."""
    rows, cols = (np.linalg.pinv(floats(axis.g)) for axis in (plan.rows, plan.cols))
    return np.kron(rows, cols).astype(np.float32).reshape(-1)


def pack_present(w: Array, plan: Plan) -> Array:
    """[channel][tap], flat: 0 where no output has such a tap, else 1. `pack_inverse` gives what is
    0 only nearly."""
    present = np.zeros((plan.depth, w[0, 0].size), np.float32)
    present[: w.shape[1]] = np.any(w, axis=0).reshape(w.shape[1], -1)
    return present.reshape(-1)


def taken_back(em: Emit, plan: Plan, k: Val, channel: Val) -> Callable[[Val], Val]:
    """What gives the transformed weights of output block k and a channel at a position."""
    if plan.halves:
        return halves.taken_back(em, plan, k, channel)
    b, width, panel = em.b, plan.width, k // plan.vectors
    full = panel < plan.panels - 1
    step = full.select(b.index(plan.vectors * width), b.index(plan.last * width))
    panels = em.packed[0] + panel * (plan.high * plan.vectors * width)
    panels = (panels + (k % plan.vectors) * width).fixed()
    apart = plan.high * plan.outputs * width
    if not plan.words:
        at = (panels + channel * step).fixed()
        return lambda position: (at + position * apart).load(width)

    def words(position: Val) -> Val:
        at = (panels + position * apart).fixed()
        (power,) = narrow.powers(at, plan.depth, step, (width,))
        return narrow.line(at, channel, step, width) * power

    return words


def repair(em: Emit, plan: Plan, source: View, room: Ptr, k: Val, n: Val, y: Val, x: Val) -> None:
    """Compute the tile whose first result is at (n, k, y, x) by the definition, in `room`.

    The taps are taken back from the transformed weights, one input channel after the other: kept
    beside them they would take memory that hardly any call needs.
    """
    b, width, geo = em.b, plan.width, plan.geo
    _, _, (_, row, pixel) = steps(source.spec, len(source.spec.spatial))
    count = plan.rows.r * plan.cols.r
    high, wide, positions = plan.rows.m, plan.cols.m, plan.positions
    apart, beside = plan.vertical.dilation, plan.horizontal.dilation
    sums, taps = room, (room + high * wide * width).fixed()
    corner = data_at(plan, source, n, y, x)
    bias = (em.packed[1] + k * width).load(width)
    with b.loop(0, high * wide) as i:
        (sums + i * width).store(bias)

    with b.loop(0, plan.channels.count) as c, b.loop(0, plan.channels.stored) as lane:
        channel = c * plan.channels.stored + lane
        transformed = taken_back(em, plan, k, channel)
        present = (em.packed[3] + channel * count).fixed()
        for first in range(0, count, TOGETHER):
            group = range(first, min(first + TOGETHER, count))
            with b.loop(0, positions, carry=[b.zero(bias.ty)] * len(group)) as at:
                factors = (em.packed[2] + at.index).fixed()
                part = transformed(at.index)
                at.next(
                    [
                        part.fma((factors + t * positions).load().splat(width), tap)
                        for t, tap in zip(group, at.vars, strict=True)
                    ]
                )
            for t, tap in zip(group, at.out, strict=True):
                (taps + t * width).store(tap * (present + t).load().splat(width))
        data = (corner + channels_at(plan, source, c) + lane).fixed()
        with b.loop(0, high) as p:
            here = (data + p * (plan.rows.stride * apart * row)).fixed()
            to = (sums + p * (wide * width)).fixed()
            line = [(to + q * width).load(width) for q in range(wide)]
            with b.loop(0, plan.rows.r, carry=line) as i:
                with b.loop(0, plan.cols.r, carry=i.vars) as j:
                    near = here + i.index * (apart * row) + j.index * (beside * pixel)
                    tap = (taps + (i.index * plan.cols.r + j.index) * width).load(width)
                    ones = [
                        (near + q * (plan.cols.stride * beside * pixel)).load() for q in range(wide)
                    ]
                    j.next(
                        [
                            one.splat(width).fma(tap, acc)
                            for one, acc in zip(ones, j.vars, strict=True)
                        ]
                    )
                i.next(j.out)
            for q, acc in enumerate(i.out):
                (to + q * width).store(acc)

    below = b.minimum(high, (geo.out[1] + apart - 1 - y) // apart)
    right = b.minimum(wide, (geo.out[2] + beside - 1 - x) // beside)
    out = Sink(em, geo).at(*result_at(plan, n, k), y, x)
    with b.loop(0, below) as p, b.loop(0, right) as q:
        value = (sums + (p * wide + q) * width).load(width)
        out.at(0, 0, 0, p * apart, q * beside).put(value, 0, 0, 0, 0, 0)
