"""The commands that write models: `convert`, `optimize`, `ncnnoptimize`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.cli.harness import parsed, tinsmith
from tests.ncnn.rewrites import model_of
from tinsmith.errors import FileNameError

NET = (
    "Input 4x8x9>x; Convolution x>a 0=5 1=3 5=1 6=180; BatchNorm a>b 0=5 1=1e-5; ReLU b>c; "
    "Pooling c>d 0=1 4=1; InnerProduct d>y 0=3 1=1 2=15"
)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    param, weights = model_of(NET)
    (tmp_path / "net.bin").write_bytes(weights)
    path = tmp_path / "net.param"
    path.write_text(param)
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".tin", ".param", ".pnnx.param"])
@pytest.mark.parametrize("command", ["convert", "optimize"])
def test_every_format_is_written_and_compared(
    net: Path, tmp_path: Path, command: str, suffix: str
) -> None:
    told = parsed(command, net, tmp_path / f"y{suffix}", "--verify")
    (row,) = told["differences"]
    assert row["ok"] and row["relative"] < 1e-5


def test_what_changed_is_told(net: Path, tmp_path: Path) -> None:
    told = parsed("optimize", net, tmp_path / "y.param")
    before, after = told["before"], told["after"]
    assert before["nodes"] > after["nodes"] and before["parameters"] > after["parameters"]
    assert before["flops"] > after["flops"] > 0 and 0 < after["memory"] <= before["memory"]
    assert told["changes"]["fold-into-conv"] == 1
    kept = parsed("optimize", net, tmp_path / "z.param", "--passes=-fold-into-conv")
    assert "fold-into-conv" not in kept["changes"]
    stopped = parsed("optimize", net, tmp_path / "z.param", "--passes=stop-after=propagate-shapes")
    assert set(stopped["changes"]) <= {"take-branches", "propagate-shapes", "dense-after-pool"}
    assert (before["layers"], after["layers"]) == (6, 4)
    shown = tinsmith("optimize", net, tmp_path / "z.param").stdout
    assert "changed: " in shown and re.search(r"layers of the file +6 +4\n", shown)
    binary = parsed("optimize", net, tmp_path / "z.param.bin")
    again = parsed("optimize", tmp_path / "z.param.bin", tmp_path / "z.onnx")
    assert binary["after"]["layers"] == again["before"]["layers"] == 4
    assert again["after"]["layers"] is None


@pytest.mark.parametrize("suffix", [".onnx", ".tin", ".param"])
def test_weights_are_kept_as_halves(net: Path, tmp_path: Path, suffix: str) -> None:
    wide = parsed("optimize", net, tmp_path / f"a{suffix}")
    told = parsed("optimize", net, tmp_path / f"b{suffix}", "--weights", "fp16", "--verify")
    assert told["differences"][0]["ok"] and told["differences"][0]["relative"] > 0
    assert suffix != ".param" or told["bytes"] < 0.8 * wide["bytes"]
    again = ts.load(tmp_path / f"b{suffix}")
    assert {v.dtype.name for v in ts.compile(again).inputs.values()} == {"float32"}


def test_pnnx_has_no_halves(net: Path, tmp_path: Path) -> None:
    got = tinsmith("convert", net, tmp_path / "y.pnnx.param", "--weights", "fp16", code=1)
    assert "no way to keep weights as float16" in got.output


def test_numbers_that_halves_have_not_stay_as_they_are(tmp_path: Path) -> None:
    from tinsmith.graph import Graph, Type
    from tinsmith.ops import OPS

    graph = Graph("g")
    x = graph.input("x", Type(np.dtype("float32"), ("N", 8)))
    w = np.full((8, 8), 1e6, np.float32)
    graph.outputs = [graph.add(OPS["MatMul"], x, w, name="y").output]
    for name in ("y.onnx", "y.tin", "y.param"):
        ts.write(graph, tmp_path / name, weights="float16")
        found = ts.compile(ts.load(tmp_path / name))(np.ones((2, 8), np.float32))
        np.testing.assert_allclose(found, np.full((2, 8), 8e6), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "inputs", "outputs"),
    [
        (["--outputs", "c"], ["x"], ["c"]),
        (["--outputs", "layer4", "--outputs", "b"], ["x"], None),
        (["--cut", "b", "d"], ["b"], ["d"]),
        (["--cut", "b", "y"], ["b"], ["y"]),
        (["--cut", "x", "b"], ["x"], ["b"]),
    ],
)
@pytest.mark.parametrize("suffix", [".onnx", ".param"])
def test_parts_are_written(
    net: Path,
    tmp_path: Path,
    arguments: list[str],
    inputs: list[str],
    outputs: list[str] | None,
    suffix: str,
) -> None:
    out = tmp_path / f"y{suffix}"
    assert all(d["ok"] for d in parsed("optimize", net, out, *arguments, "--verify")["differences"])
    part = ts.load(out)
    assert [v.name for v in part.inputs] == inputs
    assert outputs is None or [v.name for v in part.outputs] == outputs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cut", "y", "b"], "'y' depends on 'b': turn them round?"),
        (["--cut", "layer5", "layer2"], "'y' depends on 'b': turn them round?"),
        (["--cut", "b", "b"], "nothing is between"),
        (["--outputs", "nobody"], "nobody"),
    ],
)
def test_parts_that_are_none_are_refused(
    net: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    code = 2 if "nobody" in arguments else 1
    assert said in tinsmith("convert", net, tmp_path / "y.onnx", *arguments, code=code).output
    assert not (tmp_path / "y.onnx").exists()


def test_what_a_format_cannot_say_is_written_after_passes(tmp_path: Path) -> None:
    from tinsmith.graph import Graph, Type
    from tinsmith.ops import OPS

    graph = Graph("g")
    x = graph.input("x", Type(np.dtype("float32"), ("N", 3, 4)))
    size = graph.add(OPS["Shape"], x, name="size").output
    graph.outputs = [graph.add(OPS["Reshape"], x, size, name="y").output]
    ts.write(graph, tmp_path / "x.onnx")
    told = parsed("convert", tmp_path / "x.onnx", tmp_path / "y.param", "--verify")
    assert told["canonical"] and told["differences"][0]["ok"]
    assert not parsed("convert", tmp_path / "x.onnx", tmp_path / "y.onnx")["canonical"]


@pytest.mark.parametrize("suffix", [".param", ".onnx"])
def test_what_the_written_format_has_a_layer_for_stays_as_it_is(
    suffix: str, tmp_path: Path
) -> None:
    rows = "Input x 0 1 x 0=2 1=3\nInput h 0 1 h 0=5 1=1\nGRU g 2 2 x h y hn 0=5 1=30"
    graph = ts.load(f"7767517\n3 4\n{rows}\n".encode(), random_weights=0)
    ts.write(graph, tmp_path / f"x{suffix}")
    for command in ("optimize", "convert"):
        arguments = ("--canonical",) * (command == "convert")
        out = tmp_path / f"{command}.param"
        said = tinsmith(command, tmp_path / f"x{suffix}", out, "--verify", *arguments).output
        assert "as it is read again, both run by Tinsmith:\n  agrees  y" in said
        assert "GRU" in out.read_text()
    small = ts.optimize(tmp_path / f"x{suffix}", format="ncnn")
    assert [n.op.name for n in small.nodes] == [n.op.name for n in graph.nodes]


@pytest.mark.parametrize("spelling", ["same", "other", "link", "hard", "bin"])
@pytest.mark.parametrize("command", ["convert", "optimize", "ncnnoptimize", "quantize"])
def test_the_model_that_is_read_is_not_written_to(
    net: Path, tmp_path: Path, command: str, spelling: str
) -> None:
    weights, out = net.with_suffix(".bin"), net
    if spelling == "other":
        out = Path(os.path.relpath(tmp_path / ".." / tmp_path.name / "net.param"))
    elif spelling in ("link", "hard"):
        out = tmp_path / "link.param"
        (os.link if spelling == "hard" else os.symlink)(net, out)
    elif spelling == "bin":  # the weights alone are those of the model
        out = tmp_path / ("net.param.bin" if command != "ncnnoptimize" else "other.param")
    more: list[Any] = [out]
    if command == "ncnnoptimize":
        more = [weights, out, weights if spelling == "bin" else tmp_path / "other.bin"]
    elif command == "quantize":
        np.save(tmp_path / "x.npy", np.random.default_rng(0).random((4, 4, 8, 9), np.float32))
        more += ["--data", tmp_path / "x.npy"]
    before = net.read_bytes(), weights.read_bytes()
    said = tinsmith(command, net, *more, code=2).output
    assert "from which the model is read" in said and "another name" in said
    assert (net.read_bytes(), weights.read_bytes()) == before


@pytest.mark.parametrize("suffix", [".onnx", ".tin", ".param", ".pnnx.param"])
def test_write_does_not_replace_the_file_that_it_reads(tmp_path: Path, suffix: str) -> None:
    param, weights = model_of(NET)
    graph = ts.load((param.encode(), weights))
    ts.write(graph, path := tmp_path / f"x{suffix}")
    before = path.read_bytes()
    with pytest.raises(FileNameError, match="from which the model is read"):
        ts.write(path, tmp_path / ".." / tmp_path.name / path.name)
    assert path.read_bytes() == before
    ts.write(ts.load(path), path, canonical=True)  # what is written is known to be in memory


@pytest.mark.parametrize("command", ["convert", "optimize"])
def test_a_folder_that_is_none_is_refused_before_the_work(
    net: Path, tmp_path: Path, command: str
) -> None:
    said = tinsmith(command, net, tmp_path / "none" / "y.onnx", code=1).output
    assert "is no folder" in said


# ---- ncnn's own arguments


def test_ncnnoptimize_takes_ncnns_arguments(net: Path, tmp_path: Path) -> None:
    files = [tmp_path / "o.param", tmp_path / "other.bin"]
    told = parsed("ncnnoptimize", net, net.with_suffix(".bin"), *files, "0")
    assert told["written"] == str(files[0]) and files[1].exists()
    x = np.ones((1, 4, 8, 9), np.float32)
    want, got = (ts.compile(ts.load(m))(x) for m in (net, (str(files[0]), str(files[1]))))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    size = files[1].stat().st_size
    for flag in ("1", "65536"):
        said = tinsmith("ncnnoptimize", net, net.with_suffix(".bin"), *files, flag).stdout
        assert all(f"{file}: " in said for file in files) and "layers of the file" in said
        assert files[1].stat().st_size < 0.6 * size
    tinsmith("ncnnoptimize", net, "null", *files, "0")
    assert files[1].stat().st_size == size
    assert ts.compile((str(files[0]), str(files[1])))(x).shape == (1, 3)


def test_ncnnoptimize_cuts_by_layers(net: Path, tmp_path: Path) -> None:
    files = [net, net.with_suffix(".bin"), tmp_path / "o.param", tmp_path / "o.bin"]
    tinsmith("ncnnoptimize", *files, "0", "layer2", "layer4")
    part = ts.load(tmp_path / "o.param")
    assert [v.name for v in part.inputs] == ["a"] and [v.name for v in part.outputs] == ["d"]
    assert part.inputs[0].shape == ("N", 5, 6, 7)
    assert "nothing" in tinsmith("ncnnoptimize", *files, "0", "nothing", code=2).output
    tinsmith("ncnnoptimize", *files, "0", "layer4", "layer2", code=2)


def test_a_layer_keeps_its_name(net: Path, tmp_path: Path) -> None:
    tinsmith("optimize", net, tmp_path / "o.param")
    names = [line.split()[1] for line in (tmp_path / "o.param").read_text().splitlines()[2:]]
    assert names == ["x", "layer1", "layer4", "layer5"]


@pytest.mark.parametrize("command", ["inspect", "run", "verify"])
def test_a_batch_is_a_size_for_every_command(net: Path, command: str) -> None:
    told = tinsmith(command, net, "--batch", "3").stdout
    assert "[3, 4, 8, 9]" in told or "[3,4,8,9]" in told or "[3,3]" in told.replace(" ", "")
    refused = tinsmith(command, net, "--batch", "-1", code=2).output
    assert "batch is a name, a positive number, or None, not -1" in refused


@pytest.mark.parametrize(
    "command", ["inspect", "run", "verify", "bench --seconds 0.01", "explain layer4"]
)
def test_a_shape_of_an_input_is_given_to_every_command(net: Path, command: str) -> None:
    name, *rest = command.split()
    told = tinsmith(name, net, *rest, "--input-shape", "x=2,4,5,7").stdout.replace(" ", "")
    assert "[2,4,5,7]" in told or "[2,3]" in told or name == "explain"
    for wrong, said in (("x", "NAME=SIZE"), ("y=1", "no input 'y'"), ("x=1,-1", "free ones")):
        assert said in tinsmith(name, net, *rest, "--input-shape", wrong, code=2).output


@pytest.mark.parametrize("command", ["convert", "optimize"])
def test_a_shape_that_is_given_is_written(net: Path, tmp_path: Path, command: str) -> None:
    tinsmith(command, net, tmp_path / "sized.param", "--input-shape", "x=N,4,5,7")
    assert " 0=7 1=5 2=4\n" in (tmp_path / "sized.param").read_text()
