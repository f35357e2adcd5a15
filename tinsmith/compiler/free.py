"""Programs for free sizes: which a model has, and when one is made.

The first shapes that a model is called with get a program of their own. With the second, a program
is made that leaves free what the model leaves free (`runtime/free.py`): it takes other sizes by
arithmetic alone. It is right where the conditions hold that its code was made under; sizes beyond
these get another one, of `MOST` at most, and then again programs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword
from typing import Any

from tinsmith.compiler.build import Compilation
from tinsmith.compiler.sections import Told
from tinsmith.formulas import OPERATIONS
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.runtime.free import FreeProgram
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program
from tinsmith.sizes import NeedsNumber, Scope, Size

MOST = 4
"""How many programs for free sizes a model has at most: sizes of 0 and 1 are other programs than
larger ones. Estimated."""
RESERVED = {"peak", *OPERATIONS}
"""Names that formulas use themselves; "at" and a number are places in the arena."""
LEAST = 2
"""The least size that is left free: where one is 0 or 1, most kernels would be others."""


class FreePrograms:
    """Those of one model. Not thread-safe."""

    def __init__(self) -> None:
        self.found: list[tuple[FreeProgram, Told]] = []
        self.notes: list[str] = []
        self._asked = 0

    def program(self, signature: Signature) -> tuple[Program, Told] | None:
        """The program for these shapes, if one admits them."""
        for free, told in reversed(self.found):
            values = free.values(signature)
            if values is not None:
                return free.sized(values), told
        return None

    def wanted(self, policy: str) -> bool:
        """Whether the next program should be one for free sizes; counts how often it is asked."""
        self._asked += 1
        if policy == "fixed" or len(self.found) >= MOST or self.notes:
            return False
        return policy == "free" or self._asked > 1

    def make(
        self, made: Compilation, signature: Signature, weights: SharedWeights
    ) -> tuple[Program, Told] | None:
        """A program for these shapes and others; None where the model leaves nothing free, or
        where something needs a number, which is noted."""
        scope = Scope()
        shapes = _shapes(made, signature, scope)
        if not scope.symbols:
            return None
        try:
            program, told = made.build(shapes, shared_weights=weights)
        except NeedsNumber as why:
            self.notes.append(f"shapes: each shape is compiled on its own: {why}")
            return None
        free = FreeProgram(program, shapes, scope)
        self.found.append((free, told))
        values = free.values(signature)
        assert values is not None, "the shapes it was made for do not meet its conditions"
        return free.sized(values), told


def _name(symbol: str, number: int) -> str:
    """The model's own name for a size, where that is one in formulas too."""
    taken = symbol in RESERVED or symbol.rstrip("0123456789") == "at"
    return f"d{number}" if taken or not symbol.isidentifier() or iskeyword(symbol) else symbol


def _shapes(made: Compilation, signature: Signature, scope: Scope) -> tuple[Any, ...]:
    """A signature with symbols for the dimensions that the model leaves free."""
    symbols: dict[str, Size] = {}

    def dim(wanted: Any, given: int) -> Any:
        if not isinstance(wanted, str) or given < LEAST:
            return given
        if wanted not in symbols:
            symbols[wanted] = scope.symbol(_name(wanted, len(symbols)), given, LEAST)
        return symbols[wanted]

    def dims(own: Sequence[Any] | None, given: Sequence[int] | None) -> Any:
        if own is None or given is None:
            return given
        return tuple(dim(d, n) for d, n in zip(own, given, strict=True))

    types = [v.type.shape for v in made.canonical.inputs]
    return tuple(dims(own, given) for own, given in zip(types, signature, strict=True))
