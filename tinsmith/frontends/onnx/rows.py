"""Importers of operators that are one to one: an ONNX operator is one node of ours, with the same
inputs, attributes and defaults, perhaps under other names."""

from __future__ import annotations

from typing import Any

from tinsmith.formats.onnx_names import table
from tinsmith.frontends.onnx.call import IMPORTERS, Call, Importer, Result
from tinsmith.ops import OPS

IGNORED: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv"), ("kernel_shape",)
)
"""Operator -> its attributes that only repeat the shapes of inputs."""


def one_to_one(op: str, names: dict[str, str]) -> Importer:
    """Make an importer function that adds one node of our operator `op`, with the inputs and the
    attributes of the ONNX node. `names`: ONNX's attribute -> ours."""

    def run(call: Call) -> Result:
        return call.emit(op, *call.inputs, **renamed(call, op, names))

    return run


def renamed(call: Call, op: str, names: dict[str, str]) -> dict[str, Any]:
    """The attributes that an ONNX node has of `names` (ONNX's -> ours), under our names, as bool
    where our operator `op` has a bool. Counts attributes in IGNORED as read (`call.ignore`)."""
    call.ignore(*IGNORED.get(call.type, ()))
    found = {}
    for theirs, ours in names.items():
        value = call.attr(theirs)
        if value is not None:
            flag = isinstance(OPS[op].attrs.get(ours), bool)
            found[ours] = bool(value) if flag else value
    return found


for _type, (_op, _names) in table().items():
    IMPORTERS.register(_type, one_to_one(_op, _names))
