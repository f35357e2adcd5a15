"""DepthToSpace on blocked data: whole blocks of channels move."""

from __future__ import annotations

from tinsmith.kernels._kernel import Choice, Emit, Layout, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.layout import block_of


@kernel("DepthToSpace", Tier.VECTOR)
def depth_to_space_blocks(site: Site) -> Choice:
    """Blocks of channels that become pixels, in their layout."""
    site.need_no_epilogue("a copy has no epilogue")
    block, r = block_of(site.target), site.attr("blocksize")
    n, channels, height, width = site.out.dims
    if site.attr("mode") != "DCR" or channels % block:
        raise Skip(f"{channels} channels in mode {site.attr('mode')} are no whole blocks that stay")
    blocks, layout = channels // block, Layout(block)

    def emit(em: Emit) -> None:
        """A tile is one row of one block of the result."""
        b, x, out = em.b, em.input(0), em.outs[0]
        with b.loop(em.begin, em.end) as t:
            image, rest = t // (blocks * height), t % (blocks * height)
            at, y = rest // height, rest % height
            first = y % r * (r * blocks) + at  # the input's block for the pixels of even steps
            source = [x.at(image, first + j * blocks, y // r, 0).fixed() for j in range(r)]
            sink = out.at(image, at, y, 0).fixed()
            with b.loop(0, width // r) as w:
                for j, line in enumerate(source):
                    (sink + (w * r + j) * block).store((line + w * block).load(block))

    cost = 1e-6 + site.target.time(0, 2 * site.out.type.nbytes)
    return Choice(cost, (layout,), (layout,), (Phase(n * blocks * height, emit),))
