"""What notebooks show: tables, in which names of a model are text."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import tinsmith as ts
from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.html import MOST, table

HOSTILE = """"><script>alert('x')</script>&amp;<img src=x onerror="y">"""
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Reader(HTMLParser):
    """The tags, attributes and cells of some HTML."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS and {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)
        self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


def hostile() -> Graph:
    g = Graph(HOSTILE)
    x = g.input(HOSTILE, Type("float32", ("N", 4)))
    g.outputs = [ops.Exp(ops.Softmax(x, name=f"{HOSTILE}1"), name=f"{HOSTILE}2")]
    return g


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_names_of_a_model_are_text(backend: str, called: bool) -> None:
    net = ts.compile(hostile(), backend=backend, cache=False)
    shown = [net, net.source()]
    if called:
        x = np.ones((2, 4), np.float32)
        net(x)
        shown += [net.profile(x), *net.report] if backend == "cpu" else []
    for one in shown:
        cells = Reader(one._repr_html_()).cells
        assert any(HOSTILE in cell for cell in cells) or one in net.report


def test_the_tables_have_what_the_text_has() -> None:
    net = ts.compile(hostile(), cache=False)
    profile = net.profile(np.ones((2, 4), np.float32))
    cells = Reader(profile._repr_html_()).cells
    for row in profile.rows:
        assert row.name in cells and row.kernel in cells
    assert str(profile).splitlines()[-1].split()[-5:] == cells[-5:]
    assert "float32[N,4]" in Reader(net._repr_html_()).cells
    assert "Softmax" in Reader(net.source()._repr_html_()).cells
    for report in net.report:
        assert set(report.changes) <= set(Reader(report._repr_html_()).cells)


def test_a_long_table_is_cut() -> None:
    cells = Reader(table("t", ["a"], [[i] for i in range(MOST + 5)])).cells
    assert "and 5 more" in cells and str(MOST) not in cells
