"""Layout copies: plain and blocked, with and without halos, into parts of larger tensors."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.harness import _place, levels
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.graph.origin import Origin
from tinsmith.kernels._kernel import Site
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import PLAIN, Layout, Spec, block_of, spec_of, to_layout
from tinsmith.kernels.relayout import RELAYOUT, relayout

RNG = np.random.default_rng(3)


def numbers(dims: tuple[int, ...], dtype: str) -> np.ndarray:
    return (RNG.random(dims) * 200).astype(dtype)


def copy(
    array: np.ndarray, src: Layout, dst: Layout, target: str, into: Spec | None = None
) -> np.ndarray:
    """The buffer that a relayout writes; halos are zero, everything else is poisoned before."""
    machine, graph = level(target), Graph("g")
    x = graph.input("x", Type(array.dtype, array.shape))
    y = Value(graph, Type(array.dtype, array.shape), "y")
    node = Node(graph, RELAYOUT, (x,), {}, "copy", Origin(), 0.0)
    site = Site(node, node, (x,), (), (y,), None, machine)
    choice = relayout(site, src, dst)
    read = spec_of(array.dtype, array.shape, src)
    write = into or spec_of(array.dtype, array.shape, dst)
    keep: list[np.ndarray] = []
    source, _ = _place(to_layout(array, src), keep)
    blank = np.full(write.size, 7, array.dtype) if into else to_layout(np.full_like(array, 7), dst)
    result, inside = _place(blank, keep)
    code = build_phase(site, choice, 0, [read], [write], [])
    loaded = load_library({code.symbol: code.text}, machine)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2)
    function = kind(loaded.address(code.symbol))
    tiles, size = choice.phases[0].tiles, array.dtype.itemsize
    for k in range(3):
        lo, hi = tiles * k // 3, tiles * (k + 1) // 3
        function(source + read.before * size, result + write.before * size, 0, 0, lo, hi)
    return inside.copy()


DIMS = [
    (2, 3, 5, 7), (1, 32, 14, 14), (1, 19, 1, 1), (3, 32), (2, 5), (1, 37, 30, 31), (1, 17, 3),
    (1, 4, 2, 3, 5), (1, 3, 64, 200), (2, 16, 4, 4),
]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_float32(dims, target):
    width = block_of(level(target))
    space = len(dims) - 2
    layouts = [
        PLAIN, Layout(width), Layout(width, ((1, 1),) * space), Layout(width, ((2, 0),) * space),
    ]  # fmt: skip
    array = numbers(dims, "float32")
    for src in layouts:
        for dst in layouts[: 3 if src.is_plain else 4]:
            got = copy(array, src, dst, target)
            np.testing.assert_array_equal(got, to_layout(array, dst), f"{src} to {dst}")


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float64"])
def test_other_types(dtype, target):
    halo = Layout(block_of(level(target)), ((1, 0), (0, 1)))
    array = numbers((2, 19, 5, 17), dtype)
    for src, dst in ((PLAIN, halo), (halo, PLAIN), (PLAIN, PLAIN), (halo, Layout(halo.block))):
        got = copy(array, src, dst, target)
        np.testing.assert_array_equal(got, to_layout(array, dst), f"{src} to {dst}")


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_into_a_part(axis, target):
    """The destination has the strides of a larger tensor, whose other elements stay."""
    array = numbers((2, 3, 4, 37), "float32")
    whole = list(array.shape)
    whole[axis] *= 2
    outer = spec_of(np.float32, tuple(whole))
    part = replace(outer, dims=array.shape)
    want = np.full(whole, 7, np.float32)
    want[tuple(slice(0, d) for d in array.shape)] = array
    for src in (PLAIN, Layout(block_of(level(target)))):
        got = copy(array, src, PLAIN, target, into=part)
        np.testing.assert_array_equal(got.reshape(whole), want)
