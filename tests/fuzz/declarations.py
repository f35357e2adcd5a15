"""Models whose sizes depend on data, and whose declared types lie: they must compute what they
compute without any declaration, or be refused in words.

    python -m tests.fuzz.declarations 1234              one seed: its models, and what came of it
    python -m tests.fuzz.declarations --count 100000    seeds from 0 on, and counts of what came
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

import tinsmith as ts
from tests.fuzz import cage
from tests.fuzz.cores import CORES, Sketch, f32
from tests.fuzz.judge import differ
from tests.fuzz.lies import element_type, lying_text, sequence_of, type_of
from tests.fuzz.mutants import Dice
from tests.fuzz.places import PLACES, Place, at_the_top
from tests.guard import SIDES, guarded
from tinsmith.errors import TinsmithError
from tinsmith.graph import Graph
from tinsmith.graph.text import format_graph, graph_weights, parse_graph

AGREED, REFUSED, ELIDED = "agreed", "refused", "elided"
UNSAID, WRONG = "unsaid", "wrong"
FINE = AGREED, REFUSED, ELIDED, UNSAID
PART = 500
"""Seeds that one process is started for."""

Feeds = dict[str, Any]


@dataclass
class Case:
    truth: onnx.ModelProto
    lying: onnx.ModelProto | str
    """Or the text of a graph, whose constants are the truth's."""
    runs: list[Feeds]
    backend: str
    side: str
    """Of the guard pages."""

    def load(self) -> Graph:
        """The graph that lies. Raises TinsmithError."""
        if isinstance(self.lying, str):
            return parse_graph(self.lying, graph_weights(ts.load(self.truth)))
        return ts.load(self.lying)


# ---- drawing


def follow(m: Sketch, name: str, value: Any) -> list[str]:
    """What usually follows a value of this shape."""
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return []
    after = ["Shape", "Size", "Identity", "Reshape", "Filled"]
    if value.ndim:
        after += ["Concat", "Gather", "Transpose", "NonZero"]
    if value.dtype == np.float32 and value.ndim:
        after += ["Relu", "Relu", "MatMul", "Softmax", "ReduceSum", "Add"]
        after += ["Conv"] * 3 if value.ndim > 2 else []
    op, axis = m.dice.one(after), m.dice.one(range(max(1, value.ndim)))
    last = value.shape[-1] if value.ndim else 1
    if op == "Filled":
        return [m.node("ConstantOfShape", m.node("Shape", name))]
    if op == "Reshape":
        return [m.node(op, name, m.const(np.array([-1])))]
    if op == "Add":
        return [m.node(op, name, m.const(f32(*value.shape)))]
    if op == "Concat":
        return [m.node(op, name, name, axis=axis)]
    if op == "Gather":
        return [m.node(op, name, m.const(np.array([0, -1])), axis=axis)]
    if op == "MatMul":
        return [m.node(op, name, m.const(f32(last, 5)))]
    if op == "Conv":
        weights = f32(5, value.shape[1], *(1,) * (value.ndim - 2))
        return [m.node(op, name, m.const(weights))]
    return [m.node(op, name)]


def chosen(m: Sketch, first: bool) -> Feeds:
    """One choice of each input; the first ones agree with each other."""
    return {n: cs[0 if first else m.dice.one(range(len(cs)))] for n, cs in m.feeds.items()}


def input_types(m: Sketch, runs: list[Feeds]) -> dict[str, Any]:
    """The true type of each input, with a symbol where the runs differ, or now and then."""
    types = {}
    for name, choices in m.feeds.items():
        first = next(c for c in choices if c is not None)
        if any(c is None for c in choices):
            tensor = helper.make_tensor_type_proto(element_type(first.dtype), None)
            types[name] = helper.make_optional_type_proto(tensor)
        elif isinstance(first, list):
            types[name] = sequence_of(first[0])
        else:
            sizes = zip(*(run[name].shape for run in runs), strict=True)
            free = m.dice.chance(0.1)
            dims = [f"{name}_{i}" if free or len(set(s)) > 1 else s[0] for i, s in enumerate(sizes)]
            types[name] = helper.make_tensor_type_proto(element_type(first.dtype), dims)
    return types


def model_of(
    m: Sketch, place: Place, types: dict[str, Any], say: Callable[[str], Any]
) -> onnx.ModelProto:
    """The model with what `say` declares of its values; `types` are those of the inputs."""

    def info(name: str) -> Any:
        found = helper.make_empty_tensor_value_info(name)
        if (declared := say(name)) is not None:
            found.type.CopyFrom(declared)
        return found

    nodes, infos, functions = place.parts(info)
    inputs = [helper.make_value_info(n, t) for n, t in types.items()]
    graph = helper.make_graph(
        nodes, "g", inputs, list(map(info, place.outputs)), m.weights, value_info=infos
    )
    opsets = {"": 21, "ai.onnx.ml": 3, **({"local": 1} if functions else {})}
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def silent(name: str) -> None:
    """Declares nothing."""


def known_of(m: Sketch, feeds: Feeds) -> Feeds:
    """What each value of the drawn nodes is. Raises TinsmithError."""
    names = [o for node in m.nodes for o in node.output]
    model = model_of(m, at_the_top(m, names, {}), input_types(m, [feeds]), silent)
    return outputs_of(ts.compile(ts.load(model), backend="numpy"), feeds)


def draw(seed: int) -> Case:
    """Raises TinsmithError where the drawn model computes nothing even if nothing is declared."""
    dice = Dice(seed)
    m = Sketch(dice)
    outputs = list(CORES[list(CORES)[seed % len(CORES)]](m))
    known = known_of(m, chosen(m, first=True))
    for at in outputs[:]:
        more = follow(m, at, known[at]) if dice.chance(0.6) else []
        if more and dice.chance(0.3):
            outputs.remove(at)
        outputs += more
    known = known_of(m, chosen(m, first=True))
    place = dice.one(PLACES)(m, outputs, known)
    runs = [chosen(m, first=True), chosen(m, first=False)]
    if dice.chance(0.2):
        runs.reverse()
    types = input_types(m, runs)
    truth = model_of(m, place, types, silent)
    how = dice.one(["cpu"] * 4 + ["numpy"]), dice.one(SIDES)
    if dice.chance(0.2):
        text = format_graph(ts.load(truth))
        return Case(truth, lying_text(dice, text, known), runs, *how)
    with suppress(TinsmithError):  # of data that do not agree there are no results to lie about
        known = known | outputs_of(ts.compile(ts.load(truth), backend="numpy"), runs[0])

    def say(name: str) -> Any:
        """Of most values something, true or not."""
        return type_of(dice, known[name]) if name in known and dice.chance(0.8) else None

    lied = {n: type_of(dice, runs[0][n]) if dice.chance(0.04) else t for n, t in types.items()}
    lied = {n: t or types[n] for n, t in lied.items()}
    return Case(truth, model_of(m, place, lied, say), runs, *how)


# ---- judging


def outputs_of(net: Any, feeds: Feeds) -> Feeds:
    with np.errstate(all="ignore"):
        results = net.run([feeds[n] for n in net.inputs])
    return dict(zip(net.output_names, results, strict=True))


def unlike(got: Any, want: Any) -> str:
    """What is wrong with a result, or ''."""
    if isinstance(want, list) or isinstance(got, list):
        if not (isinstance(want, list) and isinstance(got, list) and len(got) == len(want)):
            return "another list"
        return next(filter(None, map(unlike, got, want)), "")
    if isinstance(want, np.ndarray) and isinstance(got, np.ndarray):
        if want.dtype != object:
            return differ(got, want)
        same = got.shape == want.shape and got.tolist() == want.tolist()
        return "" if same else "other text"
    return "" if type(got) is type(want) and got == want else "another value"


def difference(got: Feeds, want: Feeds) -> str:
    """The first result that is not as wanted, and why, or ''."""
    found = ((name, unlike(got[name], b)) for name, b in want.items())
    return next((f"{name}: {wrong}" for name, wrong in found if wrong), "")


def elided(case: Case, feeds: Feeds, got: Feeds) -> bool:
    """Whether these results are also those of the truth where the same passes rewrite it: they may
    drop what would refuse data, where nothing reads it."""
    try:
        net = ts.compile(ts.load(case.truth), backend=case.backend, cache=False, shapes="fixed")
        return not difference(got, outputs_of(net, feeds))
    except TinsmithError:
        return False


def verdict(case: Case) -> str:
    """AGREED, REFUSED and by what, ELIDED, or WRONG and why. A stray access ends the process."""
    with guarded(case.side):
        return _verdict(case)


def _verdict(case: Case) -> str:
    truth = ts.compile(ts.load(case.truth), backend="numpy")
    try:
        net = ts.compile(case.load(), backend=case.backend, cache=False, shapes="fixed")
    except TinsmithError as error:
        assert str(error).strip(), type(error)
        return f"{REFUSED} {type(error).__name__}"
    refused = agreed = ""
    for feeds in case.runs:
        try:
            got = outputs_of(net, feeds)
        except TinsmithError as error:
            assert str(error).strip(), type(error)
            refused = f"{REFUSED} {type(error).__name__}"
            continue
        try:
            want = outputs_of(truth, feeds)
        except TinsmithError as error:
            if elided(case, feeds, got):
                refused = ELIDED
                continue
            shown = ", ".join(f"{n}: {str(a)[:60]}" for n, a in got.items())
            return f"{WRONG}: undeclared it is refused ({error}), declared it gives {shown}"
        if wrong := difference(got, want):
            return f"{WRONG}: {wrong}"
        agreed = AGREED
    return refused if refused == ELIDED else agreed or refused


def check(seed: int) -> str:
    """The verdict of a seed, in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = draw(seed)
        except TinsmithError as error:
            return f"{UNSAID} {type(error).__name__}: {error}"
        try:
            return verdict(case)
        except Exception as error:
            return f"{WRONG}: {type(error).__name__}: {error}"


# ---- by hand


def kind(said: str) -> str:
    """A verdict without its details."""
    return said.partition(":")[0]


def many(first: int, count: int, workers: int = 2) -> dict[int, str]:
    parts = [range(at, min(at + PART, first + count)) for at in range(first, first + count, PART)]
    found: dict[int, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for some in pool.map(lambda part: cage.run(__spec__.name, part), parts):
            for seed, said in some.items():
                if not said.startswith(FINE):
                    print(seed, list(CORES)[seed % len(CORES)], said[:300], flush=True)
            found |= some
    return found


def main() -> None:
    if sys.argv[1:2] == ["--count"]:
        found = many(int(sys.argv[3]) if sys.argv[3:] else 0, int(sys.argv[2]))
        counts = Counter(map(kind, found.values()))
        rows = ", ".join(f"{n} {said}" for said, n in counts.most_common())
        print(f"{len(found)} models: {rows}")
        return
    for seed in map(int, sys.argv[1:]):
        case = draw(seed)
        print(onnx.printer.to_text(case.truth))
        lying = case.lying
        print(lying if isinstance(lying, str) else onnx.printer.to_text(lying))
        print(case.backend, case.side, *case.runs, sep="\n", flush=True)
        print(seed, cage.run(__spec__.name, range(seed, seed + 1))[seed])


if __name__ == "__main__":
    main()
