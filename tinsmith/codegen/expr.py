"""Immutable expressions: what an elementwise computation does to each element.

An expression is a DAG of named functions over leaves and constants; each node has the dtype that
numpy would give it. `emit_expr` turns it into instructions on vectors, `evaluate` into numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.types import F32, name_of
from tinsmith.hashing import blake2b
from tinsmith.records import cached_property, dataclass

LITERAL = frozenset((0.0, 0.5, 1.0, 2.0, 3.0, 6.0, -1.0))
"""Numbers that layers have in common."""
SHOWN = 120
"""The most characters of an expression's printed text."""


@dataclass(frozen=True, eq=False)
class Expr:
    """A node of an elementwise expression: the numpy function `name` ("add", "exp", "astype") of
    `args`, or an operand ("leaf"), a number ("const"), a size ("size").

    `param` is the index of a leaf's operand, a const's number, a size's `Size`; some functions have
    one, too. Parts that are one object are computed once.
    """

    name: str
    args: tuple[Expr, ...] = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype("float32"))
    param: Any = None

    @cached_property
    def key(self) -> str:
        """A text that is equal for two expressions if and only if they are the same; long ones are
        hashed."""
        param = "" if self.param is None else repr(self.param)
        return self._text(param, [a.key for a in self.args])

    def _text(self, param: str, inner: Sequence[str]) -> str:
        text = f"{self.name}:{name_of(self.dtype)}{param}({','.join(inner)})"
        if len(text) <= 120:
            return text
        return blake2b(text.encode(), digest_size=16).hexdigest()  # shared parts stay short

    @cached_property
    def form(self) -> tuple[str, bool]:
        """What its code depends on: `key` without the values of `numbers`, and `keeps_zero`."""
        own: dict[int, list[tuple[str, int]]] = {}
        for i, (node, name) in enumerate(self.numbers):
            own.setdefault(node, []).append((name, i))
        texts: dict[int, str] = {}

        def text(e: Expr) -> str:
            if id(e) not in texts:
                param = own.get(id(e), "" if e.param is None else e.param)
                if e.name == "narrowed" and e.param:
                    param = param, e.param[1]
                texts[id(e)] = e._text(repr(param), [text(a) for a in e.args])
            return texts[id(e)]

        return text(self), self.keeps_zero

    @cached_property
    def keeps_zero(self) -> bool:
        """Whether operands of zeros give exactly +0."""
        leaves = {e.param: np.zeros((), e.dtype) for e in self.nodes() if e.name == "leaf"}
        with np.errstate(all="ignore"):
            got = self.evaluate([leaves.get(i, 0) for i in range(max(leaves, default=-1) + 1)])
        return bool(got == 0) and not bool(np.signbit(np.float64(got)))

    @cached_property
    def numbers(self) -> dict[tuple[int, str], np.generic]:
        """Its numbers of 4 bytes, such as scales, by the id of their node and a name, if it reads
        or gives bytes. Quantised layers that are alike in all else differ in these: they lie in a
        table, and are no part of the code. Those of LITERAL stay in the code."""
        from tinsmith.codegen.functions import zeros_of

        found: dict[tuple[int, str], np.generic] = {}
        nodes = self.nodes()
        if any(_is_byte(e.dtype) or e.name == "narrowed" for e in nodes):
            for e in nodes:
                if e.name == "const" and e.dtype == np.float32 and e.param not in LITERAL:
                    found[id(e), ""] = np.float32(e.param)
                elif e.name == "narrowed" and e.param[0]:
                    found |= {(id(e), name): n for name, n in zeros_of(e).items()}
        return found

    def nodes(self) -> list[Expr]:
        """Every node of the expression once, this one first."""
        seen: dict[int, Expr] = {}

        def walk(e: Expr) -> None:
            if id(e) not in seen:
                seen[id(e)] = e
                for a in e.args:
                    walk(a)

        walk(self)
        return list(seen.values())

    def evaluate(self, leaves: Sequence[Any]) -> Any:
        """The value in numpy, for arrays or scalars in place of the leaves."""
        from tinsmith.codegen.functions import FUNCTIONS

        memo: dict[int, Any] = {}

        def value(e: Expr) -> Any:
            if id(e) not in memo:
                if e.name == "leaf":
                    memo[id(e)] = np.asarray(leaves[e.param])
                elif e.name in ("const", "size"):
                    memo[id(e)] = np.asarray(e.param, e.dtype)
                else:
                    memo[id(e)] = np.asarray(FUNCTIONS[e.name].numpy(e, *map(value, e.args)))
            return memo[id(e)]

        return value(self)

    def __str__(self) -> str:
        """The expression as a tree, cut short: written out, shared parts may grow exponentially."""
        text = ""
        for piece in self._pieces():
            text += piece
            if len(text) > SHOWN:
                return text[:SHOWN] + "..."
        return text

    def _pieces(self) -> Iterator[str]:
        if self.name == "leaf":
            yield f"${self.param}"
        elif self.name in ("const", "size"):
            yield f"{self.param:g}" if isinstance(self.param, float) else str(self.param)
        else:
            yield f"{self.name}("
            for i, arg in enumerate(self.args):
                yield ", " if i else ""
                yield from arg._pieces()
            yield ")"


def _is_byte(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" and dtype.itemsize == 1


def leaf(index: int, dtype: Any = "float32") -> Expr:
    return Expr("leaf", (), np.dtype(dtype), index)


def const(value: float | int | bool, dtype: Any = "float32") -> Expr:
    return Expr("const", (), np.dtype(dtype), value)


def emit_expr(b: Builder, expr: Expr, leaves: Sequence[Val]) -> Val:
    """Emit the expression; `leaves` are the operands by index, vectors of equal length. The result
    is one, too.

    A leaf of dtype bool may be u8, as in memory, or i1. A result of dtype bool is i1, which
    `Ptr.store` writes as one byte.
    """
    from tinsmith.codegen.functions import emit_function

    memo: dict[int, Val] = {}
    lanes = leaves[0].ty.lanes if leaves else 1

    def value(e: Expr) -> Val:
        if id(e) not in memo:
            if e.name == "leaf":
                given = leaves[e.param]
                memo[id(e)] = given.to("i1") if e.dtype == np.bool_ else given
            elif (id(e), "") in b.numbers:
                memo[id(e)] = b.number((id(e), ""), e.param, F32.x(lanes))
            else:
                memo[id(e)] = emit_function(b, e, [value(a) for a in e.args], lanes)
        return memo[id(e)]

    return value(expr)
