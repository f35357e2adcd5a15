"""Einstein sums as products of matrices, products of elements, sums and transposes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tinsmith.graph import Dim, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.matmul import einsum_terms
from tinsmith.passes.facts import i64, reshaped, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, p
from tinsmith.sizes import NUMBER

Term = tuple[Value, str]  # a value and a letter for each of its axes


rules = RuleSet(
    "lower-einsum",
    "Einsum becomes MatMul, Mul, Reduce, Transpose and Reshape, two operands at a time.",
    tolerance=1e-5,
)
register("portable")(rules)


@rules.rule(p.Einsum("x", ...).named("node"), x=(2, 3, 4), node={"equation": "bij->jb"})
def einsum(node: Node) -> Value:
    """einsum(x, ...) -> x @ y, x * y, ..., of float32 or float64, if each letter stands for one
    size (no 1 is broadcast) and no operand has a letter twice."""
    terms, right = _terms(node)
    _check(terms)
    value, letters = terms[0]
    for k, (other, others) in enumerate(terms[1:], start=1):
        kept = set(right).union(*(t for _, t in terms[k + 1 :]))
        value, letters = _pair((value, letters), (other, others), kept)
    value, letters = _reduced(value, letters, set(right))
    value = _ordered(value, letters, right)
    return OPS["Identity"](value) if value in node.inputs else value


def _terms(node: Node) -> tuple[list[Term], str]:
    """(operands, result) of an Einsum: each operand with a string of a letter for each axis, and
    such a string for the result. Axes of an ellipsis are digits, counted from the right: "...ab" of
    rank 4 is "10ab". Raises Skip for an ellipsis of more than ten axes."""
    terms, right = einsum_terms(node.equation, len(node.inputs))
    operands: list[Term] = []
    widest = 0
    for value, term in zip(node.operands, terms, strict=True):
        extra = len(shape_of(value)) - len(term.replace(".", ""))
        if extra > 10:
            raise Skip(f"an ellipsis stands for {extra} axes")
        widest = max(widest, extra if "." in term else 0)
        operands.append((value, term.replace(".", _digits(extra))))
    return operands, right.replace(".", _digits(widest))


def _digits(count: int) -> str:
    return "".join(str(d) for d in range(count - 1, -1, -1))


def _check(terms: Sequence[Term]) -> None:
    sizes: dict[str, Dim] = {}
    for value, letters in terms:
        if value.dtype not in (np.float32, np.float64):
            raise Skip(f"the operands are {value.dtype}")
        if len(set(letters)) != len(letters):
            raise Skip(f"a letter stands twice in {letters!r}")
        for letter, size in zip(letters, shape_of(value), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise Skip(f"the letter {letter!r} stands for {sizes[letter]} and for {size}")


def _pair(a: Term, b: Term, kept: set[str]) -> Term:
    """The product of two operands, summed over all letters but `kept` (those that a later operand
    or the result has): first, within an operand, over letters that it alone has, then by a MatMul
    over those that both have; by a Mul if there are none of the latter."""
    a = _reduced(*a, kept | set(b[1]))
    b = _reduced(*b, kept | set(a[1]))
    common = [c for c in a[1] if c in b[1]]
    batch = "".join(c for c in common if c in kept)
    inner = "".join(c for c in common if c not in kept)
    rows = "".join(c for c in a[1] if c not in common)
    columns = "".join(c for c in b[1] if c not in common)
    letters = batch + rows + columns
    if not inner:
        return OPS["Mul"](_spread(a, letters), _spread(b, letters)), letters
    sizes = dict(zip(a[1] + b[1], shape_of(a[0]) + shape_of(b[0]), strict=True))
    x = _matrix(a, batch, rows, inner, sizes)
    y = _matrix(b, batch, inner, columns, sizes)
    return reshaped(OPS["MatMul"](x, y), [sizes[c] for c in letters]), letters


def _matrix(term: Term, batch: str, rows: str, columns: str, sizes: dict[str, Dim]) -> Value:
    """The operand `term`, transposed and reshaped to a matrix [*batch, product of rows, product
    of columns]; `batch`, `rows` and `columns` are its letters, `sizes` their extents."""
    value = _ordered(*term, batch + rows + columns)
    both = [_product([sizes[c] for c in letters]) for letters in (rows, columns)]
    return reshaped(value, [*(sizes[c] for c in batch), *both])


def _reduced(value: Value, letters: str, kept: set[str]) -> Term:
    axes = [i for i, c in enumerate(letters) if c not in kept]
    if axes:
        value = OPS["Reduce"](value, i64(*axes), kind="sum", keepdims=False)
    return value, "".join(c for c in letters if c in kept)


def _ordered(value: Value, letters: str, wanted: str) -> Value:
    perm = tuple(letters.index(c) for c in wanted)
    return value if letters == wanted else OPS["Transpose"](value, perm=perm)


def _spread(term: Term, letters: str) -> Value:
    """The operand with its axes in the order of `letters`, and an axis of extent 1 for each of
    them that it lacks."""
    value = _ordered(*term, "".join(c for c in letters if c in term[1]))
    missing = [i for i, c in enumerate(letters) if c not in term[1]]
    return OPS["Unsqueeze"](value, i64(*missing)) if missing else value


def _product(dims: Sequence[Dim]) -> Dim:
    if len(dims) == 1:
        return dims[0]
    numbers = [d for d in dims if isinstance(d, NUMBER)]
    if len(numbers) < len(dims):
        raise Skip("sizes that would be joined are not known")
    return prod(numbers)
