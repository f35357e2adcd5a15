"""Convolution on matrix registers, of channel-blocked data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.products import MATRICES
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel
from tinsmith.kernels.amx.pack_left import Source
from tinsmith.kernels.amx.pack_right import packed_weights
from tinsmith.kernels.amx.phases import Results, Work
from tinsmith.kernels.amx.tiling import POSITION, AmxPlan, Axis, best_plan
from tinsmith.kernels.float_products import float_product
from tinsmith.kernels.window.direct import lies_flat
from tinsmith.kernels.window.geometry import Geometry, image_of
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.window.weights import padded_bias


@kernel("Conv", Tier.SHAPED, dtypes="float32", isas="amx", numbers=True)
def conv_amx(site: Site) -> Choice:
    """Convolution of float32 as bfloat16, in split precision or not, on matrix registers.

    Takes one or two spatial axes, and 16 input channels or more.
    """
    conv = dense_site(site)
    geo = conv.geo
    if geo.rank == 3:
        raise Skip("there are 3 spatial axes")
    if geo.channels < SIDE:
        raise Skip(f"{geo.channels} input channels do not fill a block of {SIDE}")
    row = float_product(site, MATRICES, conv.weights)
    outputs, channels = -(-geo.out_channels // SIDE), -(-geo.channels // SIDE) * SIDE
    windows = zip(geo.out, geo.kernel, geo.stride, geo.dilation, strict=True)
    _, down, across = (Axis(*window) for window in windows)
    draft = AmxPlan(geo.batch, channels, outputs, down, across, row=row)
    plan, seconds = best_plan(site.target, draft, geo.traffic(), site.threads)
    packed = [
        packed_weights(conv.weights, row),
        Packed("bias", padded_bias, (conv.bias, outputs * SIDE)),
        Packed("taps", _taps, (plan,)),
    ]
    work = Work(plan, partial(_source, geo), partial(_finish, geo, plan))
    return conv.choice(seconds, packed=packed, **work.fields)


def _taps(plan: AmxPlan) -> np.ndarray[Any, Any]:
    """How many bytes after a result's own position in the packed input each tap reads, row of taps
    by row, as int64."""
    pairs = np.ndindex(plan.down.kernel, plan.across.kernel)
    return np.array([plan.offset(i, j) * POSITION for i, j in pairs], np.int64)


def _source(geo: Geometry, em: Emit) -> Source:
    image = image_of(em.input(0), geo)
    corner = image.pointer + image.back
    return Source(corner, image.batch, image.plane, *image.step[1:], lies_flat(em, geo))


def _finish(geo: Geometry, plan: AmxPlan, em: Emit, results: Results) -> None:
    """Emit the bias, the epilogue and the stores of some results. Positions at the end of a row,
    which exist only to be read by taps, are left out."""
    b = em.b
    bias = (em.packed[1].cast(F32) + results.vector * SIDE).load(SIDE)
    sink = Sink(em, geo).at(results.image, results.vector, 0, results.row)

    def stretch(row: Val, first: Val, last: Val, start: Val) -> None:
        """Finish the results at positions [first, last) of a band, which lie in its row `row`.
        `start`: the position of column 0 of this row."""

        def one(i: Val, k: int, sums: Val) -> None:
            place = sink.at(0, 0, 0, row, i - start)
            place.put(sums + bias, 0, 0, 0, 0, k)

        results.each(b, first, last, one)

    if lies_flat(em, geo):
        stretch(b.index(0), results.first, results.last, b.index(0))
        return
    top = results.first // plan.pitch
    with b.loop(top, (results.last - 1) // plan.pitch + 1) as row:
        start = row * plan.pitch
        first = b.index(b.maximum(results.first, start))
        last = b.index(b.minimum(results.last, start + plan.across.out))
        with b.when(first < last):
            stretch(row, first, last, start)
