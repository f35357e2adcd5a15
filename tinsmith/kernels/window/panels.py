"""Panels of output channels: one after the other, or as the tiles of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tinsmith.codegen.builder import Builder, Val
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.tiles import Panels, digits, plus
from tinsmith.records import dataclass

Which = Literal["all", "main", "tail"]
"""Panels: all, those before the last, or the last alone, which is narrower."""


@dataclass(frozen=True)
class Panel:
    """Output channels that are computed together, in vectors: `lanes` has the channels of each.
    `block` and `channel` are the numbers of the first block and of the first channel."""

    lanes: tuple[int, ...]
    block: Val | int
    channel: Val | int


@dataclass(frozen=True)
class PanelPlace:
    """One tile of work: a band of image n for one panel of a group. `band` is (which, of how many).
    The panel's block and channel count the vectors and lanes of all packed panels before it, of all
    groups."""

    panel: Panel
    group: Val | int
    n: Val | int
    band: tuple[Val | int, int]


@dataclass(frozen=True)
class Tiles:
    """How the tiles of a convolution are numbered: `count` bands of each of `batch` images, in
    `parts` portions. All panels are computed for one portion before the next."""

    batch: int
    count: int
    parts: int = 1


def pick_panel(
    b: Builder, cut: Panels, which: Val | int, body: Callable[[Panel], None],
    group: Val | int = 0, among: Which = "all",
) -> None:  # fmt: skip
    """Emit `body(panel)` for panel number `which` of a group. `among` says which panels that may
    be, so that no branch is emitted where it can only be one kind."""
    vectors, lanes = len(cut.main), sum(cut.main)
    block = group * (cut.count * vectors + len(cut.tail))
    channel = group * (cut.count * lanes + sum(cut.tail))

    def main() -> None:
        body(Panel(cut.main, plus(block, which * vectors), plus(channel, which * lanes)))

    def tail() -> None:
        body(Panel(cut.tail, plus(block, cut.count * vectors), plus(channel, cut.count * lanes)))

    if not cut.tail or among == "main":
        main()
    elif not cut.count or among == "tail":
        tail()
    else:
        b.choose(b.index(which) < cut.count, main, tail)


def every_panel(b: Builder, cut: Panels, body: Callable[[Panel], None]) -> None:
    """Emit `body` for every panel."""
    run(b, 0, cut.count, lambda p: pick_panel(b, cut, p, body, among="main"))
    if cut.tail:
        pick_panel(b, cut, cut.count, body, among="tail")


def each_panel(
    em: Emit, cut: Panels, groups: int, tiles: Tiles, body: Callable[[PanelPlace], None],
    among: Which = "all",
) -> None:  # fmt: skip
    """Emit a loop over the kernel's tiles that calls `body` with the `PanelPlace` of each. Tiles
    are numbered, from the outermost to the innermost index:

    one part                 (group, panel, image, band)
    several, of one group    (part, panel, image, band): all panels for each part of the batch
    more parts than images   (image, band, panel)

    `among`: in one part of one group, the tiles may be those of "all" panels, of all but the
    "tail", or of that alone.
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
