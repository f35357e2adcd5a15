"""Importers of sequences and optionals.

A sequence of known length is a TensorList while the model is imported, and the graph has only its
tensors. If its length, or a position in it, is known only in the run, it is a Value of the graph.
"""

from __future__ import annotations

import numpy as np

from tinsmith import budget
from tinsmith.frontends.onnx.call import Call, Result, TensorList, Unsupported, importer
from tinsmith.frontends.onnx.protos import type_of
from tinsmith.graph import Holder, OptionalType, SequenceType, Value


def _list(call: Call) -> tuple[Value, ...] | None:
    """The elements of the first input, a sequence; None where they are known only in the run.
    Raises Unsupported if it is no sequence."""
    given = call.arg(0)
    if isinstance(given, TensorList):
        return given.items
    if given is None or not isinstance(given.type, SequenceType):
        raise Unsupported("it needs a sequence of tensors")
    return None


def _constant(call: Call, index: int) -> bool:
    """Whether input number `index`, a position in a sequence, is constant or absent."""
    place = call.arg(index)
    return place is None or place.const is not None


def _position(call: Call, count: int) -> int:
    """The constant second input (absent: -1), a position in a sequence of `count` elements, as a
    number from 0 on. Raises Unsupported outside of the sequence."""
    place = call.constant(1, "position in a sequence")
    number = -1 if place is None else int(place.item())
    if not -count <= number < count:
        raise Unsupported(f"position {number} is outside of a sequence of {count}")
    return number % count


def _emit(call: Call, **attrs: object) -> Result:
    """Emit our operator of the same name, for sequences known only in the run. TensorLists among
    the inputs become Values."""
    return call.emit(call.type, *map(call.whole, call.inputs), **attrs)


@importer("SequenceEmpty")
def empty(call: Call) -> Result:
    return TensorList((), call.dtype("dtype") or "float32")


@importer("SequenceConstruct")
def construct(call: Call) -> Result:
    return TensorList(v for v in call.inputs if v is not None)


@importer("SequenceAt", lists=True)
def at(call: Call) -> Result:
    items = _list(call)
    if items is None or not _constant(call, 1):
        return _emit(call)
    return items[_position(call, len(items))]


@importer("SequenceInsert", lists=True)
def insert(call: Call) -> Result:
    known = _list(call)
    if known is None or not _constant(call, 2):
        return _emit(call)
    items = list(known)
    place = call.constant(2, "position in a sequence")
    number = len(items) if place is None else int(place.item())
    if abs(number) > len(items):
        raise Unsupported(f"position {number} is outside of a sequence of {len(items)}")
    items.insert(number, call[1])
    return TensorList(items)


@importer("SequenceErase", lists=True)
def erase(call: Call) -> Result:
    known = _list(call)
    if known is None or not _constant(call, 1):
        return _emit(call)
    items, at = list(known), _position(call, len(known))
    return TensorList(items[:at] + items[at + 1 :], items[0].dtype.name)


@importer("SequenceLength", lists=True)
def length(call: Call) -> Result:
    items = _list(call)
    return _emit(call) if items is None else call.const(np.array(len(items), np.int64))


@importer("ConcatFromSequence", lists=True)
def concat(call: Call) -> Result:
    items, axis = _list(call), call.required("axis")
    new_axis = bool(call.attr("new_axis", 0))
    if items is None:
        return _emit(call, axis=axis, new_axis=new_axis)
    if not items:
        raise Unsupported("the sequence is empty")
    if new_axis:
        items = tuple(call.emit("Unsqueeze", v, call.ints(axis)) for v in items)
    return call.emit("Concat", *items, axis=axis)


@importer("SplitToSequence")
def split(call: Call) -> Result:
    """Import SplitToSequence. The second input is one size for all parts, or a vector with the size
    of each; without it parts have the size 1, and lose the axis unless `keepdims` is set."""
    x, axis, keepdims = call[0], call.attr("axis", 0), bool(call.attr("keepdims", 1))
    keep = keepdims or call.arg(1) is not None
    total = None if x.shape is None else x.shape[axis]
    given = call.arg(1)
    if given is not None and given.const is None:
        return _emit(call, axis=axis, keepdims=keepdims)
    sizes = None if given is None else given.const
    if sizes is None or sizes.ndim == 0:
        if not isinstance(total, int):
            return _emit(call, axis=axis, keepdims=keepdims)
        step = 1 if sizes is None else int(sizes.item())
        if step < 1:
            raise Unsupported(f"it splits into parts of size {step}")
        budget.check("nodes", -(-total // step), f"a split of {x.name!r} into tensors")
        sizes = np.diff([*range(0, total, step), total])
    parts = call.emit("Split", x, call.ints(*sizes.tolist()), axis=axis) if sizes.size else ()
    parts = parts if isinstance(parts, tuple) else (parts,)
    if not keep:
        parts = tuple(call.emit("Squeeze", v, call.ints(axis)) for v in parts)
    return TensorList(parts, x.dtype.name)


@importer("Identity", lists=True)
def identity(call: Call) -> Result:
    given = call.arg(0)
    return given if isinstance(given, TensorList) else call.emit("Identity", call[0])


# ---- optionals


@importer("Optional")
def optional(call: Call) -> Result:
    value, kind = call.arg(0), call.attr("type")
    if value is not None:
        return call.emit("Optional", value)
    if kind is None:
        raise Unsupported("it has neither an input nor a type")
    held = type_of(kind, "its type")
    item = held.item if isinstance(held, SequenceType) else held
    if item is None or isinstance(item, Holder):
        raise Unsupported("its type is neither a tensor nor a sequence of tensors")
    return call.emit("Optional", dtype=item.dtype.name, sequence=item is not held)


def _made(value: Value | None) -> bool:
    """Whether an optional is known to be not empty: it is an ordinary value, or made from one by an
    Optional node. False for None."""
    if value is None or not isinstance(value.type, OptionalType):
        return value is not None
    node = value.producer
    return node is not None and node.op.name == "Optional" and bool(node.inputs)


@importer("OptionalHasElement")
def has_element(call: Call) -> Result:
    value = call.arg(0)
    if value is None or _made(value):
        return call.const(np.array(value is not None))
    return call.emit("OptionalHasElement", value)


@importer("OptionalGetElement")
def get_element(call: Call) -> Result:
    value = call[0]
    if isinstance(value.type, OptionalType) and _made(value):
        assert value.producer is not None and value.producer.inputs[0] is not None
        value = value.producer.inputs[0]
    op = "OptionalGetElement" if isinstance(value.type, OptionalType) else "Identity"
    return call.emit(op, value)
