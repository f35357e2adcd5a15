"""A small typed layer that emits LLVM IR as text.

A kernel reads like its algorithm:

    b = module.function("axpy", [("x", PTR), ("y", PTR), ("n", I64)])
    x, y, n = b.pointer("x", F32), b.pointer("y", F32), b.args["n"]
    with b.loop(0, n, 16) as i:
        (y + i).store((x + i).load(16).fma(b.splat(2.0, F32, 16), (y + i).load(16)))
    b.ret()

The text is final code: no IR-level pass runs over it, so phis are written by hand (loop-carried
values), addresses are folded while emitting, and kernels use no stack. Index arithmetic takes
Python ints wherever a bound is known and emits nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinsmith.codegen.module import Function, Module
from tinsmith.codegen.number_tables import NUMBERS, SIZES, Tables
from tinsmith.codegen.pointers import Ptr
from tinsmith.codegen.types import F32, I1, I32, I64, PTR, Ty
from tinsmith.codegen.values import Val, literal
from tinsmith.errors import CodegenError
from tinsmith.sizes import Number, Size, largest, smallest

ADDRESSING = ("getelementptr ", "bitcast ", "mul i64", "add i64", "udiv i64", "urem i64")
"""Instructions that are written once in a basic block: LLVM finds equal ones too, but their text
takes time to write and to read."""


class Loop:
    """A loop with carried values (phis), as `Builder.loop` yields it: in the body `index` and the
    carried values `vars` of this iteration, after the loop their final values `out`."""

    def __init__(self, index: Val, carried: list[Val]) -> None:
        self.index, self.vars = index, carried
        self.out: list[Val] = []
        self._next: list[Val] | None = None

    def next(self, values: Sequence[Val]) -> None:
        """Set the carried values of the next iteration; call once, at the end of the body."""
        self._next = list(values)


class Builder:
    """Emits the body of one function. Not thread-safe; one builder, one function."""

    def __init__(self, module: Module, function: Function, internal: bool) -> None:
        self.module, self.function, self._internal = module, function, internal
        self.target = module.target
        self._lines: list[str] = []
        self._count = 0
        self._block = "entry"
        self._written: dict[str, str] = {}  # ADDRESSING of the block so far -> its results
        self.tables = Tables()
        self.args = {name: Val(self, ty, f"%{name}") for name, ty in function.params}

    # ---- raw emission

    def line(self, text: str) -> None:
        self._lines.append("  " + text)

    def emit(self, ty: Ty, text: str) -> Val:
        ref = self._written.get(text)
        if ref is None:
            self._count += 1
            ref = f"%{self._count}"
            self._lines.append(f"  {ref} = {text}")
            if text.startswith(ADDRESSING):
                self._written[text] = ref
        return Val(self, ty, ref)

    def _label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _place(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block, self._written = label, {}

    def intrinsic(
        self, name: str, ty: Ty | None, args: Sequence[Val] = (), *, text: str = "",
        params: str = "",
    ) -> Val:  # fmt: skip
        """Declare and call the LLVM intrinsic or outside function `name`, and return its result, of
        type `ty` (None: it has none; do not use what is returned). `text` and `params` are operands
        and their types as LLVM text, in place of those of `args`. Call a target's own intrinsics
        only for targets that have them."""
        text = text or ", ".join([f"{a.ty.llvm} {a.ref}" for a in args])
        params = params or ", ".join([a.ty.llvm for a in args])
        result = "void" if ty is None else ty.llvm
        self.module.declare(name, f"declare {result} @{name}({params})")
        if ty is None:
            self.line(f"call void @{name}({text})")
            return Val(self, I32, "poison")
        return self.emit(ty, f"call {ty.llvm} @{name}({text})")

    def call(self, function: Function, args: Sequence[Val | Ptr | int]) -> None:
        """Call a function built by `Module.function`, of this module or (declared) of another."""
        self.call_at(f"@{function.name}", function, args)

    def call_at(
        self, address: str, kind: Function, args: Sequence[Val | Ptr | Number],
        result: Ty | None = None,
    ) -> Val:  # fmt: skip
        """Call the function at `address` (an LLVM operand), which has the parameters of `kind`.
        Return its result, of type `result` (None: it has none). Where `args` lacks only the tables
        of numbers and sizes, which are last, the caller's are passed on."""
        shown, params, tables = [], kind.params, list[str]()
        if all(name in (NUMBERS, SIZES) for name, _ in params[len(args) :]):
            tables = [f"ptr %{name}" for name, _ in params[len(args) :]]
            params = params[: len(args)]
        for (_, ty), a in zip(params, args, strict=True):
            if isinstance(a, Size):
                a = self.size(a)
            ref = (
                a.address if isinstance(a, Ptr) else a.ref if isinstance(a, Val) else literal(a, ty)
            )
            shown.append(f"{ty.llvm} {ref}")
        given = ", ".join([*shown, *tables])
        if result is not None:
            return self.emit(result, f"call {result.llvm} {address}({given})")
        self.line(f"call void {address}({given})")
        return Val(self, I32, "poison")

    def pause(self) -> None:
        """Emit the hint by which a core saves power in a loop that waits for another thread."""
        arch = self.target.triple.split("-")[0]
        if arch == "x86_64":
            self.intrinsic("llvm.x86.sse2.pause", None)
        elif arch in ("aarch64", "arm64"):
            self.intrinsic("llvm.aarch64.hint", None, [self.const(1, I32)])

    def barrier(self) -> None:
        """Emit a barrier for the compiler: LLVM moves no load or store across it. It makes no
        instruction."""
        self.line('call void asm sideeffect "", "~{memory}"()')

    # ---- values

    def const(self, value: float | Number, ty: Ty) -> Val:
        if isinstance(value, Size):
            return self.size(value).to(ty.kind).splat(ty.lanes)
        one = literal(value, ty.elem)
        return Val(self, ty, one if ty.lanes == 1 else f"splat ({ty.elem.llvm} {one})")

    def zero(self, ty: Ty) -> Val:
        return self.const(0, ty)

    def splat(self, value: float | int, ty: Ty, lanes: int) -> Val:
        return self.const(value, ty.x(lanes))

    def vector(self, values: Sequence[float | int], ty: Ty) -> Val:
        """A constant vector of these numbers, each of type `ty`."""
        inner = ", ".join(f"{ty.llvm} {literal(v, ty)}" for v in values)
        return Val(self, ty.x(len(values)), f"<{inner}>")

    def size(self, value: Size) -> Val:
        """The value of a Size, an i64, which the function reads from its table of sizes."""
        ref = self.tables.sizes.setdefault(value, f"%z{len(self.tables.sizes)}")
        return Val(self, I64, ref)

    def number(self, key: Hashable, value: float, ty: Ty) -> Val:
        """A number of 4 bytes in all lanes of `ty`. If `Tables.numbers` has the key, it is read
        from the table, so that layers that differ only in such numbers share code; else it is the
        constant `value`."""
        tables = self.tables
        if key not in tables.numbers:
            return self.const(value, ty)
        place = tables.numbers[key], ty
        return Val(self, ty, tables.read.setdefault(place, f"%n{len(tables.read)}"))

    def index(self, value: Val | Number) -> Val:
        """A Val, int or Size as an i64 value."""
        return value if isinstance(value, Val) else self.const(value, I64)

    def pointer(self, name: str, elem: Ty) -> Ptr:
        """The function's parameter `name`, of type PTR, as a pointer to elements of type `elem`."""
        return Ptr(self, self.args[name].ref, elem)

    def null(self, elem: Ty) -> Ptr:
        """The null pointer, as one to elements of type `elem`."""
        return Ptr(self, "null", elem)

    def stack(self, elem: Ty, count: int) -> Ptr:
        """Memory for `count` elements of type `elem` on the stack, not initialised. Call it outside
        of loops: each run of it takes more."""
        text = f"alloca [{count} x {elem.llvm}], align {elem.nbytes}"
        return Ptr(self, self.emit(PTR, text).ref, elem)

    def minimum(self, a: Val | int, b: Val | int) -> Val | int:
        """The smaller of two indices: a number, if both are numbers; else a `Val`."""
        if not isinstance(a, Val) and not isinstance(b, Val):
            return smallest(a, b)
        return self.index(a).min(self.index(b))

    def maximum(self, a: Val | int, b: Val | int) -> Val | int:
        if not isinstance(a, Val) and not isinstance(b, Val):
            return largest(a, b)
        return self.index(a).max(self.index(b))

    def first_lanes(self, count: Val | int, lanes: int) -> Val:
        """A mask of `lanes` lanes whose first `count` are on; with `count` above `lanes` all
        are."""
        if isinstance(count, int):
            return self.vector([int(i < count) for i in range(lanes)], I1)
        steps = self.vector(list(range(lanes)), I32)
        clipped = self.index(self.minimum(count, lanes))
        return steps < clipped.to("i32").splat(lanes)

    def pieces(self, count: Number, lanes: int) -> list[tuple[int, int, Val | None]]:
        """Vectors that cover the first `count` of `lanes` elements, as (offset, lanes, mask).

        One vector, masked if it must be, where masks are cheap or `count` is a Size; else narrower
        vectors without masks: lanes 4, 2 and 1 for 7 of 8 elements.
        """
        if not isinstance(count, int):
            return [(0, lanes, self.first_lanes(count, lanes))]
        if count == lanes:
            return [(0, lanes, None)]
        if self.target.has_masks and count:
            return [(0, lanes, self.first_lanes(count, lanes))]
        found, at = [], 0
        while at < count:
            size = lanes
            while size > count - at:
                size //= 2
            found.append((at, size, None))
            at += size
        return found

    def rest(
        self, start: Val | int, count: int, lanes: int,
        body: Callable[[Any, int, Val | None], None],
    ) -> None:  # fmt: skip
        """Emit `body(index, lanes, mask)` for `count` < `lanes` elements, a number, from `start`
        on: once, with a mask, where the target has cheap masks; else in a loop over single elements
        (lanes 1, mask None)."""
        if self.target.has_masks and lanes > 1:
            body(start, lanes, self.first_lanes(count, lanes))
        else:
            with self.loop(start, start + count) as i:
                body(i, 1, None)

    # ---- control

    @contextmanager
    def loop(
        self, start: Val | int, stop: Val | int, step: int = 1, carry: Sequence[Val] | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """A loop over i64 indices `range(start, stop, step)`.

        Yields the index; with `carry`, the values that enter the first iteration (perhaps []), a
        Loop, whose `next` must be called. Where both bounds are numbers there must be at least one
        iteration.
        """
        static = isinstance(start, int) and isinstance(stop, int)
        if static and start >= stop:  # type: ignore[operator]
            raise CodegenError(f"a loop from {start} to {stop} never runs: do not emit it")
        values = () if carry is None else carry
        before, body, after = self._block, self._label("loop"), self._label("end")
        lo, hi = self.index(start), self.index(stop)
        if static:
            self.line(f"br label %{body}")
        else:
            enter = lo < hi
            self.line(f"br i1 {enter.ref}, label %{body}, label %{after}")
        self._place(body)
        index = Val(self, I64, f"%i.{body}")
        carried = [Val(self, v.ty, f"%c{k}.{body}") for k, v in enumerate(values)]
        at = len(self._lines)
        self._lines.append("")
        loop = Loop(index, carried)
        yield index if carry is None else loop
        if carry is not None and loop._next is None:
            raise CodegenError("a loop with carried values ended without next()")
        following = loop._next or []
        for old, new in zip(values, following, strict=True):
            if old.ty != new.ty:
                raise CodegenError(f"a carried value enters as {old.ty} and leaves as {new.ty}")
        bumped = index + step
        again = bumped < hi
        last = self._block
        self.line(f"br i1 {again.ref}, label %{body}, label %{after}")

        def phi(first: Val, later: Val) -> str:
            return f"phi {first.ty.llvm} [ {first.ref}, %{before} ], [ {later.ref}, %{last} ]"

        ends = list(map(phi, values, following))
        phis = zip((index, *carried), (phi(lo, bumped), *ends), strict=True)
        self._lines[at] = "\n".join(f"  {name.ref} = {text}" for name, text in phis)
        self._place(after)
        outs = zip(values, following, ends, strict=True)
        loop.out = [new if static else self.emit(old.ty, text) for old, new, text in outs]

    @contextmanager
    def repeat(self) -> Iterator[Callable[[Val], None]]:
        """A loop without end. Yields `leave_if(condition)`: a call of it in the body leaves the
        loop there if the condition, a scalar i1, is on."""
        body, after = self._label("repeat"), self._label("end")
        self.line(f"br label %{body}")
        self._place(body)

        def leave_if(condition: Val) -> None:
            on = self._label("on")
            self.line(f"br i1 {condition.ref}, label %{after}, label %{on}")
            self._place(on)

        yield leave_if
        self.line(f"br label %{body}")
        self._place(after)

    def find(self, count: Val | int, holds: Callable[[Val], Val]) -> Val:
        """The first index below `count` for which the scalar i1 `holds(index)` is on; else
        `count`."""
        before, head, body, after = self._block, *map(self._label, ("find", "try", "found"))
        self.line(f"br label %{head}")
        self._place(head)
        index, stop, at = Val(self, I64, f"%i.{head}"), self.index(count), len(self._lines)
        self._lines.append("")
        self.line(f"br i1 {(index < stop).ref}, label %{body}, label %{after}")
        self._place(body)
        found, bumped = holds(index), index + 1
        self.line(f"br i1 {found.ref}, label %{after}, label %{head}")
        self._lines[at] = (
            f"  {index.ref} = phi i64 [ 0, %{before} ], [ {bumped.ref}, %{self._block} ]"
        )
        self._place(after)
        return index

    @contextmanager
    def when(self, condition: Val) -> Iterator[None]:
        """A context: what is emitted in it runs only if the condition, a scalar i1, is on."""
        yes, after = self._label("then"), self._label("end")
        self.line(f"br i1 {condition.ref}, label %{yes}, label %{after}")
        self._place(yes)
        yield
        self.line(f"br label %{after}")
        self._place(after)

    def choose(self, condition: Val, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Emit a branch: to what `yes()` emits if the condition, a scalar i1, is on, else to what
        `no()` emits."""
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
        """Emit `body(index, lanes, mask)` over `count` elements in vectors.

        Full vectors come with mask None; the rest comes as one masked vector where the target has
        cheap masks, else as single elements (lanes 1, mask None).
        """
        full: Val | int = count // lanes * lanes
        if isinstance(full, int) and full == lanes:
            body(0, lanes, None)
        elif not isinstance(full, int) or full:
            with self.loop(0, full, lanes) as i:
                body(i, lanes, None)
        if isinstance(count, int) and isinstance(full, int):
            if full < count:
                self.rest(full, count - full, lanes, body)
            return
        if self.target.has_masks and lanes > 1:
            rest = self.index(count) - self.index(full)
            with self.when(rest > 0):
                body(full, lanes, self.first_lanes(rest, lanes))
        else:
            with self.loop(full, count) as i:
                body(i, 1, None)

    def ret(self) -> Function:
        """End the function and hand its text to the module. Returned is its name with all
        parameters: those for tables that the code reads (`Tables.params`) are added last."""
        self.line("ret void")
        self.function.params += self.tables.params()
        linkage = "internal " if self._internal else ""
        params = ", ".join(f"{ty.llvm} %{name}" for name, ty in self.function.params)
        head = f"define {linkage}void @{self.function.name}({params}) #0 {{\nentry:"
        self.module.bodies.append("\n".join([head, *self.tables.loads(), *self._lines, "}"]))
        return self.function


__all__ = [
    "F32", "I1", "I32", "I64", "Builder", "Function", "Loop", "Module", "Ptr", "Ty", "Val",
    "literal",
]  # fmt: skip
