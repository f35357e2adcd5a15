"""Measured winners: found in place, kept for this machine, used by later compilations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.models import array, conv, digits, feeds, residual
from tinsmith import ops
from tinsmith.codegen import cache as code_cache
from tinsmith.codegen.cache import read_note, write_note
from tinsmith.compiler import tune as tuning
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.runtime.later import Cycles


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TINSMITH_CACHE", str(folder))
    monkeypatch.setattr(tuning, "SECONDS", 0.001)
    code_cache._open.cache_clear()
    return folder


@pytest.fixture
def last_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate is said to be twice as fast as the one before it."""

    def compare(base, other, inputs, contests, rank) -> None:
        for contest in contests.values():
            contest.ratios[rank] = 0.5**rank
            contest.seconds = 1e-3 * len(contest.steps)

    monkeypatch.setattr(tuning, "compare", compare)
    monkeypatch.setattr(tuning, "runs", lambda *_, timed: [(0, {}, 2.0), (1, {}, 1.0)])


def images(seed: int = 0, channels: int = 32) -> Graph:
    """Two convolutions of one kind (two sites, one signature), behind one of another."""
    g = Graph("images")
    x = g.input("x", Type("float32", (1, channels, 28, 28)))
    y = ops.Relu(conv(g, x, 32, 1, seed=seed))
    for i in (1, 2):
        y = ops.Relu(conv(g, y, 32, 3, seed=seed + 2 * i))
    g.outputs = [y]
    return g


def kernels(net: ts.Net) -> list[str]:
    return [f"{s.kernel} {s.detail}" for s in net.program().plan.steps if s.op != "Relayout"]


def kept(folder: Path) -> dict[str, list[str]]:
    (file,) = folder.glob("tuned-*.json")
    return json.loads(read_note(file) or "")["sites"]


@pytest.mark.parametrize("make", [images, residual])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_measured_computes_the_same(make, threads: int) -> None:
    graph = make()
    given = feeds(graph)
    net = ts.compile(graph, tune=True, threads=threads)
    for got, want in zip(net.run(list(given.values())), run_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    assert len(net.notes) == 1 and "kind" in net.notes[0]


def test_inputs_that_the_model_refuses_are_not_measured() -> None:
    graph = images()
    graph.outputs = [ops.Reshape(graph.outputs[0], graph.input("to", Type("int64", (2,))))]
    net = ts.compile(graph, tune=True)
    assert net.notes[0].startswith("not measured: the model refuses made-up inputs: Reshape")
    assert net(array(1, 32, 28, 28), np.array([32, -1])).shape == (32, 784)


def test_winners_override_the_model_and_are_explained(cache: Path, last_wins: None) -> None:
    graph = images()
    plain, tuned = ts.compile(images()), ts.compile(graph, tune=True)
    assert kernels(plain) != kernels(tuned)
    assert "of which another kernel computes now" in tuned.notes[0]
    text = tuned.explain()
    assert "measured   " in text and " ms against " in text
    assert all(len(row) == 3 for row in kept(cache).values())


def test_equal_sites_are_one_contest(last_wins: None) -> None:
    tuned = kernels(ts.compile(images(), tune=True))
    assert tuned[-1] == tuned[-2]


def test_later_compilations_of_any_model_use_winners(last_wins: None) -> None:
    tuned = ts.compile(images(), tune=True)
    assert kernels(ts.compile(images(seed=9))) == kernels(tuned)
    other = kernels(ts.compile(images(channels=16)))  # its 3x3 layers are of the same kind
    assert other[-1] == kernels(tuned)[-1]
    assert kernels(ts.compile(images(), cache=False)) != kernels(tuned)


def test_nothing_is_measured_twice(last_wins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ts.compile(images(), tune=True)

    def fail(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(tuning, "compare", fail)
    again = ts.compile(images(), tune=True)
    assert kernels(again) == kernels(first)
    assert "yet to be measured" in again.notes[0]


def test_slower_together_keeps_the_model_choices(
    last_wins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "runs", lambda *_, timed: [(0, {}, 1.0), (1, {}, 2.0)])
    assert kernels(ts.compile(images(), tune=True)) == kernels(ts.compile(images()))


def test_other_threads_and_precision_are_other_contests(cache: Path, last_wins: None) -> None:
    ts.compile(images(), tune=True)
    count = len(kept(cache))
    ts.compile(images(), tune=True, threads=2)
    assert len(kept(cache)) > count


@pytest.mark.parametrize("damage", ["text", "source", "rows", "list"])
def test_a_damaged_or_older_table_counts_as_absent(
    cache: Path, last_wins: None, damage: str
) -> None:
    ts.compile(images(), tune=True)
    (file,) = cache.glob("tuned-*.json")
    document = json.loads(read_note(file) or "")
    document["source"] = "other" if damage == "source" else document["source"]
    if damage == "rows":
        document["sites"] = {s: 7 for s in document["sites"]}
    write_note(file, {"text": "{", "list": "[]"}.get(damage) or json.dumps(document))
    plain = kernels(ts.compile(images()))
    file.unlink()
    assert plain == kernels(ts.compile(images()))


def test_a_winner_that_is_no_candidate_any_more_is_passed_over(
    cache: Path, last_wins: None
) -> None:
    ts.compile(images(), tune=True)
    (file,) = cache.glob("tuned-*.json")
    document = json.loads(read_note(file) or "")
    document["sites"] = {s: ["gone", "", ""] for s in document["sites"]}
    write_note(file, json.dumps(document))
    got = ts.compile(images())
    assert "gone" not in got.explain()


def test_a_stored_program_is_replaced_by_the_measured_one(cache: Path) -> None:
    x = array(1, 1, 8, 8)
    plain = ts.compile(digits())
    want = plain(x)
    assert not plain.notes
    tuned = ts.compile(digits(), tune=True)
    np.testing.assert_allclose(tuned(x), want, rtol=1e-4, atol=1e-6)
    later = ts.compile(digits())  # found in the store
    np.testing.assert_allclose(later(x), want, rtol=1e-4, atol=1e-6)
    assert tuned.notes and not later.notes  # it measured nothing
    assert len(list((cache / "programs").glob("*.tin"))) == 1


def test_without_a_place_to_keep_them_winners_are_used_once(
    monkeypatch: pytest.MonkeyPatch, last_wins: None
) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", "off")
    assert kernels(ts.compile(images(), tune=True)) != kernels(ts.compile(images()))


def test_what_steps_are_compared_by_is_what_runs_measure() -> None:
    graph = images()
    program = ts.compile(graph, cache=False).program()
    cycles = Cycles()
    program.session().run(list(feeds(graph).values()), cycles)
    groups = tuning.step_groups(program.plan)
    assert groups and {step for group in groups.values() for step in group} <= cycles.keys()
