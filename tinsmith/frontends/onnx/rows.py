"""Importers of operators that are one to one: an ONNX operator is one node of ours, with the same
inputs, attributes and defaults, perhaps under other names."""

from __future__ import annotations

from typing import Any

from tinsmith.formats import pairs_of
from tinsmith.formats.onnx_names import TABLE
from tinsmith.frontends.onnx.call import IMPORTERS, Call, Importer, Result
from tinsmith.ops import OPS

IGNORED: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv"), ("kernel_shape",)
) | {"Range": ("stash_type",)}
"""Operator -> its attributes that mean nothing here: they only repeat the shapes of inputs, or ask
for a precision that there is anyway."""


def one_to_one(op: str, names: str) -> Importer:
    """Make an importer function that adds one node of our operator `op`, with the inputs and the
    attributes `names` (see `renamed`) of the ONNX node."""

    def run(call: Call) -> Result:
        return call.emit(op, *call.inputs, **renamed(call, op, names))

    return run


def renamed(call: Call, op: str, names: str) -> dict[str, Any]:
    """The attributes that an ONNX node has of `names` ("axis epsilon=eps": `pairs_of`), under our
    names, as bool where our operator `op` has a bool; the element type `dtype` by our name. Counts
    attributes in IGNORED as read (`call.ignore`)."""
    call.ignore(*IGNORED.get(call.type, ()))
    found = {}
    for theirs, ours in pairs_of(names):
        value = call.dtype(theirs) if ours == "dtype" else call.attr(theirs)
        if value is not None:
            flag = isinstance(OPS[op].attrs.get(ours), bool)
            found[ours] = bool(value) if flag else value
    return found


for _type, (_op, _names) in TABLE.items():
    IMPORTERS.register(_type, one_to_one(_op, _names))
