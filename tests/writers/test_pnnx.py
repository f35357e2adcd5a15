"""Graphs that are written as PNNX and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tinsmith import ops
from tinsmith.errors import NotWritable
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops.interpret import run_graph
from tinsmith.passes.manager import run_passes
from tinsmith.writers.pnnx import write

FOLDER = Path(__file__).parent.parent / "data" / "pnnx"
NAMES = sorted(p.stem for p in FOLDER.glob("*.npz"))

LOSES = {
    "attention": "Attention x1: its qk_matmul_output_mode is 3",
    "dynamic": "Shape x", "functional_pools": "MaxPool x1: its with_indices is True",
    "pools": "LRN x1: its size is even",
    "quantised": "QuantizeLinear x", "quantised_layers": "QuantizeLinear x",
    "projected": "LSTM x1: it has one of its two states",
}  # fmt: skip
"""Models that hold, as our operators, what PNNX cannot say."""

ONLY_CANONICAL = (
    "recurrent", "recurrent_states", "convolutions", "indices", "spectra", "shapes", "written"
)  # fmt: skip
"""Models that are the same after passes only: layers are cut where ours have another shape, and
tuples of indices are lists of them."""


def difference(a: Graph, b: Graph) -> str:
    """How two graphs differ, but for the names of constants and of nodes; "" where they do not."""
    said = [
        [
            (v.name, v.dtype, [d if isinstance(d, int) else "?" for d in v.shape or ()])
            for v in g.inputs
        ]
        for g in (a, b)
    ]
    if said[0] != said[1] or len(a.nodes) != len(b.nodes):
        return f"{len(a.nodes)} and {len(b.nodes)} nodes"
    known = dict(zip(a.inputs, b.inputs, strict=True))

    def same(x: Value | None, y: Value | None) -> bool:
        if x is None or y is None or x.const is None or y.const is None:
            return x is y if x is None or y is None else known.get(x) is y
        return x.type == y.type and x.const.tobytes() == y.const.tobytes()

    for m, n in zip(a.nodes, b.nodes, strict=True):
        attrs = [{k: meant(o, k, d) for k, d in o.op.attrs.items()} for o in (m, n)]
        pairs = zip(m.inputs, n.inputs, strict=len(m.inputs) == len(n.inputs))
        if m.op is not n.op or attrs[0] != attrs[1] or not all(same(x, y) for x, y in pairs):
            return f"{m} and {n}"
        known.update(zip(m.outputs, n.outputs, strict=True))
    return "" if all(map(same, a.outputs, b.outputs)) else "outputs"


def meant(node: Node, name: str, default: Any) -> Any:
    """An attribute; strides and such that are left out are what they then mean."""
    value = node.attrs.get(name, default)
    if value is not None or name not in ("stride", "dilation", "pad", "output_padding"):
        return value
    spatial = (node.outputs[0].rank or 0) - 2
    return (0,) * 2 * spatial if name == "pad" else (int(name != "output_padding"),) * spatial


def canonical(graph: Graph) -> Graph:
    made = graph.clone()
    run_passes(made, "portable", "cpu", None)
    return made


def again(graph: Graph, folder: Path) -> Graph:
    write(graph, folder / "again.pnnx.param")
    return ts.load(folder / "again.pnnx.param")


@pytest.mark.parametrize("name", [n for n in NAMES if n not in LOSES])
def test_a_file_that_is_written_and_read_is_the_same_graph(name: str, tmp_path: Path) -> None:
    graph = ts.load(FOLDER / f"{name}.pnnx.param")
    if name not in ONLY_CANONICAL:
        assert difference(graph, again(graph, tmp_path)) == ""
    after = canonical(graph)
    assert difference(after, canonical(again(after, tmp_path))) == ""


@pytest.mark.parametrize("name", LOSES)
def test_what_pnnx_cannot_say_is_named_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    graph = ts.load(FOLDER / f"{name}.pnnx.param")
    with pytest.raises(NotWritable, match=LOSES[name]):
        write(graph, tmp_path / "net.pnnx.param")
    assert not list(tmp_path.iterdir())


def test_all_that_cannot_be_said_is_named_at_once(tmp_path: Path) -> None:
    g = Graph("odd")
    x = g.input("x", Type("float32", (2, 4)))
    y = ops.ThresholdedRelu(ops.ThresholdedRelu(x, alpha=0.1, name="t"), name="u")
    g.outputs = [ops.Swish(y, alpha=0.5, name="s"), ops.Cast(y, to="uint16", name="c")]
    with pytest.raises(NotWritable) as told:
        write(g, tmp_path / "odd.pnnx.param")
    for text in (
        "cannot say 4 nodes; nothing was written", "ThresholdedRelu x2: PNNX has no such operator",
        "Swish x1: its alpha is 0.5", "Cast x1: PNNX has no values of type uint16[2,4]",
    ):  # fmt: skip
        assert text in str(told.value)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_a_model_from_onnx_computes_the_same_numbers(tmp_path: Path, backend: str) -> None:
    path = FOLDER.parents[2] / "examples" / "digits" / "digits.onnx"
    graph = canonical(ts.load(path))
    other = again(graph, tmp_path)
    assert difference(graph, canonical(other)) == ""
    rng = np.random.default_rng(0)
    shapes: list[Any] = [
        [d if isinstance(d, int) else 2 for d in v.shape or ()] for v in graph.inputs
    ]
    xs = [rng.random(s, np.float32) for s in shapes]
    want = ts.compile(path, backend=backend, cache=False).run(xs)
    for y, z in zip(ts.compile(other, backend=backend, cache=False).run(xs), want, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "number", [0.1, 1 / 3, 1e-30, -3.0, np.float32(np.pi).item(), float("inf"), 16777217.0]
)
def test_numbers_in_formulas_keep_all_their_digits(number: float, tmp_path: Path) -> None:
    for dtype in ("float32", "float64"):
        g = Graph("formula")
        g.outputs = [ops.Mul(g.input("x", Type(dtype, (3,))), np.array(number, dtype), name="y")]
        assert difference(g, again(g, tmp_path)) == ""
        assert "expr=mul(@0," in (tmp_path / "again.pnnx.param").read_text()


def test_names_that_would_end_a_word_are_changed(tmp_path: Path) -> None:
    g = Graph("names")
    x = g.input("x", Type("float32", ("N", 3)))
    g.outputs = [ops.Relu(ops.Relu(x, name="a b=c"), name="a_b_c")]
    made = again(g, tmp_path)
    assert [n.name for n in made.nodes] == ["a_b_c", "a_b_c_1"]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_may_be_a_string(kind: type[str | Path], tmp_path: Path) -> None:
    graph = Graph("path")
    graph.outputs = [ops.Relu(graph.input("x", Type("float32", (1, 3))))]
    write(graph, kind(tmp_path / "x.pnnx.param"))
    assert [n.op.name for n in ts.load(tmp_path / "x.pnnx.param").nodes] == ["Relu"]


NCNN = b"""7767517
8 9
Input data 0 1 data 2=4 0=11 1=10
Pooling pool 1 1 data a 1=3 2=2
HardSwish swish 1 1 a b 0=2.0e-01
Split s 1 2 b b1 b2
HardSigmoid gate 1 1 b1 c 0=2.0e-01 1=4.0e-01
Interp up 1 1 b2 d 0=2 1=2.0e+00 2=2.0e+00
Pooling mean 1 1 c e 0=1 1=2 2=2 13=0 14=1 15=0 3=0 5=1 6=1
InnerProduct fc 1 1 e f 0=3 2=72
"""


def test_what_ncnn_s_networks_have_is_said_by_several_operators(tmp_path: Path) -> None:
    """Padding that differs before and after an axis, slopes that are not PyTorch's, and resizing
    for a free batch."""
    graph = ts.load(NCNN, random_weights=0)
    other = again(graph, tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 4, 10, 11)).astype(np.float32)
    for y, z in zip(ts.compile(other).run([x]), ts.compile(graph).run([x]), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-6, atol=1e-6)
    after = canonical(other)
    assert difference(after, canonical(again(after, tmp_path))) == ""
    assert [n.op.name for n in after.nodes].count("Pad") == 0


def test_indices_and_spectra_are_said_in_the_words_of_pytorch(tmp_path: Path) -> None:
    """Computed tuples of indices, sums at indices, and transforms of signals."""
    g = Graph("words")
    x, at = g.input("x", Type("float32", (4, 6, 5))), g.input("at", Type("int64", (3, 2)))
    z, s = g.input("z", Type("float32", (2, 8, 2))), g.input("s", Type("float32", (2, 40, 1)))
    picked = ops.GatherND(x, at, name="picked")
    g.outputs = [
        picked,
        ops.ScatterND(x, at, ops.Neg(picked), reduction="add", name="added"),
        ops.DFT(z, None, np.array(1, np.int64), name="whole"),
        ops.DFT(z, np.array(6, np.int64), np.array(1, np.int64), inverse=True, name="inverse"),
        ops.DFT(z, None, np.array(1, np.int64), inverse=True, onesided=True, name="real"),
        ops.STFT(s, np.array(4, np.int64), np.hanning(16).astype("f4"), np.array(16), name="stft"),
        ops.STFT(s, np.array(5, np.int64), None, np.array(8), onesided=False, name="both"),
    ]
    graph = canonical(g)
    other = again(graph, tmp_path)
    assert difference(graph, canonical(other)) == ""
    rng = np.random.default_rng(0)
    xs: list[Any] = [rng.random(v.dims, np.float32) for v in g.inputs]
    xs[1] = np.array([[0, 1], [3, -1], [0, 1]])
    for y, want in zip(ts.compile(other).run(xs), ts.compile(g).run(xs), strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    text = (tmp_path / "again.pnnx.param").read_text()
    for word in ("Tensor.index ", "Tensor.index_put", "fft.fft", "fft.ifft", "fft.irfft", "stft"):
        assert word in text


def test_windows_of_one_number(tmp_path: Path) -> None:
    g = Graph("windows")
    x, z = g.input("x", Type("float32", (1, 2, 6, 6))), g.input("z", Type("float32", (1, 8, 25)))
    image, block = np.array([6, 6]), np.array([2, 2])
    g.outputs = [
        ops.MaxPool(x, kernel=2, stride=2, name="most"),
        ops.LpPool(x, kernel=2, name="norms"),
        ops.Col2Im(z, image, block, stride=1, pad=0, name="fold"),
    ]
    xs = [np.random.default_rng(0).random(v.dims, np.float32) for v in g.inputs]
    for y, want in zip(ts.compile(again(g, tmp_path)).run(xs), ts.compile(g).run(xs), strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_indices_and_spectra_that_pytorch_has_no_word_for_are_named(tmp_path: Path) -> None:
    g = Graph("odd")
    x, at = g.input("x", Type("float32", (3, 6, 2))), g.input("at", Type("int64", (3, 1)))
    g.outputs = [
        ops.GatherND(x, at, batch_dims=1, name="g"),
        ops.ScatterND(x, at, x, reduction="max", name="s"),
        ops.STFT(x, np.array(2, np.int64), None, np.array(4), onesided=False, name="f"),
    ]
    with pytest.raises(NotWritable) as told:
        write(g, tmp_path / "odd.pnnx.param")
    for text in ("its batch_dims is 1", "its reduction is 'max'", "its signal is complex"):
        assert text in str(told.value)


POOLS = [  # kernel, stride, padding, size of the input; whether PyTorch has as many windows
    ((5, 3), (3, 5), (2, 2, 0, 2), (9, 3), False),
    ((5, 3), (3, 4), (2, 2, 0, 1), (9, 3), True),
    ((2, 2), (2, 2), (0, 0, 0, 1), (4, 4), False),
    ((2, 2), (2, 2), (0, 0, 1, 1), (5, 5), True),
]


@pytest.mark.parametrize("kernel, stride, pad, sizes, fits", POOLS)
def test_padding_after_an_input_begins_no_window(
    kernel: Any, stride: Any, pad: Any, sizes: Any, fits: bool, tmp_path: Path
) -> None:
    g = Graph("pool")
    x = g.input("x", Type("float32", (1, 2, *sizes)))
    g.outputs = [ops.MaxPool(x, kernel=kernel, stride=stride, pad=pad, ceil_mode=True)]
    if not fits:
        with pytest.raises(NotWritable, match="a window begins in the padding after its input"):
            write(g, tmp_path / "pool.pnnx.param")
        return
    xs = [np.random.default_rng(0).standard_normal(x.dims).astype(np.float32)]
    got, want = run_graph(again(g, tmp_path), xs), run_graph(g, xs)
    np.testing.assert_array_equal(got[0], want[0])


def test_nearest_elements_between_corners_are_not_pytorch_s(tmp_path: Path) -> None:
    g = Graph("nearest")
    modes = {"coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    x = g.input("x", Type("float32", (1, 2, 2, 1)))
    g.outputs = [ops.Resize(x, None, None, [1, 2, 4, 3], mode="nearest", **modes)]
    with pytest.raises(NotWritable, match="its modes nearest, align_corners"):
        write(g, tmp_path / "nearest.pnnx.param")


def test_axes_of_unknown_size_are_split_and_dropped(tmp_path: Path) -> None:
    """As the file says; what the sizes are is tested in a call. A shape of no axis is one too."""
    g = Graph("free")
    x = g.input("x", Type("float32", ("n", "c", 4)))
    first, second = ops.Split(x, [1, 2], axis=1)
    g.outputs = [ops.Squeeze(second, [0]), ops.Squeeze(first, [0, 1])]
    three = np.arange(3, dtype=np.float32)
    g.outputs += [ops.InstanceNorm(x, three, three), ops.GroupNorm(x, three, three, groups=1)]
    g.outputs.append(ops.Reshape(ops.Reduce(x, [0, 1, 2], kind="max"), np.zeros(0, np.int64)))
    xs = [np.random.default_rng(0).random((1, 3, 4), np.float32)]
    for y, want in zip(run_graph(again(g, tmp_path), xs), run_graph(g, xs), strict=True):
        np.testing.assert_array_equal(y, want)


def test_channels_that_a_number_lacks_are_named(tmp_path: Path) -> None:
    g = Graph("number")
    x = g.input("x", Type("float32", ()))
    g.outputs = [
        ops.PRelu(x, np.float32(0.5)),
        ops.Flatten(ops.Relu(g.input("y", Type("float32", (4,))))),
    ]
    with pytest.raises(NotWritable, match="PRelu x1: the size of its input along axis 1") as told:
        write(g, tmp_path / "number.pnnx.param")
    assert "Flatten x1: its axis is 1" in str(told.value)
