"""Output of the commands: aligned tables, JSON, and, on a terminal only, colours and progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinsmith.progress import reported

WIDE = 1000  # columns where the output is no terminal: a pipe gets every character of every cell

LONGEST = 40  # letters of a word that is not broken; names of nodes may be longer than a line

json_option = click.option("--json", "json_", is_flag=True, help="Print plain data.")


def console() -> Console:
    """A `rich` console on the present standard output."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, highlight=False, width=None if terminal else WIDE)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, left: Sequence[str] = ()
) -> None:
    """Print rows under their column names. Columns named in `left`, and the first, align left; on a
    narrow terminal they fold between words."""
    rows = [[c if isinstance(c, Text) else Text(str(c)) for c in row] for row in rows]
    out = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    out.title_style = "bold"
    for i, name in enumerate(columns):
        if i == 0 or name in left:
            words = [word for row in rows for word in row[i].plain.split()]
            longest = max(map(len, words), default=0)
            out.add_column(name, overflow="fold", min_width=min(longest, LONGEST))
        else:
            out.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        out.add_row(*row)
    screen = console()
    if screen.is_terminal:
        screen.print(out, crop=False)
        return
    # A pipe gets no padding: neither at the ends of lines, nor around the table.
    with screen.capture() as text:
        screen.print(out)
    lines = [line.rstrip() for line in text.get().splitlines()]
    click.echo("\n".join(line for i, line in enumerate(lines) if line or 0 < i < len(lines) - 1))


def width() -> int:
    """The columns of the terminal; WIDE where there is none."""
    return console().width


def pairs(title: str, items: Mapping[str, Any]) -> None:
    """Print names and values, aligned; long values are wrapped."""
    if title:
        console().print(Text(title, style="bold"))
    longest = max((len(k) for k in items), default=0)
    for key, value in items.items():
        lines = wrap(str(value), max(20, width() - longest - 4), break_on_hyphens=False) or [""]
        for name, line in zip_longest([key], lines, fillvalue=""):
            click.echo(f"  {name:<{longest}}  {line}")


def as_json(document: Any) -> None:
    """Print plain data; numpy scalars become numbers, tuples lists, NaN and Inf strings."""
    click.echo(json.dumps(_plain(document), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A context that shows `what` as progress: on standard error, if it is a terminal."""
    with reported(None, what, patience=0.0):
        yield


def count(number: float) -> str:
    """`25.6 M`: three digits and a unit."""
    for unit in ("", " k", " M", " G"):
        if abs(number) < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def size(nbytes: float) -> str:
    """`97.8 MB`, in powers of 1000."""
    shown = count(nbytes)
    return f"{shown}B" if " " in shown else f"{shown} B"


def ms(milliseconds: float) -> str:
    """`1.23 ms`: three digits or more."""
    if milliseconds >= 100:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds:.3g} ms"
