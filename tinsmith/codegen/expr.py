"""Immutable expressions: what an elementwise computation does to each element.

An expression is a DAG of named functions over leaves and constants; each node has the dtype that
numpy would give it. `emit_expr` turns it into instructions on vectors, `evaluate` into numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeVar

import numpy as np

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.types import F32, name_of
from tinsmith.hashing import blake2b
from tinsmith.records import cached_property, dataclass

T = TypeVar("T")

LITERAL = frozenset((0.0, 0.5, 1.0, 2.0, 3.0, 6.0, -1.0))
"""Constants that many layers have: they stay in the code, and are not in `Expr.numbers`."""
SHOWN = 120
"""The most characters of an expression's printed text."""


@dataclass(frozen=True, eq=False)
class Expr:
    """A node of an elementwise expression: the numpy function `name` ("add", "exp", "astype") of
    `args`, or an operand ("leaf"), a number ("const"), a size ("size").

    `param` is the index of a leaf's operand, a const's number, a size's `Size`; some functions have
    one, too. A subexpression that occurs several times as one object is computed once.
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
    def form(self) -> tuple[Any, ...]:
        """A key that is equal for expressions with the same code: `key`, in which the values of
        `numbers` are replaced by their places in the table, `keeps_zero`, and `sizes`."""
        own: dict[int, list[tuple[str, int]]] = {}
        for i, (node, name) in enumerate(self.numbers):
            own.setdefault(node, []).append((name, i))

        def text(e: Expr, inner: list[str]) -> str:
            param = own.get(id(e), "" if e.param is None else e.param)
            if e.name == "narrowed" and e.param:
                param = param, e.param[1]
            return e._text(repr(param), inner)

        return self.fold(text), self.keeps_zero, *self.sizes

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The free sizes (`Size`) that it reads."""
        return tuple([e.param for e in self.nodes() if e.name == "size"])

    @cached_property
    def keeps_zero(self) -> bool:
        """Whether operands of zeros give exactly +0. False if it reads sizes, which only a call
        tells."""
        if self.sizes:
            return False
        leaves = {e.param: np.zeros((), e.dtype) for e in self.nodes() if e.name == "leaf"}
        with np.errstate(all="ignore"):
            got = self.evaluate([leaves.get(i, 0) for i in range(max(leaves, default=-1) + 1)])
        return bool(got == 0) and not bool(np.signbit(np.float64(got)))

    @cached_property
    def numbers(self) -> dict[tuple[int, str], np.generic]:
        """The numbers of 4 bytes, such as scales, that code reads from a table: (id of a node,
        name) -> number. {} if the expression neither reads nor gives bytes. Layers alike but for
        these share code."""
        from tinsmith.codegen.functions import zeros_of

        found: dict[tuple[int, str], np.generic] = {}
        nodes = self.nodes()
        byte = any(e.dtype.kind in "iu" and e.dtype.itemsize == 1 for e in nodes)
        if byte or any(e.name == "narrowed" for e in nodes):
            for e in nodes:
                if e.name == "const" and e.dtype == np.float32 and e.param not in LITERAL:
                    found[id(e), ""] = np.float32(e.param)
                elif e.name == "narrowed" and e.param[0]:
                    found |= {(id(e), name): n for name, n in zeros_of(e.param).items()}
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

    def fold(self, result: Callable[[Expr, list[T]], T]) -> T:
        """`result(node, results of its args)` of this node: called once for each node, recursively,
        those of the args first, from left to right."""
        memo: dict[int, T] = {}

        def of(e: Expr) -> T:
            if id(e) not in memo:
                memo[id(e)] = result(e, list(map(of, e.args)))
            return memo[id(e)]

        return of(self)

    def evaluate(self, leaves: Sequence[Any]) -> Any:
        """The value in numpy, for arrays or scalars in place of the leaves."""
        from tinsmith.codegen.functions import FUNCTIONS

        def value(e: Expr, args: list[Any]) -> Any:
            if e.name == "leaf":
                return np.asarray(leaves[e.param])
            if e.name in ("const", "size"):
                return np.asarray(e.param, e.dtype)
            return np.asarray(FUNCTIONS[e.name].numpy(e, *args))

        return self.fold(value)

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


def leaf(index: int, dtype: Any = "float32") -> Expr:
    return Expr("leaf", (), np.dtype(dtype), index)


def const(value: float | int | bool, dtype: Any = "float32") -> Expr:
    return Expr("const", (), np.dtype(dtype), value)


def emit_expr(b: Builder, expr: Expr, leaves: Sequence[Val]) -> Val:
    """Emit the instructions that compute the expression; return the result. `leaves` are the
    operands by index, vectors of equal length, which the result has, too.

    A leaf of dtype bool may be u8, as in memory, or i1. A result of dtype bool is i1, which
    `Ptr.store` writes as one byte.
    """
    from tinsmith.codegen.functions import emit_function

    lanes = leaves[0].ty.lanes if leaves else 1

    def value(e: Expr, args: list[Val]) -> Val:
        if e.name == "leaf":
            given = leaves[e.param]
            return given.to("i1") if e.dtype == np.bool_ else given
        if (id(e), "") in b.tables.numbers:
            return b.number((id(e), ""), e.param, F32.x(lanes))
        return emit_function(b, e, args, lanes)

    return expr.fold(value)
