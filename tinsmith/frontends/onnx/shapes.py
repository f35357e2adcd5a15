"""Importers of operators that make, move or select elements."""

from __future__ import annotations

import numpy as np

from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.graph import Array


@importer("Constant")
def constant(call: Call) -> Result:
    given = [n for n in call.attrs if n in _CONSTANTS]
    if len(given) != 1:
        raise Unsupported(f"it needs one value, it has {sorted(call.attrs) or 'none'}")
    value, dtype = call.attr(given[0]), _CONSTANTS[given[0]]
    return call.const(value, dtype)


_CONSTANTS = {
    "value": None, "sparse_value": None, "value_float": np.float32, "value_floats": np.float32,
    "value_int": np.int64, "value_ints": np.int64, "value_string": object, "value_strings": object,
}  # fmt: skip
"""The attributes that a Constant may have its value in -> its element type; None: its own."""


@importer("ConstantOfShape")
def constant_of_shape(call: Call) -> Result:
    value: Array = call.attr("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise Unsupported(f"its value has {value.size} elements, not one")
    number = value.reshape(()).item()
    dtype = value.dtype.name
    return call.emit("ConstantOfShape", call[0], value=number, dtype=dtype)


@importer("Squeeze", "Unsqueeze")
def squeeze(call: Call) -> Result:
    axes = call.attr("axes")
    return call.emit(call.type, call[0], call.arg(1) if axes is None else call.ints(*axes))


@importer("Reshape")
def reshape(call: Call) -> Result:
    shape = call.ints(*call.required("shape")) if call.opset < 5 else call[1]
    return call.emit("Reshape", call[0], shape, allowzero=bool(call.attr("allowzero", 0)))


@importer("Concat")
def concat(call: Call) -> Result:
    axis = call.attr("axis", 1) if call.opset < 4 else call.required("axis")
    values = [v for v in call.inputs if v is not None]
    if not values:
        raise Unsupported("it has no inputs")
    return call.emit("Concat", *values, axis=axis)


@importer("Split")
def split(call: Call) -> Result:
    """Import Split: into parts of the given sizes, else into `num_outputs` (default: the number of
    outputs) equal parts."""
    sizes, given = call.arg(1), call.attr("split")
    if given is not None:
        sizes = call.ints(*given)
    count = call.attr("num_outputs", len(call.outputs))
    y = call.emit("Split", call[0], sizes, axis=call.attr("axis", 0), num_outputs=count)
    return y if isinstance(y, tuple) else (y,)


@importer("Slice")
def slice_(call: Call) -> Result:
    if call.opset >= 10:
        return call.emit("Slice", call[0], call[1], call[2], call.arg(3), call.arg(4))
    axes = call.attr("axes")
    starts, ends = call.ints(*call.required("starts")), call.ints(*call.required("ends"))
    return call.emit("Slice", call[0], starts, ends, None if axes is None else call.ints(*axes))


@importer("Pad")
def pad(call: Call) -> Result:
    mode = call.attr("mode", "constant")
    if call.opset >= 11:
        return call.emit("Pad", call[0], call[1], call.arg(2), call.arg(3), mode=mode)
    pads = call.attr("pads") or call.attr("paddings")
    if pads is None:
        raise Unsupported("its attribute 'pads' is missing")
    value = call.attr("value", 0.0)
    filler = call.number(value, call[0]) if mode == "constant" else None
    return call.emit("Pad", call[0], call.ints(*pads), filler, mode=mode)


@importer("Tile")
def tile(call: Call) -> Result:
    if call.opset >= 6:
        return call.emit("Tile", call[0], call[1])
    count, axis = call.constant(1, "number of tiles"), call.constant(2, "axis")
    rank = call[0].rank
    if count is None or axis is None or rank is None:
        raise Unsupported("before opset 6 it needs a number of tiles, an axis and a known rank")
    repeats = np.ones(rank, np.int64)
    repeats[int(axis.item())] = int(count.item())
    return call.emit("Tile", call[0], repeats)


@importer("Scatter")
def scatter(call: Call) -> Result:
    return call.emit("ScatterElements", *call.inputs, axis=call.attr("axis", 0))


@importer("Dropout")
def dropout(call: Call) -> Result:
    """Import Dropout, which does nothing in inference. The second output, a mask, is all True, and
    computed only if it is read. Raises Unsupported in training mode, unless the ratio is 0."""
    x = call[0]
    call.ignore("ratio", "is_test", "seed", "consumed_inputs")
    training = call.arg(2)
    if training is not None:
        ratio = call.arg(1)
        dropped = ratio is None or ratio.const is None or bool(np.any(ratio.const))
        if training.const is None:
            raise Unsupported("its training_mode is not a constant: only inference is supported")
        if training.const.any() and dropped:
            raise Unsupported("it is in training mode: only inference is supported")
    if not call.used(1):
        return x, call.const(np.zeros(0, bool)) if call.wants(1) else None
    dtype = "bool" if call.opset >= 10 else x.dtype.name
    value = True if dtype == "bool" else 1
    return x, call.emit("ConstantOfShape", call.emit("Shape", x), value=value, dtype=dtype)
