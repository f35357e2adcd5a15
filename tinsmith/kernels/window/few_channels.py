"""Pooling, and convolution of few channels to few, on plain data.

Blocks of channels would be mostly padding where there are few channels, and pooling needs no
blocks at all.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import FLOAT32
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, packed_table
from tinsmith.kernels.window.fold import MAXIMUM, SUM, Fold
from tinsmith.kernels.window.geometry import pool_geometry
from tinsmith.kernels.window.plain import Sum, Work, plain_choice
from tinsmith.kernels.window.pool import shares_of
from tinsmith.kernels.window.site import conv_site
from tinsmith.kernels.window.tiles import Pieces, cut, sizes_of

MOST_OUTPUTS = 4  # output channels of a panel (estimated)


@kernel("MaxPool", Tier.SHAPED, dtypes="float32")
def pool_max_plain(site: Site) -> Choice:
    """Maximum over windows, on plain data."""
    if site.attr("with_indices"):
        raise Skip("the places of the maxima are wanted too")
    return _pool(site, MAXIMUM, None)


@kernel("AveragePool", Tier.SHAPED, dtypes="float32")
def pool_average_plain(site: Site) -> Choice:
    """Average over windows, on plain data; divides by the taps that count."""
    return _pool(site, SUM, np.concatenate(shares_of(site)))


def _pool(site: Site, fold: Fold, table: np.ndarray | None) -> Choice:
    """The `Choice` of a pooling by `fold` on plain data. `table`: the factors of an average, which
    are the tables of `shares_of` one after the other; None for a maximum."""
    geo, _ = pool_geometry(site)

    def work(em: Emit, width: int) -> Sum:
        def start(_: Val | int, outputs: int) -> list[Val]:
            return [em.b.splat(fold.start, F32, width)] * outputs

        def finish(value: Val, at: tuple[Val | int, Val | int, Val | int]) -> Val:
            if table is None:
                return value
            of = em.packed[0]
            rows = (of + at[0]).load() * (of + geo.out[0] + at[1]).load()
            columns = (of + (geo.out[0] + geo.out[1]) + at[2]).load(width)
            return value * (columns * rows)

        return Sum(
            lambda _, xs, acc, __: [fold.add(a, x) for a, x in zip(acc, xs, strict=True)],
            start,
            finish,
        )

    packed = [] if table is None else [packed_table("shares", table)]
    pooled = Work(work, slots=fold.flops / 2, fill=fold.start)
    return plain_choice(site, geo, 1, packed, pooled)


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_plain(site: Site) -> Choice:
    """Convolution of few channels to few (at most a block each), on plain data."""
    conv = conv_site(site)
    geo, widths, bias, most = conv.geo, conv.widths, conv.bias, conv.width
    if max(geo.channels, geo.out_channels) > most:
        raise Skip(f"{geo.channels} to {geo.out_channels} channels fill a block of {most}")
    panels = cut(widths.outputs, MOST_OUTPUTS)
    packed = [
        Packed("weights", _pack, (conv.weights, widths.groups, panels)),
        *conv.packed_bias(np.asarray),
    ]

    def work(em: Emit, width: int) -> Sum:
        b = em.b

        def body(w: Ptr | None, xs: list[Val], acc: list[Val], outputs: int) -> list[Val]:
            assert w is not None
            new = list(acc)
            factors = [(w + k).splat(width) for k in range(outputs)]
            for i, x in enumerate(xs):
                for k, factor in enumerate(factors):
                    new[i * outputs + k] = FLOAT32.step(acc[i * outputs + k], x, factor)
            return new

        def start(first: Val | int, outputs: int) -> list[Val]:
            if bias is None:
                return [b.zero(F32.x(width))] * outputs
            return [(em.packed[1] + first + k).splat(width) for k in range(outputs)]

        return Sum(body, start, lambda value, _: value)

    return plain_choice(site, geo, widths.inputs, packed, Work(work, panels))


def _pack(w: np.ndarray, groups: int, panels: Pieces) -> np.ndarray:
    """Pack weights [K, C/groups, *taps] as [group][panel][channel][tap][output], flat. `panels`:
    the outputs of a group, cut."""
    flat = w.reshape(groups, -1, *w.shape[1:2], prod(w.shape[2:]))
    parts = np.split(flat, np.cumsum(sizes_of(panels))[:-1], axis=1)  # panels of all groups
    each = [part[g].transpose(1, 2, 0) for g in range(groups) for part in parts]
    return np.concatenate([part.reshape(-1) for part in each])
