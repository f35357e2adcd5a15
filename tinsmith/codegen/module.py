"""Modules for LLVM: the text of functions, which `Builder`s write, and what calls of them need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.codegen.target import Target
from tinsmith.codegen.types import QUICK, Ty
from tinsmith.errors import CodegenError

if TYPE_CHECKING:
    from tinsmith.codegen.builder import Builder


class Function:
    """Name and parameters of a generated function, which calls of it need."""

    def __init__(self, name: str, params: Sequence[tuple[str, Ty]]) -> None:
        self.name, self.params = name, list(params)


class Module:
    """The text of one LLVM module for a target: functions, and declarations of what they call.

    `quick` modules, which do little but call others, are compiled without optimisation.
    """

    def __init__(self, target: Target, *, quick: bool = False) -> None:
        self.target, self.quick = target, quick
        self.bodies: list[str] = []
        self._declared: dict[str, str] = {}

    def function(
        self, name: str, params: Sequence[tuple[str, Ty]], *, internal: bool = False
    ) -> Builder:
        """Start a void function of these (name, type) parameters, and return its builder, whose
        `ret` ends it and adds it to the module. Other modules cannot call an `internal`
        function."""
        from tinsmith.codegen.builder import Builder

        return Builder(self, Function(name, params), internal)

    def declare(self, name: str, signature: str) -> None:
        """Declare `name`, an intrinsic or another module's function, by LLVM's line `signature`
        ("declare ..."). Raises CodegenError if an earlier one for it differs."""
        if self._declared.setdefault(name, signature) != signature:
            raise CodegenError(f"{name} is declared as {self._declared[name]} and as {signature}")

    def text(self) -> str:
        flags = [
            *([QUICK] if self.quick else []),
            "nounwind",
            '"frame-pointer"="none"',
            f'"prefer-vector-width"="{32 * self.target.lanes}"',
        ]
        head = [f'target triple = "{self.target.triple}"', *self._declared.values()]
        return "\n".join([*head, *self.bodies, f"attributes #0 = {{ {' '.join(flags)} }}", ""])
