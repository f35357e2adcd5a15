"""Nets quantised for ncnn, and its calibration tables."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tinsmith as ts
from tests.ncnn.against import PEER, run_peer
from tests.quantizer.nets import Building
from tinsmith.cli import main
from tinsmith.errors import NotWritable, OptionError, QuantizeError
from tinsmith.graph import Graph
from tinsmith.graph.origin import Origin
from tinsmith.quantizer.report import Quantized
from tinsmith.quantizer.table import apply_table, lines_of, rows_of
from tinsmith.writers.ncnn.writer import Writer

DATA = np.random.default_rng(3).standard_normal((12, 3, 10, 9)).astype(np.float32)
LAYERS = ["first", "second", "depthwise", "between", "pixels", "grouped", "dense"]


@cache
def net() -> Graph:
    """Every layer that ncnn computes in bytes, and one with groups that it does not."""
    b = Building(1, 3, 10, 9)
    first = b.emit("Relu", b.conv(b.x, 16, name="first"))
    second = b.emit("Relu", b.conv(first, 16, name="second"))
    y = b.emit("Relu", b.conv(second, 16, name="depthwise", group=16, stride=(2, 2)))
    y = b.conv(b.conv(y, 20, 1, name="between"), 24, 1, name="pixels")
    y = b.emit("Relu", b.conv(y, 24, name="grouped", group=4))
    y = b.emit("GlobalPool", y)
    y = b.dense(b.emit("Flatten", y), 7, name="dense")
    return b.ends(b.emit("Softmax", y))


def quantised(**options: Any) -> Quantized:
    return ts.quantize(net(), DATA, form="ncnn", progress=False, **options)


@cache
def plain() -> Quantized:
    """Without what changes weights or biases, as ncnn's own tools quantise."""
    return quantised(equalise=False, correct=False)


def values(graph: Graph) -> np.ndarray:
    made = ts.compile(graph)
    return np.concatenate([made(x[None]) for x in DATA])


def types_of(file: Path) -> dict[str, list[str]]:
    lines = file.read_text(encoding="utf-8").splitlines()[2:]
    return {line.split()[1]: line.split() for line in lines}


def test_layers_are_written_in_bytes_and_read_again(tmp_path: Path) -> None:
    found = quantised()
    found.write(tmp_path / "y.param")
    layers = types_of(tmp_path / "y.param")
    inside = {name for name, line in layers.items() if any(w.startswith("8=") for w in line)}
    assert inside == {name for name in LAYERS if name != "grouped"}
    assert "8=101" in layers["first"] and "8=101" in layers["second"]  # bytes in between
    again = ts.load(tmp_path / "y.param")
    np.testing.assert_allclose(values(again), values(found.graph), rtol=0, atol=2e-7)
    assert np.abs(values(again) - values(net())).max() < 0.02
    assert {layer.name for layer in found.layers} >= inside


def test_weights_for_winograd_have_six_bits() -> None:
    by_layer = {name: scales[0] for name, scales in plain().scales.items()}
    assert {name: scale.bits for name, scale in by_layer.items()} == {
        "first": 6, "second": 6, "depthwise": 8, "between": 8, "pixels": 8, "dense": 8,
    }  # fmt: skip


@pytest.mark.skipif(not PEER.exists(), reason="no ncnn: TINSMITH_BENCH_DIR names no peers")
def test_ncnn_computes_the_same(tmp_path: Path) -> None:
    """But for a byte that lies next to half a quantum, of few samples: floats are added in another
    order before they are rounded."""
    found = quantised()
    for i, x in enumerate(DATA):
        found.write(tmp_path / f"{i}.param")
        np.savez(tmp_path / f"{i}.npz", x=x)
    run_peer(tmp_path)
    peers = [next(iter(np.load(tmp_path / f"{i}.out.npz").values())) for i in range(len(DATA))]
    apart = np.abs(values(found.graph) - np.array(peers).reshape(len(DATA), -1)).max(axis=1)
    assert np.median(apart) < 1e-6 and apart.max() < 5e-3, apart


def test_a_table_says_all(tmp_path: Path) -> None:
    found = plain()
    text = found.table()
    rows = rows_of(lines_of(text))
    assert list(rows) == [name for name in LAYERS if name != "grouped"]
    assert [row.weights.size for row in rows.values()] == [16, 16, 16, 20, 24, 7]
    np.testing.assert_array_equal(values(apply_table(net(), text).graph), values(found.graph))
    found.write(tmp_path / "net.table")
    assert (tmp_path / "net.table").read_text(encoding="utf-8") == text


def test_nodes_of_one_name_are_two_layers() -> None:
    b = Building(1, 3, 10, 9)
    y = b.conv(b.x, 4, name="first", origin=Origin(name="second"))
    graph = b.ends(b.conv(b.emit("Relu", y), 4, name="second"))
    found = ts.quantize(graph, DATA, form="ncnn", equalise=False, correct=False, progress=False)
    assert apply_table(graph, found.table()).layers == ("second", "second_1")


def test_layers_without_both_lines_stay_in_float(tmp_path: Path) -> None:
    lines = plain().table().splitlines()
    kept = [f"# {line}" if line.startswith("pixels ") else line for line in lines]
    found = apply_table(net(), "\n".join([*kept, "grouped_param_1 3"]))
    assert found.kept == ("pixels",) and str(found) == "5 layers in bytes; in float32: pixels"
    found.write(tmp_path / "y.param")
    layers = types_of(tmp_path / "y.param")
    assert not any(word.startswith("8=") for word in layers["pixels"])
    assert "8=1" in layers["between"]  # pixels reads floats


@pytest.mark.parametrize(("text", "match"), [
    ("", "has no layer with both lines"),
    ("first 3\nsecond_param_0 4", "has no layer with both lines"),
    ("first three\n", "line 1: 'first' has no scales"),
    ("first_param_0 1\n\nfirst nan", "line 3: 'first' has no scales"),
    ("first_param_0 -1\nfirst 1", "line 1: 'first_param_0' has no scales"),
    ("third_param_0 1\nthird 1", "1 layer that the model has not.* 'third'; .*first, second"),
    ("first_param_0 1\nfirst 1\nfurst_param_0 1", "1 layer that the model has not.* 'furst'"),
    ("grouped_param_0 1\ngrouped 1", "ncnn does not compute in bytes, such as 'grouped'"),
    ("first_param_0 1 2\nfirst 1", "'first' has 2 scales for 16 outputs"),
    ("first_param_0 1\nfirst 0", "the scale of the input of 'first' is 0"),
])  # fmt: skip
def test_tables_that_do_not_fit(text: str, match: str) -> None:
    with pytest.raises(QuantizeError, match=match):
        apply_table(net(), text, "some.table")


def test_what_has_no_table() -> None:
    with pytest.raises(OptionError, match="form='ncnn' and equalise=False"):
        quantised().table()
    with pytest.raises(OptionError, match="leave `products` and `weight_bits` out"):
        quantised(weight_bits=4)


def test_a_layer_before_another_rounding_is_not_claimed_in_part() -> None:
    b = Building(1, 3, 10, 9)
    graph = b.ends(b.conv(b.emit("Relu", b.conv(b.x, 4, name="first")), 4, name="second"))
    found = ts.quantize(graph, DATA, form="ncnn", progress=False).graph
    (sign,) = (n for n in found.nodes if n.op.name == "Sign" and n.operand(0).shape[1] == 4)
    by = sign.operand(0).producer
    scales = np.full((1, 4, 1, 1), by.operand(1).const)
    found.set_input(by, 1, found.const(scales))
    writer = Writer(found)
    assert not writer.claim() and not writer.taken and not writer.claimed


def test_small_weights_hint_at_layers_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match="`tinsmith quantize` makes layers that compute in bytes"):
        ts.write(net(), tmp_path / "y.param", weights="int8")


def test_the_command(tmp_path: Path) -> None:
    model, table, out = (str(tmp_path / name) for name in ("x.param", "x.table", "y.param"))
    ts.write(net(), model)
    np.savez(tmp_path / "data.npz", **{ts.load(model).inputs[0].name: DATA})

    def run(*words: str) -> Any:
        return CliRunner().invoke(main, ["quantize", *words])

    made = run(model, table, "--data", str(tmp_path / "data.npz"), "--method", "kl")
    assert made.exit_code == 0, made.output
    assert "first_param_0 " in Path(table).read_text(encoding="utf-8")
    made = run(model, out, "--table", table)
    assert made.exit_code == 0, made.output
    assert "y.bin" in made.output
    assert "8=101" in types_of(Path(out))["first"]
    assert "--data, or --table" in run(model, out).output
    assert "5 layers in bytes" not in made.output and "6 layers in bytes" in made.output
    assert "leave --method out" in run(model, out, "--table", table, "--method", "kl").output


def test_pictures_and_arrays_lie_in_one_folder(tmp_path: Path) -> None:
    from PIL import Image

    model, table = (str(tmp_path / name) for name in ("x.param", "x.table"))
    ts.write(net(), model)
    folder = tmp_path / "data"
    folder.mkdir()
    Image.new("RGB", (9, 10), (255, 0, 0)).save(folder / "a.png")

    def scale_of_input(*words: str) -> float:
        made = CliRunner().invoke(main, ["quantize", model, table, "--data", *words])
        assert made.exit_code == 0, made.output
        return lines_of(Path(table).read_text(encoding="utf-8"))["first"][0]

    assert scale_of_input(str(folder / "a.png")) == scale_of_input(str(folder)) == 127
    np.save(folder / "b.npy", 2 * np.ones((1, 3, 10, 9), np.float32))
    assert scale_of_input(str(folder)) == 63.5
    assert scale_of_input(str(folder), "--scale", "bytes") == pytest.approx(127 / 255)
