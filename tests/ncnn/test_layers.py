"""Every layer type of ncnn alone, against what ncnn computes: recorded, and itself where it is.

`python -m tests.ncnn.test_layers` records anew, in an environment with the peers.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.ncnn.against import PEER, agree, record, recorded, run_peer
from tests.ncnn.alike import told
from tests.ncnn.cases import inputs_of, lines, model_of
from tinsmith.errors import ImportFailed, NotWritable
from tinsmith.formats.ncnn.layers import LAYERS
from tinsmith.formats.ncnn.param import param_text, read_param
from tinsmith.formats.ncnn.weights import draw_weights, read_weights, write_weights
from tinsmith.frontends import load
from tinsmith.graph import Graph
from tinsmith.ops.control import run_graph
from tinsmith.writers.ncnn import write

RECORDED = Path(__file__).parent.parent / "data" / "ncnn" / "layers.npz"
CASES = lines()
REFUSED = {"Einsum 4x5 5x6; -23300=9,105,106,44,106,107,45,62,105,107"}
"""What ncnn does not load."""
UNWRITABLE = {
    "Pooling 3x7x8; 0=1 7=1 8=600 18=2",
    "Pooling1D 3x800; 0=1 7=1 8=513",
    "Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=2 18=-2.7e+00",
    "ConvolutionDepthWise 4x9x10; 0=4 1=3 4=-233 6=36 7=4 8=1 18=2.0e+01",
}
"""What is read, and cannot be written as ncnn: adaptive poolings of more places than get nodes, and
numbers other than 0 beside bytes."""
REFIT = {line for line in CASES if line.startswith("LSTM 6x5; ") and " 3=" in line}
"""Weights that are found anew from a product, but for their last bits."""
UNCHECKED = {
    "ArgMax",
    "SPP",
    "Input",
    "MemoryData",
    "Quantize",
    "Dequantize",
    "Requantize",
}
"""Not alone in a case: left out of ncnn as it is built, or part of whole models."""


def fed(line: str) -> dict[str, Any]:
    return {f"in{k}": x for k, x in enumerate(inputs_of(line))}


def compute(graph: Graph, line: str, native: bool = False) -> dict[str, Any]:
    """The outputs for a batch of one, by reference or by generated code."""
    fed = [x[None].astype(np.float32) for x in inputs_of(line)]
    found = ts.compile(graph).run(fed) if native else run_graph(graph, fed)
    return {v.name: np.asarray(y)[0] for v, y in zip(graph.outputs, found, strict=True)}


def graph_of(line: str) -> Graph:
    param, weights = model_of(line)
    return load((param.encode(), weights))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("line", CASES)
def test_a_layer_computes_what_ncnn_computes(line: str, native: bool) -> None:
    found = compute(graph_of(line), line, native)
    if line not in REFUSED:
        n = len(line) + 1
        wanted = {k[n:]: v for k, v in recorded(RECORDED).items() if k.startswith(line + "/")}
        agree({k: v.astype(np.float32) for k, v in found.items()}, wanted)


WRONG = [
    ("Convolution 2x5x5; 0=2 1=3 3=0 4=-234 6=36", "its stride is"),
    ("Convolution 2x7x6; 0=2 1=1 3=3 11=4 13=2 4=-233 6=16", "writing outside of it"),
    ("ConvolutionDepthWise3D 1x9x7x1; 0=3 1=2 11=1 21=1 3=4 23=3 4=-233 6=6", "writing outside"),
    ("Pooling3D 2x8x6x14; 0=1 1=1 2=3 11=2 12=2 21=3 22=2 5=3 6=1", "writing outside of it"),
    ("ConvolutionDepthWise 2x5x5; 0=2 1=3 6=18 7=2 8=-1", "no weight 'weight_scales'"),
    ("DeformableConv2D 4x6x7 18x6x7; 0=6 1=3 11=-233 6=216", "'weight' of 216 numbers"),
    ("Einsum 4x5 5x6; -23300=9,-105,106,44,106,107,45,62,105,107", "is no text"),
    ("GRU 3x4; 0=0 1=0", "it has 0 outputs"),
    ("InnerProduct 10; 0=6 2=99", "'weight' of 99 numbers"),
    ('Interp 1x6x4; 0=1 9="3,fmod(0h,3)"', "would have the size"),
    ('Interp 1x6x4; 0=1 9="3,and(0h,1.5)"', "it takes whole numbers"),
    ('Interp 1x6x4; 0=1 9="3,4,5"', "tells 3 sizes"),
    ("Interp 1x5x9x8; 0=2 3=21 4=15", "the first of several depths"),
    ("InverseSpectrogram 9x10x2; 0=16 1=0 7=-1", "its normalized -1 is not known"),
    ("LRN 3x4x5; 1=0", "its local_size is 0"),
    ("Reshape 3x4x5; 0=99", "60 elements"),
    ("Reshape 3x4x5; 0=7 1=-1", "60 elements"),
    ("SDPA 2x6x8 2x5x8 2x5x4 6x5; 5=0", "it has 4 inputs"),
    ("Spectrogram 64; 0=16 1=2 6=-234", "its pad_type -234 is not known"),
]


@pytest.mark.parametrize("line, reason", WRONG)
@pytest.mark.filterwarnings("error")
def test_what_no_user_can_want_is_refused(line: str, reason: str) -> None:
    with pytest.raises(ImportFailed, match=re.escape(reason)):
        graph_of(line)


@pytest.mark.parametrize("line", [line for line in CASES if "19=1" in line or "28=1" in line])
def test_weights_that_are_inputs_are_of_one_sample(line: str) -> None:
    param, weights = model_of(line)
    with pytest.raises(ImportFailed, match="of one sample, not of 3"):
        load((param.encode(), weights), batch=3)


SEVERAL = [(line, k) for line in CASES for k in range(len(inputs_of(line)))
           if len(inputs_of(line)) > 1 and "19=1" not in line and "28=1" not in line]  # fmt: skip


@pytest.mark.parametrize("line, constant", SEVERAL)
def test_an_input_that_is_constant_is_the_same_for_all_samples(line: str, constant: int) -> None:
    rng, kept = np.random.default_rng(0), inputs_of(line)[constant].astype(np.float32)
    fed = [x + 0.1 * rng.random((3, *x.shape)).astype(np.float32) for x in inputs_of(line)]
    fed[constant] = np.stack([kept] * 3)
    wanted = run_graph(graph_of(line), fed)
    param, weights = model_of(line)
    layers = read_param(memoryview(param.encode()), line)
    read_weights(layers, memoryview(weights), line)
    layers[constant].type = "MemoryData"
    layers[constant].weights["data"] = kept
    graph = load((param_text(layers).encode(), b"".join(write_weights(layers))))
    del fed[constant]
    for v, found, y in zip(graph.outputs, run_graph(graph, fed), wanted, strict=True):
        if line.startswith(("Crop", "Interp", "PriorBox")):  # it is of sizes alone
            found, y = np.broadcast_arrays(found, y)
        assert found.shape == y.shape, v
        np.testing.assert_allclose(found, y, 1e-5, 1e-6)


OTHERWISE = (
    "InnerProduct 4x5; ", "Squeeze 3x1x5; 1=1", "Pooling 2x1x2; 0=0 1=4 ",
    "Pooling1D 2x2; 0=0 1=4 2=4",
)  # fmt: skip
"""Layers that take inputs of free sizes otherwise: rows as vectors, axes that only a flag names,
and fewer elements than a window of a pooling has."""


@pytest.mark.parametrize("line", [line for line in CASES if not line.startswith(OTHERWISE)])
def test_free_sizes_are_refused_or_give_the_numbers_of_known_ones(line: str) -> None:
    shapes = {}
    for k, x in enumerate(inputs_of(line)):
        shapes[f"in{k}"] = ("N", *(f"in{k}_{i}" for i in range(x.ndim)))
    param, weights = model_of(line)
    unsized = re.sub(r"(?m)^(Input\s+\S+\s+0 1 \S+).*$", r"\1", param)
    with suppress(ImportFailed):
        free = load((unsized.encode(), weights), input_shapes=shapes)
        agree(compute(free, line), compute(graph_of(line), line))


def test_every_layer_type_has_a_case() -> None:
    assert {line.split()[0] for line in CASES} | UNCHECKED == set(LAYERS)


@pytest.mark.parametrize("line", sorted(set(CASES) - UNWRITABLE))
def test_what_is_written_is_the_same_graph(line: str, tmp_path: Path) -> None:
    graph = graph_of(line)
    write(graph, tmp_path / "y.param")
    again = load(tmp_path / "y.param")
    write(again, tmp_path / "z.param")
    assert line in REFIT or told(load(tmp_path / "z.param")) == told(again)
    agree(compute(again, line), compute(graph, line))
    write(graph, tmp_path / "b.param", binary=True)
    assert told(load(tmp_path / "b.param.bin")) == told(again)


@pytest.mark.parametrize("line", sorted(UNWRITABLE))
def test_what_cannot_be_written_is_refused_and_nothing_is_there(line: str, tmp_path: Path) -> None:
    with pytest.raises(NotWritable):
        write(graph_of(line), tmp_path / "y.param")
    assert line in CASES and not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", sorted(set(CASES) - UNWRITABLE))
def test_what_is_optimised_is_written_in_no_more_layers(line: str, tmp_path: Path) -> None:
    graph = graph_of(line)
    write(graph, tmp_path / "y.param")
    write(ts.optimize(graph), tmp_path / "z.param")
    agree(compute(load(tmp_path / "z.param"), line), compute(graph, line))
    counts = [len((tmp_path / f"{name}.param").read_text().splitlines()) for name in "yz"]
    # a mean over a picture becomes a pooling, of whose vector a Reshape makes an image again
    assert counts[1] <= counts[0] + line.startswith("MVN")


def test_poolings_of_told_sizes_and_of_deviations_stay_one_layer(tmp_path: Path) -> None:
    for line in CASES:
        many = "8=600" in line or "8=513" in line  # these are gathered
        adaptive = line.startswith("Pooling") and " 7=1" in line and not many
        if adaptive or (line.startswith("StatisticsPooling") and "0=1" in line):
            write(graph_of(line), tmp_path / "y.param")
            layers = (tmp_path / "y.param").read_text().splitlines()[2:]
            # windows that overlap nowhere along an axis may be a layer of their own
            assert len(layers) <= 2 + ("3x7x9" in line), line


@pytest.mark.skipif(not PEER.exists(), reason="no ncnn: TINSMITH_BENCH_DIR names no peers")
@pytest.mark.parametrize("which", ["read", "written", "halves", "optimised"])
def test_ncnn_computes_the_same_now(which: str, tmp_path: Path) -> None:
    wanted: dict[str, dict[str, Any]] = {}
    for i, line in enumerate(CASES):
        graph = graph_of(line)
        if which == "read":
            param, weights = model_of(line)
            (tmp_path / f"{i:03}.param").write_text(param)
            (tmp_path / f"{i:03}.bin").write_bytes(weights)
        elif line in UNWRITABLE:
            continue
        else:
            graph = ts.optimize(graph) if which == "optimised" else graph
            write(graph, tmp_path / f"{i:03}.param", halves=which == "halves")
            graph = load(tmp_path / f"{i:03}.param")
        np.savez(tmp_path / f"{i:03}.npz", **fed(line))
        wanted[f"{i:03}"] = compute(graph, line)
    run_peer(tmp_path)
    missing = {CASES[int(n)] for n in wanted if not (tmp_path / f"{n}.out.npz").exists()}
    assert missing <= REFUSED
    for name, found in wanted.items():
        if CASES[int(name)] not in missing:
            try:
                made = dict(np.load(tmp_path / f"{name}.out.npz"))
                agree(found, {k: v for k, v in made.items() if not k.startswith("in")})
            except AssertionError as error:
                error.add_note(CASES[int(name)])
                raise


if __name__ == "__main__":
    record(RECORDED, ((line, *model_of(line), fed(line)) for line in CASES))


def test_weights_in_blocks_are_integers_by_scales() -> None:
    """ncnn's wheel is built without them: the same layer with the numbers that they stand for."""
    text = b"7767517\n2 2\nInput x 0 1 x 0=40 1=6\nMultiHeadAttention m 1 1 x y 0=8 1=2 2=320 "
    text += b"3=40 4=40 18="
    layers = read_param(memoryview(text + b"610\n"), "m")
    draw_weights(layers, 0, "m")
    weights = layers[1].weights
    plain = dict(weights)
    for name, rows, columns in (("q", 8, 40), ("k", 8, 40), ("v", 8, 40), ("out", 40, 8)):
        bits = np.unpackbits(weights[name].view(np.uint8), bitorder="little").reshape(rows, -1)
        whole = bits[:, : 6 * columns].reshape(rows, columns, 6) @ (1 << np.arange(6))
        signed = np.where(whole >= 32, whole - 64, whole)
        scales = weights[f"{name}_scales"].reshape(rows, -1).repeat(32, axis=1)[:, :columns]
        plain[name] = (signed / scales * weights[f"{name}_input"]).astype(np.float32)
    x = np.random.default_rng(0).standard_normal((2, 6, 40)).astype(np.float32)
    packed = load((text + b"610\n", b"".join(write_weights(layers))))
    (simple,) = [la for la in read_param(memoryview(text + b"0\n"), "m") if la.type != "Input"]
    simple.weights.update(plain)
    same = load((text + b"0\n", b"".join(write_weights([simple]))))
    (found,), (wanted,) = run_graph(packed, [x]), run_graph(same, [x])
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


QUANTISED = ["LSTM 6x5; 0=4 1=80 8=2", "GRU 6x5; 0=4 1=60 8=2", "RNN 6x5; 0=4 1=20 8=2",
             "LSTM 6x5; 0=3 1=80 3=4 8=2", "Gemm 4x5; 3=1 5=1 6=1 8=6 9=5 10=4 18=2",
             "MultiHeadAttention 6x8; 0=8 1=2 2=64 18=2"]  # fmt: skip


@pytest.mark.parametrize("line", QUANTISED)
@pytest.mark.skipif(not PEER.exists(), reason="no ncnn: TINSMITH_BENCH_DIR names no peers")
@pytest.mark.filterwarnings("ignore:.*int8")
def test_random_weights_of_int8_are_ones_that_ncnn_reads(line: str, tmp_path: Path) -> None:
    """ncnn rounds what comes in to int8, too; here that stays float32."""
    param, weights = model_of(line)
    (tmp_path / "m.param").write_text(param)
    (tmp_path / "m.bin").write_bytes(weights)
    np.savez(tmp_path / "m.npz", **fed(line))
    run_peer(tmp_path)
    (found,), wanted = compute(graph_of(line), line).values(), np.load(tmp_path / "m.out.npz")
    assert np.abs(found - wanted["out0"]).max() <= 2e-2 * np.abs(wanted["out0"]).max()


CHAIN = """7767517
6 6
Input data 0 1 data 0=7 1=6 2=4
Convolution a 1 1 data a 0=8 1=3 4=1 5=1 6=288 8={first} 9=1
ConvolutionDepthWise b 1 1 a b 0=8 1=3 4=1 5=1 6=72 7=8 8=101 9=3 -23310=2,0.0e+00,6.0e+00
Convolution c 1 1 b c 0=5 1=1 5=1 6=40 8=2
Pooling p 1 1 c p 4=1 0=1
InnerProduct d 1 1 p d 0=3 1=1 2=15 8=2
"""


@pytest.mark.parametrize("first", [1, 101])
def test_layers_of_bytes_are_written_as_they_are(first: int, tmp_path: Path) -> None:
    """Bytes stay bytes between layers, and no scale changes in its last bit."""
    graph = load((CHAIN.format(first=first).encode()), random_weights=3)
    write(graph, tmp_path / "y.param")
    assert "8=101" in (tmp_path / "y.param").read_text()
    again = load(tmp_path / "y.param")
    assert told(again) == told(graph)
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 7)).astype(np.float32)
    np.testing.assert_array_equal(run_graph(again, [x])[0], run_graph(graph, [x])[0])
