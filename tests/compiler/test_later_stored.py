"""What follows sizes that only a run tells is compiled once: its programs are in the cache, and in
.tin files, for sizes that were seen and for others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.counted import COUNTED, given, parts
from tests.dependent import DEPENDENT
from tests.fresh import said
from tests.models import agree
from tinsmith.compiler.free import FreePrograms
from tinsmith.errors import ModelFileError
from tinsmith.formats.container import write_container
from tinsmith.formats.tin import graph_sections

MODELS = {
    "NonZero": COUNTED["experts"],
    "NonMaxSuppression": COUNTED["detections"],
    "TopK": DEPENDENT["topk of a computed k"],
    "one in another": COUNTED["two counts"],
    "computed numbers": COUNTED["computed numbers"],
}
SEEN = [(24, 3), (40, 4), (12, 2), (50, 1), (90, 5)]
OTHERS = [(24, 7), (33, 2), (12, 11), (64, 8)]
WARM = """
import sys, numpy as np, tinsmith as ts
from tests.counted import given, parts, results
net = ts.compile({path!r}, shapes={shapes!r}{more})
for rows, seed in {calls!r}:
    for name, array in results(net, given(rows, seed)).items():
        np.save({out!r} + f"/{{rows}}-{{seed}}-{{name}}.npy", array)
assert parts(net.program())
print(net.program().stored, "llvmlite" in sys.modules, net.notes)
"""


@pytest.fixture(params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    onnx.save(MODELS[request.param], tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def start(path: Path, calls: Any, shapes: str = "free", more: str = "") -> str:
    """Whether a new process had the program from a file, whether it has imported LLVM, and what it
    noted, after some calls, whose results must be right."""
    out = str(path.parent)
    told = said(WARM.format(path=str(path), shapes=shapes, calls=calls, more=more, out=out))
    reference = ts.compile(path.with_suffix(".onnx"), backend="numpy")
    for rows, seed in calls:
        want = reference(given(rows, seed))
        for name, array in want.items() if isinstance(want, dict) else [("y", want)]:
            agree(np.load(path.parent / f"{rows}-{seed}-{name}.npy"), array)
    return told


@pytest.mark.parametrize("shapes", ["free", "fixed"])
def test_a_second_start_needs_no_llvm(path: Path, shapes: str, cache: Path) -> None:
    assert start(path, SEEN, shapes).startswith("False True")
    again = SEEN if shapes == "fixed" else [*SEEN, *OTHERS]
    assert start(path, again, shapes) == "True False []"


def test_a_trusted_file_carries_what_parts_run(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = ts.compile(path, shapes="free", cache=False)
    for rows, seed in SEEN:
        net(given(rows, seed))
    ts.save(net, path.with_suffix(".tin"), code=True)
    monkeypatch.setenv("TINSMITH_CACHE", "off")
    trusted = ", trust=True"
    assert start(path.with_suffix(".tin"), [*OTHERS, *SEEN], more=trusted) == "True False []"
    carried = ts.compile(path.with_suffix(".tin"), shapes="free", trust=True, cache=False)
    carried(given(24))
    ts.save(carried, path.with_name("again.tin"), code=True)
    onnx.save(onnx.load(path), path.with_name("again.onnx"))
    assert start(path.with_name("again.tin"), OTHERS, more=trusted) == "True False []"


def test_sizes_that_no_stored_program_takes_are_compiled(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(COUNTED["two counts"], path)
    start(path, [(24, 3)])
    reference, net = ts.compile(path, backend="numpy"), ts.compile(path, shapes="free")
    for rows in (24, 1, 3, 2, 0, 90):
        for seed in range(3):
            want, got = reference(given(rows, seed)), net(given(rows, seed))
            for name, array in want.items():
                agree(got[name], array)
    made = [free.program.stored for p in parts(net.program()) for free, _ in p.free.found]
    assert net.program().stored and set(made) == {True, False}


def test_explanations_and_profiles_of_a_second_start(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(COUNTED["durations"], path)
    x = given(12, 0, 3.0)
    for _ in range(2):
        net = ts.compile(path, shapes="free")
        net(x)
        assert {"y", "s"} <= {one.name for one in net.explanations()}
        rows = {row.name: row for row in net.profile(x).rows}
        assert rows["y"].kernel != "reference"
    assert net.program().stored


@pytest.mark.parametrize("row", [{"read": [9], "stored": []}, {"read": [], "stored": [77]}])
def test_a_file_that_says_nonsense_of_its_parts_is_refused(row: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(COUNTED["durations"], path)
    net = ts.compile(path, shapes="free", cache=False)
    net(given(12))
    sections = net.sections()
    assert sections is not None
    for name in [n for n in sections if n.endswith(":program")]:
        head = json.loads(sections[name])
        head["later"] = {step: row for step in head["later"]}
        sections[name] = json.dumps(head).encode()
    write_container(tmp_path / "lies.tin", graph_sections(net.source()) | sections)
    with pytest.raises(ModelFileError):
        ts.compile(tmp_path / "lies.tin", shapes="free", trust=True, cache=False)(given(12))


def test_programs_of_other_lengths_do_not_count() -> None:
    """A stored program may say anything of the numbers that a run tells."""
    programs = FreePrograms(12, read=[1])
    for told in ((7,), (0, 1), None):
        free: Any = SimpleNamespace(shapes=[(4, 4), told])
        programs.found.append((free, None))  # type: ignore[arg-type]
    assert programs._changed(((0, 1), (0, 1))) == ((0, 1), (0, 1))
    free = SimpleNamespace(shapes=[(4, 4), (0, 22)])
    programs.found.append((free, None))  # type: ignore[arg-type]
    assert programs._changed(((0, 1), (0, 1))) == ((0, 1), (0, 2))
