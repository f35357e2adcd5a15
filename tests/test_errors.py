"""Errors are also the built-in kinds that a caller would expect, and say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.models import residual
from tinsmith.errors import (
    InputNameError,
    InputShapeError,
    MissingFile,
    ModelFileError,
    ModelKindError,
    OptionError,
    suggest,
)
from tinsmith.graph import Graph, Type

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
ONE = np.zeros((1, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        (lambda: ts.compile("nowhere.onnx"), (MissingFile, ModelFileError, FileNotFoundError)),
        (lambda: ts.load(Path("nowhere.tin")), (MissingFile, FileNotFoundError)),
        (lambda: ts.verify("nowhere.onnx"), (MissingFile, FileNotFoundError)),
        (lambda: ts.compile(None), (ModelKindError, TypeError)),  # type: ignore[arg-type]
        (lambda: ts.load(5), (ModelKindError, TypeError)),  # type: ignore[arg-type]
        (lambda: ts.compile(DIGITS, threads=0), (OptionError, ValueError)),
        (lambda: ts.compile(DIGITS, threads="2"), (OptionError, TypeError)),  # type: ignore[arg-type]
        (lambda: ts.compile(DIGITS)(picture=ONE), (InputNameError, TypeError)),
        (lambda: ts.compile(DIGITS)(), (InputNameError, TypeError)),
    ],
)
def test_errors_are_of_kinds_that_callers_know(call: Any, kinds: tuple[type, ...]) -> None:
    for kind in kinds:
        with pytest.raises(kind) as found:
            call()
        assert str(found.value) and not str(found.value).startswith("'the input")


def test_a_first_size_that_is_fixed_is_said_to_be_that() -> None:
    g = Graph("fixed")
    g.outputs = [g.input("x", Type("float32", (1, 3)))]
    with pytest.raises(InputShapeError, match=r"not \[8, 3\]; its first size is fixed: give as"):
        ts.compile(g)(np.zeros((8, 3), np.float32))
    with pytest.raises(InputShapeError) as found:
        ts.compile(g)(np.zeros((8, 4), np.float32))
    assert "fixed:" not in str(found.value)


def test_a_setting_that_is_not_understood_is_said_where_the_program_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path))
    for _ in range(2):
        ts.compile(DIGITS)(ONE)
    assert ts.compile(DIGITS).program(((1, 1, 8, 8),)).stored
    monkeypatch.setenv("TINSMITH_BUDGET", "foo=1")
    with pytest.raises(OptionError, match="TINSMITH_BUDGET has no limit named 'foo'"):
        ts.compile(DIGITS)


def test_an_option_that_is_not_close_is_not_suggested() -> None:
    with pytest.raises(OptionError) as found:
        ts.compile(DIGITS, providers=["CPUExecutionProvider"])  # type: ignore[call-arg]
    assert "Did you mean" not in str(found.value)
    with pytest.raises(OptionError, match="Did you mean 'threads'"):
        ts.compile(DIGITS, thread=1)  # type: ignore[call-arg]


def test_what_a_net_is_called(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    proto.graph.name = "3c59201b940f410fa29dc71ea9d5767d"
    onnx.save(proto, tmp_path / "faces.onnx")
    net = ts.compile(tmp_path / "faces.onnx")
    assert net.name == ts.load(tmp_path / "faces.onnx").name == "faces"
    assert net.source().meta["graph"] == proto.graph.name
    with pytest.raises(InputShapeError, match="of faces must have shape"):
        net(np.zeros(3, np.float32))
    for model in (proto, proto.SerializeToString(), bytearray(proto.SerializeToString())):
        assert ts.compile(model).name == proto.graph.name
        assert ts.verify(model, [ONE]).ok


def test_what_is_there() -> None:
    net = ts.compile(residual())
    assert (net.input_names, net.output_names) == (list(net.inputs), list(net.outputs))
    assert not {"TYPE_CHECKING", "Any", "annotations"} & set(dir(ts))
    assert set(ts.__all__) <= set(dir(ts))


def test_a_name_that_is_known_twice_is_suggested_once() -> None:
    assert suggest("conv_1", ["conv1", "conv1", "pool"]) == " Did you mean 'conv1'?"
