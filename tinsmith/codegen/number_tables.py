"""Tables that a generated function reads: of sizes, and of numbers of its layer."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from tinsmith.codegen.types import PTR, Ty
from tinsmith.sizes import Size

SIZES = "sizes"
"""Name of the last parameter of a generated function that reads sizes which are known only when a
model is called (`tinsmith/sizes.py`): the address of a table of i64."""
NUMBERS = "numbers"
"""Name of the parameter before `sizes` of a generated function that reads numbers of 4 bytes, such
as scales, from a table of its layer: the table's address."""


class Tables:
    """What a function reads from its tables, collected by its `Builder`. Functions of one module
    that call each other may share one `Tables`."""

    def __init__(self) -> None:
        self.sizes: dict[Size, str] = {}
        """The sizes that are read, in the order of their table -> their LLVM names."""
        self.sizes_from: tuple[str, ...] = ()
        """Lines of LLVM text that compute the address of the table of sizes, `%sizes`; without any
        it is a parameter."""
        self.numbers: Mapping[Hashable, int] = {}
        """Keys of the numbers that are read from the table of numbers -> their index in it."""
        self.read: dict[tuple[int, Ty], str] = {}
        """(index, type) of the numbers that are read -> their LLVM names."""

    def params(self) -> list[tuple[str, Ty]]:
        """The parameters (name, type) that a function has for the tables that it reads, if any."""
        given = ((NUMBERS, self.read), (SIZES, self.sizes and not self.sizes_from))
        return [(name, PTR) for name, needed in given if needed]

    def loads(self) -> Iterator[str]:
        """The lines at a function's start that load the sizes and numbers that it reads."""
        yield from (f"  {line}" for line in self.sizes_from if self.sizes)
        for k, ref in enumerate(self.sizes.values()):
            yield f"  {ref}.at = getelementptr i64, ptr %{SIZES}, i64 {k}"
            yield f"  {ref} = load i64, ptr {ref}.at, align 8"
        for (k, ty), ref in self.read.items():
            yield f"  {ref}.at = getelementptr i32, ptr %{NUMBERS}, i64 {k}"
            one = ref if ty.lanes == 1 else f"{ref}.one"
            yield f"  {one} = load {ty.elem.llvm}, ptr {ref}.at, align 4"
            if ty.lanes > 1:
                all_of_one = f"<{ty.lanes} x i32> zeroinitializer"
                yield f"  {ref}.in = insertelement {ty.llvm} poison, {ty.elem.llvm} {one}, i64 0"
                yield f"  {ref} = shufflevector {ty.llvm} {ref}.in, {ty.llvm} poison, {all_of_one}"
