"""Importers of sequences whose length is known: they are gone from the graph.

What cannot be known when the model is imported is refused: a sequence that grows in a loop.
"""

from __future__ import annotations

import numpy as np

from tinsmith.frontends.onnx.call import Call, Result, TensorList, Unsupported, importer
from tinsmith.graph import Value


def _list(call: Call) -> tuple[Value, ...]:
    given = call.arg(0)
    if not isinstance(given, TensorList):
        raise Unsupported("it needs a sequence of tensors")
    return given.items


def _position(call: Call, index: int, count: int) -> int:
    """A constant position in a sequence of `count` elements."""
    place = call.constant(index, "position in a sequence")
    number = -1 if place is None else int(place.item())
    if not -count <= number < count:
        raise Unsupported(f"position {number} is outside of a sequence of {count}")
    return number % count


@importer("SequenceEmpty")
def empty(call: Call) -> Result:
    call.ignore("dtype")
    return TensorList(())


@importer("SequenceConstruct")
def construct(call: Call) -> Result:
    return TensorList(v for v in call.inputs if v is not None)


@importer("SequenceAt", lists=True)
def at(call: Call) -> Result:
    items = _list(call)
    return items[_position(call, 1, len(items))]


@importer("SequenceInsert", lists=True)
def insert(call: Call) -> Result:
    items = list(_list(call))
    place = call.constant(2, "position in a sequence")
    number = len(items) if place is None else int(place.item())
    if abs(number) > len(items):
        raise Unsupported(f"position {number} is outside of a sequence of {len(items)}")
    items.insert(number, call[1])
    return TensorList(items)


@importer("SequenceErase", lists=True)
def erase(call: Call) -> Result:
    items = list(_list(call))
    del items[_position(call, 1, len(items))]
    return TensorList(items)


@importer("SequenceLength", lists=True)
def length(call: Call) -> Result:
    return call.const(np.array(len(_list(call)), np.int64))


@importer("ConcatFromSequence", lists=True)
def concat(call: Call) -> Result:
    items, axis = _list(call), call.required("axis")
    if not items:
        raise Unsupported("the sequence is empty")
    if call.attr("new_axis", 0):
        items = tuple(call.emit("Unsqueeze", v, call.ints(axis)) for v in items)
    return call.emit("Concat", *items, axis=axis)


@importer("SplitToSequence")
def split(call: Call) -> Result:
    """Parts of a size, or of several, or of one each, which then lose the axis unless kept."""
    x, axis = call[0], call.attr("axis", 0)
    keep = bool(call.attr("keepdims", 1)) or call.arg(1) is not None
    total = None if x.shape is None else x.shape[axis]
    sizes = call.constant(1, "sizes of the parts")
    if sizes is None or sizes.ndim == 0:
        if not isinstance(total, int):
            raise Unsupported("it splits an axis of unknown size into an unknown number of parts")
        step = 1 if sizes is None else int(sizes.item())
        if step < 1:
            raise Unsupported(f"it splits into parts of size {step}")
        sizes = np.diff([*range(0, total, step), total])
    parts = call.emit("Split", x, call.ints(*sizes.tolist()), axis=axis)
    parts = parts if isinstance(parts, tuple) else (parts,)
    if not keep:
        parts = tuple(call.emit("Squeeze", v, call.ints(axis)) for v in parts)
    return TensorList(parts)


@importer("SequenceMap")
def refuse(call: Call) -> Result:
    raise Unsupported("a function over a sequence is not supported; export it unrolled")
