"""Operators that are one to one: ours, and what PNNX calls it."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from tinsmith.frontends.pnnx.expression import BINARY, UNARY
from tinsmith.frontends.pnnx.node import IMPORTERS, SIGNATURES, PnnxNode, operator

ROWS: dict[str, tuple[str, dict[str, tuple[str, Any]]]] = {
    "Relu": ("nn.ReLU F.relu torch.relu", {}),
    "Sigmoid": ("nn.Sigmoid F.sigmoid torch.sigmoid", {}),
    "Tanh": ("nn.Tanh F.tanh torch.tanh", {}),
    "Swish": ("nn.SiLU F.silu", {}),
    "Mish": ("nn.Mish F.mish", {}),
    "Softsign": ("nn.Softsign F.softsign", {}),
    "HardSwish": ("nn.Hardswish F.hardswish", {}),
    "Selu": ("nn.SELU F.selu", {}),
    "Elu": ("nn.ELU F.elu", {"alpha": ("alpha", 1.0)}),
    "Celu": ("nn.CELU F.celu", {"alpha": ("alpha", 1.0)}),
    "Gelu": ("nn.GELU F.gelu", {"approximate": ("approximate", "none")}),
    "LeakyRelu": ("nn.LeakyReLU F.leaky_relu", {"alpha": ("negative_slope", 0.01)}),
    "IsNaN": ("torch.isnan", {}),
    "IsInf": ("torch.isinf", {}),
    "Einsum": ("torch.einsum", {"equation": ("equation", Parameter.empty)}),
    "MatMul": ("torch.matmul torch.bmm torch.mm torch.mv Tensor.matmul", {}),
    "Det": ("torch.det", {}),
    "Inverse": ("torch.inverse", {}),
    "NonZero": ("torch.nonzero", {}),
    "ChannelShuffle": ("nn.ChannelShuffle F.channel_shuffle", {"groups": ("groups", Parameter.empty)}),
}  # fmt: skip
"""Our operator -> the types that are read as it, the first of which is written; our attributes,
with the parameter there and its default."""

COMPARISONS = {
    "eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual",
}  # fmt: skip


def _register(op: str, types: str, attrs: dict[str, tuple[str, Any]]) -> None:
    def run(node: PnnxNode) -> Any:
        given = {ours: node.attr(theirs, default) for ours, (theirs, default) in attrs.items()}
        if missing := [attrs[ours][0] for ours, v in given.items() if v is Parameter.empty]:
            given = {ours: node.required(missing[0]) for ours in given}
        return node.emit(op, *node.inputs, **given)

    kinds = [Parameter("inputs", Parameter.VAR_POSITIONAL)]
    kinds += [Parameter(n, Parameter.KEYWORD_ONLY, default=d) for n, d in attrs.values()]
    for type in types.split():
        SIGNATURES[type] = Signature(kinds)
        IMPORTERS.register(type, run)


for _op, (_types, _attrs) in ROWS.items():
    _register(_op, _types, _attrs)

for _name, _made in UNARY.items():
    if _name != "tanh" and "." not in _name and _name != "int":
        operator(f"torch.{_name}", f"Tensor.{_name}")(
            lambda node, input, made=_made: made(node, input)
        )
