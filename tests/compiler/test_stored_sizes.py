"""Programs for free sizes in the store and in .tin files: found by another start, and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.models import array
from tests.shaped import CONVOLUTIONS
from tinsmith.compiler.model import Model
from tinsmith.compiler.size_rows import SizesRead
from tinsmith.errors import ModelFileError
from tinsmith.formats.container import write_container
from tinsmith.formats.tin import graph_sections
from tinsmith.plain import Misfit

SHAPES = ((2, 16, 12), (3, 20, 17), (5, 9, 31))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(CONVOLUTIONS.SerializeToString())
    return path


def picture(net: ts.Net, sizes: tuple[int, ...]) -> Any:
    (type_,) = net.inputs.values()
    assert type_.shape is not None
    n, h, w = sizes
    return array(n, type_.shape[1], h, w)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["free", "both"])
def test_another_start_compiles_nothing(
    model: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = ts.compile(str(model), shapes=policy)
    wanted = [net(picture(net, s)) for s in SHAPES]
    made: list[Any] = []
    monkeypatch.setattr(Model, "_new", lambda self, signature: made.append(signature))
    again = ts.compile(str(model), shapes=policy)
    for sizes, want in zip(SHAPES, wanted, strict=True):
        np.testing.assert_array_equal(again(picture(again, sizes)), want)
    more = ts.compile(str(model), shapes=policy)  # a size that nobody has asked for
    assert np.isfinite(more(picture(more, (4, 33, 14)))).all()
    assert not made


def test_a_file_carries_them(model: Path, tmp_path: Path) -> None:
    net = ts.compile(str(model), shapes="free")
    wanted = [net(picture(net, s)) for s in SHAPES]
    ts.save(net, tmp_path / "with.tin", code=True)
    trusting = ts.compile(tmp_path / "with.tin", trust=True, cache=False)
    for sizes, want in zip(SHAPES, wanted, strict=True):
        np.testing.assert_array_equal(trusting(picture(trusting, sizes)), want)
    assert not trusting.notes


ROWS: dict[str, Any] = {
    "atoms": [["n", [], 2, 2], ["//", [0, 1], 1, 0]],
    "forms": [[[[0], 1]], [[[], 2]]],
    "shapes": [[3]],
    "conditions": [[0, ">="]],
}
DAMAGE: list[dict[str, Any]] = [
    {"atoms": [["n", [], 2, 2], ["n", [], 2, 2]]},
    {"atoms": [["system", [0], 2, 2]]},
    {"atoms": [["//", [7, 8], 2, 2]]},
    {"forms": [[[[9], 1]]]},
    {"conditions": [[0, "is"]]},
    {"conditions": [[5, "=="]]},
    {"atoms": [["n", [], 2, 2], ["//", [0, 0], 1, 0]], "forms": [[[[1], 1]], [[[0], 1]]]},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_formulas_that_make_no_sense_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(Misfit):
        SizesRead({**ROWS, **damage})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("value", [{}, [], 3, {"atoms": [[1]]}, None])
def test_damaged_sections_are_named(model: Path, tmp_path: Path, value: Any) -> None:
    net = ts.compile(str(model), shapes="free", cache=False)
    x = picture(net, SHAPES[0])
    net(x)
    sections = net.sections()
    assert sections is not None
    (name,) = (n for n in sections if n.endswith("sizes"))
    sections[name] = json.dumps(value).encode()
    write_container(tmp_path / "net.tin", graph_sections(net.source()) | sections)
    with pytest.raises(ModelFileError):
        ts.compile(tmp_path / "net.tin", cache=False, trust=True)(x)
