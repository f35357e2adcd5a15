"""Programs that .tin files carry: run only when trusted, anywhere, and as they were made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.fresh import said
from tests.machines import with_core
from tests.models import array, digits, residual
from tinsmith.compiler import carried
from tinsmith.compiler.carried import carries
from tinsmith.errors import ModelFileError, OptionError, UntrustedCode
from tinsmith.formats.container import Container, write_container
from tinsmith.formats.tin import graph_sections
from tinsmith.plan.plan import SLACK

X = array(1, 1, 8, 8)


def test_carried_code_runs_only_when_trusted(tmp_path: Path) -> None:
    net = ts.compile(residual(), cache=False)
    file = tmp_path / "net.tin"
    ts.save(net, file, code=True)
    x = array(1, 3, 12, 12)
    wary = ts.compile(file, cache=False)
    assert "was not used" in wary.explain()
    trusting = ts.compile(file, cache=False, trust=True)
    assert not trusting.notes
    for got in (wary, trusting):
        np.testing.assert_array_equal(got(x), net(x))


@pytest.mark.parametrize("kept", [False, True])
def test_carried_code_is_for_all_shapes_that_are_kept(
    tmp_path: Path, cache: Path, kept: bool
) -> None:
    if kept:  # some programs come from the store, and share weights there
        for count in (4, 1):
            ts.compile(digits())(array(count, 1, 8, 8))
    net = ts.compile(digits(), cache=kept, shapes="fixed")
    counts = (4, 1, 2)
    want = {n: net(array(n, 1, 8, 8)) for n in counts}
    told, steps = {}, {}
    for n in counts:
        net.program(((n, 1, 8, 8),))
        told[n] = net.explain(), net.graph("placed")
        steps[n] = net.explanations()
    assert len(set(told.values())) == len(counts)
    net.program(((4, 1, 8, 8),))
    file = tmp_path / "net.tin"
    ts.save(net, file, code=True)
    trusting = ts.compile(file, cache=False, trust=True)
    assert trusting.outputs["probabilities"].shape == (4, 10), "the one that was used last"
    for n in counts:
        np.testing.assert_array_equal(trusting(array(n, 1, 8, 8)), want[n])
        assert trusting.program(((n, 1, 8, 8),)).stored
        assert (trusting.explain(), trusting.graph("placed")) == told[n]
        assert trusting.explanations() == steps[n]
    assert not trusting.notes
    assert trusting(array(3, 1, 8, 8)).shape == (3, 10)
    (note,) = trusting.notes
    assert "[1, 1, 8, 8]; [2, 1, 8, 8]; [4, 1, 8, 8]; for [3, 1, 8, 8] it was" in note
    found = carries(file)
    assert found is not None and found.signatures == tuple(((n, 1, 8, 8),) for n in (1, 2, 4))


def test_carried_programs_share_their_weights(tmp_path: Path, cache: Path) -> None:
    sizes, target = {}, with_core("host")  # which kernels take the same weights depends on rates
    for counts in ((2,), (2, 3, 4)):
        net = ts.compile(digits(), cache=False, target=target)
        for n in counts:
            net(array(n, 1, 8, 8))
        ts.save(net, tmp_path / "net.tin", code=True)
        sections = Container(tmp_path / "net.tin").index["sections"]
        sizes[len(counts)] = sum(row[1] for n, row in sections.items() if "weights" in n)
        shared = {b for p in net._programs.kept().values() for b in p.blobs}
        assert sizes[len(counts)] == sum(b.nbytes for b in shared)
        trusting = ts.compile(tmp_path / "net.tin", cache=False, trust=True, target=target)
        programs = [trusting.program(((n, 1, 8, 8),)) for n in counts]
        assert len({b for p in programs for b in p.blobs}) == len(shared)
    assert sizes[3] < 2 * sizes[1]


def test_a_tuned_net_is_saved_as_it_was_tuned(tmp_path: Path) -> None:
    """Its measurements are nowhere else."""
    net = ts.compile(residual(), cache=False, tune=True)
    ts.save(net, tmp_path / "net.tin", code=True)
    trusting = ts.compile(tmp_path / "net.tin", cache=False, trust=True)
    assert trusting.program().plan == net.program().plan


def test_a_carried_net_is_saved_again(tmp_path: Path, cache: Path) -> None:
    net = ts.compile(digits(), cache=False)
    want = {n: net(array(n, 1, 8, 8)) for n in (1, 2)}
    first, second = tmp_path / "first.tin", tmp_path / "second.tin"
    ts.save(net, first, code=True)
    again = ts.compile(first, trust=True)
    for n in (3, 1, 2):
        again(array(n, 1, 8, 8))
    ts.save(again, second, code=True)
    trusting = ts.compile(second, trust=True)
    for n, y in want.items():
        np.testing.assert_array_equal(trusting(array(n, 1, 8, 8)), y)
    assert trusting.program(((3, 1, 8, 8),)).stored and not trusting.notes


DAMAGE: dict[str, Any] = {
    "options": [3, {"threads": 1, "more": 2}],
    "interface": [None, {"name": "a"}, {"name": "a", "inputs": {"x": ["f", 3]}, "outputs": []}],
    "signatures": [None, 3, [], [3], [[["a"]]], [[[1e999]]]],
    "target": ["", None, "a|b|c|avx"],
}


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in DAMAGE.items() for v in vs])
def test_carried_programs_that_are_damaged_are_named(
    tmp_path: Path, name: str, value: object
) -> None:
    net = ts.compile(residual(), cache=False)
    found = net.sections()
    assert found is not None
    found["made"] = json.dumps({**json.loads(found["made"]), name: value}).encode()
    file = tmp_path / "net.tin"
    write_container(file, graph_sections(net.source()) | found)
    with pytest.raises((ModelFileError, UntrustedCode)):
        ts.compile(file, cache=False, trust=True)
    assert ts.compile(file, cache=False)(array(1, 3, 12, 12)).shape


TELLING = {"name": "a", "op": "Conv", "kernel": 3}


@pytest.mark.parametrize("rows", ["{", 3, {"a": "text"}, [{}], [TELLING], [{**TELLING, "more": 1}]])
def test_explanations_that_are_damaged_are_named(tmp_path: Path, rows: Any) -> None:
    net = ts.compile(residual(), cache=False)
    found = net.sections()
    assert found is not None and "0:explain" in found
    found["0:explain"] = (rows if isinstance(rows, str) else json.dumps(rows)).encode()
    file = tmp_path / "net.tin"
    write_container(file, graph_sections(net.source()) | found)
    trusting = ts.compile(file, cache=False, trust=True)
    assert trusting(array(1, 3, 12, 12)).shape
    with pytest.raises(ModelFileError, match="corrupt explanations"):
        trusting.explain()


def test_what_another_release_saved_says_so(tmp_path: Path) -> None:
    """Its sections have other names."""
    file = tmp_path / "net.tin"
    old = {"by": "another", "signature": [[1, 3, 12, 12]], "options": {}, "interface": {}}
    sections = graph_sections(residual()) | {"made": json.dumps(old).encode(), "program": b"{}"}
    write_container(file, sections)
    assert carries(file) == ("", False, (), ())
    with pytest.raises(UntrustedCode, match="another version"):
        ts.compile(file, cache=False, trust=True)


@pytest.mark.parametrize("options", [None, {"backend": "numpy"}, {"kernels": "Conv=reference"}])
def test_saving_without_code_that_can_be_written_says_so(tmp_path: Path, options: Any) -> None:
    model = residual() if options is None else ts.compile(residual(), cache=False, **options)
    with pytest.raises(ModelFileError, match="there is no code that can be saved"):
        ts.save(model, tmp_path / "net.tin", code=True)
    assert not (tmp_path / "net.tin").exists()


def test_code_for_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = ts.compile(residual(), target="sse2", cache=False)
    ts.save(net, tmp_path / "net.tin", code=True)
    with pytest.raises(UntrustedCode, match="compile it without trust"):
        ts.compile(tmp_path / "net.tin", target="scalar", cache=False, trust=True)
    monkeypatch.setattr(carried, "runnable", lambda _: False)
    with pytest.raises(UntrustedCode, match="compile it without trust"):
        ts.compile(tmp_path / "net.tin", cache=False, trust=True)
    assert ts.compile(tmp_path / "net.tin", cache=False)(array(1, 3, 12, 12)).shape == (1, 10)


def test_code_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried, "release", lambda: "another")
    ts.save(ts.compile(residual(), cache=False), tmp_path / "net.tin", code=True)
    monkeypatch.undo()
    with pytest.raises(UntrustedCode, match="another version"):
        ts.compile(tmp_path / "net.tin", cache=False, trust=True)


def test_carried_code_runs_where_the_same_release_is_installed_elsewhere(tmp_path: Path) -> None:
    net = ts.compile(residual(), cache=False)
    ts.save(net, tmp_path / "net.tin", code=True)
    home = tmp_path / "elsewhere"
    package = Path(ts.__file__).parent
    shutil.copytree(package, home / "tinsmith", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import sys, tinsmith as ts; assert ts.__file__.startswith(sys.argv[2]), ts.__file__; "
        "print(ts.compile(sys.argv[1], trust=True).program().stored)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "net.tin"), str(home)]
    env = os.environ | {"PYTHONPATH": str(home), "TINSMITH_CACHE": "off"}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120
        )

    assert run().stdout == "True\n"
    with open(home / "tinsmith" / "version.py", "a") as file:
        file.write("# changed\n")
    assert "UntrustedCode" in run().stderr


def test_no_file_carries_what_memory_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, 0x5A, dtype))
    net = ts.compile(digits(), cache=False)
    net(X)
    ts.save(net, tmp_path / "net.tin", code=True)
    weights = Container(tmp_path / "net.tin").array("weights:0")
    assert not weights[-SLACK:].any()


def test_options_given_must_be_those_of_carried_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = ts.compile(digits(), threads=2, target="sse2", kernels={"conv1": "conv_direct"})
    want = net(X)
    file = tmp_path / "net.tin"
    ts.save(net, file, code=True)
    sames: list[dict[str, Any]] = [
        {},
        {"threads": 2, "precision": "default", "kernels": "conv1=conv_direct"},
        {"passes": ""},
    ]
    for same in sames:
        got = ts.compile(file, trust=True, **same)
        assert got.program((X.shape,)).stored
        np.testing.assert_array_equal(got(X), want)
    differing: dict[str, Any] = {
        "threads": 1,
        "precision": "strict",
        "memory": "small",
        "tune": True,
        "passes": "-merge-common",
        "kernels": "Conv=reference",
    }
    for name, value in differing.items():
        with pytest.raises(OptionError, match=f"made with {name}=.*, not {value!r}"):
            ts.compile(file, trust=True, **{name: value})
    monkeypatch.setenv("TINSMITH_KERNELS", "Conv=reference")
    with pytest.raises(OptionError, match="kernels="):
        ts.compile(file, trust=True)


def test_carried_code_loads_without_measuring(tmp_path: Path) -> None:
    net = ts.compile(digits(), cache=False)
    net(X)
    ts.save(net, tmp_path / "net.tin", code=True)
    code = (
        "import sys, numpy as np, tinsmith as ts; net = ts.compile(sys.argv[1], trust=True); "
        "assert net(np.zeros((1, 1, 8, 8), np.float32)).shape == (1, 10); "
        "heavy = 'llvmlite', 'tinsmith.ops', 'tinsmith.passes', 'tinsmith.runtime.gauge'; "
        "print([m for m in heavy if m in sys.modules])"
    )
    assert said(code, tmp_path / "net.tin", TINSMITH_CACHE="off") == "[]"


def test_inspect_tells_what_a_file_carries(tmp_path: Path, cache: Path) -> None:
    from tests.cli.harness import tinsmith

    net = ts.compile(digits(), target="sse2")
    for n in (1, 3):
        net(array(n, 1, 8, 8))
    ts.save(net, tmp_path / "with.tin", code=True)
    ts.save(net, tmp_path / "without.tin")
    text = tinsmith("inspect", str(tmp_path / "with.tin"), "--no-memory").output
    assert "for sse2, image [1, 1, 8, 8]; one program for all sizes" in text
    for name, known in (("with.tin", [[[1, 1, 8, 8]]]), ("without.tin", None)):
        told = tinsmith("inspect", str(tmp_path / name), "--no-memory", "--json").output
        code = json.loads(told)["code"]
        assert (code and code["signatures"]) == known
