"""ONNX's node cases after both stages: every operator at the edge of what rules may touch."""

import re
import warnings

import pytest

from tests.frontends.conformance import _array, cases, differs, reason
from tinsmith.errors import ImportFailed
from tinsmith.frontends import load
from tinsmith.graph.text import format_graph, graph_weights, parse_graph
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import COURSE, run_passes


def check(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = load(case.model)
        names = [v.name for v in graph.outputs]
        for stage in COURSE:
            run_passes(graph, stage, verify=True)
    assert [v.name for v in graph.outputs] == names
    text = format_graph(graph)
    again = format_graph(parse_graph(text, graph_weights(graph)))
    assert nameless(again) == nameless(text)
    for inputs, expected in case.data_sets:
        got = run_graph(graph, [_array(a) for a in inputs])
        for v, a, b in zip(graph.outputs, got, expected, strict=True):
            assert not differs(a, _array(b), max(case.rtol, 1e-4), v.type), text


def nameless(text):
    """The text with one name for all unknown sizes: that two of them are equal, which passes have
    proven, a parser cannot believe."""
    return re.sub(r"\?\d+", "?", text)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_node_cases(part):
    """Every thirtieth case; the others are slow."""
    wanted = [c for c in cases() if reason(c.name) is None]
    chosen = wanted[::30] if part == 0 else [c for i, c in enumerate(wanted) if i % 30]
    failed, imported = [], 0
    for case in chosen:
        try:
            check(case)
            imported += 1
        except ImportFailed:
            continue
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
    assert imported > 0.9 * len(chosen)
