"""Damaged texts of graphs: refused with line and column, or parsed to a graph that prints alike."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz.models import draw
from tests.fuzz.seeds import chunks
from tinsmith.errors import TinsmithError
from tinsmith.graph.text import format_graph, graph_weights, parse_graph

ALONE = 400
PARTS = ["(", ")", "[", "]", "{", "}", '"', "=", ":", ",", "@", "#", "-", "\n", "\0", "ü", "9" * 40]
VALUE = re.compile(r'(?<=[=(\[, ])(-?\d+\.?\d*(e-?\d+)?|true|false|none|"[a-z_]*")(?=[,)\]])')
VALUES = [
    "inf", "-inf", "nan", "1e400", "1e30", "-1", "0.5", "9" * 40, "true", "none", '"x"', "()",
    "(1)", "(inf)", '(1, "x")', "-99999999999", "const float32[1] = [1]",
]  # fmt: skip
WORDS = ["const", "return", "graph", "float32", "none", "inf", "1e400", "Conv", "from", "true", "N"]


def damaged(text: str, rng: np.random.Generator) -> str:
    at, other = sorted(int(i) for i in rng.integers(0, len(text) + 1, 2))
    lines = text.split("\n")
    how = int(rng.integers(8))
    if how >= 6:  # another value in place of a number, a flag or a word
        spots = list(VALUE.finditer(text))
        if spots:
            spot = spots[int(rng.integers(len(spots)))]
            return text[: spot.start()] + str(rng.choice(VALUES)) + text[spot.end() :]
    if how == 0:  # a word in place of another
        words = text.split(" ")
        words[int(rng.integers(len(words)))] = str(rng.choice(WORDS + words))
        return " ".join(words)
    if how == 1:
        return text[:at] + str(rng.choice(PARTS)) + text[at:]
    if how == 2:
        return text[:at] + text[min(other, at + int(rng.integers(1, 9))) :]
    if how == 3:
        return text[:at]
    if how == 4:
        lines.insert(int(rng.integers(len(lines))), lines[int(rng.integers(len(lines)))])
    else:
        del lines[int(rng.integers(len(lines)))]
    return "\n".join(lines)


def check(seed: int) -> None:
    """The damaged text of a random model is refused in words, or is that of a graph."""
    graph = ts.load(draw(seed % 40).model)
    assert str(parse_graph(format_graph(graph), graph_weights(graph))) == str(graph)
    text = damaged(format_graph(graph), np.random.default_rng(seed))
    try:
        again = parse_graph(text, graph_weights(graph))
    except TinsmithError as error:
        assert str(error).strip()
        return
    assert str(parse_graph(format_graph(again), graph_weights(again))) == str(again)


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_damaged_texts(part: range) -> None:
    for seed in part:
        check(seed)
