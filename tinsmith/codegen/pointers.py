"""Pointers of generated code: where values are read and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.codegen.types import I1, PTR, Ty
from tinsmith.codegen.values import Val
from tinsmith.errors import CodegenError
from tinsmith.sizes import Number, Size

if TYPE_CHECKING:
    from tinsmith.codegen.builder import Builder, Function


class Ptr:
    """A typed address in generated code. `p + n` is n elements further. Ints n are added up, and
    cost one instruction when the address is used; a `Val` n costs one at once."""

    __slots__ = ("b", "elem", "offset", "ref")

    def __init__(self, b: Builder, ref: str, elem: Ty, offset: int = 0) -> None:
        self.b, self.ref, self.elem, self.offset = b, ref, elem, offset

    def __add__(self, n: Val | int) -> Ptr:
        if isinstance(n, int):
            return Ptr(self.b, self.ref, self.elem, self.offset + n)
        if isinstance(n, Size):
            n = self.b.size(n)
        moved = self.b.emit(PTR, f"getelementptr {self.elem.llvm}, ptr {self.ref}, i64 {n.ref}")
        return Ptr(self.b, moved.ref, self.elem, self.offset)

    def cast(self, elem: Ty) -> Ptr:
        """The same address as a pointer to another element type."""
        return Ptr(self.b, self.address, elem)

    def fixed(self) -> Ptr:
        """The same address, with its collected offset added now, before a loop instead of in it."""
        return Ptr(self.b, self.address, self.elem)

    @property
    def address(self) -> str:
        if not self.offset:
            return self.ref
        text = f"getelementptr {self.elem.llvm}, ptr {self.ref}, i64 {self.offset}"
        return self.b.emit(PTR, text).ref

    @property
    def value(self) -> Val:
        """The address as a value that a loop can carry. On x86 that is better than an address with
        an index, which splits a multiply-add from memory into two operations."""
        return Val(self.b, PTR, self.address)

    def is_some(self) -> Val:
        """Whether the address is not null, as an i1."""
        return self.b.emit(I1, f"icmp ne ptr {self.address}, null")

    def of(self, value: Val) -> Ptr:
        """A pointer to the same type of elements at the address `value`, such as `Ptr.value` of
        this one, or what a loop carries of it."""
        return Ptr(self.b, value.ref, self.elem)

    def load(
        self, lanes: int = 1, mask: Val | None = None, align: int | None = None,
        count: Val | Number | None = None,
    ) -> Val:  # fmt: skip
        """Load `lanes` elements from this address on. Lanes that are off in `mask`, or (not both)
        from `count` on, are 0, and their memory is not read. `align` is in bytes; None: that of an
        element."""
        ty = self.elem.x(lanes)
        if isinstance(count, Val | Size):
            return self.load(lanes, self.b.first_lanes(count, lanes))
        if count is not None and count < lanes:
            return self._load_some(lanes, count)
        align = align or self.elem.nbytes
        if mask is None:
            return self.b.emit(ty, f"load {ty.llvm}, ptr {self.address}, align {align}")
        if lanes == 1:
            raise CodegenError("a masked load needs a vector")
        name = f"llvm.masked.load.{ty.suffix}.p0"
        place = f"ptr align {align} {self.address}"
        text = f"{place}, {mask.ty.llvm} {mask.ref}, {ty.llvm} zeroinitializer"
        return self.b.intrinsic(name, ty, text=text, params=f"ptr, {mask.ty.llvm}, {ty.llvm}")

    def _load_some(self, lanes: int, count: int) -> Val:
        if self.b.target.has_masks:
            return self.load(lanes, self.b.first_lanes(count, lanes))
        value = self.b.zero(self.elem.x(lanes))
        for k in range(count):
            value = value.with_lane(k, (self + k).load())
        return value

    def splat(self, lanes: int) -> Val:
        """Load one element, and put it into each of `lanes` lanes."""
        return self.load().splat(lanes)

    def gather(self, places: Val, mask: Val | None = None) -> Val:
        """Load a vector: lane k from places[k] (an integer) elements after this address. Lanes that
        are off in `mask` are 0, and their memory is not read; a single lane is always read."""
        lanes, ty = places.ty.lanes, self.elem.x(places.ty.lanes)
        if lanes == 1:
            return (self + places).load()
        line = f"getelementptr {self.elem.llvm}, ptr {self.address}, {places.ty.llvm} {places.ref}"
        on = self.b.const(1, I1.x(lanes)) if mask is None else mask
        text = f"<{lanes} x ptr> align {self.elem.nbytes} {self.b.emit(PTR, line).ref}, "
        text += f"{on.ty.llvm} {on.ref}, {ty.llvm} zeroinitializer"
        name = f"llvm.masked.gather.{ty.suffix}.v{lanes}p0"
        params = f"<{lanes} x ptr>, {on.ty.llvm}, {ty.llvm}"
        return self.b.intrinsic(name, ty, text=text, params=params)

    def store(
        self, value: Val, mask: Val | None = None, align: int | None = None,
        count: Val | Number | None = None,
    ) -> None:  # fmt: skip
        """Store the lanes of a value from this address on, but for those that are off in `mask`, or
        (not both) from `count` on. `align` is in bytes; None: that of an element. An i1 is stored
        as a byte, 0 or 1."""
        lanes = value.ty.lanes
        if isinstance(count, Size):
            count = self.b.size(count)
        if isinstance(count, Val) or (count is not None and count < lanes):
            self._store_some(value, count)
            return
        if value.ty.kind == "i1" and self.elem.nbytes == 1:
            value = value.to(self.elem.kind)
        if value.ty.kind != self.elem.kind and value.ty.elem.llvm != self.elem.llvm:
            raise CodegenError(f"cannot store {value.ty} through a pointer to {self.elem}")
        align = align or self.elem.nbytes
        if mask is None:
            self.b.line(f"store {value.ty.llvm} {value.ref}, ptr {self.address}, align {align}")
            return
        bits = mask.ref.strip("<>").split(", ") if mask.ref.startswith("<") else []
        if bits.count("i1 true") == 1:  # LLVM 22 writes such a store too wide after a trunc
            one = bits.index("i1 true")
            (self + one).store(value.lane(one))
            return
        name = f"llvm.masked.store.{value.ty.suffix}.p0"
        place = f"ptr align {align} {self.address}"
        text = f"{value.ty.llvm} {value.ref}, {place}, {mask.ty.llvm} {mask.ref}"
        self.b.intrinsic(name, None, text=text, params=f"{value.ty.llvm}, ptr, {mask.ty.llvm}")

    def _store_some(self, value: Val, count: Val | int) -> None:
        b, lanes = self.b, value.ty.lanes
        if isinstance(count, int):
            for at, size, mask in b.pieces(count, lanes):
                (self + at).store(value.part(at, size), mask)
            return

        def some() -> None:
            if b.target.has_masks:
                self.store(value, b.first_lanes(count, lanes))
                return
            for k in range(lanes - 1):
                with b.when(count > k):
                    (self + k).store(value.lane(k))

        b.choose(count >= lanes, lambda: self.store(value), some)

    def atomic(self, how: str, value: Val | int, order: str = "monotonic") -> Val:
        """Combine the integer at this address with `value` in one operation (LLVM's `how`: add,
        sub, and, xchg), and return the integer before. `order` is LLVM's: with "release", a thread
        that loads the new value with "acquire" also sees all earlier stores of this thread."""
        ty = self.elem
        given = value.ref if isinstance(value, Val) else str(value)
        text = f"atomicrmw {how} ptr {self.address}, {ty.llvm} {given} {order}, align {ty.nbytes}"
        return self.b.emit(ty, text)

    def compare_exchange(self, old: Val, new: Val, order: str) -> Val:
        """If the integer at this address is `old`, replace it by `new`, in one operation. Return
        whether it was, as an i1. `order` is LLVM's."""
        ty = self.elem
        how = f"{order} monotonic, align {ty.nbytes}"
        text = f"cmpxchg ptr {self.address}, {ty.llvm} {old.ref}, {ty.llvm} {new.ref} {how}"
        pair = self.b.emit(ty, text)
        return self.b.emit(I1, f"extractvalue {{ {ty.llvm}, i1 }} {pair.ref}, 1")

    def load_atomic(self, order: str) -> Val:
        """Load the integer at this address, which other threads may write meanwhile. `order` is
        LLVM's, such as "acquire"."""
        ty = self.elem
        text = f"load atomic {ty.llvm}, ptr {self.address} {order}, align {ty.nbytes}"
        return self.b.emit(ty, text)

    def store_atomic(self, value: Val, order: str) -> None:
        """Store an integer at this address, which other threads may read meanwhile. `order` is
        LLVM's, such as "release"."""
        ty = self.elem
        place = f"ptr {self.address} {order}, align {ty.nbytes}"
        self.b.line(f"store atomic {ty.llvm} {value.ref}, {place}")

    def call(
        self, kind: Function, args: Sequence[Val | Ptr | int], result: Ty | None = None
    ) -> Val:
        """Call the function at this address, which has the parameters of `kind`. Return its result,
        of type `result` (None: void, and what is returned must not be used)."""
        return self.b.call_at(self.address, kind, args, result)

    def prefetch(self, write: bool = False, locality: int = 3) -> None:
        text = f"ptr {self.address}, i32 {int(write)}, i32 {locality}, i32 1"
        self.b.intrinsic("llvm.prefetch.p0", None, text=text, params="ptr, i32, i32, i32")

    def load_pointer(self, elem: Ty) -> Ptr:
        """Load the pointer stored at this address, to elements of type `elem`."""
        return Ptr(self.b, self.b.emit(PTR, f"load ptr, ptr {self.address}, align 8").ref, elem)
