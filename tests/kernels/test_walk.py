"""Walks visit every element of every tensor once, where it lies, in any share and any vectors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.harness import levels
from tinsmith.codegen.builder import Builder, Module
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import level
from tinsmith.codegen.types import F32, I64, PTR
from tinsmith.kernels.layout import around
from tinsmith.kernels.walk import Blocks, Position, Walk, digits, merged, run

Strides = tuple[int, ...]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Strides]]:
    """Extents, and the strides of some tensors of that shape: dense, with gaps, or broadcast."""
    dims = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        strides, step = [], 1
        for extent in reversed(dims):
            strides.append(0 if draw(st.integers(0, 3)) == 0 else step)
            step *= extent + draw(st.sampled_from([0, 0, 0, 1, 2]))
        found.append(tuple(reversed(strides)))
    return dims, found


def place(index: Sequence[Position], strides: Strides) -> int:
    """Where an element with a known index lies."""
    return sum(i * s for i, s in zip(index, strides, strict=True))  # type: ignore[misc]


@settings(deadline=None)
@given(tensors(), st.integers(0, 2))
def test_every_element_lies_where_its_index_says(drawn, first):
    dims, strides = drawn
    walk = Walk(dims, strides, first)
    assert walk.lines * walk.length == prod(dims)
    for flat, want in enumerate(np.ndindex(*dims)):
        line, i = divmod(flat, walk.length)
        for index in (walk.index(flat), walk.element(line, i)):
            assert index[:first] == [0] * first
            assert [place(index[first:], s) for s in strides] == [place(want, s) for s in strides]


@given(tensors())
def test_axes_are_as_few_as_the_strides_allow(drawn):
    dims, strides = drawn
    axes = merged(dims, strides)
    assert prod(extent for extent, _ in axes) == prod(dims)
    assert all(extent > 1 for extent, _ in axes)
    for (_, outer), (extent, inner) in pairwise(axes):
        assert any(s[outer] != extent * s[inner] for s in strides), "two axes could be one"


@given(tensors())
def test_a_line_has_the_steps_of_the_last_dimension_if_asked(drawn):
    dims, strides = drawn
    walk = Walk(dims, strides, innermost=True)
    assert walk.lines * walk.length == prod(dims)
    assert walk.length == 1 or all(
        step == s[-1] for step, s in zip(walk.steps, strides, strict=True)
    )


def test_digits_count_the_innermost_axis_first():
    assert list(digits(17, [(9, 0), (2, 3), (4, 5)])) == [(5, 1), (3, 0), (0, 2)]
    assert list(digits(0, [])) == []
    assert merged((2, 1, 3, 4), [(12, 7, 4, 1), (0, 7, 4, 1)]) == [(2, 0), (12, 3)]
    assert around((2, 3, 4, 5), -2) == (6, 4, 5)


def function_of(target: str, body: Callable[[Builder], None], pointers: int) -> Callable[..., None]:
    """`f(arrays ..., number)`, whose code `body` writes; its parameters are p0 .. and number."""
    machine = level(target)
    module = Module(machine)
    names = [f"p{k}" for k in range(pointers)]
    b = module.function("visit", [*((name, PTR) for name in names), ("number", I64)])
    body(b)
    b.ret()
    loaded = load_library({"visit": module.text()}, machine)
    kinds = [ctypes.c_void_p] * pointers + [ctypes.c_int64]
    address = ctypes.CFUNCTYPE(None, *kinds)(loaded.address("visit"))

    def call(*arguments: np.ndarray | int) -> None:
        assert loaded
        address(*(a if isinstance(a, int) else a.ctypes.data for a in arguments))

    return call


WALKS = [  # extents, strides of the source and of the target
    ((12,), (1,), (1,)), ((3, 5), (5, 1), (8, 1)), ((3, 5), (0, 1), (5, 1)),
    ((2, 3, 4), (12, 4, 1), (40, 4, 1)), ((4, 3, 2), (1, 4, 12), (6, 2, 1)),
    ((2, 1, 3), (3, 3, 1), (16, 8, 2)), ((1, 1), (1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("target", levels()[1:3])
@pytest.mark.parametrize("units", [None, 2])
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize(("dims", "source", "sink"), WALKS)
def test_shares_visit_every_element_once(dims, source, sink, parts, units, target):
    walk = Walk(dims, [source, sink])
    size = walk.length if units is None else -(-walk.length // units)

    def write(b: Builder) -> None:
        def line(starts, lo, hi):
            def element(i: Position) -> None:
                x, y = (p + i * step for p, step in zip(starts, walk.steps, strict=True))
                y.store(y.load() + x.load())

            if units is None:
                run(b, lo, hi, element)
            else:
                run(b, lo, hi, lambda u: run(
                    b, u * units, b.minimum(u * units + units, walk.length), element))  # fmt: skip

        pointers = [b.pointer(name, F32) for name in ("p0", "p1")]
        walk.shared(b, pointers, 0 if parts == 1 else b.args["number"], parts, line, size)

    visit = function_of(target, write, 2)
    reach = sum((d - 1) * s for d, s in zip(dims, sink, strict=True)) + 1
    x, y = np.arange(1, 61, dtype=np.float32), np.zeros(reach + 8, np.float32)
    for part in range(parts):
        visit(x, y, part)
    want = np.zeros_like(y)
    for index in np.ndindex(*dims):
        want[place(index, sink)] += x[place(index, source)]
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("vectors", [1, 3, 4])
@pytest.mark.parametrize("count", [1, 3, 8, 9, 16, 31, 32, 33, 67, 96, 101])
def test_blocks_cover_their_elements_once(count, vectors, target):
    blocks = Blocks(count, 8, vectors)

    def write(b: Builder) -> None:
        y = b.pointer("p0", F32)

        def block(first, parts):
            for offset, lanes, mask in parts:
                at = y + (first + offset)
                value = at.load(lanes, mask)
                at.store(value + b.const(1.0, value.ty), mask)

        blocks.emit(b, b.args["number"], block)

    visit = function_of(target, write, 1)
    y = np.zeros(count + 40, np.float32)
    for number in range(blocks.number):
        visit(y, number)
    np.testing.assert_array_equal(y[:count], 1)
    np.testing.assert_array_equal(y[count:], 0)
