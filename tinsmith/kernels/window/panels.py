"""Loops over panels of output channels: all panels in turn, or tiles of one panel each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tinsmith.codegen.builder import Builder, Val
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.tiles import Panels, digits
from tinsmith.records import dataclass

Which = Literal["all", "main", "tail"]
"""Which panels: all of them, "main" those before the narrower last one, "tail" the last one."""


@dataclass(frozen=True)
class Panel:
    """Output channels that are computed together. `lanes`: how many each vector has; `block` and
    `channel`: how many vectors and lanes all panels before this one have, those of earlier groups
    included."""

    lanes: tuple[int, ...]
    block: Val | int
    channel: Val | int


@dataclass(frozen=True)
class PanelPlace:
    """One tile of a kernel: a band of image n for one panel of a group. `band` is (its number, how
    many there are)."""

    panel: Panel
    group: Val | int
    n: Val | int
    band: tuple[Val | int, int]


@dataclass(frozen=True)
class Tiles:
    """The images and bands of a kernel's tiles: `count` bands of each of `batch` images. They are
    taken in `parts` portions; all panels are computed for one portion before the next."""

    batch: int
    count: int
    parts: int = 1


def pick_panel(
    b: Builder, cut: Panels, which: Val | int, body: Callable[[Panel], None],
    group: Val | int = 0, among: Which = "all",
) -> None:  # fmt: skip
    """Emit `body(panel)` for panel number `which` of group number `group`. Where that may be a wide
    panel or the narrower last one, this is a branch with two copies of the body; `among` "main" or
    "tail" says that it is the one or the other."""
    vectors, lanes = len(cut.main), sum(cut.main)
    block = group * (cut.count * vectors + len(cut.tail))
    channel = group * (cut.count * lanes + sum(cut.tail))

    def main() -> None:
        body(Panel(cut.main, block + which * vectors, channel + which * lanes))

    def tail() -> None:
        body(Panel(cut.tail, block + cut.count * vectors, channel + cut.count * lanes))

    if not cut.tail or among == "main":
        main()
    elif not cut.count or among == "tail":
        tail()
    else:
        b.choose(b.index(which) < cut.count, main, tail)


def every_panel(b: Builder, cut: Panels, body: Callable[[Panel], None]) -> None:
    """Emit `body(panel)` for every panel of one group, in order."""
    run(b, 0, cut.count, lambda p: pick_panel(b, cut, p, body, among="main"))
    if cut.tail:
        pick_panel(b, cut, cut.count, body, among="tail")


def each_panel(
    em: Emit, cut: Panels, groups: int, tiles: Tiles, body: Callable[[PanelPlace], None],
    among: Which = "all",
) -> None:  # fmt: skip
    """Emit `body(place)` in a loop over the kernel's tiles. A tile's number consists of these
    indices, outermost first:

    one part                 (group, panel, image, band)
    several, of one group    (part, panel, image, band)
    more parts than images   (image, band, panel)

    `among`: the panels of which the tiles are; other than "all" only for one part of one group.
    """
    batch, count, parts = tiles.batch, tiles.count, tiles.parts
    assert among == "all" or groups == parts == 1, (among, groups, parts)
    with em.b.loop(em.begin, em.end) as t:
        group: Val | int = 0
        if parts > batch:
            panel, band, n = digits(t, cut.total, count)
        elif parts > 1:
            images = batch // parts
            band, n, panel, part = digits(t, count, images, cut.total)
            n = n + part * images
        else:
            band, n, panel = digits(t, count, batch)
            if groups > 1:
                panel, group = digits(panel, cut.total)

        where = group, n, (band, count)
        pick_panel(em.b, cut, panel, lambda p: body(PanelPlace(p, *where)), group, among)
