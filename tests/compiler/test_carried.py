"""Programs that .tin files carry: run only when trusted, anywhere, and as they were made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.models import array, digits, residual
from tinsmith.compiler import carried
from tinsmith.errors import ModelFileError, OptionError, UntrustedCode
from tinsmith.formats.container import Container
from tinsmith.runtime.program import SLACK

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


def test_carried_code_is_for_the_shapes_last_compiled_for(tmp_path: Path) -> None:
    net = ts.compile(digits(), cache=False)
    for count in (4, 1, 2):
        net(array(count, 1, 8, 8))
    net.program(((4, 1, 8, 8),))
    ts.save(net, tmp_path / "net.tin", code=True)
    trusting = ts.compile(tmp_path / "net.tin", cache=False, trust=True)
    assert trusting.outputs["probabilities"].shape == (4, 10)
    assert "conv0" in trusting.explain()
    assert trusting(array(4, 1, 8, 8)).shape == (4, 10)
    assert not trusting.notes
    assert trusting(X).shape == (1, 10)
    (note,) = trusting.notes
    assert "carries code for inputs of shape [4, 1, 8, 8]; for [1, 1, 8, 8] it was" in note


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
    weights = Container(tmp_path / "net.tin").array("weights")
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
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "net.tin")],
        capture_output=True,
        text=True,
        env=os.environ | {"TINSMITH_CACHE": "off"},
        timeout=120,
    )
    assert done.stdout == "[]\n", done.stderr
