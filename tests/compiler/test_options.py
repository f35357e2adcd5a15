"""The options of `compile`: what they take, and what is said of everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.compiler import model
from tinsmith.errors import ModelKindError, OptionError, PassChoiceError, UnknownName
from tinsmith.kernels.select import left_out, parse_overrides

MODEL = Path(__file__).resolve().parent.parent.parent / "examples" / "digits" / "digits.onnx"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"cache": "off"}, OptionError, "cache must be True or False, not 'off'"),
        ({"cache": None}, OptionError, "cache must be True or False"),
        ({"tune": "yes"}, OptionError, "tune must be True or False"),
        ({"trust": 1}, OptionError, "trust must be True or False"),
        ({"threads": "2"}, OptionError, "whole number from 1 to 64, not '2'"),
        ({"threads": 2.0}, OptionError, "whole number"),
        ({"threads": True}, OptionError, "whole number"),
        ({"threads": 0}, OptionError, "from 1 to 64, not 0"),
        ({"threads": 65}, OptionError, "from 1 to 64, not 65"),
        (
            {"backend": None},
            OptionError,
            "backend must be one of 'cpu', 'numpy', or several of them, not None",
        ),
        ({"backend": "gpu"}, UnknownName, "Did you mean 'cpu'"),
        ({"precision": ["strict"]}, OptionError, "precision must be one of 'default', 'strict'"),
        ({"memory": 1}, OptionError, "memory must be one of"),
        ({"memory": "tiny"}, UnknownName, "no value of memory named 'tiny'"),
        ({"shapes": "tiny"}, UnknownName, "no value of shapes named 'tiny'"),
        (
            {"input_shapes": {"imag": (1, 1, 8, 8)}},
            OptionError,
            r"has no input 'imag'\. Did you mean 'image'\? Its inputs are image\.",
        ),
        ({"sizes": {"x": 4}}, UnknownName, r"no free dimension named 'x'\. Known: N\."),
        ({"sizes": {"x": 4}, "input_shapes": {"image": (1, 1, 8, 8)}}, UnknownName, "are none"),
        ({"target": 5}, OptionError, "target must be a name"),
        ({"kernels": 5}, OptionError, "kernels must be text or a mapping"),
        ({"kernels": "Conv=magic"}, UnknownName, "magic"),
        ({"kernels": {"nowhere": "reference"}}, UnknownName, "nowhere"),
        ({"passes": ["-merge-common"]}, OptionError, "passes must be text"),
        ({"passes": "-no-such-pass"}, UnknownName, "no-such-pass"),
        ({"passes": "-"}, PassChoiceError, "not understood"),
        ({"passes": "merge-common"}, PassChoiceError, "changes nothing: write -merge-common"),
        ({"thread": 2}, OptionError, "compile has no option 'thread'. Did you mean 'threads'"),
        ({"quickly": True}, OptionError, "no option 'quickly'. It has model, threads, backend"),
    ],
)
def test_what_an_option_does_not_take_is_refused_at_once(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        ts.compile(MODEL, **options)
    if options.keys() & {"kernels", "passes"}:
        with pytest.raises(error, match=says):
            ts.compile(MODEL, backend="numpy", **options)


def test_verify_names_its_own_options_and_those_of_compile() -> None:
    with pytest.raises(OptionError, match=r"verify has no option 'tolerence'.*mean 'tolerance'"):
        ts.verify(MODEL, tolerence=1)
    with pytest.raises(OptionError, match=r"verify has no option 'thread'.*mean 'threads'"):
        ts.verify(MODEL, thread=1)


def test_threads_are_of_any_integer_type() -> None:
    net = ts.compile(MODEL, threads=np.int64(2))
    assert net.program(((64, 1, 8, 8),)).plan.threads == 2


def test_save_takes_no_other_code_than_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="code must be True or False"):
        ts.save(ts.load(MODEL), tmp_path / "x.tin", code="yes")  # pyright: ignore


def test_kernels_are_left_out_by_the_beginning_of_their_names() -> None:
    found = parse_overrides("-winograd*, -conv_direct, Conv=reference")
    assert {"winograd", "winograd_taps", "conv_direct"} <= left_out(found) != {*found}
    assert all(name.startswith(("winograd", "conv_direct")) for name in left_out(found))
    assert parse_overrides({"winograd*": "-"}).keys() == left_out(found) - {"conv_direct"}
    for unknown in ("-*", "-winogradx*", "-no"):
        with pytest.raises(UnknownName):
            parse_overrides(unknown)


@pytest.mark.parametrize("name", sorted({*ts.__all__} - {"Net", "Graph", "Type"}))
def test_functions_refuse_keywords_that_they_do_not_have(name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name} has no option 'quickly'"):
        getattr(ts, name)(MODEL, quickly=True)


@pytest.mark.parametrize("cut", [("pool0", "softmax"), [("a",)], "ab", 5, [5]])
def test_a_cut_is_a_list_of_pairs(cut: Any) -> None:
    with pytest.raises(OptionError, match="cut is a list of pairs"):
        ts.optimize(MODEL, cut=cut)


@pytest.mark.parametrize("outputs", ["pool0", 5])
def test_outputs_are_a_list(outputs: Any) -> None:
    with pytest.raises(OptionError, match="outputs is a list"):
        ts.optimize(MODEL, outputs=outputs)


def test_what_takes_no_net_names_its_graph(tmp_path: Path) -> None:
    net: Any = ts.compile(MODEL)
    for function in (ts.load, ts.compile, ts.verify, lambda net: ts.quantize(net, [])):
        with pytest.raises(ModelKindError, match=r"net\.source\(\)"):
            function(net)
    with pytest.raises(OptionError, match=r"tinsmith\.write takes"):
        ts.save(str(MODEL), tmp_path / "x.tin")  # type: ignore[arg-type]


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "usable_cores", lambda: 2)
    told = "threads: 3 are more than can run at once, 2 here"
    for threads, notes in ((2, []), (3, [told])):
        assert ts.compile(MODEL, threads=threads).notes == notes
