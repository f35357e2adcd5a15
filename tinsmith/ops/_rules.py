"""What type rules and references of several operators share: element types, constants, sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.budget import MOST_DIMS
from tinsmith.errors import DataError, TypeRuleError, suggest
from tinsmith.graph import Array, Dim, Node, Shape, Type, Value, agree, dtype_of
from tinsmith.graph.types import element_name, name_of
from tinsmith.ops._dims import broadcast, fresh
from tinsmith.ops._op import OPS, Op, need, op
from tinsmith.ops.precision import HALVES, is_float, is_half
from tinsmith.sizes import NUMBER, Number, Size

Tensor = Any
"""An array, or a Value of a graph: references of `composed` operators take either."""

FLOAT8 = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
FLOATS = frozenset({"float32", "float64"}) | HALVES
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTS = SIGNED | UNSIGNED
NUMBERS = FLOATS | INTS
BOOL = frozenset({"bool"})

QUICK = 1 << 20
"""Arrays of at most so many bytes are made without asking the budget."""


def need_data(condition: Any, message: str) -> None:
    """In a reference: raise DataError with `message` unless the condition holds."""
    if not condition:
        raise DataError(message)


def dtype_attr(name: Any, what: str = "dtype") -> np.dtype[Any]:
    """The dtype that the value of an attribute names. Raises TypeRuleError, which calls the
    attribute `what`, where no dtype has this name."""
    try:
        return dtype_of(name)
    except (TypeError, AttributeError):
        known = sorted(NUMBERS | BOOL | {"string", "int4", "uint4", "float8_e4m3fn", "float8_e5m2"})
        raise TypeRuleError(
            f"{what} {name!r} is not an element type.{suggest(str(name), known)}"
        ) from None


def need_dtype(value: Value | None, allowed: Collection[str], what: str) -> None:
    """Raise TypeRuleError, which calls the value `what`, unless its element type is one of the
    names `allowed`. An absent value (None) passes."""
    if value is not None and name_of(value.dtype) not in allowed:
        raise TypeRuleError(f"{what} is {value.type}; it must be of {', '.join(sorted(allowed))}")


def need_float(value: Value, what: str) -> None:
    """Raise TypeRuleError, which calls the value `what`, unless it is of a floating-point type."""
    kind = value.dtype
    need(is_float(kind), "{} must be of a floating-point type, it is {}", what, kind)


def dtypes_at(left: int, right: int) -> Callable[[Node], tuple[str, str]]:
    """A rule `Op.factors`: the element types of the inputs at these positions."""
    return lambda node: tuple(node.inputs[i].dtype.name for i in (left, right))  # type: ignore


def need_same(*values: Value | None) -> None:
    """Raise TypeRuleError unless all values have one element type; absent ones (None) pass."""
    dtypes = dict.fromkeys([v.type.dtype for v in values if v is not None])
    if len(dtypes) > 1:
        names = list(dict.fromkeys(map(element_name, dtypes)))
        need(
            len(names) <= 1,
            f"the inputs have different element types: {', '.join(names)}; cast one of them",
        )


def pointwise(
    allowed: Iterable[str] | None = None, result: str | None = None
) -> Callable[..., Type]:
    """Make a type rule for elementwise operators: all inputs must have one element type, which is
    among the names `allowed` (None: any). The output has their broadcast shape, and the element
    type `result` (None: that of the inputs)."""
    kinds = None if allowed is None else frozenset(allowed)

    def rule(*values: Value | None, **_: Any) -> Type:
        present = [v for v in values if v is not None]
        need_same(*present)
        if kinds is not None:
            need_dtype(present[0], kinds, "the input")
        first = present[0].type
        shape = broadcast(*[v.type.shape for v in present])
        if result is None:
            return first if shape is first.shape else Type(first.dtype, shape)
        return Type(np.dtype(result), shape)

    return rule


def give_rule(rule: Callable[..., Any], *operators: Op) -> None:
    """Give several operators the same type rule."""
    for operator in operators:
        operator.type(rule)


def elementwise(
    *traits: str,
    rule: Callable[..., Type],
    wide: bool = False,
    **rows: tuple[Callable[..., Any], str],
) -> None:
    """Register elementwise operators that share traits and one type rule, each given as
    NAME=(reference, formula). With `wide`, references compute float16 and bfloat16 in float32."""
    for name, (reference, formula) in rows.items():
        reference.__name__, reference.__doc__ = name, formula
        made = op("elementwise", *traits)(in_float32(reference) if wide else reference)
        made.type(rule)


def in_float32(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of references: where the first input is float16 or bfloat16, all inputs are
    converted to float32, and the result is converted back to the type of the first."""

    @functools.wraps(reference)
    def wrapped(x: Any, *rest: Any, **attrs: Any) -> Any:
        if not is_half(x.dtype):
            return reference(x, *rest, **attrs)
        wide = [None if v is None else v.astype(np.float32) for v in (x, *rest)]
        return reference(*wide, **attrs).astype(x.dtype)

    return wrapped


def in_float32_of(x: Tensor) -> Tensor:
    """For `composed` operators: float16 and bfloat16 converted to float32, any other tensor
    unchanged."""
    return as_dtype(x, np.dtype(np.float32)) if is_half(x.dtype) else x


def as_dtype(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """For `composed` operators: x converted to `dtype` by a Cast, unless it has it."""
    return x if x.dtype == dtype else OPS["Cast"](x, to=dtype.name)


def cut(x: Tensor, start: int, end: int, axis: int) -> Tensor:
    """For `composed` operators: the elements start .. end - 1 of x along `axis`."""
    return OPS["Slice"](x, [start], [end], [axis])


# ---- constants and sizes


def const_ints(value: Value | None) -> tuple[int, ...] | None:
    """The integers of a constant, flattened; None where the value is absent or no constant. A
    symbolic `Size` among them stays one."""
    if value is None or value.const is None:
        return None
    flat = np.asarray(value.const).reshape(-1)
    return tuple(v if isinstance(v, Size) else int(v) for v in flat)  # type: ignore[misc]


def const_int(value: Value | None) -> int | None:
    """The integer that a constant of one element holds; None where the value is absent or no
    constant. Raises TypeRuleError for a constant of another number of elements."""
    numbers = const_ints(value)
    if numbers is None:
        return None
    need(len(numbers) == 1, f"{value!r} must hold one number, it holds {len(numbers)}")
    return numbers[0]


def need_room(dims: Iterable[int], dtype: Any) -> None:
    """Raise BudgetExceeded if an array of these dims would take more memory than the budget allows.
    For references whose results are as large as the data in their inputs say (Range, Expand)."""
    shape = tuple(int(d) for d in dims)
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if nbytes > QUICK:
        budget.check("array", nbytes, f"an array of {np.dtype(dtype).name}{list(shape)}")


def scalar(array: Any) -> Any:
    """The element of an array of one element, as a Python number (a `Size` stays one)."""
    found = np.asarray(array).reshape(-1)[0]
    return found if isinstance(found, Size) else found.item()


def is_finite(number: Any) -> bool:
    """Whether a number, or a `Size`, is neither infinite nor NaN."""
    return isinstance(number, NUMBER) or isfinite(number)


def length_of(value: Value) -> int | None:
    """The number of elements of a scalar, a vector, or any constant; None where it is not known.
    Raises TypeRuleError for a value of higher rank that is no constant."""
    if value.const is not None:
        return int(value.const.size)
    if value.shape is None:
        return None
    need(len(value.shape) <= 1, f"{value!r} must be 1-D")
    size = value.shape[0] if value.shape else 1
    return size if isinstance(size, NUMBER) else None


def told_sizes(value: Value) -> tuple[Dim, ...] | None:
    """The dims in `value`, an int64 vector used as a shape, as far as its nodes tell: numbers of
    constants, dims (also symbols) that a Shape reads, and a Concat of both. New symbols stand for
    all other elements. None where the length is unknown."""
    node = value.producer
    parts = node.inputs if node is not None and node.op.name == "Concat" else (value,)
    found: list[Dim] = []
    for part in parts:
        dims = None if part is None else _sizes(part)
        if dims is None:
            return None
        found += dims
    return tuple(found)


def _sizes(value: Value) -> Sequence[Dim] | None:
    """`told_sizes` of one input of a Concat, or of a value that no Concat computes."""
    numbers, node = const_ints(value), value.producer
    if numbers is not None:
        return numbers
    if node is not None and node.op.name == "Shape" and (x := node.inputs[0]) is not None:
        return None if x.shape is None else x.shape[node.attrs["start"] : node.attrs["end"]]
    return unknown(length_of(value))


def bounded(rank: int) -> int:
    """Return `rank`, which a file may tell. TypeRuleError if it is more than arrays can have."""
    need(rank <= MOST_DIMS, f"the result has {rank} dims, arrays have {MOST_DIMS} at most")
    return rank


def unknown(rank: int | None) -> Shape | None:
    """A shape of `rank` new symbols, for unknown dims; None where the rank is None (unknown).
    Raises TypeRuleError for a rank that arrays cannot have."""
    return None if rank is None else tuple(fresh() for _ in range(bounded(rank)))


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """`axis` of `rank` axes, negative if counted from the end, as a number from 0 on. Raises
    TypeRuleError, which calls it `what`, if it is out of range."""
    need(-rank <= axis < rank, f"{what} {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """`axes` of `rank` axes, negative if counted from the end, as numbers from 0 on. Raises
    TypeRuleError where one is out of range or named twice."""
    what = f"axes {tuple(int(a) for a in axes)}"
    got = tuple(axis_of(int(a), rank, f"{what}:") for a in axes)
    need(len(set(got)) == len(got), f"{what} name an axis twice")
    return got


def need_lengths(lens: Value, most: Dim) -> None:
    """In a type rule: raise TypeRuleError if `lens`, the lengths of the sequences of a batch, is
    constant and one is negative or more than `most`; a symbol as `most` sets no limit."""
    numbers = const_ints(lens) or ()
    fit = all(n >= 0 and (isinstance(most, str) or n <= most) for n in numbers)
    need(fit, f"sequence_lens must lie in [0, {most}], they are {list(numbers)}")


def need_length_data(lens: Array, most: int) -> None:
    """In a reference: raise DataError if one of `lens`, the lengths of the sequences of a batch, is
    negative or more than `most`."""
    fit = np.all((lens >= 0) & (lens <= most))
    need_data(fit, f"sequence_lens must lie in [0, {most}], they are {lens.tolist()}")


def integers(numbers: Sequence[Number]) -> np.ndarray[Any, Any]:
    """A vector of int64; of dtype object if one of the numbers is a `Size`, which it then keeps."""
    free = any(isinstance(n, Size) for n in numbers)
    return np.array([*numbers, None], object)[:-1] if free else np.asarray(numbers, np.int64)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dims: a number if all are numbers (or one is 0), N for 1 * N, else a new
    symbol."""
    number, symbols = 1, []
    for d in dims:
        if isinstance(d, NUMBER):
            number *= d
        else:
            symbols.append(d)
    if number == 0 or not symbols:
        return number
    return symbols[0] if number == 1 and len(symbols) == 1 else fresh()


def unify(a: Dim, b: Dim, message: str) -> Dim:
    """One dim for two dims that must be equal: the number if one is a number, else the second
    symbol. Raises TypeRuleError with `message` where they are different numbers."""
    need(agree(a, b), message)
    return b if isinstance(a, str) else a


def need_axes(value: Value, least: int, what: str) -> None:
    """Raise TypeRuleError, which calls the value `what`, if its rank is known and < `least`."""
    rank = value.rank
    need(rank is None or rank >= least, f"{what} needs a rank of {least} or more, it has {rank}")


def need_rank(value: Value, rank: int, what: str) -> None:
    """Raise TypeRuleError, which calls the value `what`, if it is known to have another rank."""
    need(value.rank in (None, rank), f"{what} is {value.type}; it must have rank {rank}")
