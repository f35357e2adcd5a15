"""ncnn's files as they come: apart, in a zip, damaged, and with layers of other people."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.fresh import said
from tinsmith import ops
from tinsmith.errors import (
    DuplicateName,
    ImportFailed,
    InputShapeError,
    ModelFileError,
    OptionError,
    TinsmithError,
)
from tinsmith.formats.ncnn.layers import LAYERS
from tinsmith.formats.ncnn.param import param_bytes, param_text, read_param
from tinsmith.formats.ncnn.schema import COMMON, MOST_PARAMS, layer_type
from tinsmith.formats.ncnn.weights import read_weights
from tinsmith.frontends.ncnn.node import Node, layer
from tinsmith.ops import OPS, op
from tinsmith.writers.ncnn import write
from tinsmith.writers.ncnn.writer import Writer, writes
from tinsmith.writers.rows import constant

TEXT = """7767517
4 4
Input data 0 1 data 0=6 1=5 2=3
Convolution conv 1 1 data a 0=4 1=3 5=1 6=108
ReLU relu 1 1 a b
Pooling pool 1 1 b out 4=1 0=1
"""


def tagged(tag: int, payload: bytes) -> bytes:
    return tag.to_bytes(4, "little") + payload + bytes(-len(payload) % 4)


def net(body: str, layers: int = 2) -> bytes:
    return f"7767517\n{layers} {layers}\nInput data 0 1 data 0=6 1=5 2=3\n{body}\n".encode()


def test_a_pair_is_found_given_or_zipped(tmp_path: Path) -> None:
    param, weights = tmp_path / "net.param", tmp_path / "net.bin"
    param.write_text(TEXT)
    weights.write_bytes(tagged(0, np.ones(108, "<f4").tobytes()) + np.ones(4, "<f4").tobytes())
    x = np.ones((2, 3, 5, 6), np.float32)
    y = ts.compile(param)(x)
    np.testing.assert_allclose(y, np.full((2, 4), 28))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.write(param, "net.param")
        file.write(weights, "net.bin")
    (tmp_path / "net.zip").write_bytes(packed.getvalue())
    pairs: list[Any] = [(param, weights), (TEXT.encode(), weights.read_bytes())]
    for source in (*pairs, packed.getvalue(), tmp_path / "net.zip"):
        np.testing.assert_array_equal(ts.compile(source)(x), y)
    for swapped in ((weights, param), (weights.read_bytes(), TEXT.encode())):
        with pytest.raises(ModelFileError, match="are the two files swapped"):
            ts.load(swapped)
    with pytest.raises(ModelFileError, match=r"Give .*net\.param, which lies beside it"):
        ts.load(weights)
    plain = ts.load(param, batch="none")
    assert [v.shape for v in (*plain.inputs, *plain.outputs)] == [(3, 5, 6), (4,)]
    np.testing.assert_array_equal(ts.compile(plain)(x[0]), y[0])


def test_a_batch_may_be_free_or_fixed() -> None:
    free = ts.compile(TEXT.encode(), random_weights=0, batch="free")
    assert free.inputs["data"].shape == ("N", 3, 5, 6)
    with pytest.raises(InputShapeError, match=r"net\.session\(\(\(1, 3, 5, 6\),\)\)"):
        free.session()
    assert free.session(((1, 3, 5, 6),)).run([np.ones((1, 3, 5, 6), np.float32)])
    fixed = ts.compile(TEXT.encode(), random_weights=0, batch=4)
    with pytest.raises(
        InputShapeError, match=r'first size is fixed: .* batch="free" does for ncnn'
    ):
        fixed(np.ones((2, 3, 5, 6), np.float32))


def test_weights_of_every_encoding() -> None:
    layers = read_param(memoryview(TEXT.encode()), "net")
    w = (np.arange(108) % 7 - 3).astype("<f4")
    book = np.zeros(256, "<f4")
    book[:7] = np.arange(7) - 3.0
    book[0] = -3
    stored = [
        tagged(0, w.tobytes()), tagged(0x0002C056, w.tobytes()),
        tagged(0x000D4B38, w.astype(np.int8).tobytes()),
        tagged(0x01306B47, w.astype("<f2").tobytes()),
        book.tobytes() + (np.arange(108) % 7).astype(np.uint8).tobytes(),
    ]  # fmt: skip
    for record in stored:
        data = record + np.ones(4, "<f4").tobytes()
        read_weights(layers, memoryview(data), "net")
        np.testing.assert_array_equal(layers[1].weights["weight"], w)
        for wrong in (data[:-4], data + bytes(4), data[:3]):
            with pytest.raises(ModelFileError, match=r"net is too (short|long)"):
                read_weights(layers, memoryview(wrong), "net")


def test_random_weights_are_the_same_for_a_seed() -> None:
    x = np.ones((1, 3, 5, 6), np.float32)
    a, b, c = (ts.compile(TEXT.encode(), random_weights=n)(x) for n in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    with pytest.raises(ModelFileError, match="random_weights=SEED"):
        ts.load(TEXT.encode())
    with pytest.raises(OptionError):
        ts.load(TEXT.encode(), random_weights=-1)


def test_numbers_as_ncnn_reads_them() -> None:
    body = b"Yolov3DetectionOutput d 1 1 data out 0=2 1=3 -23305=2,1077936128,2.0 -23304=1,3"
    (_, row) = read_param(memoryview(net(body.decode())), "net")
    assert row.given["mask"] == (3.0, 2.0) and row.given["biases"] == (3.0,)
    (_, row) = read_param(memoryview(net('Reshape r 1 1 data out 6="0w, 0h"')), "net")
    assert row.given["shape_expr"] == "0w, 0h"
    (_, row) = read_param(memoryview(net("Reduction r 1 1 data out 3=1,2 1=0 5=1")), "net")
    assert row.given["axes"] == (1, 2)


WRONG = {
    "7767518\n1 1\n": "looks like",
    "7767517\n-1 1\nInput a 0 1 a": "number of layers",
    "7767517\n99999999 1\nInput a 0 1 a": "ends where",
    "7767517\n1 1\nInput a 0 999999999 a": "ends where",
    "7767517\n1 1\nInput a -1 1 a": "number of inputs",
    net("ReLU r 1 1 nobody out").decode(): "reads 'nobody'",
    net("ReLU r 1 1 data out\nReLU s 1 1 data out", 3).decode(): "twice",
    net("ReLU r 1 1 data data").decode(): "cycle",
    net("ReLU r 1 1 b a\nReLU s 1 1 a b", 3).decode(): "cycle",
    net("Convolution c 1 1 data out 0=4 1=3 6=-7").decode(): "-7 elements",
    net("Convolution c 1 1 data out 0=4 1=3 6=2000000000").decode(): "random weights of",
    net("Convolution c 1 1 data out 0=4 1=3 6=107").decode(): "make no kernel",
    net("Convolution c 1 1 data out 77=4").decode(): "parameter 77",
    net("Softmax c 1 1 data out -23300=5,1").decode(): "5 elements are announced",
    net("Softmax c 1 1 data out 0=x").decode(): "is no number",
    net("Softmax c 1 1 data out 0=1").decode(): "fixbug0",
    net("ReLU c 1 1 data out 5=1").decode(): "'parameter 5'",
    net("Interp c 1 1 data out 0=2 1=-1.0 2=2.0").decode(): "would have the size",
    net("MultiHeadAttention c 1 1 data out 0=0").decode(): "do not fit together",
    net("Gemm c 1 1 data out 3=1 5=1 6=1 8=6 9=5 10=4 18=2147483647").decode(): "are 4, 6 or 8",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told(text: str) -> None:
    with pytest.raises(TinsmithError, match=WRONG[text]):
        ts.load(text.encode(), **({"random_weights": 0} if text.startswith("7767517") else {}))


def test_unknown_layers_are_named_at_once() -> None:
    text = net("Foo f 1 1 data a\nReLu r 1 1 a b\nFoo g 1 1 b c", 4)
    with pytest.raises(ImportFailed, match=r"(?s)2 types are.*Foo x2.*ReLu x1.*'ReLU'"):
        ts.load(text)
    with pytest.raises(ImportFailed, match="layers of 1 type are not known"):
        ts.load(net("Foo f 1 1 data a"))


def test_a_value_that_is_nowhere_is_told_with_one_of_a_name_like_it() -> None:
    told = r"'s' \(ReLU\) of line 4 of the model reads 'conv_1', which.*Did you mean 'conv1'"
    with pytest.raises(TinsmithError, match=told):
        ts.load(net("ReLU s 1 1 conv_1 out\nReLU r 1 1 data conv1", 3))
    with pytest.raises(ModelFileError, match=r"the model, line 5, layer 'r' \(ReLU\): .*'x'"):
        ts.load(net("ReLU s 1 1 data a\nReLU r 1 1 a b 0=x", 3))
    with pytest.raises(TinsmithError, match=r"'r' \(nn\.ReLU\) of line 4 of the model reads '8'"):
        ts.load(
            b"7767517\n3 2\npnnx.Input x 0 1 0 #0=(2)f32\nnn.ReLU r 1 1 8 1\npnnx.Output y 1 0 1\n"
        )


def test_a_layer_of_ones_own(tmp_path: Path) -> None:
    layer_type("Gain", "0 count=0, 1 power=2.0", "R gain count")

    @layer("Gain")
    def gain(node: Node) -> Any:
        node.attr("count")
        y = node.emit("Mul", node[0], node.channels(node.weight("gain"), node[0]))
        return node.emit("Pow", y, node.number(node.attr("power"), y))

    try:
        rows = read_param(memoryview(net("Gain g 1 1 data out 0=3")), "net")
        assert param_text(read_param(memoryview(param_bytes(rows)), "net")).count("Gain") == 1
        graph = ts.load((net("Gain g 1 1 data out 0=3"), np.float32([1, 2, 3]).tobytes()))
        x = np.ones((1, 3, 5, 6), np.float32)
        np.testing.assert_allclose(ts.compile(graph)(x)[0, :, 0, 0], [1, 4, 9])
        write(graph, tmp_path / "y.param")
        written = read_param(memoryview((tmp_path / "y.param").read_bytes()), "y")
        assert len({row.name for row in written}) == len(written) == 3
        np.testing.assert_allclose(ts.compile(tmp_path / "y.param")(x)[0, :, 0, 0], [1, 4, 9])
    finally:
        layer.remove("Gain")
        del LAYERS["Gain"]


@pytest.mark.parametrize(
    "type, params, weights",
    [
        ("Own", "zero a=0", ""), ("Own", "0 a=0, 0 b=1", ""), ("Own", "0 a=0, 1 a=1", ""),
        ("Own", "40 a=0", ""), ("Own", "30 a=0", ""), ("My own", "0 a=0", ""),
        ("Own", "0 a=0", "R w nosuch"), ("Own", "0 a=0", "X w a"), ("Own", "0 a=0", "R w a +"),
        ("Own", "0 a=0", "R w"), ("Own", "0 a=0", "R"), ("Own", "0 a=0", "R w a, R b a if a"),
    ],
)  # fmt: skip
def test_a_row_that_means_nothing_is_refused_at_once(type: str, params: str, weights: str) -> None:
    with pytest.raises(OptionError, match=type):
        layer_type(type, params, weights)
    assert type not in LAYERS


def test_numbers_of_parameters_are_told_as_they_are_checked() -> None:
    most = MOST_PARAMS - 1
    with pytest.raises(OptionError, match=rf"0 to {most}, of which every type has {COMMON[:2]} "):
        layer_type("Own", f"{MOST_PARAMS} a=0")
    taken = {p.id for p in LAYERS["ReLU"].params if p.id > 1}
    free = ", ".join(f"{i} p{i}=0" for i in range(MOST_PARAMS) if i not in taken)
    layer_type("Own", free)
    assert {p.id for p in LAYERS.pop("Own").params} == set(range(MOST_PARAMS))


def test_two_weights_with_a_comma_between_them_are_told_what_belongs_there() -> None:
    with pytest.raises(OptionError, match="';' goes between two weights") as caught:
        layer_type("Own", "0 a=0", "R w a, R b a if a")
    assert not isinstance(caught.value.__cause__, SyntaxError)


def test_a_name_that_is_taken_is_refused_where_it_is_registered() -> None:
    with pytest.raises(DuplicateName, match="ReLU"):
        layer_type("ReLU")
    code = (
        "from tinsmith.frontends.ncnn.node import layer\n"
        "from tinsmith.frontends.pnnx.node import operator\n"
        "for register, name in ((layer, 'ReLU'), (operator, 'nn.ReLU')):\n"
        "    try:\n"
        "        register(name)(lambda node, input=None: node[0])\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, name in str(error))\n"
        "import tinsmith as ts\n"
        "print(len(ts.load(b'7767517\\n2 2\\nInput x 0 1 x 0=4\\nReLU r 1 1 x y\\n').nodes))\n"
    )
    assert said(code).split() == ["DuplicateName", "True"] * 2 + ["1"]


def test_a_layer_of_ones_own_is_written_by_its_type(tmp_path: Path) -> None:
    """An operator, composed of others, between what reads the layer and what writes it."""
    layer_type("Gain", "0 count=0, 1 power=2.0", "T gain count")

    @op("composed")
    def Gain(x: Any, gain: Any, *, power: float = 2.0) -> Any:
        return ops.Pow(ops.Mul(x, gain), np.float32(power))

    @Gain.type
    def _(x: Any, gain: Any, *, power: float) -> Any:
        return x.type

    @layer("Gain")
    def read(node: Node) -> Any:
        node.attr("count")
        gain = node.channels(node.weight("gain"), node[0])
        return node.emit("Gain", node[0], gain, power=node.attr("power"))

    @writes("Gain")
    def written(w: Writer, node: Any) -> None:
        gain = constant(node.inputs[1], "its gain").reshape(-1)
        given = {"count": len(gain), "power": node.attrs["power"]}
        w.layer_of("Gain", node, given, gain=gain)

    body = "ReLU r 1 1 data a\nGain g 1 1 a b 0=3 1=3.0\nGain h 1 1 b out 0=3"
    try:
        weights = np.array([0, 1, 2, 3, 0, 1, 1, 2], np.float32).tobytes()
        graph = ts.load((net(body, 4), weights))
        x = np.full((2, 3, 5, 6), 2, np.float32)
        want = [64, 64**2, 4 * 216**2]
        np.testing.assert_allclose(ts.compile(graph)(x)[1, :, 0, 0], want)
        for name, options in {
            "y.param": {}, "halves.param": {"halves": True}, "z.param.bin": {"binary": True},
        }.items():  # fmt: skip
            param, bin = write(graph, tmp_path / name, **options)
            rows = read_param(memoryview(param.read_bytes()), name)
            assert [row.type for row in rows] == ["Input", "ReLU", "Gain", "Gain"]
            again = ts.load((param, bin))
            kept = [(n.op, n.inputs[1:] and n.inputs[1].const.tolist()) for n in graph.nodes]
            assert kept == [
                (n.op, n.inputs[1:] and n.inputs[1].const.tolist()) for n in again.nodes
            ]
            np.testing.assert_allclose(ts.compile(again)(x)[1, :, 0, 0], want)
        ts.write(ts.optimize(tmp_path / "y.param"), tmp_path / "small.param")
        assert (tmp_path / "small.param").read_text().count("Gain") == 2
        fixed = ts.compile(ts.load((net(body, 4), weights), batch=2))
        assert fixed.memory.naive >= x.nbytes
        assert len(ts.load(net(body, 4), random_weights=0).nodes) == 3
    finally:
        writes.remove("Gain")
        layer.remove("Gain")
        OPS.remove("Gain")
        del LAYERS["Gain"]


def test_an_importer_that_gives_no_value_is_told() -> None:
    layer_type("Three")
    layer("Three")(lambda node: 3)
    try:
        with pytest.raises(ImportFailed, match="its importer gave 3, no value"):
            ts.load(net("Three t 1 1 data out"))
    finally:
        layer.remove("Three")
        del LAYERS["Three"]


def test_shapes_of_inputs_are_given_without_editing_the_file() -> None:
    lines = TEXT.replace(" 0=6 1=5 2=3", "").encode()
    assert ts.load(lines, random_weights=0).inputs[0].shape == ("N", 3, "data_h", "data_w")
    wide = ts.load(lines, random_weights=0, input_shapes={"data": ["B", 3, 9, 8]})
    assert wide.inputs[0].shape == ("B", 3, 9, 8)
    net = ts.compile(lines, random_weights=0, input_shapes={"data": (2, 3, 9, 8)}, cache=False)
    assert net(np.ones((2, 3, 9, 8), np.float32)).shape == (2, 4)
    other = ts.load(TEXT.encode(), random_weights=0, input_shapes={"data": (1, 3, 7, 7)})
    assert other.inputs[0].shape == (1, 3, 7, 7)  # in the place of the file's
    plain = {"batch": "none", "input_shapes": {"data": (3, 7, 7)}}
    assert ts.load(lines, random_weights=0, **plain).inputs[0].shape == (3, 7, 7)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"date": (1, 3, 5, 6)}, "no input 'date'.*Did you mean 'data'"),
        ({"data": (1, -3, 5, 6)}, "sizes and names of free ones"),
        ({"data": 5}, "sizes and names of free ones"),
        ("data", "is shapes by names"),
    ],
)
def test_shapes_that_are_none_are_refused(shapes: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ts.compile(TEXT.encode(), random_weights=0, input_shapes=shapes)
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    with pytest.raises(OptionError, match="onnx says"):
        ts.load(digits, input_shapes={"image": (1, 1, 9, 8)})
    assert ts.load(digits, input_shapes={"image": (4, 1, 8, 8)}).outputs[0].shape == (4, 10)
