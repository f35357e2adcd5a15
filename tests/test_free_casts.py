"""Sizes that models cast on the way to where they are used, as exporters do, stay sizes: one
program takes them all, as far as arithmetic says exactly what they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.free import compare
from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS

SIZES = (7, 16, 33, 100, 6, 250, 3000, 8)


def cast(v: Value, dtype: str) -> Value:
    return OPS["Cast"](v, to=dtype)


def through(dtype: str, *steps: tuple[str, float] | tuple[str]) -> Callable[[Value], Value]:
    """A size in an element type, after some operations with numbers of that type."""

    def of(size: Value) -> Value:
        v = cast(size, dtype)
        for op, *numbers in steps:
            v = OPS[op](v, *[np.array(n, dtype) for n in numbers])
        return v

    return of


def cut_at(number: Callable[[Value], Value]) -> Graph:
    """x[:, :m], of the m that is computed from n, where x has the shape (3, n)."""
    graph = Graph("cut")
    x = graph.input("x", Type(np.dtype(np.uint8), (3, "n")))
    size = OPS["Slice"](OPS["Shape"](x), [1], [2])
    cut = OPS["Slice"](x, [0], cast(number(size), "int64"), [1])
    graph.outputs = [OPS["Max"](cut, np.uint8(9))]
    return graph


def fed(graph: Graph, sizes: Sequence[int]) -> Any:
    calls = [{"n": n} for n in sizes]
    rng = np.random.default_rng(3)
    return compare(
        graph, calls, lambda s: {"x": rng.integers(0, 255, (3, s["n"])).astype(np.uint8)}
    )


FOLLOWED = {
    "int32": through("int32", ("Mul", 3), ("Add", 1), ("Div", 4)),
    "int16": through("int16", ("Mul", 3), ("Sub", 8)),
    "int32 to int16": lambda v: cast(through("int32", ("Add", 2))(v), "int16"),
    "float32": through("float32"),
    "doubled": through("float32", ("Mul", 2.0), ("Floor",)),
    "half": through("float32", ("Mul", 0.5), ("Floor",)),
    "half, up": through("float32", ("Mul", 0.5), ("Ceil",)),
    "three quarters, truncated": through("float64", ("Mul", 0.75), ("Add", 0.25)),
    "a third": through("float32", ("Div", 3.0), ("Floor",)),
    "two sevenths, up": through("float64", ("Mul", 2.0), ("Div", 7.0), ("Ceil",)),
    "below 0, truncated": through("float32", ("Sub", 1000.5), ("Div", 10.0)),
    "to float64 and back": lambda v: cast(through("float32", ("Mul", 0.5))(v), "float64"),
}
OTHERS = {
    "float16": through("float16", ("Mul", 2.0), ("Floor",)),
    "a rounded factor": through("float32", ("Mul", 0.3), ("Floor",)),
    "a third twice": through("float32", ("Div", 3.0), ("Mul", 3.0), ("Floor",)),
    "a root": through("float32", ("Sqrt",), ("Floor",)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_one_program_takes_sizes_that_are_cast(name: str) -> None:
    found = fed(cut_at(FOLLOWED[name]), SIZES)
    assert found.calls == len(SIZES) and "Part" not in found.reference
    assert found.programs <= (3 if "below 0" in name else 1), found.held


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_exact_is_computed_in_the_run(name: str) -> None:
    assert fed(cut_at(OTHERS[name]), SIZES).calls == len(SIZES)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("int8", (100, 127, 128, 200, 260)), ("uint8", (200, 255, 256, 300)),
     ("int16", (32767, 32768, 40000, 65540))],
)  # fmt: skip
def test_sizes_beyond_an_element_type_wrap_as_numbers_do(
    dtype: str, sizes: tuple[int, ...]
) -> None:
    assert fed(cut_at(through(dtype)), sizes).calls == len(sizes)


@pytest.mark.parametrize("steps", [(), (("Mul", 0.5), ("Ceil",)), (("Add", 1.0),)])
def test_sizes_beyond_those_that_a_float_holds_are_rounded(steps: Any) -> None:
    sizes = (5000, (1 << 24) - 1, (1 << 24) + 3, (1 << 24) + 1)
    assert fed(cut_at(through("float32", *steps)), sizes).calls == len(sizes)


def test_sizes_of_resize_as_exporters_compute_them() -> None:
    graph = Graph("doubled")
    x = graph.input("x", Type(np.dtype(np.float32), ("n", 3, "h", "w")))
    own = OPS["Shape"](x)
    sides = through("float32", ("Mul", 2.0), ("Floor",))(OPS["Slice"](own, [2], [4]))
    sizes = OPS["Concat"](OPS["Slice"](own, [0], [2]), cast(sides, "int64"), axis=0)
    y = OPS["Resize"](x, None, None, sizes)
    graph.outputs = [OPS["Relu"](y)]
    calls = [{"n": n, "h": h, "w": w} for n, h, w in ((2, 5, 7), (3, 8, 4), (2, 16, 17), (5, 3, 2))]
    rng = np.random.default_rng(3)

    def feed(s: Any) -> Any:
        return {"x": rng.standard_normal((s["n"], 3, s["h"], s["w"])).astype(np.float32)}

    found = compare(graph, calls, feed)
    assert (found.calls, found.programs, found.reference) == (len(calls), 1, []), found.held


def test_a_range_of_cast_bounds() -> None:
    graph = Graph("places")
    x = graph.input("x", Type(np.dtype(np.float32), ("n", 3)))
    end = OPS["Reshape"](cast(OPS["Slice"](OPS["Shape"](x), [0], [1]), "int32"), np.zeros(0, int))
    places = OPS["Range"](np.int32(0), end, np.int32(1))
    graph.outputs = [OPS["Mul"](x, OPS["Unsqueeze"](cast(places, "float32"), [1]))]
    rng = np.random.default_rng(3)
    calls = [{"n": n} for n in (5, 2, 40, 17)]
    found = compare(
        graph, calls, lambda s: {"x": rng.standard_normal((s["n"], 3)).astype(np.float32)}
    )
    assert (found.calls, found.programs, found.reference) == (len(calls), 1, []), found.held
