"""Global pooling on channel-blocked data: each channel's plane becomes one value."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr
from tinsmith.codegen.types import F32
from tinsmith.codegen.values import Val
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.fold import LONG
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.walk import Walk, inverse
from tinsmith.kernels.window.fold import MAXIMUM, SUM, Carried, Fold, fold_range
from tinsmith.kernels.window.geometry import steps
from tinsmith.sizes import Size, typical


@kernel("GlobalPool", Tier.SHAPED, dtypes="float32 int8 uint8")
def global_pool(site: Site) -> Choice:
    """Mean or maximum of each plane, on channel-blocked data; of bytes the mean as float32."""
    kind = site.attr("kind")
    if site.out.dtype != np.float32:
        raise Skip(f"the result is {site.out.dtype}")
    if kind not in ("mean", "max"):
        raise Skip(f"kind is {kind}")
    dims = site.input(0).dims
    if not 3 <= len(dims) <= 5 or 0 in dims:
        raise Skip(f"the input has shape {dims}")
    width = block_of(site.target)
    blocks = -(-dims[1] // width)
    fold = MAXIMUM if kind == "max" else SUM
    layout = Layout(width)
    values = typical(prod(dims))
    return Choice(
        cost=site.target.time(values * fold.flops, 1.0 * site.input(0).dtype.itemsize * values),
        reads=site.reads([layout], layout),
        writes=(layout,),
        phases=one_phase(dims[0] * blocks, lambda em: emit_global(em, fold, blocks)),
    )


def emit_global(em: Emit, fold: Fold, blocks: int) -> None:
    """Emit the kernel; its tiles are (batch, channel block)."""
    b, source = em.b, em.input(0)
    rank = len(source.spec.spatial)
    batch, plane, step = steps(source.spec)
    width = source.spec.layout.block
    walk = Walk(source.spec.spatial, [step[3 - rank :]])
    strides = [*(walk.strides[0][d] for _, d in walk.outer), walk.steps[0]]
    length = walk.length
    sums = 8 if isinstance(length, Size) else min(8, length)
    whole = length // sums * sums
    counts = [*(extent for extent, _ in walk.outer), whole // sums]

    def inner(x: Ptr, carried: Carried, number: int) -> Carried:
        return [
            fold.add(kept, (x + i * strides[-1]).load(width).to("f32")) if i < number else kept
            for i, kept in enumerate(carried)
        ]

    def turns(
        depth: int, carried: Carried, body: Callable[[Val | int, Carried], Carried]
    ) -> Carried:
        """Emit level `depth` of the loop nest: `carried = body(index, carried)` for every index.
        Returns the last `carried`. After about `LONG` terms sums begin anew and are added to the
        earlier ones, so that rounding errors stay small."""
        count, inner = counts[depth], prod(counts[depth + 1 :])
        once = max(1, LONG // max(1, typical(inner)))
        if fold is MAXIMUM or (isinstance(count, int) and count <= once):
            return fold_range(b, 0, count, carried, body)

        def turn(i: Val | int, kept: Carried) -> Carried:
            fresh = [b.splat(fold.start, F32, width)] * len(kept)
            part = fold_range(b, i * once, b.minimum((i + 1) * once, count), fresh, body)
            return [fold.add(x, y) for x, y in zip(kept, part, strict=True)]

        return fold_range(b, 0, -(-count // once), carried, turn)

    def level(depth: int, x: Ptr, carried: Carried) -> Carried:
        if depth < len(walk.outer):
            return turns(
                depth, carried,
                lambda i, c: level(depth + 1, (x + i * strides[depth]).fixed(), c),
            )  # fmt: skip
        carried = turns(depth, carried, lambda i, c: inner(x + i * (sums * strides[-1]), c, sums))
        x = x + whole * strides[-1]
        if not isinstance(length, Size):
            return inner(x, carried, length - whole)
        first, *others = carried
        [first] = fold_range(
            b, 0, length - whole, [first],
            lambda i, c: [fold.add(c[0], (x + i * strides[-1]).load(width).to("f32"))],
        )  # fmt: skip
        return [first, *others]

    share = inverse(b, prod(source.spec.spatial), width)
    with b.loop(em.begin, em.end) as t:
        block, n = t % blocks, t // blocks
        x = (source.pointer + n * batch + block * plane).fixed()
        parts = level(0, x, [b.splat(fold.start, F32, width)] * sums)
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = [fold.add(parts[i], parts[half + i]) for i in range(half)]
            parts = pairs + parts[2 * half :]
        value = parts[0] if fold is MAXIMUM else parts[0] * share
        em.finish(value, (n, block, *(0,) * rank))
