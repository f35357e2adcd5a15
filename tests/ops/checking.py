"""Check an operator's type rule against its reference, on static, symbolic and unknown types."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

Array = np.ndarray[Any, Any]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def types_of(name: str, types: list[Any], attrs: dict[str, Any]) -> tuple[Type, ...]:
    """The inferred output types; `types` holds a Type, an array (a constant), or None."""
    graph = Graph("check")
    values = [
        None if t is None else graph.input(f"x{i}", t) if isinstance(t, Type) else graph.const(t)
        for i, t in enumerate(types)
    ]
    return tuple(v.type for v in graph.add(OPS[name], *values, **attrs).outputs)


def check(
    name: str, *arrays: Any, consts: Collection[int] = (), fixed: Collection[int] = (), **attrs: Any
) -> tuple[Array, ...]:
    """The reference's outputs, once all type rules have been found to agree with them.

    consts: inputs whose value the rule may see in the static case; fixed: inputs that keep their
    type in the symbolic cases too.
    """
    op = OPS[name]
    given = list(arrays)
    bound = op.bind(tuple(given), attrs)
    results = op.evaluate(tuple(given), bound)

    def typed(i: int, a: Any, how: str) -> Any:
        if a is None:
            return None
        if i in consts and how == "static":
            return a
        if how == "static" or i in fixed:
            return Type(a.dtype, a.shape)
        dims = tuple(f"s{i}_{j}" for j in range(a.ndim)) if how == "symbolic" else None
        if how == "batch":
            dims = ("N", *a.shape[1:]) if i == 0 and a.ndim else a.shape
        return Type(a.dtype, dims)

    for how in ("static", "batch", "symbolic", "unknown"):
        types = types_of(name, [typed(i, a, how) for i, a in enumerate(given)], bound)
        assert len(types) == len(results), f"{name}: {len(types)} types, {len(results)} results"
        for t, y in zip(types, results, strict=True):
            assert t.dtype == y.dtype, f"{name} ({how}): the rule says {t}, it is {y.dtype}"
            if t.shape is not None:
                fits = len(t.shape) == y.ndim and all(
                    isinstance(d, str) or d == n for d, n in zip(t.shape, y.shape, strict=True)
                )
                assert fits, f"{name} ({how}): the rule says {t}, it is {y.shape}"
            if how == "static":
                assert t.shape is not None, f"{name}: nothing is known of a static call's rank"
    static = types_of(name, [typed(i, a, "static") for i, a in enumerate(given)], bound)
    if all(t.is_static for t in static):
        graph = Graph("flops")
        values = [
            None if a is None else graph.const(a) if i in consts else graph.input(f"x{i}", t)
            for i, (a, t) in enumerate(
                (a, None if a is None else Type(a.dtype, a.shape)) for a in given
            )
        ]
        node = graph.add(op, *values, **attrs)
        assert op.flops(node.inputs, node.outputs, node.attrs) >= 0
    return results


def assert_static(name: str, *arrays: Any, consts: Collection[int] = (), **attrs: Any) -> None:
    """The rule knows every dimension of a static call."""
    types = [
        None if a is None else a if i in consts else Type(a.dtype, a.shape)
        for i, a in enumerate(arrays)
    ]
    for t in types_of(name, types, attrs):
        assert t.is_static, f"{name}: {t} is not static"


def close(a: Array, b: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(
        np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=atol
    )


@contextmanager
def refused(*fragments: str) -> Iterator[None]:
    """The call is a TypeRuleError whose message holds all fragments."""
    with pytest.raises(TypeRuleError) as caught:
        yield
    for fragment in fragments:
        assert fragment in str(caught.value)
