"""Operators that are one to one: ONNX operator -> ours, with the names of the attributes.

Both have the same inputs and the same defaults. What needs more has an importer function.
"""

from __future__ import annotations

from typing import Any

from tinsmith.formats.onnx_names import table
from tinsmith.frontends.onnx.call import IMPORTERS, Call, Importer, Result
from tinsmith.ops import OPS

IGNORED = {
    "Conv": ("kernel_shape",),
    "ConvInteger": ("kernel_shape",),
    "QLinearConv": ("kernel_shape",),
    "ConvTranspose": ("kernel_shape",),
    "DeformConv": ("kernel_shape",),
}
"""Attributes that repeat what the inputs say."""


def one_to_one(op: str, names: dict[str, str]) -> Importer:
    """An importer function that adds one node of our operator `op` over all inputs, with the
    attributes that the ONNX node has. `names`: their attribute -> ours."""

    def run(call: Call) -> Result:
        return call.emit(op, *call.inputs, **renamed(call, op, names))

    return run


def renamed(call: Call, op: str, names: dict[str, str]) -> dict[str, Any]:
    """The attributes that an ONNX node has, under the names of our operator `op`; `names`: theirs
    -> ours. Those that are flags in ours become bool."""
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
