"""A small typed layer that emits LLVM IR as text.

A kernel reads like its algorithm:

    b = module.function("axpy", [("x", PTR), ("y", PTR), ("n", I64)])
    x, y, n = b.pointer("x", F32), b.pointer("y", F32), b.args["n"]
    with b.loop(0, n, 16) as i:
        (y + i).store((x + i).load(16).fma(b.splat(2.0, F32, 16), (y + i).load(16)))
    b.ret()

The text is final code: no IR-level pass runs over it, so phis are written by hand (loop-carried
values), addresses are folded while emitting, and there are no allocas. Index arithmetic takes
Python ints wherever a bound is known and emits nothing for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32, I1, I32, I64, Ty
from tinsmith.errors import CodegenError

Index = "Val | int"


def literal(value: float | int, ty: Ty) -> str:
    """One element of `ty` as LLVM text."""
    if ty.kind == "f64":
        return "0x" + struct.pack(">d", float(value)).hex().upper()
    if ty.kind == "f32":  # LLVM prints a float as the hex of the double that equals it
        single = struct.unpack("<f", struct.pack("<f", _clamp32(value)))[0]
        return "0x" + struct.pack(">d", single).hex().upper()
    if ty.kind == "i1":
        return "true" if value else "false"
    if ty.is_float:
        raise CodegenError(f"no literals of type {ty}: compute in f32 and convert")
    bits = ty.bits
    value = int(value) & ((1 << bits) - 1)
    return str(value - (1 << bits) if value >> (bits - 1) else value)


def _clamp32(value: float) -> float:
    value = float(value)
    if value != value or abs(value) <= 3.4028235677973362e38:
        return value
    return float("inf") if value > 0 else float("-inf")


class Val:
    """An SSA value. Operators emit instructions; numbers on the other side become splats."""

    __slots__ = ("b", "ref", "ty")

    def __init__(self, b: Builder, ty: Ty, ref: str) -> None:
        self.b, self.ty, self.ref = b, ty, ref

    def _like(self, other: Val | float | int) -> Val:
        if isinstance(other, Val):
            if other.ty != self.ty:
                if other.ty.lanes == 1 and other.ty.kind == self.ty.kind:
                    return other.splat(self.ty.lanes)
                raise CodegenError(f"operands of types {self.ty} and {other.ty} do not mix")
            return other
        return self.b.const(other, self.ty)

    def _binary(self, name: str, other: Val | float | int, reverse: bool = False) -> Val:
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
        """Quotient of non-negative integers (loop indices)."""
        if isinstance(other, int) and other == 1:
            return self
        return self._binary("udiv", other)

    def __mod__(self, other: Any) -> Any:
        """Remainder of non-negative integers (loop indices)."""
        if isinstance(other, int) and other == 1:
            return 0
        return self._binary("urem", other)

    def __and__(self, other: Any) -> Val:
        return self._binary("and", other)

    def __or__(self, other: Any) -> Val:
        return self._binary("or", other)

    def __xor__(self, other: Any) -> Val:
        return self._binary("xor", other)

    def __lshift__(self, other: Any) -> Val:
        return self._binary("shl", other)

    def __rshift__(self, other: Any) -> Val:
        return self._binary("ashr" if self.ty.is_signed else "lshr", other)

    def __neg__(self) -> Val:
        if self.ty.is_float:
            return self.b.emit(self.ty, f"fneg {self.ty.llvm} {self.ref}")
        return self.b.const(0, self.ty) - self

    def compare(self, how: str, other: Any) -> Val:
        """`how` is one of lt le gt ge eq ne; ordered on floats (ne: unordered). Gives i1 lanes."""
        rhs = self._like(other)
        if self.ty.is_float:
            op = "fcmp " + ("une" if how == "ne" else "o" + how)
        elif how in ("eq", "ne"):
            op = "icmp " + how
        else:
            op = "icmp " + ("s" if self.ty.is_signed else "u") + how
        return self.b.emit(self.ty.of("i1"), f"{op} {self.ty.llvm} {self.ref}, {rhs.ref}")

    def __lt__(self, other: Any) -> Val:
        return self.compare("lt", other)

    def __le__(self, other: Any) -> Val:
        return self.compare("le", other)

    def __gt__(self, other: Any) -> Val:
        return self.compare("gt", other)

    def __ge__(self, other: Any) -> Val:
        return self.compare("ge", other)

    def eq(self, other: Any) -> Val:
        return self.compare("eq", other)

    def ne(self, other: Any) -> Val:
        return self.compare("ne", other)

    def is_nan(self) -> Val:
        return self.b.emit(self.ty.of("i1"), f"fcmp uno {self.ty.llvm} {self.ref}, {self.ref}")

    def select(self, yes: Val | float | int, no: Val | float | int) -> Val:
        """Lane-wise choice by this i1 value."""
        if not isinstance(yes, Val):
            assert isinstance(no, Val)
            yes = no._like(yes)
        no = yes._like(no)
        yes = no._like(yes)
        return self.b.emit(
            yes.ty,
            f"select {self.ty.llvm} {self.ref}, {yes.ty.llvm} {yes.ref}, {no.ty.llvm} {no.ref}",
        )

    def max(self, other: Any) -> Val:
        """`self > other ? self : other`: one instruction; the result is `other` where self is NaN."""
        return (self > other).select(self, other)

    def min(self, other: Any) -> Val:
        return (self < other).select(self, other)

    def fma(self, times: Any, plus: Any) -> Val:
        """self * times + plus, fused where the target can."""
        x, y = self._like(times), self._like(plus)
        name = f"llvm.fmuladd.{self._suffix()}"
        return self.b.intrinsic(name, self.ty, [self, x, y])

    def _suffix(self) -> str:
        scalar = {"f32": "f32", "f64": "f64", "f16": "f16", "bf16": "bf16"}.get(
            self.ty.kind, f"i{self.ty.bits}"
        )
        if self.ty.kind == "i1":
            scalar = "i1"
        return scalar if self.ty.lanes == 1 else f"v{self.ty.lanes}{scalar}"

    def unary(self, name: str) -> Val:
        """An LLVM intrinsic of one operand and equal type, e.g. "sqrt", "fabs", "ctpop"."""
        return self.b.intrinsic(f"llvm.{name}.{self._suffix()}", self.ty, [self])

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
        return self.b.emit(
            ty,
            f"shufflevector {ty.llvm} {first.ref}, {ty.llvm} poison, <{lanes} x i32> zeroinitializer",
        )

    def lane(self, index: int | Val) -> Val:
        """One element of a vector."""
        where = index.ref if isinstance(index, Val) else str(index)
        return self.b.emit(self.ty.elem, f"extractelement {self.ty.llvm} {self.ref}, i64 {where}")

    def with_lane(self, index: int | Val, value: Val) -> Val:
        where = index.ref if isinstance(index, Val) else str(index)
        return self.b.emit(
            self.ty,
            f"insertelement {self.ty.llvm} {self.ref}, {value.ty.llvm} {value.ref}, i64 {where}",
        )

    def shuffle(self, other: Val | None, indices: Sequence[int]) -> Val:
        """Lanes picked from the concatenation of self and other; -1 leaves a lane undefined."""
        second = other.ref if other is not None else "poison"
        mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in indices)
        return self.b.emit(
            self.ty.x(len(indices)),
            f"shufflevector {self.ty.llvm} {self.ref}, {self.ty.llvm} {second}, <{len(indices)} x i32> <{mask}>",
        )

    def bitcast(self, ty: Ty) -> Val:
        if ty.llvm == self.ty.llvm:
            return Val(self.b, ty, self.ref)
        return self.b.emit(ty, f"bitcast {self.ty.llvm} {self.ref} to {ty.llvm}")

    def to(self, kind: str) -> Val:
        """Convert each lane to another kind, as C does; float to integer truncates and saturates."""
        src, dst = self.ty, self.ty.of(kind)
        if src.kind == kind:
            return self
        if src.is_float and dst.is_float:
            op = "fptrunc" if dst.bits < src.bits else "fpext"
        elif src.is_float:
            if kind == "i1":
                return self.ne(0.0)
            sign = "s" if dst.is_signed else "u"
            name = f"llvm.fpto{sign}i.sat.{Val(self.b, dst, '')._suffix()}.{self._suffix()}"
            return self.b.intrinsic(name, dst, [self])
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

    def reduce(self, how: str) -> Val:
        """All lanes to one: "add", "mul", "max", "min", by halving (order is fixed)."""
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
            combine = {"add": low.__add__, "mul": low.__mul__, "max": low.max, "min": low.min}
            value = combine[how](high)
        return value

    __hash__ = object.__hash__


class Ptr:
    """A typed address. `p + n` moves by n elements; constant offsets are kept and folded."""

    __slots__ = ("b", "elem", "offset", "ref")

    def __init__(self, b: Builder, ref: str, elem: Ty, offset: int = 0) -> None:
        self.b, self.ref, self.elem, self.offset = b, ref, elem, offset

    def __add__(self, n: Val | int) -> Ptr:
        if isinstance(n, int):
            return Ptr(self.b, self.ref, self.elem, self.offset + n)
        moved = self.b.emit(
            Ty("ptr"), f"getelementptr {self.elem.llvm}, ptr {self.ref}, i64 {n.ref}"
        )
        return Ptr(self.b, moved.ref, self.elem, self.offset)

    def cast(self, elem: Ty) -> Ptr:
        """The same address as a pointer to another element type."""
        return Ptr(self.b, self.address, elem)

    def fixed(self) -> Ptr:
        """The same address with its constant offset folded into one value (to share in a loop)."""
        return Ptr(self.b, self.address, self.elem)

    @property
    def address(self) -> str:
        if not self.offset:
            return self.ref
        return self.b.emit(
            Ty("ptr"), f"getelementptr {self.elem.llvm}, ptr {self.ref}, i64 {self.offset}"
        ).ref

    def load(self, lanes: int = 1, mask: Val | None = None, align: int | None = None) -> Val:
        """`lanes` consecutive elements; lanes off in `mask` are not read and give 0."""
        ty = self.elem.x(lanes)
        align = align or self.elem.nbytes
        if mask is None:
            return self.b.emit(ty, f"load {ty.llvm}, ptr {self.address}, align {align}")
        if lanes == 1:
            raise CodegenError("a masked load needs a vector")
        name = f"llvm.masked.load.{Val(self.b, ty, '')._suffix()}.p0"
        text = f"ptr align {align} {self.address}, {mask.ty.llvm} {mask.ref}, {ty.llvm} zeroinitializer"
        return self.b.intrinsic(name, ty, text=text, params=f"ptr, {mask.ty.llvm}, {ty.llvm}")

    def splat(self, lanes: int) -> Val:
        """One element in every lane."""
        return self.load().splat(lanes)

    def store(self, value: Val, mask: Val | None = None, align: int | None = None) -> None:
        if value.ty.kind != self.elem.kind and value.ty.elem.llvm != self.elem.llvm:
            raise CodegenError(f"cannot store {value.ty} through a pointer to {self.elem}")
        align = align or self.elem.nbytes
        if mask is None:
            self.b.line(f"store {value.ty.llvm} {value.ref}, ptr {self.address}, align {align}")
            return
        name = f"llvm.masked.store.{value._suffix()}.p0"
        text = f"{value.ty.llvm} {value.ref}, ptr align {align} {self.address}, {mask.ty.llvm} {mask.ref}"
        self.b.intrinsic(name, None, text=text, params=f"{value.ty.llvm}, ptr, {mask.ty.llvm}")

    def prefetch(self, write: bool = False, locality: int = 3) -> None:
        text = f"ptr {self.address}, i32 {int(write)}, i32 {locality}, i32 1"
        self.b.intrinsic("llvm.prefetch.p0", None, text=text, params="ptr, i32, i32, i32")

    def load_pointer(self, elem: Ty) -> Ptr:
        """Read the pointer stored at this address."""
        return Ptr(
            self.b, self.b.emit(Ty("ptr"), f"load ptr, ptr {self.address}, align 8").ref, elem
        )


class Loop:
    """What `Builder.loop` yields: `index`, the carried values `vars`, and afterwards `out`."""

    def __init__(self, index: Val, carried: list[Val]) -> None:
        self.index, self.vars = index, carried
        self.out: list[Val] = []
        self._next: list[Val] | None = None

    def next(self, values: Sequence[Val]) -> None:
        """The carried values for the next iteration; call once, at the end of the body."""
        self._next = list(values)


class Function:
    """A function of a module, to be called from others."""

    def __init__(self, name: str, params: Sequence[tuple[str, Ty]]) -> None:
        self.name, self.params = name, list(params)


class Module:
    """LLVM IR text for one target: functions, and the declarations that they need."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._bodies: list[str] = []
        self._declared: dict[str, str] = {}

    def function(
        self, name: str, params: Sequence[tuple[str, Ty]], *, internal: bool = False
    ) -> Builder:
        """Start a function that returns nothing; its builder. End it with `ret`."""
        return Builder(self, Function(name, params), internal)

    def declare(self, name: str, signature: str) -> None:
        """Declare an intrinsic or a function of another module."""
        if self._declared.setdefault(name, signature) != signature:
            raise CodegenError(f"{name} is declared as {self._declared[name]} and as {signature}")

    def text(self) -> str:
        flags = [
            "nounwind",
            '"frame-pointer"="none"',
            f'"prefer-vector-width"="{32 * self.target.lanes}"',
        ]
        head = [f'target triple = "{self.target.triple}"', *self._declared.values()]
        return "\n".join([*head, *self._bodies, f"attributes #0 = {{ {' '.join(flags)} }}", ""])


class Builder:
    """Emits the body of one function. Not thread-safe; one builder, one function."""

    def __init__(self, module: Module, function: Function, internal: bool) -> None:
        self.module, self.function, self._internal = module, function, internal
        self.target = module.target
        self._lines: list[str] = []
        self._count = 0
        self._block = "entry"
        self.args = {name: Val(self, ty, f"%{name}") for name, ty in function.params}

    # ---- raw emission

    def line(self, text: str) -> None:
        self._lines.append("  " + text)

    def emit(self, ty: Ty, text: str) -> Val:
        self._count += 1
        ref = f"%v{self._count}"
        self._lines.append(f"  {ref} = {text}")
        return Val(self, ty, ref)

    def _label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _place(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def intrinsic(
        self,
        name: str,
        ty: Ty | None,
        args: Sequence[Val] = (),
        *,
        text: str = "",
        params: str = "",
    ) -> Val:
        """Call an intrinsic or external function; declares it. Gate target intrinsics on features."""
        text = text or ", ".join(f"{a.ty.llvm} {a.ref}" for a in args)
        params = params or ", ".join(a.ty.llvm for a in args)
        result = "void" if ty is None else ty.llvm
        self.module.declare(name, f"declare {result} @{name}({params})")
        if ty is None:
            self.line(f"call void @{name}({text})")
            return Val(self, I32, "poison")
        return self.emit(ty, f"call {ty.llvm} @{name}({text})")

    def call(self, function: Function, args: Sequence[Val | Ptr | int]) -> None:
        """Call a function built by `Module.function`, of this module or (declared) of another."""
        shown = []
        for (_, ty), a in zip(function.params, args, strict=True):
            ref = (
                a.address if isinstance(a, Ptr) else a.ref if isinstance(a, Val) else literal(a, ty)
            )
            shown.append(f"{ty.llvm} {ref}")
        self.line(f"call void @{function.name}({', '.join(shown)})")

    # ---- values

    def const(self, value: float | int, ty: Ty) -> Val:
        one = literal(value, ty.elem)
        return Val(self, ty, one if ty.lanes == 1 else f"splat ({ty.elem.llvm} {one})")

    def zero(self, ty: Ty) -> Val:
        return self.const(0, ty)

    def splat(self, value: float | int, ty: Ty, lanes: int) -> Val:
        return self.const(value, ty.x(lanes))

    def vector(self, values: Sequence[float | int], ty: Ty) -> Val:
        """A constant vector of different elements."""
        inner = ", ".join(f"{ty.llvm} {literal(v, ty)}" for v in values)
        return Val(self, ty.x(len(values)), f"<{inner}>")

    def index(self, value: Val | int) -> Val:
        """An i64 value, also for a Python int."""
        return value if isinstance(value, Val) else self.const(value, I64)

    def pointer(self, name: str, elem: Ty) -> Ptr:
        """A parameter of type PTR as a typed pointer."""
        return Ptr(self, self.args[name].ref, elem)

    def minimum(self, a: Val | int, b: Val | int) -> Val | int:
        """The smaller of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.index(a).min(self.index(b))

    def maximum(self, a: Val | int, b: Val | int) -> Val | int:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.index(a).max(self.index(b))

    def first_lanes(self, count: Val | int, lanes: int) -> Val:
        """A mask whose first `count` lanes are on (i64 or int; more than `lanes` is all on)."""
        if isinstance(count, int):
            return self.vector([int(i < count) for i in range(lanes)], I1)
        steps = self.vector(list(range(lanes)), I32)
        clipped = self.minimum(count, lanes)
        assert isinstance(clipped, Val)
        return steps < clipped.to("i32").splat(lanes)

    # ---- control

    @contextmanager
    def loop(
        self,
        start: Val | int,
        stop: Val | int,
        step: int = 1,
        carry: Sequence[Val] = (),
    ) -> Iterator[Any]:
        """`for index in range(start, stop, step)`.

        Without `carry` yields the index; with it yields a Loop, whose `next` must be called.
        Where both bounds are numbers there must be at least one iteration.
        """
        static = isinstance(start, int) and isinstance(stop, int)
        if static and start >= stop:  # type: ignore[operator]
            raise CodegenError(f"a loop from {start} to {stop} never runs: do not emit it")
        before, body, after = self._block, self._label("loop"), self._label("end")
        lo, hi = self.index(start), self.index(stop)
        if static:
            self.line(f"br label %{body}")
        else:
            enter = lo < hi
            self.line(f"br i1 {enter.ref}, label %{body}, label %{after}")
        self._place(body)
        index = Val(self, I64, f"%i.{body}")
        carried = [Val(self, v.ty, f"%c{k}.{body}") for k, v in enumerate(carry)]
        at = len(self._lines)
        self._lines.append("")
        loop = Loop(index, carried)
        yield loop if carry else index
        if carry and loop._next is None:
            raise CodegenError("a loop with carried values ended without next()")
        following = loop._next or []
        for old, new in zip(carry, following, strict=True):
            if old.ty != new.ty:
                raise CodegenError(f"a carried value enters as {old.ty} and leaves as {new.ty}")
        bumped = index + step
        again = bumped < hi
        last = self._block
        self.line(f"br i1 {again.ref}, label %{body}, label %{after}")
        phis = [f"  {index.ref} = phi i64 [ {lo.ref}, %{before} ], [ {bumped.ref}, %{last} ]"]
        phis += [
            f"  {c.ref} = phi {c.ty.llvm} [ {a.ref}, %{before} ], [ {n.ref}, %{last} ]"
            for c, a, n in zip(carried, carry, following, strict=True)
        ]
        self._lines[at] = "\n".join(phis)
        self._place(after)
        if static:
            loop.out = list(following)
        else:
            loop.out = [
                self.emit(a.ty, f"phi {a.ty.llvm} [ {a.ref}, %{before} ], [ {n.ref}, %{last} ]")
                for a, n in zip(carry, following, strict=True)
            ]

    @contextmanager
    def when(self, condition: Val) -> Iterator[None]:
        """Run the body where the scalar i1 holds."""
        yes, after = self._label("then"), self._label("end")
        self.line(f"br i1 {condition.ref}, label %{yes}, label %{after}")
        self._place(yes)
        yield
        self.line(f"br label %{after}")
        self._place(after)

    def choose(self, condition: Val, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Run one of two bodies by a scalar i1."""
        first, second, after = self._label("then"), self._label("else"), self._label("end")
        self.line(f"br i1 {condition.ref}, label %{first}, label %{second}")
        self._place(first)
        yes()
        self.line(f"br label %{after}")
        self._place(second)
        no()
        self.line(f"br label %{after}")
        self._place(after)

    def vectors(
        self, count: Val | int, lanes: int, body: Callable[[Any, int, Val | None], None]
    ) -> None:
        """Call `body(index, lanes, mask)` over `count` elements in vectors.

        Full vectors come with mask None; the rest comes as one masked vector where the target
        has cheap masks, else as single elements (lanes 1, mask None).
        """
        full: Val | int = count // lanes * lanes
        if not isinstance(full, int) or full:
            if full == lanes and isinstance(full, int):
                body(0, lanes, None)
            else:
                with self.loop(0, full, lanes) as i:
                    body(i, lanes, None)
        if isinstance(count, int) and isinstance(full, int):
            if count == full:
                return
            if self.target.has_masks and lanes > 1:
                body(full, lanes, self.first_lanes(count - full, lanes))
            else:
                with self.loop(full, count) as i:
                    body(i, 1, None)
            return
        if self.target.has_masks and lanes > 1:
            rest = self.index(count) - self.index(full)
            with self.when(rest > 0):
                body(full, lanes, self.first_lanes(rest, lanes))
        else:
            with self.loop(full, count) as i:
                body(i, 1, None)

    def ret(self) -> Function:
        """End the function and hand its text to the module."""
        self.line("ret void")
        linkage = "internal " if self._internal else ""
        params = ", ".join(f"{ty.llvm} %{name}" for name, ty in self.function.params)
        head = f"define {linkage}void @{self.function.name}({params}) #0 {{\nentry:"
        self.module._bodies.append("\n".join([head, *self._lines, "}"]))
        return self.function


__all__ = [
    "F32",
    "I1",
    "I32",
    "I64",
    "Builder",
    "Function",
    "Loop",
    "Module",
    "Ptr",
    "Ty",
    "Val",
    "literal",
]
