"""Constant scales of quantised operators that leave no numbers are refused when a file is read."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.frontends.models import contrib, model, one, run
from tests.frontends.samples import OUT, A, low, samples
from tests.ncnn.cases import model_of
from tinsmith.errors import ImportFailed, QuantizeError, ScaleError
from tinsmith.formats.ncnn.param import read_param
from tinsmith.formats.ncnn.weights import read_weights, write_weights
from tinsmith.frontends import load
from tinsmith.frontends.onnx.call import IMPORTERS
from tinsmith.frontends.scales import SCALES
from tinsmith.ops import OPS

NONE = [np.inf, -np.inf, np.nan, 0.0, -0.0]
"""Numbers that no scale is, if it is the only one."""
TOLD = r"is (-?0|-?inf|nan|-0\.5)"

IMAGE, KERNELS = (low(1, 2, 4, 4), *A[1:]), (low(3, 2, 3, 3), *A[1:])
STANDARD = {
    "QuantizeLinear": (np.ones((3, 4), np.float32), *OUT),
    "DequantizeLinear": A,
    "QLinearConv": (*IMAGE, *KERNELS, *OUT),
    "QLinearMatMul": (*A, low(4, 5), *A[1:], *OUT),
}
"""Operators of SCALES, with inputs: as in `samples`, OUT is what they divide by."""


def _models() -> dict[str, Any]:
    """Operator -> a model of it, with its inputs: STANDARD, and all that contrib_quant imports."""
    found = {name: one(name, *map(np.asarray, v)) for name, v in STANDARD.items()}
    cases = samples()
    names = [n for n in IMPORTERS if IMPORTERS[n].__module__.endswith("contrib_quant")]
    names += [name for op in STANDARD if (name := f"com.microsoft.{op}") in IMPORTERS]
    return found | {name: cases[name][0] for name in names}


MODELS = _models()


def scales_of(proto: ModelProto, feeds: Any) -> dict[str, Any]:
    """Name -> array of the inputs that are scales: all single floats."""
    given = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer} | feeds
    return {k: v for k, v in given.items() if v.dtype == np.float32 and v.size == 1}


def with_scale(proto: ModelProto, name: str, array: Any) -> ModelProto:
    """The model with another array, a constant, as its input `name`."""
    made = ModelProto()
    made.CopyFrom(proto)
    for values in (made.graph.input, made.graph.initializer):
        for v in [v for v in values if v.name == name]:
            values.remove(v)  # type: ignore[arg-type]
    made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


PLACES = [(type, name) for type, case in MODELS.items() for name in scales_of(*case)]


def test_the_table_has_every_input_that_is_a_scale() -> None:
    found = {}
    for name in OPS:
        op = OPS[name]
        pairs = [(s, s.replace("scale", "zero_point")) for s in op.inputs if s.endswith("scale")]
        if named := {s: op.inputs.index(s) for s, zero in pairs if zero in op.inputs}:
            found[name] = named
    assert found == SCALES and SCALES.keys() == STANDARD.keys()
    assert {type for type, _ in PLACES} == MODELS.keys()


@pytest.mark.parametrize("type, name", PLACES)
def test_scales_that_leave_no_numbers_are_refused(type: str, name: str) -> None:
    proto, feeds = MODELS[type]
    scale = scales_of(proto, feeds)[name]
    divides = scale == OUT[0]
    # the weights of a DynamicQuantizeLSTM have a scale in a block each
    numbers = NONE[:3] if "LSTM" in type else [*NONE, -0.5] if divides else NONE
    for bad in numbers:
        with pytest.raises(ScaleError, match=rf"{type} .*its \w*scale \(.*\) {TOLD}") as told:
            load(with_scale(proto, name, np.full_like(scale, bad)))
        assert "quantise the model anew" in str(told.value)
        assert isinstance(told.value, ImportFailed) and isinstance(told.value, QuantizeError)
    load(with_scale(proto, name, np.full_like(scale, 0.5 if divides else -0.5)))


@pytest.mark.parametrize("type", [t for t in MODELS if "LSTM" not in t])
def test_scales_that_a_run_computes_follow_the_definition(type: str) -> None:
    proto, feeds = MODELS[type]
    for name, scale in scales_of(proto, feeds).items():
        for bad in (-0.5, 0.0):
            run(proto, feeds | {name: np.full_like(scale, bad)})


def by_channel(scale: Any) -> Any:
    inputs = np.arange(6, dtype=np.int8).reshape(2, 3) + 1, np.array(scale, np.float32)
    return one("DequantizeLinear", *inputs, weights=(1,))


def test_channels_and_blocks_without_weights_have_a_scale_of_0() -> None:
    """ONNX Runtime's tools give blocks the scale -w / 8 for their largest weight w, 0 for zeros."""
    (y,) = run(*by_channel([0.5, 0, -2]))
    np.testing.assert_array_equal(y, [[0.5, 0, -6], [2, 0, -12]])
    with pytest.raises(ScaleError, match=r"'x1'\) is nan \(1 of 3 numbers\)"):
        load(by_channel([0.5, np.nan, 0])[0])
    with pytest.raises(ScaleError, match=r"is 0 \(3 of 3 numbers\); .* not all 0"):
        load(by_channel([0, 0, 0])[0])
    w = np.ones((4, 2), np.int8)
    for numbers in (0.0, -0.0, -0.125):
        scale = np.full((2, 2), numbers, np.float32)
        made = one("DequantizeLinear", w, scale, weights=(1,), axis=0, block_size=2)
        np.testing.assert_array_equal(run(*made)[0], w * np.float32(numbers))


@pytest.mark.parametrize("groups", [(), (np.zeros(32, np.int32),)], ids=["", "g_idx"])
def test_scales_of_blocks_of_a_few_bits(groups: Any) -> None:
    def made(scale: float) -> Any:
        inputs = [np.ones((3, 32), np.float32), low(5, 1, 16), np.full(5, scale, np.float32)]
        inputs += [None, *groups] if groups else []
        weights = (1, 2, 4) if groups else (1, 2)
        return contrib("MatMulNBits", *inputs, K=32, N=5, bits=4, block_size=32, weights=weights)

    assert not run(*made(0))[0].any()
    for bad in NONE[:3]:
        with pytest.raises(ScaleError, match=r"\(5 of 5 numbers\)"):
            load(made(bad)[0])


def test_all_scales_are_told_at_once() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["a"], name="first"),
        helper.make_node("DequantizeLinear", ["a", "t"], ["b"], name="second"),
        helper.make_node("DequantizeLinear", ["a", "u"], ["y"], name="third"),
    ]
    weights = {"s": np.float32(-1), "t": np.float32(2), "u": np.float32(np.inf)}
    arrays = {k: np.asarray(v) for k, v in weights.items()}
    x = {"x": np.ones((2, 3), np.float32)}
    with pytest.raises(ScaleError) as told:
        load(model(nodes, x, ["b", "y"], arrays))
    assert re.search(r"Q.*'s'\) is -1; .*positive.*\['first'\]", str(told.value))
    with pytest.raises(ScaleError, match=r"'s'.* is -1"):
        load(model(nodes[:1], x, ["a"], arrays))
    nodes.append(helper.make_node("Twirl", ["x"], ["z"]))
    with pytest.raises(ImportFailed, match=r"(?s)'s'.* is -1.*Twirl") as mixed:
        load(model(nodes, x, ["b", "y", "z"], arrays))
    assert not isinstance(mixed.value, ScaleError)


LAYERS = [
    "Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=2",
    "Convolution 4x9x10; 0=6 1=3 4=1 5=1 6=216 8=102",
    "ConvolutionDepthWise 4x9x10; 0=4 1=3 4=1 5=1 6=36 7=4 8=1",
    "InnerProduct 60; 0=6 1=1 2=360 8=2",
    "Quantize 3x4x5; 0=3",
    "Dequantize 3x4x5; 0=3 1=3",
    "Requantize 3x4x5; 0=3 1=3",
    "LSTM 6x5; 0=4 1=80 8=2",
    "Embed i7; 0=5 1=9 2=1 3=45 18=2",
    "Gemm 4x5; 3=1 5=1 6=1 8=6 9=5 10=4 18=2",
    "MultiHeadAttention 6x8; 0=8 1=2 2=64 18=2",
    "MultiHeadAttention 6x40; 0=8 1=2 2=320 3=40 4=40 18=610",
]


@pytest.mark.parametrize("line", LAYERS)
@pytest.mark.filterwarnings("ignore:.*int8", "error::RuntimeWarning")
def test_scales_of_ncnn(line: str) -> None:
    param, weights = model_of(line)
    layers = read_param(memoryview(param.encode()), line)
    read_weights(layers, memoryview(weights), line)
    layer = layers[-1]
    names = [name for name in layer.weights if "scale" in name]
    assert names
    for name in names:
        good = layer.weights[name]
        for bad in (*NONE, -0.5):
            array = good.copy()
            array[0] = bad
            layer.weights[name] = array
            data = param.encode(), b"".join(write_weights(layers))
            if name == "weight_scales" and array.size > 1 and not np.isnan(bad):
                load(data)  # 0, and infinite as 127 / 0: of weights that are all 0
            elif name in ("scale", "scale_in") and layer.type != "Quantize" and np.isfinite(bad):
                load(data)
            else:
                with pytest.raises(ScaleError, match=rf"{layer.type}.*scale.* {TOLD}"):
                    load(data)
        layer.weights[name] = good
