"""Random models whose sizes are free: one program at many sizes, against numpy.

python -m tests.fuzz.free 1234       one seed, with its model as text
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx

import tinsmith as ts
from tests.fuzz import models
from tests.fuzz.base import Array
from tests.fuzz.judge import UNSAID, differ, outputs_of, wrong_of
from tests.fuzz.models import Case, sample
from tinsmith.errors import TinsmithError
from tinsmith.graph import Graph

OTHERS = [0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 11, 13, 15, 16, 17, 23, 31, 33, 40]
MOST = 60_000  # elements of an input
CALLS = 5
TRIES = 12
MEGABYTES = 1024  # for `cage`: several programs are made


def draw(seed: int) -> Case:
    """A model of `models.draw` whose inputs are free; equal sizes have one name or several."""
    case = models.draw(seed)
    rng = np.random.default_rng([seed, 1])
    alike, keep = bool(rng.random() < 0.6), float(rng.choice([0.0, 0.0, 0.3]))
    for v in case.model.graph.input:
        for i, dim in enumerate(v.type.tensor_type.shape.dim):
            size = case.feeds[v.name].shape[i]
            if rng.random() < keep:
                dim.Clear()
                dim.dim_value = size
            else:
                dim.Clear()
                dim.dim_param = f"d{i}_{size}" if alike else f"{v.name}_{i}"
    for v in case.model.graph.output:
        v.type.tensor_type.ClearField("shape")
    case.options["shapes"] = "free"
    return case


def calls(case: Case, seed: int) -> Iterator[dict[str, Array]]:
    """Inputs of the sizes that the model was drawn with, and of others."""
    rng = np.random.default_rng([seed, 2])
    yield case.feeds
    for _ in range(TRIES):
        some = float(rng.choice([0.2, 0.5, 1.0]))
        sizes: dict[str, int] = {}
        feeds = {}
        for v in case.model.graph.input:
            a = case.feeds[v.name]
            shape = []
            for dim, n in zip(v.type.tensor_type.shape.dim, a.shape, strict=True):
                if dim.dim_param:
                    other = int(rng.choice(OTHERS)) if rng.random() < some else n
                    n = sizes.setdefault(dim.dim_param, other)
                shape.append(n)
            while np.prod(shape) > MOST and max(shape) > 2:
                shape[int(np.argmax(shape))] = 2
            feeds[v.name] = sample(rng, tuple(shape), a.dtype)
        yield feeds


def judge(graph: Graph, options: dict[str, Any], calls: Iterable[dict[str, Array]]) -> str:
    """'' where the first `CALLS` calls that can be made are right; else what is wrong with one.
    Calls that numpy refuses must be refused, unless `vain`."""
    reference = ts.compile(graph, backend="numpy")
    net = ts.compile(graph, cache=False, **options)
    right, unsaid = 0, ""
    fixed: dict[str, Any] = {**options, "shapes": "fixed"}
    for feeds in calls:
        try:
            want = outputs_of(reference, feeds)
        except TinsmithError as error:
            try:
                got = outputs_of(net, feeds)
            except TinsmithError:
                continue
            if vain(graph, feeds, got):
                continue
            return f"{shapes_of(feeds)} is not refused: {type(error).__name__}: {error}"
        try:
            wrong = wrong_of(graph, net, feeds, want)
        except TinsmithError:
            try:  # references take some inputs that type rules refuse
                outputs_of(ts.compile(graph, cache=False, **fixed), feeds)
            except TinsmithError:
                continue
            raise
        if wrong == UNSAID:
            unsaid = wrong
        elif wrong:
            return f"{shapes_of(feeds)}: {wrong}"
        right += 1
        if right >= CALLS:
            break
    return unsaid


def vain(graph: Graph, feeds: dict[str, Array], got: dict[str, Array]) -> bool:
    """Whether the nodes that numpy refuses lead to outputs without elements alone: such nodes need
    not run. The other outputs in `got` must be right."""
    known: dict[Any, Any] = {v: feeds[v.name] for v in graph.inputs}
    known |= {None: None} | {v: v.const for v in graph.constants()}
    refused = False
    for node in graph.nodes:
        if all(v in known for v in node.inputs):
            try:
                found = node.op.evaluate(tuple(known[v] for v in node.inputs), node.attrs)
                known |= zip(node.outputs, found, strict=False)
            except (TinsmithError, ValueError):
                refused = True
    return refused and not any(
        differ(got[v.name], known[v]) if v in known else got[v.name].size for v in graph.outputs
    )


def shapes_of(feeds: dict[str, Array]) -> str:
    return " ".join(f"{n}{list(a.shape)}" for n, a in feeds.items())


def check(seed: int) -> str:
    case = draw(seed)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return judge(ts.load(case.model), case.options, calls(case, seed))
        except TinsmithError as error:
            return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(onnx.printer.to_text(draw(number).model), draw(number).options)
        print(number, check(number) or "right")
