"""The panel as a picture: `python -m benchmarks.plot panel.json panel.svg`.

One bar an engine and model: how fast it is, where the fastest peer is 1. A bar of ours that goes
beyond the line is faster than every peer. What gave no right result has no bar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import click

from benchmarks.measure import OURS
from benchmarks.table import rows_of

COLOURS = {
    OURS: "#d1495b",
    "ncnn": "#4f6d7a",
    "mnn": "#8fa6b2",
    "onnxruntime": "#b8c4bb",
    "openvino": "#dbd3ad",
}
OTHER = "#999999"
LABEL, WIDTH, BAR, GAP, HEAD = 150, 620, 7, 9, 64


@dataclass(frozen=True)
class Bars:
    """A model's speeds by engine, the fastest peer's being 1."""

    model: str
    speeds: dict[str, float]

    @property
    def ours(self) -> float:
        return self.speeds.get(OURS, 0.0)


def bars(document: dict[str, Any], threads: int) -> list[Bars]:
    """From the panel's JSON, the models where we win most first."""
    found = []
    for model, by in rows_of(document).items():
        times = by.get(threads, {})
        peers = [ms for engine, ms in times.items() if engine != OURS]
        if peers:
            found.append(Bars(model, {e: min(peers) / ms for e, ms in times.items()}))
    return sorted(found, key=lambda b: (-b.ours, b.model))


def engines_of(rows: Sequence[Bars]) -> list[str]:
    """Ours first, then the peers in the order of the colours."""
    present = {e for row in rows for e in row.speeds}
    return [e for e in [*COLOURS, *sorted(present - set(COLOURS))] if e in present]


def svg(document: dict[str, Any], threads: int) -> str:
    """The picture as text. Raises ClickException where there is nothing to show."""
    rows = bars(document, threads)
    if not rows:
        raise click.ClickException(f"no model has results of a peer with {threads} threads")
    engines = engines_of(rows)
    most = max(1.1, max(v for row in rows for v in row.speeds.values()))
    scale = (WIDTH - LABEL - 50) / most
    block = BAR * len(engines) + GAP
    height = HEAD + block * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(10, 20, f"Speed, 1 thread{'s' * (threads > 1)}".replace("1", str(threads)), 14),
    ]
    for k, engine in enumerate(engines):
        x = 10 + 110 * k
        parts.append(_rect(x, 32, 10, 10, COLOURS.get(engine, OTHER)))
        parts.append(_text(x + 15, 41, engine))
    for i, row in enumerate(rows):
        top = HEAD + block * i
        parts.append(_text(LABEL - 8, top + block / 2, row.model, anchor="end"))
        for k, engine in enumerate(engines):
            if engine in row.speeds:
                length = row.speeds[engine] * scale
                colour = COLOURS.get(engine, OTHER)
                parts.append(_rect(LABEL, top + BAR * k, length, BAR - 1, colour))
        if row.ours:
            place = LABEL + row.ours * scale + 4
            parts.append(_text(place, top + BAR, f"{row.ours:.2f}x", 10))
    line = LABEL + scale
    bottom = HEAD + block * len(rows) - GAP / 2
    parts.append(
        f'<line x1="{line:.1f}" y1="{HEAD - 6}" x2="{line:.1f}" y2="{bottom:.1f}" '
        'stroke="#333333" stroke-dasharray="3 3"/>'
    )
    parts.append(_text(line, bottom + 12, "the fastest peer", 10, "middle"))
    parts.append(_text(10, height - 6, _about(document), 9))
    return "\n".join([*parts, "</svg>", ""])


def _about(document: dict[str, Any]) -> str:
    found = document["machine"]
    return f"{found['cpu']}, float32, batch 1, {document['settings'].get('date', '')}".strip(", ")


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--threads", default=1, show_default=True)
def main(source: Path, target: Path, threads: int) -> None:
    """Draw the panel's JSON (SOURCE) as an SVG (TARGET)."""
    target.write_text(svg(json.loads(source.read_text()), threads), encoding="utf-8")
    click.echo(f"wrote {target}")


if __name__ == "__main__":
    main()
