"""Products of matrices and tensors, determinants and inverses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.errors import DataError
from tinsmith.graph import Dim, Node, Type, Value, agree
from tinsmith.ops._apart import Apart, elementwise
from tinsmith.ops._dims import broadcast, fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import dtypes_at, need_axes, need_float
from tinsmith.ops._weights import Weights
from tinsmith.ops.precision import widen
from tinsmith.sizes import NUMBER


@op("anchor", "narrows")
def MatMul(a, b, *, precise=False):
    """y[...,m,n] = sum over k of a[...,m,k] * b[...,k,n]; vectors and batches as numpy.matmul

    `precise` forbids algorithms that round much more than the plain sum, such as Strassen's.
    """
    return np.matmul(widen(a), widen(b)).astype(a.dtype, copy=False)


def matmul_shape(a: Value, b: Value) -> tuple[Dim, ...] | None:
    """The shape of a matrix product of a and b, as numpy.matmul; None where a rank is unknown.
    Raises TypeRuleError for scalars, and where the inner or the batch sizes do not agree."""
    for name, v in (("a", a), ("b", b)):
        need(v.rank != 0, f"{name} is a scalar, but a matrix product needs vectors or matrices")
    if a.shape is None or b.shape is None:
        return None
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    k, wants = left[-1], right[-2]
    need(agree(k, wants), f"b wants {wants} columns, a has {k}: {a.type} times {b.type}")
    batch = broadcast(left[:-2], right[:-2])
    assert batch is not None
    rows = (left[-2],) if len(a.shape) > 1 else ()
    columns = (right[-1],) if len(b.shape) > 1 else ()
    return (*batch, *rows, *columns)


@MatMul.type
def _(a, b, **_):
    need(a.dtype == b.dtype, f"a is {a.dtype}, b is {b.dtype}")
    return Type(a.dtype, matmul_shape(a, b))


def product_flops(a: Value, b: Value, *_: Any, **__: Any) -> float:
    """The number of arithmetic operations of a matrix product of a and b, of static types."""
    shape = matmul_shape(a, b)
    assert shape is not None
    return 2 * prod(int(d) for d in shape) * a.dims[-1]


MatMul.cost(product_flops)
MatMul.factors = dtypes_at(0, 1)


@MatMul.gradient
def _(emit, node, g):
    a, b = node.inputs
    need(
        min(a.rank or 0, b.rank or 0) >= 2,
        f"the derivative of the product of {a.type} and {b.type} is not known",
    )

    def turned(v: Value) -> Value:
        perm = tuple(range(v.rank or 0))
        return emit("Transpose", v, perm=(*perm[:-2], perm[-1], perm[-2]))

    return emit("MatMul", g, turned(b)), emit("MatMul", turned(a), g)


# ---- einsum


def einsum_terms(equation: str, count: int) -> tuple[list[str], str]:
    """The terms of an Einstein sum of `count` inputs, and its output: ("ij,jk->ik", 2) gives
    (["ij", "jk"], "ik"). An absent output is made explicit. Spaces are removed, and `...` is
    returned as `.`. Raises TypeRuleError."""
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = left.split(",")
    need(
        len(terms) == count,
        f"the equation {equation!r} has {len(terms)} terms, {count} inputs are given",
    )
    for term in (*terms, right):
        need(
            term.count(".") <= 1 and all(c == "." or c.isalpha() for c in term),
            f"the equation {equation!r} is not well formed at {term!r}",
        )
    if not arrow:
        letters = "".join(terms)
        once = sorted(c for c in set(letters) if c != "." and letters.count(c) == 1)
        right = "." * ("." in letters) + "".join(once)
    missing = [c for c in right if c != "." and c not in left]
    need(not missing, f"the output of {equation!r} names {missing}, which no input has")
    return terms, right


@op("anchor")
def Einsum(*xs, equation):
    """y = the Einstein sum of xs; an ellipsis stands for axes that broadcast"""
    terms, right = einsum_terms(equation, len(xs))
    spec = f"{','.join(terms)}->{right}".replace(".", "...")
    y = np.einsum(spec, *map(widen, xs), optimize=len(xs) > 1)
    return np.asarray(y).astype(xs[0].dtype, copy=False)


def _sizes(xs: Sequence[Value], terms: Sequence[str]) -> tuple[dict[str, Dim], Any]:
    """For the terms of an Einstein sum over `xs`: the size of each letter, and the broadcast shape
    of the axes under the ellipses (None: unknown). A letter that only inputs of unknown rank have
    is missing; a 1 is broadcast to the letter's other size. Raises TypeRuleError where other
    numbers differ, or a term does not fit the rank of its input."""
    sizes: dict[str, Dim] = {}
    rest: Any = ()
    for x, term in zip(xs, terms, strict=True):
        if x.shape is None:
            rest = None if "." in term else rest
            continue
        extra = len(x.shape) - len(term.replace(".", ""))
        need(
            extra == 0 or (extra > 0 and "." in term),
            f"{term.replace('.', '...')!r} does not fit the rank {len(x.shape)} of {x.type}",
        )
        at = term.find(".")
        if at >= 0:
            rest = None if rest is None else broadcast(rest, x.shape[at : at + extra])
            term = term.replace(".", "." * extra)
        for letter, dim in zip(term, x.shape, strict=True):
            if letter == ".":
                continue
            have = sizes.get(letter, 1)
            ok = have == dim or 1 in (have, dim) or isinstance(have, str) or isinstance(dim, str)
            need(ok, f"the letter {letter!r} stands for both {have} and {dim}")
            if have == 1 or (isinstance(have, str) and isinstance(dim, NUMBER) and dim != 1):
                sizes[letter] = dim
    return sizes, rest


@Einsum.type
def _(*xs, equation):
    need(xs, "Einsum needs at least one input")
    for x in xs:
        need(x.dtype == xs[0].dtype, f"the inputs are of different types: {xs[0].dtype}, {x.dtype}")
    terms, right = einsum_terms(equation, len(xs))
    sizes, rest = _sizes(xs, terms)
    if "." in right and rest is None:
        return Type(xs[0].dtype, None)
    shape: list[Dim] = []
    for letter in right:
        shape += rest if letter == "." else [sizes[letter] if letter in sizes else fresh()]
    return Type(xs[0].dtype, tuple(shape))


@Einsum.cost
def _(*xs, equation):
    terms, _ = einsum_terms(equation, len(xs))
    sizes, rest = _sizes(xs, terms)
    return len(xs) * prod(int(d) for d in (*sizes.values(), *rest))


@op()
def Det(x):
    """y[...] = det(x[...,:,:])"""
    return np.asarray(np.linalg.det(widen(x))).astype(x.dtype, copy=False)


@Det.type
def _(x):
    _check_square(x)
    return x.type if x.shape is None else x.type.like(shape=x.shape[:-2])


def _check_square(x: Value) -> None:
    need_float(x, "x")
    if x.shape is None:
        return
    need_axes(x, 2, "x")
    need(agree(*x.shape[-2:]), f"{x.type} does not hold square matrices")


Det.cost(lambda x: x.type.size * x.dims[-1] * 2 / 3)


@op()
def Inverse(x):
    """y[...,:,:] = the inverse of x[...,:,:]; DataError where a matrix is singular"""
    try:
        return np.linalg.inv(widen(x)).astype(x.dtype, copy=False)
    except np.linalg.LinAlgError:
        raise DataError("a matrix is singular: it has no inverse") from None


@Inverse.type
def _(x):
    _check_square(x)
    return x.type


Inverse.cost(lambda x: x.type.size * x.dims[-1] * 2)
MatMul.weights = Weights((1,), -1, data=(0,), channels=-1)


@MatMul.apart
def _(node: Node) -> Apart:
    """A product can be cut along the rows of a, the columns of b, and the axes of the batch."""
    a, b = (v.shape if v is not None else None for v in node.inputs)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return {}
    rank = max(len(a), len(b))
    found: Apart = {rank - 2: (len(a) - 2, None), rank - 1: (None, len(b) - 1)}
    return found | {d: axes for d, axes in elementwise(node).items() if d < rank - 2}
