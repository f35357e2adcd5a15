"""What rules ask of values: known numbers, shapes, channels. Raises Skip where it is not so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Node, Value
from tinsmith.graph.uses import sources_of
from tinsmith.ops import OPS
from tinsmith.ops._rules import integers
from tinsmith.ops._weights import is_matrix_product, weights_of
from tinsmith.ops.precision import is_half
from tinsmith.rewrite import Skip
from tinsmith.sizes import NUMBER, Number, same

Array = np.ndarray[Any, Any]


def ints(value: Value | Array | None, what: str) -> tuple[int, ...]:
    """The integers of a constant, flattened. Raises Skip, naming it as `what`, for other values."""
    array = value.const if isinstance(value, Value) else value
    if array is None:
        raise Skip(f"{what} is not a constant")
    return tuple(int(v) for v in np.asarray(array).reshape(-1))


def number(array: Array) -> float:
    """The number in a constant of one element. Raises Skip for more."""
    if array.size != 1:
        raise Skip(f"the constant has {array.size} elements, not one")
    return float(array.reshape(-1)[0])


LARGE = 1 << 14
"""Elements of the smallest matrix that products read in few bits: fewer, as float32, stay in the
first cache. Estimated."""


LARGE_LAYER = 1 << 16
"""Elements of the smallest matrix that recurrent layers read in few bits: what is smaller stays in
the second cache as float32, too, and is read as fast there. Measured on Zen 3 with layers of 64 to
256 units; the command was not recorded."""


def is_small_half(node: Node) -> bool:
    """Whether a node casts a constant of halves to float32 which kernels read as halves instead: at
    least LARGE elements as the right factors of products, also transposed, or LARGE_LAYER as the
    weights of recurrent layers, and nothing else reads the result."""
    x = node.inputs[0] if "conversion" in node.op.traits else None
    if x is None or x.const is None or node.output.dtype != np.float32 or not is_half(x.dtype):
        return False
    if x.const.ndim == 3 and x.const.size >= LARGE_LAYER:
        found = [weights_of(n) for n in node.output.uses]
        return all(of is not None and of.scaled for of in found)
    if x.const.ndim != 2 or x.const.size < LARGE:
        return False
    return all(
        is_matrix_product(n) and n.inputs[1] is v
        for v in (node.output, *(t.output for t in node.output.uses if t.op.name == "Transpose"))
        for n in v.uses
        if n.op.name != "Transpose" or v is not node.output
    )


def shape_of(value: Value) -> tuple[Dim, ...]:
    """The shape of a value; dims may be symbols. Raises Skip if the rank is not known."""
    if value.shape is None:
        raise Skip(f"the rank of {value.name!r} is not known")
    return value.shape


def static_dims(value: Value) -> tuple[int, ...]:
    """The shape of a value whose dims are all numbers or free sizes. Raises Skip for symbols."""
    dims = shape_of(value)
    if not all(isinstance(d, NUMBER) for d in dims):
        raise Skip(f"the shape {list(dims)} of {value.name!r} is not known")
    return value.dims


def filled_dims(value: Value) -> tuple[int, ...]:
    """`static_dims` of a value. Raises Skip also if it has no elements."""
    dims = static_dims(value)
    if 0 in dims:
        raise Skip(f"{value.name!r} is empty: its shape is {list(dims)}")
    return dims


def need_float(value: Value) -> None:
    # ml_dtypes' small floats are of kind V
    if value.dtype.kind not in "fV":
        raise Skip(f"{value.name!r} is {value.dtype}, not floating point")


def axes_of(node: Node) -> tuple[int, ...]:
    """The axes of a Reduce node, not negative and sorted. Raises Skip if they are not known."""
    rank = len(shape_of(node.operand(0)))
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return () if node.noop_with_empty_axes else tuple(range(rank))
    numbers = ints(given, "axes")
    if not numbers:
        return () if node.noop_with_empty_axes else tuple(range(rank))
    return tuple(sorted(a % rank for a in numbers))


def target_of(dims: Sequence[Dim], shape: Sequence[Dim] = ()) -> tuple[int, ...]:
    """The target with which a Reshape of a value of `shape` gives `dims`: numbers as they are, 0
    for a symbol that the value has at the same place, -1 for one other symbol. Raises Skip for
    several others, and for a dim of 0."""
    if 0 in dims:
        raise Skip("a dimension is 0")
    target = [
        d if isinstance(d, NUMBER) else 0 if tuple(shape[i : i + 1]) == (d,) else -1
        for i, d in enumerate(dims)
    ]
    if target.count(-1) > 1:
        raise Skip("more than one dimension is not known")
    return tuple(target)


def is_of_shapes(value: Value) -> bool:
    """Whether a value depends on constants and on shapes alone, not on the elements of inputs."""
    return not sources_of([value], lambda node: "sizes" not in node.op.traits)


def reshaped(x: Value, dims: Sequence[Dim]) -> Value:
    """x under the shape `dims`, by a Reshape; x itself if it has that shape. Raises Skip as
    `target_of` does."""
    if same(x.shape, tuple(dims)):
        return x
    return OPS["Reshape"](x, integers(target_of(dims, x.shape or ())))


def i64(*numbers: Number) -> Array:
    """`integers` of what is given one by one."""
    return integers(numbers)


def per_channel(array: Array, shape: Sequence[Dim], axis: int) -> Array:
    """A constant that broadcasts to `shape`, and varies along `axis` at most, as a vector with a
    number for each place on `axis`.

    Raises Skip where it varies along another axis, or would make the result larger.
    """
    rank, channels = len(shape), shape[axis]
    if array.ndim > rank:
        raise Skip(f"the constant has rank {array.ndim}, the result {rank}")
    if not isinstance(channels, NUMBER):
        raise Skip("the number of channels is not known")
    padded = (1,) * (rank - array.ndim) + array.shape
    if any(d != 1 for i, d in enumerate(padded) if i != axis):
        raise Skip(
            f"the constant of shape {list(array.shape)} varies along another axis than {axis}"
        )
    if padded[axis] not in (1, channels):
        raise Skip(f"the constant has {padded[axis]} elements for {channels} channels")
    return np.broadcast_to(array.reshape(-1), (channels,))


def is_normalised(array: Array, shape: Sequence[Dim], axis: int) -> Array:
    """A constant that has one number for each place of the axes of `shape` from `axis` on, or one
    for all, as an array of the shape of these axes. Raises Skip for any other."""
    inner = tuple(shape[axis:])
    padded = array
    while padded.ndim > len(inner) and padded.shape[0] == 1:
        padded = padded[0]
    if not all(isinstance(d, NUMBER) for d in inner):
        raise Skip("the normalised dims are not known")
    if padded.size == 1:
        return np.broadcast_to(padded.reshape(()), inner)  # type: ignore[arg-type]
    if padded.shape != inner:
        raise Skip(f"the constant of shape {list(array.shape)} is not of shape {list(inner)}")
    return padded
