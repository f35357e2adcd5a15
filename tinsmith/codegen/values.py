"""Values of generated code: what a kernel's arithmetic is written with."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.codegen import half_types
from tinsmith.codegen.types import I1, Ty
from tinsmith.errors import CodegenError

if TYPE_CHECKING:
    from tinsmith.codegen.builder import Builder


def literal(value: float | int, ty: Ty) -> str:
    """A number as LLVM's text of a constant of the element type `ty`. Integers wrap; floats too
    large for float32 become infinite."""
    if ty.kind == "f64":
        return "0x" + struct.pack(">d", float(value)).hex().upper()
    if ty.kind == "f32":  # LLVM prints a float as the hex of the double that equals it
        single = struct.unpack("<f", struct.pack("<f", _clamp32(value)))[0]
        return "0x" + struct.pack(">d", single).hex().upper()
    if ty.kind == "i1":
        return "true" if value else "false"
    if ty.is_half:
        value = half_types.bits_of(float(value), ty.kind)
    bits = ty.bits
    value = int(value) & ((1 << bits) - 1)
    return str(value - (1 << bits) if value >> (bits - 1) else value)


def _clamp32(value: float) -> float:
    value = float(value)
    if value != value or abs(value) <= 3.4028235677973362e38:
        return value
    return float("inf") if value > 0 else float("-inf")


def _instruction(name: str) -> Callable[[Any, Any], Val]:
    """A method for `Val` that emits LLVM's instruction `name` of two operands."""
    return lambda self, other: self._binary(name, other)


def _comparison(how: str) -> Callable[[Any, Any], Val]:
    return lambda self, other: self.compare(how, other)


class Val:
    """A value of generated code: `ref` is its name in LLVM's text, `ty` its type. Operators emit
    instructions by the builder `b`; plain numbers and scalars as operands go to all lanes."""

    __slots__ = ("b", "ref", "ty")

    def __init__(self, b: Builder, ty: Ty, ref: str) -> None:
        self.b, self.ty, self.ref = b, ty, ref

    def _like(self, other: Val | float | int) -> Val:
        if isinstance(other, Val):
            if other.ty is not self.ty and other.ty != self.ty:
                if other.ty.lanes == 1 and other.ty.kind == self.ty.kind:
                    return other.splat(self.ty.lanes)
                raise CodegenError(f"operands of types {self.ty} and {other.ty} do not mix")
            return other
        return self.b.const(other, self.ty)

    def _need_arithmetic(self) -> None:
        if self.ty.is_half:
            raise CodegenError(f"there is no arithmetic on {self.ty}: compute in f32 and convert")

    def _binary(self, name: str, other: Val | float | int, reverse: bool = False) -> Val:
        self._need_arithmetic()
        rhs = self._like(other)
        x, y = (rhs, self) if reverse else (self, rhs)
        return self.b.emit(self.ty, f"{name} {self.ty.llvm} {x.ref}, {y.ref}")

    def _pick(self, float_op: str, signed: str, unsigned: str | None = None) -> str:
        if self.ty.is_float:
            return float_op
        return signed if self.ty.is_signed or unsigned is None else unsigned

    def __add__(self, other: Any) -> Val:
        if isinstance(other, int) and not self.ty.is_float and other == 0:
            return self
        return self._binary(self._pick("fadd", "add"), other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Val:
        if isinstance(other, int) and not self.ty.is_float and other == 0:
            return self
        return self._binary(self._pick("fsub", "sub"), other)

    def __rsub__(self, other: Any) -> Val:
        return self._binary(self._pick("fsub", "sub"), other, reverse=True)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int) and not self.ty.is_float and self.ty.lanes == 1:
            if other == 0:
                return 0
            if other == 1:
                return self
        return self._binary(self._pick("fmul", "mul"), other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Val:
        return self._binary(self._pick("fdiv", "sdiv", "udiv"), other)

    def __rtruediv__(self, other: Any) -> Val:
        return self._binary(self._pick("fdiv", "sdiv", "udiv"), other, reverse=True)

    def __floordiv__(self, other: Any) -> Any:
        """Quotient of non-negative integers (loop indices); self for the divisor 1."""
        if isinstance(other, int) and other == 1:
            return self
        return self._binary("udiv", other)

    def __mod__(self, other: Any) -> Any:
        """Remainder of non-negative integers (loop indices); the number 0 for the divisor 1."""
        if isinstance(other, int) and other == 1:
            return 0
        return self._binary("urem", other)

    __and__, __or__, __xor__, __lshift__ = map(_instruction, ("and", "or", "xor", "shl"))

    def __rshift__(self, other: Any) -> Val:
        return self._binary("ashr" if self.ty.is_signed else "lshr", other)

    def __neg__(self) -> Val:
        if self.ty.is_float:
            return self.b.emit(self.ty, f"fneg {self.ty.llvm} {self.ref}")
        return self.b.const(0, self.ty) - self

    def compare(self, how: str, other: Any) -> Val:
        """Compare self with `other`, a value or number, lane by lane: a mask of i1. `how` is one of
        lt le gt ge eq ne. With NaN only ne holds. (`==` compares Python objects.)"""
        self._need_arithmetic()
        rhs = self._like(other)
        if self.ty.is_float:
            op = "fcmp " + ("une" if how == "ne" else "o" + how)
        elif how in ("eq", "ne"):
            op = "icmp " + how
        else:
            op = "icmp " + ("s" if self.ty.is_signed else "u") + how
        return self.b.emit(self.ty.of("i1"), f"{op} {self.ty.llvm} {self.ref}, {rhs.ref}")

    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("lt", "le", "gt", "ge"))
    eq, ne = _comparison("eq"), _comparison("ne")

    def is_nan(self) -> Val:
        return self.unordered(self)

    def unordered(self, other: Val) -> Val:
        """Whether self or `other` is NaN, lane by lane."""
        return self.b.emit(self.ty.of("i1"), f"fcmp uno {self.ty.llvm} {self.ref}, {other.ref}")

    def select(self, yes: Val | float | int, no: Val | float | int) -> Val:
        """`yes` in the lanes in which this value, an i1 mask, is on, `no` in the others. One must
        be a `Val`."""
        if not isinstance(yes, Val):
            assert isinstance(no, Val)
            yes = no._like(yes)
        no = yes._like(no)
        yes = no._like(yes)
        both = f"{yes.ty.llvm} {yes.ref}, {no.ty.llvm} {no.ref}"
        return self.b.emit(yes.ty, f"select {self.ty.llvm} {self.ref}, {both}")

    def max(self, other: Any) -> Val:
        """`self > other ? self : other`: one instruction; gives `other` where self is NaN."""
        return (self > other).select(self, other)

    def min(self, other: Any) -> Val:
        return (self < other).select(self, other)

    def fma(self, times: Any, plus: Any) -> Val:
        """self * times + plus, fused where the target can."""
        if not self.ty.is_float:
            return self * times + plus
        x, y = self._like(times), self._like(plus)
        name, ty = f"llvm.fmuladd.{self.ty.suffix}", self.ty.llvm
        text = f"{ty} {self.ref}, {ty} {x.ref}, {ty} {y.ref}"
        return self.b.intrinsic(name, self.ty, text=text, params=f"{ty}, {ty}, {ty}")

    def fenced(self) -> Val:
        """The same value, fenced off from LLVM, which would else add the terms of a long sum of
        integers to each other first, and spill them meanwhile. Floats and scalars need no fence."""
        if self.ty.is_float or self.ty.lanes == 1:
            return self
        found = self.bitcast(self.ty.of(f"f{self.ty.bits}")).unary("arithmetic.fence")
        return found.bitcast(self.ty)

    def unary(self, name: str) -> Val:
        """The result, of the same type, of an LLVM intrinsic of one operand: "sqrt", "fabs",
        "ctpop", ... Those that count zeros, "ctlz" and "cttz", count all bits of 0."""
        zero = [self.b.const(0, I1)] if name in ("ctlz", "cttz") else []
        return self.b.intrinsic(f"llvm.{name}.{self.ty.suffix}", self.ty, [self, *zero])

    def sqrt(self) -> Val:
        return self.unary("sqrt")

    def abs(self) -> Val:
        if self.ty.is_float:
            return self.unary("fabs")
        return (self < 0).select(-self, self) if self.ty.is_signed else self

    def splat(self, lanes: int) -> Val:
        if lanes == 1:
            return self
        ty = self.ty.x(lanes)
        first = self.b.emit(ty, f"insertelement {ty.llvm} poison, {self.ty.llvm} {self.ref}, i64 0")
        lane = f"<{lanes} x i32> zeroinitializer"
        return self.b.emit(ty, f"shufflevector {ty.llvm} {first.ref}, {ty.llvm} poison, {lane}")

    def lane(self, index: int | Val) -> Val:
        """One element of a vector, a scalar, by a number or an index that the code computes."""
        where = index.ref if isinstance(index, Val) else str(index)
        return self.b.emit(self.ty.elem, f"extractelement {self.ty.llvm} {self.ref}, i64 {where}")

    def part(self, at: int, lanes: int) -> Val:
        """`lanes` neighbouring elements of a vector from `at` on."""
        if lanes == self.ty.lanes:
            return self
        return self.lane(at) if lanes == 1 else self.shuffle(None, range(at, at + lanes))

    def with_lane(self, index: int | Val, value: Val) -> Val:
        where = index.ref if isinstance(index, Val) else str(index)
        text = f"insertelement {self.ty.llvm} {self.ref}, {value.ty.llvm} {value.ref}, i64 {where}"
        return self.b.emit(self.ty, text)

    def shuffle(self, other: Val | None, indices: Sequence[int]) -> Val:
        """A vector of the lanes with these indices, counted through `self`, then on through
        `other`; -1 leaves a lane undefined."""
        ty, second = self.ty.llvm, other.ref if other is not None else "poison"
        picks = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in indices)
        mask = f"<{len(indices)} x i32> <{picks}>"
        text = f"shufflevector {ty} {self.ref}, {ty} {second}, {mask}"
        return self.b.emit(self.ty.x(len(indices)), text)

    def bitcast(self, ty: Ty) -> Val:
        if ty.llvm == self.ty.llvm:
            return Val(self.b, ty, self.ref)
        return self.b.emit(ty, f"bitcast {self.ty.llvm} {self.ref} to {ty.llvm}")

    def to(self, kind: str) -> Val:
        """Convert each lane to another kind as C does. Floats out of the range of an integer kind
        become its nearest end, NaN 0. "i1" tells whether a lane is not 0."""
        src, dst = self.ty, self.ty.of(kind)
        if src.kind == kind:
            return self
        if src.is_half:
            return half_types.widened(self).to(kind)
        if dst.is_half:
            exact = src.kind == "f64" and kind == "f16"  # bfloat16 is float32's nearest in numpy
            return half_types.narrowed(half_types.to_odd(self) if exact else self.to("f32"), kind)
        if src.is_float and dst.is_float:
            op = "fptrunc" if dst.bits < src.bits else "fpext"
        elif src.is_float:
            if kind == "i1":
                return self.ne(0.0)
            return self._saturated(dst)
        elif dst.is_float:
            op = "sitofp" if src.is_signed else "uitofp"
        elif kind == "i1":
            return self.ne(0)
        else:
            src_bits = 1 if src.kind == "i1" else src.bits
            if src_bits == dst.bits:
                return Val(self.b, dst, self.ref)
            op = "trunc" if dst.bits < src_bits else "sext" if src.is_signed else "zext"
        return self.b.emit(dst, f"{op} {src.llvm} {self.ref} to {dst.llvm}")

    def truncated(self, kind: str) -> Val:
        """Floats rounded towards 0 to integers of `kind`; undefined for floats out of its range."""
        ty = self.ty.of(kind)
        op = "fptosi" if ty.is_signed else "fptoui"
        return self.b.emit(ty, f"{op} {self.ty.llvm} {self.ref} to {ty.llvm}")

    def _saturated(self, dst: Ty) -> Val:
        """Floats rounded towards 0 to integers of type `dst`: its nearest end for floats out of its
        range, 0 for NaN. LLVM's own saturating conversion goes lane by lane."""
        ones = dst.bits - dst.is_signed
        low, high = -(1 << ones) if dst.is_signed else 0, (1 << ones) - 1
        top = high - high % (1 << max(0, ones - (24 if self.ty.kind == "f32" else 53)))
        inside = self.is_nan().select(0.0, self).max(low).min(top)
        got = inside.truncated(dst.kind if dst.bits > 16 else "i32").to(dst.kind)
        return got if top == high else (self > top).select(self.b.const(high, dst), got)

    def reduce(self, how: str) -> Val:
        """Reduce all lanes to a scalar by "add", "mul", "max" or "min", as `halved` does."""
        combine = {"add": Val.__add__, "mul": Val.__mul__, "max": Val.max, "min": Val.min}[how]
        return self.halved(combine)

    def halved(self, combine: Callable[[Val, Val], Val]) -> Val:
        """Reduce all lanes to a scalar: combine the low half with the high half until one is left.
        Raises CodegenError unless their number is a power of two."""
        value, lanes = self, self.ty.lanes
        while lanes > 1:
            if lanes % 2:
                raise CodegenError(f"cannot halve {lanes} lanes")
            lanes //= 2
            if lanes == 1:
                low, high = value.lane(0), value.lane(1)
            else:
                low = value.shuffle(None, range(lanes))
                high = value.shuffle(None, range(lanes, 2 * lanes))
            value = combine(low, high)
        return value

    def any(self) -> Val:
        """Whether a mask is on in any lane, as a scalar i1."""
        if self.ty.lanes == 1:
            return self
        return self.b.intrinsic(f"llvm.vector.reduce.or.{self.ty.suffix}", self.ty.elem, [self])

    def lanes_on(self) -> Val:
        """A mask (lanes of i1, at most 64) as a scalar i64 whose bit k is lane k."""
        whole = self.b.emit(self.ty, f"bitcast {self.ty.llvm} {self.ref} to i{self.ty.lanes}")
        return self.b.emit(Ty("i64"), f"zext i{self.ty.lanes} {whole.ref} to i64")

    __hash__ = object.__hash__
