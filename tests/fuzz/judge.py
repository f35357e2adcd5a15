"""Whether a result is right: the machine code against numpy, up to rounding.

Rounding can grow: what a millionth of a change of every value on the way does to the result is
allowed for. Where that is much, as behind a step function, nothing can be said of the output.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import tinsmith as ts
from tests.fuzz.base import Array
from tinsmith.graph import Graph

UNSAID = "nothing can be said"


def outputs_of(net: Any, feeds: dict[str, Array]) -> dict[str, Array]:
    return dict(zip(net.output_names, net.run([feeds[n] for n in net.inputs]), strict=True))


def blurred(graph: Graph, feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    """The outputs where every floating-point value is a millionth off."""
    rng = np.random.default_rng(seed)

    def blur(a: Any) -> Any:
        if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
            return a
        off, more = 1e-6 * rng.standard_normal((2, *a.shape))
        with np.errstate(all="ignore"):
            return (a * (1 + off) + more / 10).astype(a.dtype)

    known = {v: blur(feeds[v.name]) for v in graph.inputs}
    known |= {v: v.const for v in graph.constants()}
    for node in graph.nodes:
        arrays = tuple(None if v is None else known[v] for v in node.inputs)
        found = node.op.evaluate(arrays, node.attrs)
        known |= {v: blur(a) for v, a in zip(node.outputs, found, strict=False)}
    return {v.name: known[v] for v in graph.outputs}


def differ(got: Array, want: Array, slack: Array | float = 0.0) -> str:
    """What is wrong with `got`, or ''."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        if want.dtype == np.float16:
            slack = slack + 3e-2
        finite = np.isfinite(b)
        scale = float(np.abs(b[finite]).max(initial=0.0))
        bad = np.abs(a - b) > 2e-4 * scale + 1e-3 * np.abs(b) + 1e-6 + slack
        bad |= np.isfinite(a) != finite
        bad |= ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} wrong, first {where}: {got[where]}, not {want[where]}"


def judge(graph: Graph, feeds: dict[str, Array], options: dict[str, Any]) -> str:
    """'' where cpu and numpy agree, UNSAID, or what is wrong. Raises TinsmithError where numpy
    computes nothing."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = outputs_of(ts.compile(graph, backend="numpy"), feeds)
        net = ts.compile(graph, cache=False, **options)
        return wrong_of(graph, net, feeds, want)


def wrong_of(graph: Graph, net: Any, feeds: dict[str, Array], want: dict[str, Array]) -> str:
    """'' where two calls of a net give what is wanted, UNSAID, or what is wrong."""
    first, second = outputs_of(net, feeds), outputs_of(net, feeds)
    near: list[dict[str, Array]] = []
    unsaid = ""
    for name, b in want.items():
        if b.dtype == object:
            continue
        wrong = differ(first[name], b)
        if wrong:
            near = near or [blurred(graph, feeds, i) for i in range(5)]
            slack = slack_of([n[name] for n in near], b)
            if float(np.max(slack, initial=0)) > 1e-2 * max(1.0, greatest(b)):
                unsaid = UNSAID
                continue
            wrong = differ(first[name], b, slack)
        if wrong:
            return f"{name}: {wrong}"
        same = first[name].tobytes() == second[name].tobytes()
        if not same and not np.isnan(b.astype(float)).any():
            return f"{name}: a second call gives another result"
    return unsaid


def slack_of(near: list[Array], want: Array) -> Array:
    spread = [np.abs(n.astype(np.float64) - want.astype(np.float64)) for n in near]
    return 50 * np.nan_to_num(np.max(spread, axis=0), nan=np.inf)


def greatest(a: Array) -> float:
    return float(np.nan_to_num(np.abs(a.astype(np.float64))).max(initial=0.0))
