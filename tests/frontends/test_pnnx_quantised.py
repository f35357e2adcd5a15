"""Quantised PNNX models: the numbers of PyTorch to one quantum, computed in bytes."""

from __future__ import annotations

import io
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.pnnx_text import FOLDER, numbers, param
from tinsmith.backends.cpu import compile_placed
from tinsmith.codegen.products import PRODUCTS
from tinsmith.codegen.target import ISAS, host
from tinsmith.errors import ImportFailed, ModelWarning
from tinsmith.kernels._kernel import KERNELS
from tinsmith.passes import COURSE, run_passes


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("name", ["quantised", "quantised_layers"])
def test_the_numbers_are_those_of_pytorch_to_one_quantum(name: str, backend: str) -> None:
    xs, ys = numbers(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message="'\\d+' is quantised: its whole numbers", category=ModelWarning
        )
        graph = ts.load(FOLDER / f"{name}.pnnx.param")
    got = ts.compile(graph, backend=backend, cache=False).run(xs)
    for v, y, want in zip(graph.outputs, got, ys, strict=True):
        assert (y.dtype, y.shape) == (want.dtype, want.shape), v
        node: Any = v.producer
        nodes = [node, node.inputs[0].producer]
        scales = [n.inputs[1].const.max() for n in nodes if n.op.name == "DequantizeLinear"]
        quantum = scales[0] if y.dtype.kind == "f" else 1
        apart = np.abs(np.float64(y) - want)
        assert apart.max() <= 1.001 * quantum, v
        assert (apart > quantum / 2).sum() <= max(0.12 * apart.size, 3), v


FAST = sorted({isa.byte_products for isa in ISAS.values() if isa.byte_products})


@pytest.mark.parametrize("products", FAST)
def test_layers_of_bytes_are_computed_in_bytes(products: str) -> None:
    """Where a machine multiplies bytes so fast; the code is planned for this one."""
    with pytest.warns(ModelWarning, match="whole numbers"):
        graph = ts.load(FOLDER / "quantised_layers.pnnx.param")
    for stage in COURSE:
        run_passes(graph, stage, byte_rate=PRODUCTS[products].rate)
    steps = compile_placed(graph, host()).built.plan.steps
    computed = [KERNELS[s.kernel].op for s in steps if s.kernel in KERNELS]
    layers = [op for op in computed if op.startswith(("Conv", "MatMul"))]
    assert layers == ["ConvInteger"] * 3 + ["MatMulInteger"]


X = "pnnx.Input x 0 1 x #x=(2,3)f32"
Q = "nn.quantized.Quantize q 1 1 x q scale=0.1 zero_point=3 #q=(2,3)u8"
REFUSED = {
    "a whole scale": (
        Q, "nn.quantized.Linear l 1 1 q y scale=0.1 zero_point=0 @bias=(4)f32 @weight=(4,3)i8",
        "has not written the scale of its weights",
    ),
    "packed": (
        Q, "pnnx.custom_op.quantized.conv2d l 1 1 q y $arg_0=q", "has not written their scale"
    ),
    "no scale": (Q.replace("0.1", "-0.1"), "torch.dequantize d 1 1 q y", "its scale .* is -0.1;"),
    "nan": (Q.replace("0.1", "nan"), "torch.dequantize d 1 1 q y", "its scale .* is nan;"),
    "a word": (Q.replace("0.1", "house"), "torch.dequantize d 1 1 q y", "no number|not as exp"),
    "zero outside": (Q.replace("=3", "=300"), "torch.dequantize d 1 1 q y", "outside uint8"),
    "another type": (Q.replace(")u8", ")f64"), "torch.dequantize d 1 1 q y", "as float64"),
    "by channel": (
        "aten::quantize_per_channel q 3 1 x s z q axis=1 dtype=13 #q=(2,3)u8",
        "nn.ReLU r 1 1 q y", "by channel",
    ),
    "a function": (
        Q, "pnnx.custom_op.quantized.add a 1 1 q y $arg_0=q arg_7=0.1", "not as expected"
    ),
    "a scale that is computed": (
        "aten::quantize_per_tensor q 4 1 x x x x q", "torch.dequantize d 1 1 q y", "is computed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_does_not_tell_is_named(case: str) -> None:
    first, second, said = REFUSED[case]
    scales = [
        "pnnx.Attribute s 0 1 s @data=(3)f32 #s=(3)f32",
        "pnnx.Attribute z 0 1 z @data=(3)i64 #z=(3)i64",
    ]
    text = param(X, *scales, first, second, "pnnx.Output out 1 0 y")
    weights = {"s.data": np.ones(3, "f4"), "z.data": np.zeros(3, "i8")}
    weights |= {"l.bias": np.ones(4, "f4"), "l.weight": np.ones((4, 3), "i1")}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in weights.items():
            archive.writestr(name, array.tobytes())
    with pytest.raises(ImportFailed, match=said):
        ts.load((text, packed.getvalue()))
