"""What is written for a network: its layers, the order of its outputs, and that ncnn computes the
same with it, where that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.ncnn.against import PEER, agree, run_peer
from tinsmith import ops
from tinsmith.errors import NotWritable
from tinsmith.formats.ncnn.param import Layer, read_param
from tinsmith.formats.ncnn.weights import draw_weights, write_weights
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.writers.ncnn import write

VECTOR, PICTURE = "Input x 0 1 x 0=16", "Input x 0 1 x 0=5 1=4 2=6"
TWO = "Split s 1 2 x a b; "
WRITTEN = {
    f"{VECTOR}; Power p 1 1 x y 0=2.0": "Power",
    f"{VECTOR}; Power p 1 1 x y 0=3.0": "Power",
    f"{VECTOR}; Power p 1 1 x y 0=0.0": "Power",
    f"{VECTOR}; Exp p 1 1 x y 0=3.0": "Exp",
    f"{VECTOR}; UnaryOp p 1 1 x y 0=4": "UnaryOp",
    f"{VECTOR}; ShuffleChannel c 1 1 x y 1=1": "Noop",
    "Input x 0 1 x 0=5 1=4; ShuffleChannel c 1 1 x y 1=1": "Noop",
    f"{PICTURE}; ShuffleChannel c 1 1 x y 0=2 1=1": "ShuffleChannel",
    f"{PICTURE}; Flip f 1 1 x y -23300=0": "Noop",
    f"{PICTURE}; Cast c 1 1 x y": "Noop",
    f"{PICTURE}; Cast c 1 1 x y 0=1 1=2; Cast d 1 1 y z 0=2 1=1": "Cast Cast",
    f"{VECTOR}; {TWO}Exp e 1 1 a y; Dropout d 1 1 b z": "Split UnaryOp Noop",
    f"{VECTOR}; {TWO}Exp e 1 1 a y; Exp f 1 1 y z; Cast c 1 1 b u": "Split UnaryOp UnaryOp Noop",
    f"{PICTURE}; Pooling p 1 1 x b 4=1; Reshape r 1 1 b y 0=1 1=1 2=-1": "Pooling Reshape",
    "Input x 0 1 x 0=5 1=1; GRU g 1 1 x y 0=4 1=60": "GRU",
    "Input x 0 1 x 0=5 1=1; LSTM g 1 1 x y 0=3 1=80 3=4": "LSTM",
    "Input x 0 1 x 0=5 1=4; MemoryData m 0 1 m 0=5 1=4; CopyTo c 2 1 m x y": "MemoryData CopyTo",
    f"{VECTOR}; Slice s 1 2 x a b -23300=2,8,8; Noop c 1 1 b y; Noop d 1 1 a z": "Slice Noop Noop",
}  # fmt: skip
"""The layers behind the Input of what is written for some networks."""


def model_of(text: str) -> tuple[bytes, bytes]:
    rows = [row.strip() for row in text.split(";")]
    blobs = {b for r in rows for p in [r.split()] for b in p[4 : 4 + int(p[2]) + int(p[3])]}
    param = "\n".join(["7767517", f"{len(rows)} {len(blobs)}", *rows, ""]).encode()
    layers: list[Layer] = read_param(memoryview(param), text)
    draw_weights(layers, 0, text)
    return param, b"".join(write_weights(layers))


def input_of(graph: Any) -> Any:
    (v,) = graph.inputs
    return np.random.default_rng(0).random(v.shape[1:], np.float32) * 4 - 2


def outputs_of(graph: Any) -> dict[str, Any]:
    found = run_graph(graph, [input_of(graph)[None]])
    return {v.name: np.asarray(y)[0] for v, y in zip(graph.outputs, found, strict=True)}


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("text", WRITTEN)
def test_layers_are_written_and_outputs_keep_their_order(
    text: str, small: bool, tmp_path: Path
) -> None:
    graph = ts.load(model_of(text))
    write(ts.optimize(graph) if small else graph, tmp_path / "y.param")
    first, *rows = read_param(memoryview((tmp_path / "y.param").read_bytes()), "y")
    assert first.type == "Input"
    assert small or " ".join(row.type for row in rows) == WRITTEN[text]
    wanted = outputs_of(graph)
    found = outputs_of(ts.load(tmp_path / "y.param"))
    assert list(found) == list(wanted)
    agree(found, wanted)
    again, _ = write(graph, tmp_path / "b.param", binary=True)
    for y, want in zip(outputs_of(ts.load(again)).values(), wanted.values(), strict=True):
        np.testing.assert_array_equal(y, want)


@pytest.mark.skipif(not PEER.exists(), reason="no ncnn: TINSMITH_BENCH_DIR names no peers")
@pytest.mark.parametrize("small", [False, True])
def test_ncnn_computes_the_same_with_what_is_written(small: bool, tmp_path: Path) -> None:
    wanted = {}
    for i, text in enumerate(WRITTEN):
        graph = ts.load(model_of(text))
        write(ts.optimize(graph) if small else graph, tmp_path / f"{i:03}.param")
        np.savez(tmp_path / f"{i:03}.npz", x=input_of(graph))
        wanted[f"{i:03}"] = outputs_of(graph)
    run_peer(tmp_path)
    for name, want in wanted.items():
        with np.load(tmp_path / f"{name}.out.npz") as found:
            agree(dict(found), want)


def test_what_layers_of_several_nodes_cannot_say_is_told_with_all_else(tmp_path: Path) -> None:
    graph = Graph("several")
    x = graph.input("x", Type("float32", (1, 4)))
    one = graph.const(np.ones((1, 4), np.int64), "one")
    y = ops.Cast(ops.Greater(one, 0), to="float32")
    graph.outputs = [ops.Add(x, y), ops.Det(ops.Reshape(x, [1, 2, 2]))]
    with pytest.raises(NotWritable) as told:
        write(graph, tmp_path / "y.param")
    for what in ("2 nodes", "Det x1: ncnn has no layer", "Greater x1: the constant 'one' is not"):
        assert what in str(told.value)


@pytest.mark.parametrize("shape", [(1, 2, 4), (1, 8), (1, 1, 1, 8)])
def test_reshapes_that_move_the_batch_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    graph = Graph("moved")
    x = graph.input("x", Type("float32", (2, 4)))
    graph.outputs = [ops.Reshape(ops.Relu(x), list(shape))]
    with pytest.raises(NotWritable, match="it moves the batch"):
        write(graph, tmp_path / "y.param")


def test_paddings_of_the_batch_alone_are_refused(tmp_path: Path) -> None:
    graph = Graph("padded")
    graph.outputs = [ops.Pad(graph.input("x", Type("float32", (2,))), [0, 0])]
    with pytest.raises(NotWritable, match="it pads the batch"):
        write(graph, tmp_path / "y.param")


POOLS = [  # kernel, stride, padding, size: a last window begins behind the input, or goes beyond
    ((1, 1), (2, 2), (0, 0, 0, 0), (11, 16)),
    ((2, 2), (2, 2), (1, 1, 1, 1), (5, 6)),
    ((3, 2), (2, 3), (0, 1, 2, 1), (6, 7)),
    ((1, 3), (1, 2), (0, 0, 0, 0), (1, 2)),
    ((3, 4), (2, 3), (0, 0, 0, 1), (2, 2)),
]


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("kernel, stride, pad, sizes", POOLS)
def test_no_window_begins_behind_the_input(
    kernel: Any, stride: Any, pad: Any, sizes: Any, kind: str, tmp_path: Path
) -> None:
    graph = Graph("pool")
    x = graph.input("x", Type("float32", (1, 3, *sizes)))
    given = {"kernel": kernel, "stride": stride, "pad": pad, "ceil_mode": True}
    graph.outputs = [getattr(ops, kind)(ops.Relu(x), **given)]
    _same(graph, tmp_path)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel, stride", [((3, 3), (1, 5)), ((3, 1), (2, 2)), ((2, 2), (3, 5))])
def test_same_padding_of_strides_beyond_the_kernel_is_written_as_numbers(
    kernel: Any, stride: Any, mode: str, tmp_path: Path
) -> None:
    graph = Graph("strides")
    x = graph.input("x", Type("float32", (1, 3, 7, 8)))
    w = np.random.default_rng(1).standard_normal((4, 3, *kernel)).astype(np.float32)
    graph.outputs = [ops.Conv(x, w, stride=stride, auto_pad=mode)]
    _same(graph, tmp_path)
    graph.outputs = [ops.MaxPool(x, kernel=kernel, stride=stride, auto_pad=mode)]
    graph.sweep()
    _same(graph, tmp_path)
    free = Graph("free")
    x = free.input("x", Type("float32", (1, 3, "h", "w")))
    free.outputs = [ops.Conv(x, w, stride=stride, auto_pad=mode)]
    with pytest.raises(NotWritable, match="ncnn pads otherwise, and its sizes"):
        write(free, tmp_path / "free.param")


@pytest.mark.parametrize("sizes", [(6,), (1,), (5, 6), (2, 3, 4)])
def test_instance_norms_keep_their_channels_at_any_rank(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    graph = Graph("norm")
    x = graph.input("x", Type("float32", (1, 4, *sizes)))
    scale, shift = np.array([[1, 2, 3, 4], [4, 3, 0, 1]], np.float32)
    graph.outputs = [ops.InstanceNorm(x, scale, shift)]
    _same(graph, tmp_path)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "sizes, scales", [((4, 2), (1.5, 1.5)), ((1, 3), (2.5, 4 / 3)), ((5,), (2,))]
)
def test_whole_sizes_between_corners_are_written(
    sizes: Any, scales: Any, mode: str, tmp_path: Path
) -> None:
    _same(_between_corners(sizes, scales, mode), tmp_path)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes, scales", [((4, 3), (1, 1.5)), ((3, 4), (1.5, 2)), ((3,), (1.5,))])
def test_fractions_of_an_element_between_corners_are_refused(
    sizes: Any, scales: Any, mode: str, tmp_path: Path
) -> None:
    with pytest.raises(NotWritable, match="a size with a fraction"):
        write(_between_corners(sizes, scales, mode), tmp_path / "y.param")


@pytest.mark.parametrize("where", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("axes, scales", [((3, 2), (2, 1)), ((-1,), (2,)), ((2,), (3,))])
def test_scales_of_a_resize_are_those_of_its_axes(
    axes: Any, scales: Any, where: str, tmp_path: Path
) -> None:
    graph = Graph("axes")
    x = graph.input("x", Type("float32", (1, 2, 3, 4)))
    given = {"mode": "linear", "axes": axes, "coordinate_transformation_mode": where}
    graph.outputs = [ops.Resize(x, None, np.array(scales, np.float32), None, **given)]
    _same(graph, tmp_path)


def _between_corners(sizes: Any, scales: Any, mode: str) -> Graph:
    graph = Graph("corners")
    x = graph.input("x", Type("float32", (1, 2, *sizes)))
    factors, where = np.array([1, 1, *scales], np.float32), "align_corners"
    given = {"mode": mode, "coordinate_transformation_mode": where}
    graph.outputs = [ops.Resize(x, None, factors, None, **given)]
    return graph


def _same(graph: Graph, folder: Path) -> None:
    """Check that a graph computes the same numbers when it is written and read again."""
    write(graph, folder / "y.param")
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].dims).astype(np.float32)
    got, want = run_graph(ts.load(folder / "y.param"), [x]), run_graph(graph, [x])
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)
