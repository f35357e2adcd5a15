"""The table of PNNX operators that are one node of ours each, and importers of arithmetic."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

from tinsmith.frontends.pnnx.expression import BINARY, UNARY, common
from tinsmith.frontends.pnnx.node import IMPORTERS, PnnxNode, operator

NEEDED = Parameter.empty
"""As a default: the parameter must be there."""

SIXTH = 0.1666666716337204
"""1 / 6 as float32 has it, which is what files of other formats say."""

Row = tuple[str, str, dict[str, tuple[str, Any]]]

ROWS: list[Row] = [
    ("Relu", "nn.ReLU F.relu torch.relu", {}),
    ("Sigmoid", "nn.Sigmoid F.sigmoid torch.sigmoid", {}),
    ("Tanh", "nn.Tanh F.tanh torch.tanh", {}),
    ("Swish", "nn.SiLU F.silu", {}),
    ("Mish", "nn.Mish F.mish", {}),
    ("Softsign", "nn.Softsign F.softsign", {}),
    ("HardSwish", "nn.Hardswish F.hardswish", {}),
    ("Selu", "nn.SELU F.selu", {}),
    ("Elu", "nn.ELU F.elu", {"alpha": ("alpha", 1.0)}),
    ("Celu", "nn.CELU F.celu", {"alpha": ("alpha", 1.0)}),
    ("Gelu", "nn.GELU F.gelu", {"approximate": ("approximate", "none")}),
    ("LeakyRelu", "nn.LeakyReLU F.leaky_relu", {"alpha": ("negative_slope", 0.01)}),
    ("Shrink", "nn.Softshrink F.softshrink", {"bias": ("lambd", 0.5), "lambd": ("lambd", 0.5)}),
    ("Shrink", "nn.Hardshrink F.hardshrink", {"lambd": ("lambd", 0.5)}),
    ("Clip", "nn.Hardtanh F.hardtanh", {"min": ("min_val", -1.0), "max": ("max_val", 1.0)}),
    ("Clip", "nn.ReLU6 F.relu6", {"min": ("", 0.0), "max": ("", 6.0)}),
    ("HardSigmoid", "nn.Hardsigmoid F.hardsigmoid", {"alpha": ("", SIXTH)}),
    ("IsNaN", "torch.isnan", {}),
    ("IsInf", "torch.isinf", {}),
    ("Einsum", "torch.einsum", {"equation": ("equation", NEEDED)}),
    ("MatMul", "torch.matmul torch.bmm torch.mm torch.mv Tensor.matmul", {}),
    ("Det", "torch.det", {}),
    ("Inverse", "torch.inverse", {}),
    ("GatherElements", "torch.gather torch.take_along_dim", {"axis": ("dim", NEEDED)}),
    ("Unsqueeze", "torch.unsqueeze Tensor.unsqueeze", {"1": ("dim", NEEDED)}),
    ("ChannelShuffle", "nn.ChannelShuffle F.channel_shuffle", {"groups": ("groups", NEEDED)}),
]  # fmt: skip
"""(our operator, PNNX's types, {our attribute: (PNNX's parameter, default)}). A parameter "" means
that the attribute is always the default. The attribute "1" is our second input, a vector."""

COMPARISONS = {
    "eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual",
}  # fmt: skip


def _register(op: str, types: str, attrs: dict[str, tuple[str, Any]]) -> None:
    """Register an importer function for the PNNX types in one row of ROWS."""

    def run(node: PnnxNode) -> Any:
        given = {}
        for ours, (theirs, default) in attrs.items():
            needed = default is NEEDED
            given[ours] = node.required(theirs) if needed else node.attr(theirs, default)
        more = [node.ints(given.pop("1"))] if "1" in given else []
        return node.emit(op, *node.inputs, *more, **given)

    IMPORTERS(*types.split())(run)


for _op, _types, _attrs in ROWS:
    _register(_op, _types, _attrs)

for _name, _made in UNARY.items():
    if _name not in ("tanh", "int") and "." not in _name:
        operator(f"torch.{_name}")(lambda node, input, made=_made: made(node, input))

_ALIASES = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_ALIASES |= {"lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift"}


def _binary(name: str) -> Any:
    def run(
        node: PnnxNode, input: Any, other: Any, *, alpha: Any = 1, rounding_mode: Any = None
    ) -> Any:
        other = other if alpha in (1, None) else BINARY["mul"](node, other, alpha)
        if rounding_mode == "trunc":
            x, y = common(node, input, other)
            y = node.emit("Div", x, y)
            return y if x.dtype.kind in "iu" else UNARY["trunc"](node, y)
        return BINARY["floor_divide" if rounding_mode else name](node, input, other)

    return run


for _name in BINARY:
    if _name not in ("max", "min"):
        operator(f"torch.{_ALIASES.get(_name, _name)}")(_binary(_name))
