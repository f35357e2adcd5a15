"""Small HTML tables for notebooks (`_repr_html_`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MOST = 200
"""Rows that a table shows at most."""


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *,
    left: Sequence[str] = (),
) -> str:  # fmt: skip
    """A table with the caption `title` as HTML, without scripts, style sheets or links: the first
    MOST (200) rows, then "and N more". All text is escaped. The first column and those named in
    `left` align left, others right."""
    listed = list(rows)
    ways = ["left" if i == 0 or name in left else "right" for i, name in enumerate(columns)]
    body = [_row("td", row, ways) for row in listed[:MOST]]
    if len(listed) > MOST:
        body.append(_row("td", [f"and {len(listed) - MOST} more"], ["left"]))
    head = f"<thead>{_row('th', columns, ways)}</thead>"
    caption = f'<caption style="text-align:left">{escape(title)}</caption>'
    return f"<table>{caption}{head}<tbody>{''.join(body)}</tbody></table>"


def _row(tag: str, cells: Iterable[object], ways: Sequence[str]) -> str:
    shown = [
        f'<{tag} style="text-align:{way}">{escape(str(cell))}</{tag}>'
        for cell, way in zip(cells, ways, strict=False)
    ]
    return f"<tr>{''.join(shown)}</tr>"
