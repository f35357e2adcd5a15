"""The quantised models of the PNNX tests, made by torch:

    python -m tests.frontends.pnnx_quantised_models tests/data/pnnx

`pnnx` writes the first. It cannot open a file of torch with layers whose weights are quantised, for
want of an engine; so those of `quantised_layers` are written here, as its sources tell.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.ao.nn.intrinsic.quantized as nniq
import torch.ao.nn.quantized as nnq
import torch.nn.functional as F
from torch import nn

from tests.frontends.pnnx_models import Of, model, write
from tinsmith.formats.pnnx import Operator, Tensor
from tinsmith.formats.pnnx import write as write_files


def ones(*shape):
    return nn.Parameter(torch.ones(shape) * 0.7), nn.Parameter(torch.ones(shape) * 0.2)


def on(function):
    """A function of quantised tensors, of floats."""

    def run(x, *modules):
        return function(torch.quantize_per_tensor(x, 0.05, 60, torch.quint8)).dequantize()

    return run


def functional(name, *args):
    f = nnq.QFunctional()
    f.scale, f.zero_point = 0.06, 50

    def run(q):
        if name == "cat":
            return f.cat([q, q], 1)
        if name == "matmul":
            return f.matmul(q, q.transpose(2, 3))
        return getattr(f, name)(q, *args or (q,))

    return on(run)


@model("quantised", (2, 3, 4, 6))
def quantised():
    modules = [
        nnq.Hardswish(0.04, 30), nnq.ELU(0.04, 30), nnq.LeakyReLU(0.04, 30), nnq.ReLU6(),
        nnq.Sigmoid(0.004, 0), nnq.Softmax(1, 0.004, 0), nnq.BatchNorm2d(3),
        nnq.LayerNorm((6,), *ones(6), 0.03, 128), nnq.InstanceNorm2d(3, *ones(3), 0.03, 128),
        nnq.GroupNorm(1, 3, *ones(3), 0.03, 128), nn.ReLU(), nn.Tanh(), nn.Hardsigmoid(),
        nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Hardtanh(),
    ]  # fmt: skip
    functions = [on(module) for module in modules]
    functions += [functional(name) for name in ("add", "add_relu", "mul", "cat", "matmul")]
    functions += [functional("add_scalar", c) for c in (2.0, -1.3, 20.0, -20.0)]
    functions += [functional("mul_scalar", c) for c in (2.0, -0.7, 0.0)]
    functions += [
        on(lambda q: q.sigmoid()),
        on(lambda q: q.clamp(-0.3, 0.4).mean((2, 3))),
        on(lambda q: F.interpolate(q, scale_factor=2.0, mode="nearest")),
        on(lambda q: torch.cat((q, q), 1).permute(0, 2, 3, 1)[:, 1:].flatten(1)),
        on(lambda q: q.chunk(3, 1)[1]),
        lambda x: torch.quantize_per_tensor(x, 0.01, -3, torch.qint8).tanh().dequantize(),
        lambda x: torch.quantize_per_channel(
            x, torch.tensor([0.01, 0.02, 0.03]), torch.tensor([9, 0, 2]), 1, torch.quint8
        ).dequantize(),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.01, 3, 0, 255),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 3, -20, 40),
    ]
    return Of(lambda *xs: tuple(f(xs[-1]) for f in functions), *modules)


def layer(kind, shape, scale, zero, *args, **options):
    module, weight = kind(*args, **options), torch.randn(shape) * 0.3
    scales = weight.abs().flatten(1).max(1)[0].double() / 127
    zeros = torch.zeros(shape[0], dtype=torch.long)
    whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    module.set_weight_bias(whole, torch.randn(shape[0]) * 0.2)
    module.scale, module.zero_point = scale, zero
    return module


def layers():
    """Each with its name in PNNX."""
    relu, conv = "nn.intrinsic.quantized.ConvReLU2d", nnq.Conv2d
    first = layer(conv, (8, 6, 3, 3), 0.03, 120, 6, 8, 3, padding=1)
    depthwise = layer(nniq.ConvReLU2d, (8, 1, 3, 3), 0.02, 0, 8, 8, 3, stride=2, groups=8)
    pointwise = layer(nniq.ConvReLU2d, (16, 8, 1, 1), 0.015, 0, 8, 16, 1)
    yield "nn.quantized.Conv2d", first
    yield relu, depthwise
    yield relu, pointwise
    yield "nn.AdaptiveAvgPool2d", nn.AdaptiveAvgPool2d(1)
    yield "torch.flatten", nn.Flatten()
    yield "nn.quantized.Linear", layer(nnq.Linear, (5, 16), 0.01, 128, 16, 5)


def _operator(kind, module, at, arrays):
    op = Operator(kind, f"m{at}", [str(at)], [str(at + 1)])
    if kind == "torch.flatten":
        op.params = {"start_dim": 1, "end_dim": -1}
    if kind == "nn.AdaptiveAvgPool2d":
        op.params = {"output_size": (1, 1)}
    if ".quantized" in kind:
        weight, bias = module.weight(), module.bias()
        given = {
            "weight": weight.int_repr(), "bias": bias.detach(),
            "weight.q_per_channel_scales": weight.q_per_channel_scales(),
            "weight.q_per_channel_zero_points": weight.q_per_channel_zero_points(),
        }  # fmt: skip
        for key, value in given.items():
            array = arrays[f"{op.name}.{key}"] = value.numpy()
            op.weights[key] = Tensor(array.dtype.name, array.shape)
        op.params = {"scale": module.scale, "zero_point": module.zero_point}
        names = ("stride", "padding", "dilation", "groups") if "Conv" in kind else ()
        op.params |= {name: getattr(module, name) for name in names} | {"bias": True}
    return op


def write_layers(folder: Path) -> None:
    torch.manual_seed(0)
    x, arrays, wanted = torch.rand(2, 6, 9, 10) * 2 - 1, {}, []
    read = Operator("pnnx.Input", "x", [], ["0"])
    read.tensors["0"] = Tensor("float32", x.shape)
    start = Operator("nn.quantized.Quantize", "q", ["0"], ["1"])
    start.params = {"dtype": "torch.qint8", "scale": 0.008, "zero_point": 128}
    h = torch.quantize_per_tensor(x, 0.008, 128, torch.quint8)
    start.tensors["1"] = Tensor("uint8", h.shape)
    operators = [read, start]
    for at, (kind, module) in enumerate(layers(), 1):
        h = module(h)
        operators.append(_operator(kind, module, at, arrays))
        operators[-1].tensors[str(at + 1)] = Tensor("uint8", h.shape)
        wanted.append(h.int_repr().numpy())
    last = str(len(operators) - 1)
    operators.append(Operator("nn.quantized.DeQuantize", "d", [last], ["y"]))
    outputs = [str(i + 2) for i in range(len(wanted))]
    operators.append(Operator("prim::TupleConstruct", "t", [*outputs, "y"], ["all"]))
    operators.append(Operator("pnnx.Output", "out", ["all"], []))
    write_files(folder / "quantised_layers.pnnx.param", operators, arrays)
    numbers = {f"y{i}": y for i, y in enumerate([*wanted, h.dequantize().numpy()])}
    np.savez_compressed(folder / "quantised_layers.npz", x0=x.numpy(), **numbers)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    target = Path(sys.argv[1])
    print(write(target, "quantised", str(Path(sys.executable).with_name("pnnx"))) or "ok")
    write_layers(target)
