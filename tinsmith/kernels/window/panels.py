"""Panels of output channels, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen.builder import Builder, Val
from tinsmith.kernels.window.tiles import Panels
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Panel:
    """Some output channels: the lanes of their vectors, and the first block and channel."""

    lanes: tuple[int, ...]
    block: Val | int
    channel: Val | int


def main_panel(cut: Panels, which: Val | int) -> Panel:
    return Panel(cut.main, which * len(cut.main), which * sum(cut.main))


def tail_panel(cut: Panels) -> Panel:
    return Panel(cut.tail, cut.count * len(cut.main), cut.count * sum(cut.main))


def pick_panel(b: Builder, cut: Panels, which: Val | int, body: Callable[[Panel], None]) -> None:
    """Call `body` with panel number `which`."""

    def main() -> None:
        body(main_panel(cut, which))

    def tail() -> None:
        body(tail_panel(cut))

    if not cut.tail:
        main()
    elif not cut.count:
        tail()
    else:
        b.choose(b.index(which) < cut.count, main, tail)


def every_panel(b: Builder, cut: Panels, body: Callable[[Panel], None]) -> None:
    """Call `body` with every panel."""
    if cut.count == 1:
        body(main_panel(cut, 0))
    elif cut.count:
        with b.loop(0, cut.count) as p:
            body(main_panel(cut, p))
    if cut.tail:
        body(tail_panel(cut))
