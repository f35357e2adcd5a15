"""Types of values in generated code. Signedness is part of the type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tinsmith.errors import CodegenError
from tinsmith.records import cached_property, dataclass

_LLVM = {
    "f64": "double", "f32": "float", "f16": "i16", "bf16": "i16", "i1": "i1", "ptr": "ptr",
    "i8": "i8", "u8": "i8", "i16": "i16", "u16": "i16", "i32": "i32", "u32": "i32",
    "i64": "i64", "u64": "i64",
}  # fmt: skip
_BITS = {"ptr": 64, "bf16": 16, "i1": 8}  # bits in memory; others have theirs in the name
_NUMPY = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "u8",
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64",
}  # fmt: skip

QUICK = "noinline optnone"
"""LLVM's attributes for functions that are to be compiled without optimisation."""


@dataclass(frozen=True)
class Ty:
    """The type of a value: an element kind ("f32", "u8", "i1", "ptr", ...), and the number of lanes
    of a vector; 1: a scalar."""

    kind: str
    lanes: int = 1

    @cached_property
    def llvm(self) -> str:
        name = _LLVM[self.kind]
        return name if self.lanes == 1 else f"<{self.lanes} x {name}>"

    @cached_property
    def elem(self) -> Ty:
        return _ty(self.kind, 1)

    def x(self, lanes: int) -> Ty:
        """The type of the same kind with this number of lanes."""
        return _ty(self.kind, lanes)

    def of(self, kind: str) -> Ty:
        """The type of this kind with the same number of lanes."""
        return _ty(kind, self.lanes)

    @cached_property
    def is_float(self) -> bool:
        """Whether the type is f32 or f64. float16 and bfloat16 have no arithmetic."""
        return self.kind in ("f64", "f32")

    @cached_property
    def is_half(self) -> bool:
        return self.kind in ("f16", "bf16")

    @cached_property
    def is_signed(self) -> bool:
        return self.kind[0] == "i" and self.kind != "i1"

    @cached_property
    def bits(self) -> int:
        """Bits of one element in memory."""
        return _BITS.get(self.kind) or int(self.kind.lstrip("fiu"))

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @cached_property
    def suffix(self) -> str:
        """The type as it stands in names of LLVM's intrinsics: "f32", "v8i16"."""
        scalar = self.kind if self.is_float or self.kind == "i1" else f"i{self.bits}"
        return scalar if self.lanes == 1 else f"v{self.lanes}{scalar}"

    def __str__(self) -> str:
        return self.kind if self.lanes == 1 else f"{self.kind}x{self.lanes}"


@cache
def _ty(kind: str, lanes: int) -> Ty:
    """`Ty(kind, lanes)`, one object for all calls: its properties are computed once."""
    return Ty(kind, lanes)


BF16, F32, F64, I1, I32, I64, U8, U64, PTR = (
    Ty("bf16"), Ty("f32"), Ty("f64"), Ty("i1"), Ty("i32"), Ty("i64"), Ty("u8"), Ty("u64"),
    Ty("ptr"),
)  # fmt: skip


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, cached, as numpy builds the text anew each time."""
    return dtype.name


def from_dtype(dtype: np.dtype[Any]) -> Ty:
    """The element type for a numpy dtype, of one lane: float32 is "f32", bool is "u8" (0 or 1).
    Raises CodegenError for dtypes that have none, such as text, complex, or 4 bits."""
    return _native(np.dtype(dtype))


@cache
def _native(dtype: np.dtype[Any]) -> Ty:
    name = name_of(dtype)
    if name not in _NUMPY:
        raise CodegenError(f"there is no native element type for dtype {name}")
    return Ty(_NUMPY[name])
