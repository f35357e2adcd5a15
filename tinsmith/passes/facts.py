"""What rules ask of values: constant numbers, shapes, channels. Functions that get no answer raise
Skip, so that the rule does not fire."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.graph import Array, Dim, Node, Value
from tinsmith.graph.uses import sources_of
from tinsmith.ops import OPS
from tinsmith.ops._rules import integers
from tinsmith.ops._weights import is_matrix_product, weights_of
from tinsmith.ops.precision import is_half
from tinsmith.rewrite import Skip
from tinsmith.sizes import NUMBER, Number, same

BYTES = ("int8", "uint8")


def ints(value: Value | Array | None, what: str) -> tuple[int, ...]:
    """The integers of a constant, flattened. Raises Skip, naming it as `what`, for other values."""
    array = value.const if isinstance(value, Value) else value
    if array is None:
        raise Skip(f"{what} is not a constant")
    return tuple(int(v) for v in np.asarray(array).reshape(-1))


def number(array: Array) -> float:
    """The number in a constant of one element. Raises Skip for other counts."""
    if array.size != 1:
        raise Skip(f"the constant has {array.size} elements, not one")
    return float(array.reshape(-1)[0])


LARGE = 1 << 14
"""Elements of the smallest matrix of weights that products read in 4, 8 or 16 bits: a smaller one
stays in the first-level cache as float32. Estimated."""


LARGE_LAYER = 1 << 16
"""Elements of the smallest matrix of weights that recurrent layers read in few bits: a smaller
matrix stays in the second-level cache as float32, and is read as fast there. Measured on Zen 3 with
layers of 64 to 256 units; the command was not recorded."""


def is_small_half(node: Node) -> bool:
    """Whether a node casts constant weights from halves to float32, and kernels can read the halves
    instead. All readers must be products of matrices that read at least LARGE elements as their
    right factor, directly or transposed, or recurrent layers that read at least LARGE_LAYER."""
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
    """The shape of a value, in which each dim is a number or a free size (`Size`). Raises Skip if
    one is a symbol, or if the rank is not known."""
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


def pads(conv: Node) -> bool:
    """Whether a transposed convolution has paddings, before or after."""
    return any((*(conv.pad or ()), *(conv.output_padding or ())))


def axes_of(node: Node) -> tuple[int, ...]:
    """The axes over which a Reduce node reduces, not negative and sorted. Raises Skip if they are
    not known."""
    rank = len(shape_of(node.operand(0)))
    given = node.inputs[1] if len(node.inputs) > 1 else None
    numbers = () if given is None else ints(given, "axes")
    if not numbers:
        return () if node.noop_with_empty_axes else tuple(range(rank))
    return tuple(sorted(a % rank for a in numbers))


def target_of(dims: Sequence[Dim], shape: Sequence[Dim] = ()) -> tuple[int, ...]:
    """The second input (target) of a Reshape that gives a value of `shape` the dims `dims`: numbers
    as they are, 0 for a symbol that `shape` has on the same axis, -1 for one other symbol: (0, -1)
    for [N, 3, 4] as [N, M]. Raises Skip for several other symbols, and for a dim of 0."""
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
    """The numbers as a vector of int64 (of objects if one is a free size), such as axes."""
    return integers(numbers)


def rounds(array: Array) -> Array:
    """For each number a of an array whether it is so large that a + 0.001 is a in its dtype: then
    x + a rounds x, as x + 2^23 - 2^23 does to whole numbers. Such constants are left alone."""
    return array + array.dtype.type(1e-3) == array


def per_channel(array: Array, shape: Sequence[Dim], axis: int) -> Array:
    """A constant that broadcasts to `shape` and varies along `axis` only, or not at all, as a
    vector with a number for each index on `axis`. Raises Skip for any other constant, and if
    shape[axis] is not known."""
    rank = len(shape)
    if rank < max(array.ndim, axis + 1):
        raise Skip(f"the constant has rank {array.ndim}, the result {rank}")
    channels = shape[axis]
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


def per_element(array: Array, shape: Sequence[Dim], axis: int) -> Array:
    """A constant that has one number for each element of shape[axis:], or one for all, as an array
    of that shape, such as the scale of a LayerNorm. Raises Skip for any other constant."""
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


def bounds(node: Node) -> tuple[float | None, float | None]:
    """(least, largest) of the results of a Relu or Clip; None: no bound."""
    return (0.0, None) if node.op.name == "Relu" else (node.min, node.max)
