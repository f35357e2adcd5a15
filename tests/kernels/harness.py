"""Runs one kernel alone: machine code against the numpy reference, with poisoned memory around."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.kernels.matrix_registers import load as load_library
from tinsmith.codegen.target import Target, level, runnable
from tinsmith.graph import Graph, Node, Type
from tinsmith.kernels._kernel import KERNELS, Choice, Site
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.counted import counted_dims, with_room
from tinsmith.kernels.layout import Layout, Spec, spec_of, to_layout
from tinsmith.ops import OPS
from tinsmith.plan.shared_weights import key_of

SLACK = 4096
LEVELS = ("avx512", "avx2", "sse2", "scalar")


def from_layout(
    buffer: np.ndarray[Any, Any], dims: tuple[int, ...], layout: Layout
) -> np.ndarray[Any, Any]:
    """The plain array that a flat buffer holds; the inverse of `to_layout`."""
    if layout.is_plain:
        return buffer.reshape(dims)
    spec = spec_of(buffer.dtype, dims, layout)
    n, c, *spatial = dims
    halo = layout.halo or ((0, 0),) * len(spatial)
    wide = buffer.reshape(
        n, spec.blocks, *(d + sum(h) for d, h in zip(spatial, halo, strict=True)), layout.block
    )
    wide = np.moveaxis(wide, -1, 2).reshape(n, spec.blocks * layout.block, *wide.shape[2:-1])
    inner = tuple(slice(lo, lo + d) for d, (lo, _) in zip(spatial, halo, strict=True))
    return np.ascontiguousarray(wide[(slice(None), slice(0, c), *inner)])


def levels(*more: Any) -> list[Any]:
    """pytest parameters: every instruction set, skipped where this machine lacks it; with `more`,
    which follow it."""
    return [level_param(n, *more) for n in LEVELS]


def level_param(name: str, *more: Any) -> Any:
    """One of `levels`."""
    marks = [] if runnable(level(name)) else pytest.mark.skip(f"no {name} here")
    return pytest.param(name, *more, marks=marks)


def one_node(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: dict[str, Any] | None = None,
    consts: Sequence[int] = (),
    epilogue: Sequence[tuple] = (),
) -> Node:
    """A graph of one node; with `epilogue` [(op, extra array | None, attrs)...] one Fused node.

    Inputs whose index is in `consts` are constants. An extra given as ("const", array) is one.
    """
    g = Graph("test")
    values = [
        None
        if a is None
        else g.const(a, f"c{i}")
        if i in consts
        else g.input(f"x{i}", Type(a.dtype, a.shape))
        for i, a in enumerate(arrays)
    ]
    if not epilogue:
        node = g.add(OPS[op], *values, **(attrs or {}))
        g.outputs = [node.outputs[0]]
        return node
    body = Graph("body")
    outer, inner = [], []
    for i, v in enumerate(values):
        outer += [v] if v is not None else []
        inner.append(None if v is None else body.input(f"i{i}", v.type))
    y = body.add(OPS[op], *inner, **(attrs or {})).outputs[0]
    for k, (name, *rest) in enumerate(epilogue):
        extra = rest[0] if rest else None
        more = rest[1] if len(rest) > 1 else {}
        args = [y]
        if extra is not None:
            is_const = isinstance(extra, tuple)
            array = extra[1] if is_const else extra
            v = (
                g.const(array, f"e{k}")
                if is_const
                else g.input(f"e{k}", Type(array.dtype, array.shape))
            )
            outer.append(v)
            args.append(body.input(f"b{k}", v.type))
        y = body.add(OPS[name], *args, **more).outputs[0]
    body.outputs = [y]
    node = g.add(OPS["Fused"], *outer, body=body)
    g.outputs = [node.outputs[0]]
    return node


def site_of(node: Node, target: Target, precision: str = "default") -> Site:
    room = with_room(node)
    node = room.node if room else node
    if node.op.name != "Fused" and "elementwise" not in node.op.traits:
        return Site(node, node, node.inputs, (), node.outputs, None, target, precision)
    from tinsmith.kernels.trace import make_site

    return make_site(node, target, precision)


@dataclass
class Bench:
    """A compiled choice with its buffers in place."""

    choice: Choice
    site: Site
    loaded: Any
    functions: list[tuple[Any, list[int], int]]
    outputs: list[tuple[np.ndarray, np.ndarray, Layout]]
    keep: list[np.ndarray]
    fit: list[int]  # operands whose buffers output 0 may take over

    def run(self, splits: int = 1) -> None:
        for (function, pointers, tiles), phase in zip(
            self.functions, self.choice.phases, strict=True
        ):
            edges = [tiles * i // splits for i in range(splits + 1)]
            for step in range(phase.repeat):
                for lo, hi in pairwise(edges):
                    if hi > lo:
                        function(*pointers, lo, hi, *([step] if phase.repeat > 1 else []))

    def cut(self, node: Node, shapes: Sequence[tuple[int, ...]]) -> None:
        """See as outputs what was counted: as many as the results, of these shapes, have."""
        *found, (count, _, _) = self.outputs
        self.outputs = []
        for value, (inside, poison, layout), dims in zip(node.outputs, found, shapes, strict=True):
            want = [d for d, free in zip(dims, counted_dims(value), strict=True) if free < 0]
            assert want == [int(count[0])] * len(want), f"counted {count[0]}, expected {dims}"
            self.outputs.append((inside[: prod(dims)], np.empty(dims, poison.dtype), layout))


def _place(flat: np.ndarray, keep: list[np.ndarray]) -> tuple[int, np.ndarray]:
    """A 64-byte aligned copy of a buffer with poisoned (all bits one) slack on both sides."""
    raw = np.full(flat.nbytes + 2 * SLACK + 64, 0xFF, np.uint8)
    start = SLACK + (-(raw.ctypes.data + SLACK)) % 64
    inside = raw[start : start + flat.nbytes].view(flat.dtype)
    inside[...] = flat
    keep.append(raw)
    return raw.ctypes.data + start, inside


def prepare(
    node: Node,
    feeds: dict[str, np.ndarray],
    kernel: str,
    target: str | Target = "host",
    extra_halo: int = 0,
    pick: int = 0,
    layouts: dict[str, Layout] | None = None,
    precision: str = "default",
    threads: int = 1,
    over: int | None = None,
) -> Bench:
    """Compile choice number `pick` of a kernel; operands get `extra_halo` more than they need.
    Output 0 takes over the buffer of operand number `over`."""
    target = level(target) if isinstance(target, str) else target
    site = site_of(node, target, precision)
    site.threads = threads
    names = {v.name: v for v in node.inputs if v is not None}
    site.layouts.update({names[k]: v for k, v in (layouts or {}).items()})
    choice = KERNELS[kernel].offer(site)[pick]
    keep: list[np.ndarray] = []
    reads, writes, pointers, outputs = [], [], [], []
    places: dict[int, tuple[int, np.ndarray]] = {}
    rank = len(site.out.dims)
    for i, (value, layout) in enumerate(zip(site.operands, choice.reads, strict=True)):
        if value is None or layout is None:
            reads.append(None)
            continue
        array = value.const if value.const is not None else feeds[value.name]
        if i >= len(site.inputs):
            array = array.reshape((1,) * (rank - array.ndim) + array.shape)
        layout = _wider(layout, array.ndim, extra_halo)
        spec = spec_of(array.dtype, array.shape, layout)
        address, inside = _place(to_layout(array, layout), keep)
        if value.const is None:
            places[i] = address, inside
        reads.append(spec)
        pointers.append(address + spec.before * array.dtype.itemsize)
    for value, layout in zip(site.outputs, choice.writes, strict=True):
        layout = _wider(layout, len(value.dims), extra_halo)
        spec = spec_of(value.dtype, value.dims, layout)
        poison = np.full(value.dims, _poison(value.dtype), value.dtype)
        if over is not None and not writes:
            address, inside = places[over]
        else:
            address, inside = _place(to_layout(poison, layout), keep)
        writes.append(spec)
        pointers.append(address + spec.before * value.dtype.itemsize)
        outputs.append((inside, poison, layout))
    for key in (key_of(p.pack, *p.args) for p in choice.packed):
        hash(key.name)  # the planner looks it up
    packed = [np.ascontiguousarray(p.make()) for p in choice.packed]
    pointers += [_place(p.reshape(-1), keep)[0] for p in packed]
    for nbytes in (choice.workspace, choice.scratch):
        pointers.append(_place(np.full(nbytes, 0xFF, np.uint8), keep)[0])
    loaded, compiled = _compiled(site, choice, reads, writes, [p.dtype for p in packed])
    phases = zip(compiled, choice.phases, strict=True)
    functions = [(function, pointers, phase.tiles) for function, phase in phases]
    able = choice.may_take_over(len(site.inputs))
    fit = [i for i in able if i in places and reads[i] == writes[0]]
    return Bench(choice, site, loaded, functions, outputs, keep, fit)


def _compiled(
    site: Site,
    choice: Choice,
    reads: Sequence[Spec | None],
    writes: Sequence[Spec],
    packed: Sequence[np.dtype],
) -> tuple[Any, list[Any]]:
    """The library of a choice, and the functions of its phases."""
    phases = range(len(choice.phases))
    codes = [build_phase(site, choice, i, reads, writes, packed) for i in phases]
    loaded = load_library({c.symbol: c.text for c in codes}, site.target)
    pointers = sum(s is not None for s in reads) + len(writes) + len(packed) + 2
    functions = []
    for code, phase in zip(codes, choice.phases, strict=True):
        numbers = [ctypes.c_int64] * (3 if phase.repeat > 1 else 2)
        tables = []
        if code.reads_numbers:
            tables.append(b"".join([n.tobytes() for n in site.epilogue.numbers.values()]))
        if code.sizes:
            tables.append(np.array(code.sizes, np.int64).tobytes())
        kinds = [ctypes.c_char_p] * len(tables)
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers, *numbers, *kinds)
        functions.append(partial(_with_tables, signature(loaded.address(code.symbol)), tables))
    return loaded, functions


def _with_tables(function: Any, tables: list[bytes], *given: Any) -> None:
    function(*given, *tables)


def _poison(dtype: np.dtype) -> Any:
    return np.nan if dtype.kind == "f" else 1


def _wider(layout: Layout, rank: int, extra: int) -> Layout:
    if layout.is_plain or not extra:
        return layout
    halo = layout.halo or ((0, 0),) * (rank - 2)
    return Layout(layout.block, tuple((lo + extra, hi + extra) for lo, hi in halo))


def check(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: dict[str, Any] | None = None,
    *,
    kernel: str,
    target: str | Target = "host",
    consts: Sequence[int] = (),
    epilogue: Sequence[tuple] = (),
    extra_halo: int = 0,
    pick: int = 0,
    layouts: dict[str, Layout] | None = None,
    rtol: float = 1e-5,
    precision: str = "default",
    threads: int = 1,
) -> Choice:
    """Machine code equals the reference: max|difference| <= rtol * max|reference| (float64)."""
    node = one_node(op, arrays, attrs, consts, epilogue)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    feeds |= {
        f"e{k}": e[1] for k, e in enumerate(epilogue) if len(e) > 1 and isinstance(e[1], np.ndarray)
    }
    ordered = [
        v.const if v.const is not None else feeds[v.name] for v in node.inputs if v is not None
    ]
    present = iter(ordered)
    args = tuple(None if v is None else next(present) for v in node.inputs)
    want = node.op.evaluate(args, node.attrs)

    def bench_of(over: int | None) -> Bench:
        return prepare(
            node, feeds, kernel, target, extra_halo, pick, layouts, precision, threads, over
        )

    ways: list[tuple[int, int | None]] = [(1, None), (3, None)]
    for splits, over in ways:
        bench = bench_of(over)
        bench.run(splits)
        if splits == 1:
            ways += [(3, i) for i in bench.fit]
        if with_room(node):
            bench.cut(node, [a.shape for a in want])
        for (inside, poison, layout), expected in zip(bench.outputs, want, strict=False):
            got = from_layout(inside, poison.shape, layout)
            again = to_layout(got, layout)
            np.testing.assert_array_equal(inside, again, "halo or padding lanes are not zero")
            if got.dtype.kind in "fc":
                scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-30))
                np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * scale)
            else:
                np.testing.assert_array_equal(got, expected)
        for raw in bench.keep:
            start = SLACK + (-(raw.ctypes.data + SLACK)) % 64
            assert (raw[:start] == 0xFF).all(), "wrote before a buffer"
            inside_bytes = len(raw) - 2 * SLACK - 64
            assert (raw[start + inside_bytes :] == 0xFF).all(), "wrote beyond a buffer"
    return bench.choice
