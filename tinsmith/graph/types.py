"""What is known of a value before it is computed: element type and shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tinsmith.budget import MOST_DIMS
from tinsmith.errors import TypeRuleError
from tinsmith.records import cached_property, dataclass

Dim = int | str
"""A dimension: a number (or a `Size`, which stands for one), or a symbol ("N") whose size is known
only when the model is called."""

Shape = tuple[Dim, ...]
Array = np.ndarray[Any, Any]


def dtype_of(name: Any) -> np.dtype[Any]:
    """The numpy dtype for a dtype or its name, `bfloat16`, `float8_*` and `int4` included; `object`
    for "string". Raises TypeError or AttributeError if there is no such dtype."""
    if isinstance(name, str) and name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype whose `dtype.name` is exactly `name`, a text from a file. Raises ValueError for
    other texts, and for element types in which nothing computes: dates, numpy's own strings, raw
    bytes."""
    try:
        dtype = dtype_of(name)
        if dtype.name == name and dtype.kind not in "mMSU" and (dtype.kind != "V" or dtype.num > 0):
            return dtype
    except (TypeError, AttributeError):
        pass
    raise ValueError(f"{name!r} is not an element type")


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, cached: numpy makes the text anew each time."""
    return dtype.name


def _dim(dim: Any) -> Any:
    """A dim as shapes hold it: a `Size` as it is, a subclass of str as a str, any other number as
    an int."""
    from tinsmith.sizes import Size

    return dim if isinstance(dim, Size) else str(dim) if isinstance(dim, str) else int(dim)


@dataclass(frozen=True)
class Type:
    """Element type and shape. `shape` is None if even the rank is unknown. Static: of known rank,
    without symbols (a `Size` counts as a number). Strings have the dtype `object`. Equal symbols in
    one graph mean equal sizes. Values that are not tensors have a `Holder`. Raises TypeRuleError
    for negative sizes, and for more dims than an array can have."""

    dtype: np.dtype[Any]
    shape: Shape | None

    if TYPE_CHECKING:  # the type that fields have is narrower than what they are made from

        def __init__(self, dtype: Any, shape: Sequence[Dim] | None) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, np.dtype):  # pyright: ignore[reportUnnecessaryIsInstance]
            object.__setattr__(self, "dtype", dtype_of(self.dtype))
        if self.shape is not None:
            dims = tuple([d if type(d) in (int, str) else _dim(d) for d in self.shape])
            if len(dims) > MOST_DIMS:
                raise TypeRuleError(f"{len(dims)} dims: arrays have {MOST_DIMS} at most")
            if any([type(d) is int and d < 0 for d in dims]):
                raise TypeRuleError(f"the shape {list(dims)} has a negative size")
            object.__setattr__(self, "shape", dims)

    def like(self, dtype: Any = None, shape: Sequence[Dim] | EllipsisType | None = ...) -> Type:
        """This type with another dtype (None: same) or shape (None: unknown; default: same)."""
        kept = self.shape if isinstance(shape, EllipsisType) else shape
        return Type(self.dtype if dtype is None else dtype, kept)

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        return self.shape is not None and not any(isinstance(d, str) for d in self.shape)

    @cached_property
    def is_free(self) -> bool:
        """Whether a size is a `Size`: only a call tells it, by formula. False for unknown rank."""
        return self.shape is not None and any(type(d) not in (int, str) for d in self.shape)

    @cached_property
    def is_empty(self) -> bool:
        """Whether the type is static, and one of its sizes the number 0: no elements."""
        return self.is_static and any([type(d) is int and not d for d in self.dims])

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of a static type (asserted): numbers, and `Size`s where it `is_free`."""
        assert self.shape is not None and self.is_static, f"{self} is not static"
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Number of elements of a static type."""
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ",".join(map(str, self.shape))
        return f"{element_name(self.dtype)}[{dims}]"


def element_name(dtype: np.dtype[Any]) -> str:
    """The name of an element type in texts: `string` for object."""
    return "string" if dtype.kind == "O" else name_of(dtype)


@dataclass(frozen=True, init=False)
class Holder(Type):
    """The type of a container of tensors (a sequence, an optional, a map), not of a tensor. `item`
    is the type of its elements, `word` the container's name in the text form. Its shape is None, so
    passes and kernels leave it alone. Symbols in the shape of `item` mean nothing: the sizes of two
    elements may differ."""

    item: Type
    word: ClassVar[str]

    def __init__(self, item: Type) -> None:
        super().__init__(np.dtype(object), None)
        object.__setattr__(self, "item", item)

    def __str__(self) -> str:
        return f"{self.word}({self.item})"


class SequenceType(Holder):
    """A list of tensors: a Python list of arrays in the run."""

    word = "sequence"


class OptionalType(Holder):
    """A tensor or a sequence, or nothing: None in the run."""

    word = "optional"


class MapType(Holder):
    """Numbers by integer or string keys; `item` is the type of a number. A Python dict in the run.
    It can only be an output: no operator reads one."""

    word = "map"


HOLDERS: dict[str, type[Holder]] = {t.word: t for t in (SequenceType, OptionalType, MapType)}


def shown(value: Any) -> str:
    """A value in a message, such as `float32[2, 3]`: element type and shape; for a sequence or a
    map its length, as `sequence[4] of float32`; `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"map[{len(value)}]"
    if isinstance(value, list | tuple):
        kinds = dict.fromkeys("map" if isinstance(v, dict) else kind_of(v) for v in value)
        return f"sequence[{len(value)}]" + (f" of {' and '.join(kinds)}" if kinds else "")
    return f"{kind_of(value)}{list(np.shape(value))}"


def kind_of(array: Any) -> str:
    """The name of an array's element type in a message; `string` for texts of any dtype."""
    dtype = np.asarray(array).dtype
    return "string" if dtype.kind in "OUST" else dtype.name


def same_kind(a: Type, b: Type) -> bool:
    """Whether both are tensors of one element type, or both holders of one class whose items are
    of the same kind in this sense. Shapes do not count."""
    if isinstance(a, Holder) or isinstance(b, Holder):
        return isinstance(a, Holder) and type(a) is type(b) and same_kind(a.item, b.item)  # type: ignore[union-attr]
    return a.dtype == b.dtype


def bare(type: Type) -> Type:
    """The type inside an `OptionalType`; any other type as it is."""
    return type.item if isinstance(type, OptionalType) else type


def says_more(stated: Type, known: Type) -> bool:
    """Whether the type `stated` is more exact than `known`, a compatible one: it has a number where
    `known` has a symbol, or a rank where `known` has none. Of holders the items are compared."""
    stated, known = bare(stated), bare(known)
    if isinstance(stated, Holder) and isinstance(known, Holder):
        return says_more(stated.item, known.item)
    if stated.shape is None or known.shape is None or len(stated.shape) != len(known.shape):
        return stated.shape is not None
    pairs = zip(stated.shape, known.shape, strict=True)
    return any(not isinstance(s, str) and s != k for s, k in pairs)


def compatible(old: Type, new: Type) -> bool:
    """Whether a value of type `new` may replace one of type `old`: the element types are equal, and
    so are ranks and sizes wherever both types tell them. Of holders the items are compared."""
    if isinstance(old, Holder) or isinstance(new, Holder):
        return same_kind(old, new) and compatible(old.item, new.item)  # type: ignore[union-attr]
    if old.dtype != new.dtype:
        return False
    return shapes_agree(old.shape, new.shape)


def agree(a: Dim | None, b: Dim | None) -> bool:
    """Whether two dims may be one size: they are equal, or one is no number (a symbol, None)."""
    return a is None or b is None or isinstance(a, str) or isinstance(b, str) or a == b


def shapes_agree(a: Sequence[Any] | None, b: Sequence[Any] | None) -> bool:
    """Whether two shapes may be one: a rank is not known (None), or ranks and dims agree."""
    return a is None or b is None or (len(a) == len(b) and all(map(agree, a, b)))
