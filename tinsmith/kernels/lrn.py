"""Local response normalisation across channels, on blocked images.

The squares of neighbouring channels are lane shuffles of the squares of a block and of the two
blocks beside it.
"""

from __future__ import annotations

from math import prod

from tinsmith.codegen import wide
from tinsmith.codegen.builder import Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, View, kernel, one_phase
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.walk import Position, digits, run

ROOTS, POWER = 12, 90
"""Operations of base ** -beta by square roots, and of any other power (estimated)."""


@kernel("LRN", Tier.VECTOR, dtypes="float32")
def lrn_blocked(site: Site) -> Choice:
    """Local response normalisation; its windows reach a block of channels to each side at most."""
    dims = site.input(0).dims
    block = block_of(site.target)
    if not 3 <= len(dims) <= 5:
        raise Skip(f"the rank is {len(dims)}")
    if site.attr("size") // 2 > block:
        raise Skip(f"the window of {site.attr('size')} channels reaches beyond the next block")
    if (site.attr("bias") <= 0 or min(map(site.attr, ("alpha", "beta"))) < 0) and dims[1] % block:
        raise Skip("the padding lanes need a positive bias, and powers that stay finite")
    blocks = -(-dims[1] // block)
    lines = prod(dims[2:-1])
    layout = Layout(block)
    values = dims[0] * blocks * block * prod(dims[2:])
    flops = site.attr("size") + (ROOTS if _quick(site.attr("beta")) else POWER)
    return Choice(
        cost=0.2e-6 + site.target.time(2.0 * flops * values, 12.0 * values, 0.5),
        reads=site.reads([layout], layout),
        writes=(layout,),
        phases=one_phase(dims[0] * blocks * lines, lambda em: _emit(em, blocks, lines)),
    )


def _emit(em: Emit, blocks: int, lines: int) -> None:
    """Emit the kernel. A tile is one row of pixels of one channel block of one image."""
    b, x = em.b, em.input(0)
    outer = [(extent, d) for d, extent in enumerate(x.spec.spatial[:-1])]
    with b.loop(em.begin, em.end) as tile:
        line, plane = tile % lines, tile // lines
        n, c = plane // blocks, plane % blocks
        row = (n, c, *reversed([i for _, i in digits(line, outer)]))
        if blocks == 1:
            _row(em, x, row, False, False)
        else:
            at = b.index(c)
            b.choose(
                at.eq(0),
                lambda: _row(em, x, row, False, True),
                lambda: b.choose(
                    at.eq(blocks - 1),
                    lambda: _row(em, x, row, True, False),
                    lambda: _row(em, x, row, True, True),
                ),
            )


def _row(em: Emit, x: View, row: tuple[Position, ...], before: bool, after: bool) -> None:
    """Emit one row of pixels of one block of channels. `row`: its index (n, block, *spatial)
    without the last axis; `before` and `after`: whether there is a block of channels before it and
    after it."""
    b, width, plane = em.b, x.spec.layout.block, x.spec.strides[1]
    size, alpha = em.site.attr("size"), em.site.attr("alpha")
    step = x.spec.strides[-1]
    start = x.at(*row).fixed()
    zero = b.zero(F32.x(width))

    def square(place: Position, shift: int, there: bool) -> Val:
        if not there:
            return zero
        v = (start + shift + place).load(width)
        return v * v

    def pixel(i: Position) -> None:
        value = (start + i * step).load(width)
        own = value * value
        low, high = square(i * step, -plane, before), square(i * step, plane, after)
        total = own
        for d in range(-((size - 1) // 2), size // 2 + 1):
            if d < 0:
                total = total + low.shuffle(own, [width + k + d for k in range(width)])
            elif d > 0:
                total = total + own.shuffle(high, [k + d for k in range(width)])
        base = total * (alpha / size) + em.site.attr("bias")
        em.finish(value * _negative_power(base, em.site.attr("beta")), (*row, i))

    run(b, 0, x.spec.spatial[-1], pixel)


def _quick(beta: float) -> bool:
    return beta in (0.25, 0.5, 0.75, 1.0)


def _negative_power(base: Val, beta: float) -> Val:
    """base ** -beta for positive bases."""
    one = base.b.const(1.0, base.ty)
    if not _quick(beta):
        return wide.power(base, base.b.const(-beta, base.ty))
    root = base.sqrt()
    powers = {0.25: lambda: root.sqrt(), 0.5: lambda: root, 0.75: lambda: root * root.sqrt()}
    return one / powers.get(beta, lambda: base)()
