"""Programs for free sizes in the cache and in .tin files: made once, found for every size that they
take, by the same conditions; what a file says of formulas is not believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.free import PICTURES, pictured
from tests.fresh import said
from tests.models import GRAPHS, feeds
from tests.models import free as batched
from tests.transformer import feeds as texts
from tests.transformer import transformer
from tinsmith.compiler.free import MOST
from tinsmith.compiler.size_rows import Rows, SizeRows, SizesRead
from tinsmith.conditions import Scope
from tinsmith.errors import ModelFileError
from tinsmith.formats.container import Container, write_container
from tinsmith.formulas import computed, shown
from tinsmith.graph import Graph
from tinsmith.plain import Misfit, decode
from tinsmith.runtime.free import FreeProgram
from tinsmith.sizes import Size, largest, pieces, smallest, symbol

WARM = """
import sys, numpy as np, tinsmith as ts
from tests.transformer import feeds
net = ts.compile({path!r}, shapes={shapes!r}{more})
for n, t in {sizes!r}:
    got = net(**feeds(n, t))
    assert got["hidden"].shape == (n, t, 32)
    np.save({out!r} + f"/{{n}}-{{t}}.npy", got["hidden"])
    stored = net.program().stored
print("stored" if stored else "made", "llvmlite" in sys.modules)
"""
SIZES = [(2, 7), (3, 9), (4, 31), (7, 2)]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    onnx.save(transformer(), tmp_path / "encoder.onnx")
    return tmp_path / "encoder.onnx"


def start(folder: Path, path: Path, sizes: Any, shapes: str, more: str = "") -> str:
    """Where a new process had the program of the last of these sizes from, and whether it has
    imported LLVM."""
    return said(WARM.format(path=str(path), shapes=shapes, sizes=sizes, more=more, out=str(folder)))


@pytest.mark.parametrize("shapes", ["free", "both"])
def test_a_second_start_needs_no_llvm_for_any_size(
    shapes: str, tmp_path: Path, encoder: Path, cache: Path
) -> None:
    assert start(tmp_path, encoder, SIZES[:2], shapes) == "made True"
    others = [(5, 3), (2, 40), (3, 8), (6, 6)]
    assert start(tmp_path, encoder, [*SIZES[1:], *others], shapes) == "stored False"
    reference = ts.compile(encoder, backend="numpy")
    for n, t in others:
        want = reference(**texts(n, t))["hidden"]
        np.testing.assert_allclose(np.load(tmp_path / f"{n}-{t}.npy"), want, atol=1e-4)


def test_a_trusted_file_takes_all_sizes(tmp_path: Path, encoder: Path, cache: Path) -> None:
    net = ts.compile(encoder)
    got = [net(**texts(n, t)) for n, t in SIZES]
    ts.save(net, tmp_path / "encoder.tin", code=True)
    carried = ts.compile(tmp_path / "encoder.tin", trust=True, cache=False)
    for (n, t), want in zip([*SIZES, (9, 12)], [*got, None], strict=True):
        found = carried(**texts(n, t))
        assert carried.program().stored
        if want is not None:
            np.testing.assert_array_equal(found["hidden"], want["hidden"])
    assert carried.notes == [] and len(Container(tmp_path / "encoder.tin").data("made", dict)) > 1
    again = tmp_path / "again.tin"
    ts.save(carried, again, code=True)
    os.environ["TINSMITH_CACHE"] = "off"
    try:
        assert start(tmp_path, again, [(11, 5), (2, 7)], "both", ", trust=True") == "stored False"
    finally:
        os.environ["TINSMITH_CACHE"] = str(cache)


def test_beyond_what_a_file_carries_code_is_made(tmp_path: Path, encoder: Path) -> None:
    net = ts.compile(encoder, shapes="free", cache=False)
    net(**texts(2, 7))
    ts.save(net, tmp_path / "encoder.tin", code=True)
    carried = ts.compile(tmp_path / "encoder.tin", trust=True, cache=False)
    assert carried(**texts(3, 5))["hidden"].shape == (3, 5, 32) and not carried.notes
    assert carried(**texts(1, 1))["hidden"].shape == (1, 1, 32)
    (note,) = carried.notes
    assert "one program for all sizes where" in note and "[1, 1]" in note


def test_a_shape_with_a_program_of_its_own_runs_it(encoder: Path, cache: Path) -> None:
    first = ts.compile(encoder)
    for n, t in SIZES[:2]:
        first(**texts(n, t))
    second = ts.compile(encoder)
    kinds = []
    for n, t in reversed(SIZES):
        second(**texts(n, t))
        kinds.append(second.program().is_sized)
    assert kinds == [True, True, True, False] and second.program().stored


def test_programs_that_are_kept_are_bounded(encoder: Path, cache: Path) -> None:
    for n, t in ((2, 7), (1, 7), (2, 1), (1, 1), (3, 1)):
        ts.compile(encoder, shapes="free")(**texts(n, t))
    free = [f for f in (cache / "programs").glob("*.tin") if "sizes" in Container(f)]
    assert 1 < len(free) <= MOST


@pytest.mark.parametrize("where", ["sizes", "program", "code", "index"])
def test_a_damaged_program_counts_as_absent(where: str, encoder: Path, cache: Path) -> None:
    want = ts.compile(encoder, shapes="free")(**texts(2, 7))
    (file,) = (cache / "programs").glob("*.tin")
    at = 40 if where == "index" else Container(file).index["sections"][where][0] + 5
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)
    net = ts.compile(encoder, shapes="free")
    np.testing.assert_array_equal(net(**texts(2, 7))["hidden"], want["hidden"])
    assert not net.program().stored


@pytest.mark.parametrize("name", GRAPHS)
def test_stored_programs_give_the_same_bits(name: str, tmp_path: Path) -> None:
    graph, _ = pictured(name)
    net = ts.compile(graph, cache=False, shapes="free")
    calls = [
        feeds(graph, **{n: sizes[k] for n, k in (("n", 0), ("h", 1), ("w", 2), ("t", 1))})
        for sizes in PICTURES
    ]
    want = [net.run(list(c.values())) for c in calls]
    takes = {net.program(tuple(a.shape for a in c.values())).takes for c in calls}
    ts.save(net, tmp_path / "net.tin", code=True)
    carried = ts.compile(tmp_path / "net.tin", trust=True, cache=False)
    for given, arrays in zip(calls, want, strict=True):
        for found, wanted in zip(carried.run(list(given.values())), arrays, strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert carried.program().stored and carried.program().takes in takes
    assert not carried.notes


# ---- what a file says of formulas


def made() -> tuple[Graph, Any, dict[str, Any]]:
    graph = batched()
    net = ts.compile(graph, cache=False, shapes="free")
    net(**feeds(graph, N=3, T=5))
    found = net.sections()
    assert found is not None
    return graph, net, found


def test_formulas_come_back(tmp_path: Path) -> None:
    scope = Scope()
    h, w = symbol(scope, "h", 7, 2), symbol(scope, "w", 5, 2)
    sizes = [
        h, h * w + 3, (h + 1) // 2 * w, (h * h) // w, largest(h - 9, w - 9), smallest(h, 3 * w),
        -h // 3, *(n for n, _ in pieces(h + w, 4)), (h // 3 + w // 2) // 5,
    ]  # fmt: skip
    rows = SizeRows()
    data = json.loads(json.dumps([rows.of(s) for s in sizes]))

    class Free:
        shapes, conditions = [(h, w), None, (3,)], [((h - w).form, ">=")]

    Free.scope = scope  # type: ignore[attr-defined]
    read = SizesRead(decode(Rows, json.loads(json.dumps(rows.row(Free)))))  # type: ignore[arg-type]
    back = [read.hook(d) for d in data]
    names = ["h", "w"]
    assert list(map(str, back)) == list(map(str, sizes))
    assert [(shown(f), r) for f, r in read.scope.conditions] == [("h - w", ">=")]
    assert str(read.shapes) == str(Free.shapes)
    for values in ((2, 2), (11, 4), (64, 63)):
        want = computed([s.form for s in sizes if isinstance(s, Size)], names)(*values)
        assert computed([s.form for s in back if isinstance(s, Size)], names)(*values) == want


GOOD: dict[str, Any] = {
    "atoms": [["h", [], 7, 2], ["//", [0, 1], 3, 0]],
    "forms": [[[[0], 1]], [[[], 2]], [[[1], 1]]],
    "shapes": [[{"=": 0}, 3]],
    "conditions": [[0, ">="]],
}


def wide(times: int) -> list[Any]:
    return [[[[0], 1]] * times]


@pytest.mark.parametrize(
    "change",
    [
        {"atoms": [["h", [], 7, 2], ["__import__", [0, 1], 3, 0]]},
        {"atoms": [["h", [], 7, 2], ["//", [0], 3, 0]]},
        {"atoms": [["h", [], 7, 2], ["//", [0, 2], 3, 0]]},
        {"atoms": [["h", [], 7, 2], ["h", [], 8, 2]]},
        {"atoms": [["h", [], 7, 2], ["//", [-1, 0], 3, 0]]},
        {"atoms": [["h", [], 7, 2], ["//", [0, 9], 3, 0]]},
        {"atoms": [["h", [], "7", 2]]},
        {"atoms": 3},
        {"forms": [[[[0], 1]], [], [[[1], 1]]]},  # a division by 0
        {"forms": [[[[0], 1]], [[[], 2]], [[[-1], 1]]]},
        {"forms": [*GOOD["forms"], *wide(4000)]},
        {"forms": [[[[0], 1.5]], [[[], 2]], [[[1], 1]]]},
        {"shapes": [[{"=": 3}]]},
        {"shapes": [[{"=": 2}]]},  # no symbol
        {"shapes": [["h"]]},
        {"shapes": [[True]]},
        {"conditions": [[0, "<="]]},
        {"conditions": [[7, ">="]]},
    ],
)
def test_formulas_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    SizesRead(decode(Rows, GOOD))
    with pytest.raises(Misfit):
        SizesRead(decode(Rows, {**GOOD, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": []},
        {"shapes": [[3, 3]]},
        {"atoms": []},
        {"conditions": [[10**6, "=="]]},
        None,
    ],
)
def test_files_whose_sizes_make_no_sense_are_named(change: Any, tmp_path: Path) -> None:
    graph, _, found = made()
    rows = json.loads(found["0:sizes"])
    if change is None:
        del found["0:sizes"]
    else:
        found["0:sizes"] = json.dumps({**rows, **change}).encode()
    file = tmp_path / "net.tin"
    from tinsmith.formats.tin import graph_sections

    write_container(file, graph_sections(graph) | found)
    with pytest.raises(ModelFileError):
        ts.compile(file, trust=True, cache=False)(**feeds(graph, N=3, T=5))


def test_a_file_s_program_is_the_one_that_was_made(tmp_path: Path) -> None:
    _, net, _ = made()
    ts.save(net, tmp_path / "net.tin", code=True)
    carried = ts.compile(tmp_path / "net.tin", trust=True, cache=False)
    one, other = (n.program(((4, 6, 8), (4, 1, 8))) for n in (net, carried))
    assert one.takes == other.takes and one.plan == other.plan
    assert isinstance(one.free, FreeProgram)  # type: ignore[attr-defined]
