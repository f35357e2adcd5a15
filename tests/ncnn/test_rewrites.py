"""The rewrites of ncnnoptimize, and the guards that it lacks; see `rewrites`.

`python -m tests.ncnn.test_rewrites` records what ncnn computes, in an environment with the peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.ncnn.against import PEER, agree, record, recorded, run_peer
from tests.ncnn.rewrites import CASES, model_of
from tests.real import real_file
from tinsmith.formats.ncnn.param import read_param
from tinsmith.graph import Graph
from tinsmith.ops.interpret import run_graph

RECORDED = Path(__file__).parent.parent / "data" / "ncnn" / "rewrites.npz"
BOTH = [(name, which) for name in CASES for which in ("must", "guard")]
READ_TWICE = {
    name for name in CASES if CASES[name].guard.count(",z>") == 0 and ">z" in CASES[name].guard
}
"""Guards that need a value that two layers read: ncnn itself computes nonsense without a Split."""


def text_of(name: str, which: str) -> str:
    case = CASES[name]
    return case.must if which == "must" else case.guard


def feeds(graph: Graph) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [[d for d in v.shape or () if isinstance(d, int)] for v in graph.inputs]
    return [rng.standard_normal(s).astype(np.float32)[None] for s in shapes]


def compute(graph: Graph) -> dict[str, Any]:
    found = run_graph(graph, feeds(graph))
    return {v.name: np.asarray(y)[0] for v, y in zip(graph.outputs, found, strict=True)}


def types_of(path: Path) -> list[str]:
    return [la.type for la in read_param(memoryview(path.read_bytes()), str(path))]


def test_all_rewrites_have_a_pair() -> None:
    assert len(CASES) == 34


@pytest.mark.parametrize(("name", "which"), BOTH)
def test_what_is_written_computes_what_ncnn_computes(name: str, which: str, tmp_path: Path) -> None:
    case, (param, weights) = CASES[name], model_of(text_of(name, which))
    graph = ts.load((param.encode(), weights))
    ts.write(ts.optimize(graph), tmp_path / "y.param")
    again, types = ts.load(tmp_path / "y.param"), types_of(tmp_path / "y.param")
    wanted = compute(graph)
    agree(compute(again), wanted)
    key = f"{name}/{which}/"
    known = {k.removeprefix(key): v for k, v in recorded(RECORDED).items() if k.startswith(key)}
    assert known or (which == "guard" and name in READ_TWICE)
    agree({k: v for k, v in wanted.items() if k in known}, known)
    if which == "must":
        assert len(types) <= case.left, types
    else:
        assert set(case.stay.split()) & set(types), types
        assert not set(case.never.split()) & set(types), types
    assert len(types) <= param.count("\n") - 2 + (name in READ_TWICE), types


@pytest.mark.skipif(not PEER.exists(), reason="no ncnn: TINSMITH_BENCH_DIR names no peers")
def test_ncnn_computes_the_same_now(tmp_path: Path) -> None:
    wanted = {}
    for name, which in BOTH:
        param, weights = model_of(text_of(name, which))
        graph = ts.load((param.encode(), weights))
        ts.write(ts.optimize(graph), tmp_path / f"{name}.{which}.param")
        np.savez(tmp_path / f"{name}.{which}.npz", **fed(graph))
        wanted[f"{name}.{which}"] = compute(graph)
    run_peer(tmp_path)
    for name, found in wanted.items():
        agree(dict(np.load(tmp_path / f"{name}.out.npz")), found)


def fed(graph: Graph) -> dict[str, Any]:
    return {v.name: x[0] for v, x in zip(graph.inputs, feeds(graph), strict=True)}


# ---- real files, where they are


def pairs_of(folder: str) -> list[str]:
    from tests.real import FOLDER

    inside = FOLDER / "ncnn" / "expected" / folder
    return sorted(p.name.removesuffix(".out.param") for p in inside.glob("*.out.param"))


def layers_left(model: Path, folder: Path) -> int:
    graph = ts.load(model, random_weights=0)
    ts.write(ts.optimize(graph), folder / "y.param")
    return len(types_of(folder / "y.param"))


@pytest.mark.parametrize("name", pairs_of("."))
def test_a_network_has_no_more_layers_than_ncnnoptimize_leaves(name: str, tmp_path: Path) -> None:
    theirs = real_file("ncnn", f"expected/{name}.out.param")
    assert layers_left(real_file("ncnn", f"{name}.param"), tmp_path) <= len(types_of(theirs))


@pytest.mark.parametrize("name", pairs_of("passes"))
def test_a_rewrite_that_is_right_is_done(name: str, tmp_path: Path) -> None:
    readme = real_file("ncnn", "expected/passes/README.md").read_text()
    (row,) = (line for line in readme.splitlines() if line.startswith(f"| {name} |"))
    if row.split("|")[4].strip() != "equal" or name in OTHERWISE:
        pytest.skip(f"ncnnoptimize's is wrong, or {OTHERWISE.get(name, 'has other outputs')}")
    theirs = real_file("ncnn", f"expected/passes/{name}.out.param")
    model = real_file("ncnn", f"expected/passes/{name}.in.param")
    assert layers_left(model, tmp_path) <= len(types_of(theirs))


OTHERWISE = {
    "eliminate_noop_without_inputs_noshape": "its input is no layer, which ncnn alone reads",
    "trap_dropout_first": "its input is called as the output",
    "trap_pooling1x1_first": "its input is called as the output",
    "trap_innerproduct_rows_add_4": "right for the sizes of that file alone",
}


def to_record() -> Iterator[tuple[str, str, bytes, dict[str, Any]]]:
    for name, which in BOTH:
        if which == "must" or name not in READ_TWICE:
            param, weights = model_of(text_of(name, which))
            yield f"{name}/{which}", param, weights, fed(ts.load((param.encode(), weights)))


if __name__ == "__main__":
    record(RECORDED, to_record())
