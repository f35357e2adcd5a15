"""The builder: each operation of values, pointers and control against numpy, on every target."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.codegen.vectors import compiled
from tests.kernels.harness import levels
from tinsmith.codegen.builder import Builder, Module
from tinsmith.codegen.elf import link
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.library import SharedLibrary
from tinsmith.codegen.target import level
from tinsmith.codegen.types import F32, F64, I32, I64, PTR, U8
from tinsmith.codegen.values import Val, literal
from tinsmith.errors import CodegenError

RNG = np.random.default_rng(5)
FLOATS = RNG.standard_normal((2, 97)).astype(np.float32)
INTS = RNG.integers(-1000, 1000, (2, 97)).astype(np.int32)

OPERATIONS = [
    ("add", lambda x, y: x + y, lambda x, y: x + y, FLOATS),
    ("rsub", lambda x, y: 2.0 - x + y, lambda x, y: 2 - x + y, FLOATS),
    ("div", lambda x, y: 1.0 / x / y, lambda x, y: 1 / x / y, FLOATS),
    ("neg", lambda x, y: -x * y, lambda x, y: -x * y, FLOATS),
    ("max", lambda x, y: x.max(y).min(0.5), lambda x, y: np.minimum(np.maximum(x, y), 0.5), FLOATS),
    ("select", lambda x, y: (x > y).select(x, 0.0), lambda x, y: np.where(x > y, x, 0), FLOATS),
    ("sqrt", lambda x, y: x.abs().sqrt(), lambda x, y: np.sqrt(np.abs(x)), FLOATS),
    ("shifts", lambda x, y: (x << 3) + (y >> 2), lambda x, y: (x << 3) + (y >> 2), INTS),
    ("bits", lambda x, y: (x & y) | (x ^ 5), lambda x, y: (x & y) | (x ^ 5), INTS),
    ("abs", lambda x, y: x.abs() - y, lambda x, y: np.abs(x) - y, INTS),
    ("convert", lambda x, y: x.to("f32").to("i32") + y.to("i8").to("i32"),
     lambda x, y: x + y.astype("i1"), INTS),
    ("bitcast", lambda x, y: x.bitcast(x.ty.of("i32")).bitcast(x.ty), lambda x, y: x, FLOATS),
]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name, emit, meaning, data", OPERATIONS, ids=[o[0] for o in OPERATIONS])
def test_operations(name, emit, meaning, data, target):
    dtype = data.dtype.name
    want = meaning(*data).astype(dtype)
    got = compiled(emit, [dtype] * 2, dtype, target)(*data)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_any_number_of_lanes(lanes, target):
    def emit(x: Val, y: Val) -> Val:
        return x.fma(y, x.lane(lanes - 1).splat(lanes)).with_lane(0, x.reduce("add"))

    got = compiled(emit, ["float32"] * 2, "float32", target, lanes)(*FLOATS[:, :64])
    x, y = FLOATS[:, :64].astype(np.float64).reshape(2, -1, lanes)
    want = x * y + x[:, -1:]
    want[:, 0] = x.sum(1)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5)


def function(body: Callable[[Builder], None], target: str, *params: str) -> Callable[..., None]:
    """A native function of pointers and, at the end, one i64 `n`."""
    module = Module(level(target))
    b = module.function("f", [*((p, PTR) for p in params), ("n", I64)])
    body(b)
    b.ret()
    library = SharedLibrary(link([compile_object(module.text(), module.target)]))
    types = [ctypes.c_void_p] * len(params) + [ctypes.c_int64]
    call = ctypes.CFUNCTYPE(None, *types)(library.address("f"))

    def run(*arguments: Any, library: Any = library) -> Any:  # the code goes with its library
        return call(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments))

    return run


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("count", [0, 1, 3, 16, 17, 100])
@pytest.mark.parametrize("static", [True, False])
def test_vectors_and_tails(target, count, static):
    """Every element is visited once; nothing beyond the last is touched."""
    if static and not count:
        pytest.skip("static bounds are never empty")

    def body(b: Builder) -> None:
        x = b.pointer("x", F32)

        def each(i, lanes, mask) -> None:
            (x + i).store((x + i).load(lanes, mask) + 1.0, mask)

        b.vectors(count if static else b.args["n"], max(4, b.target.lanes), each)

    x = np.zeros(count + 32, np.float32)
    function(body, target, "x")(x, count)
    np.testing.assert_array_equal(x, np.arange(x.size) < count)


@pytest.mark.parametrize("target", levels())
def test_loops_carry_values(target):
    def body(b: Builder) -> None:
        x, y = b.pointer("x", F32), b.pointer("y", F32)
        with b.loop(0, b.args["n"], 1, carry=[b.const(0, F32), b.const(1, I64)]) as loop:
            total, count = loop.vars
            loop.next([total + (x + loop.index).load(), count * 2])
        y.store(loop.out[0])
        (y + 1).store(loop.out[1].to("f32"))

    run, y = function(body, target, "x", "y"), np.zeros(2, np.float32)
    x = np.arange(1, 8, dtype=np.float32)
    run(x, y, 7)
    np.testing.assert_array_equal(y, [28, 128])
    run(x, y, 0)
    np.testing.assert_array_equal(y, [0, 1])


@pytest.mark.parametrize("target", levels())
def test_choices(target):
    def body(b: Builder) -> None:
        x, n = b.pointer("x", F32), b.args["n"]
        b.choose(n > 3, lambda: x.store(b.const(1, F32)), lambda: x.store(b.const(2, F32)))
        with b.when((n % 2).eq(0)):
            (x + 1).store(b.const(3, F32))

    run = function(body, target, "x")
    for n, want in ((5, [1, 0]), (2, [2, 3])):
        x = np.zeros(2, np.float32)
        run(x, n)
        np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("count", range(5))
def test_masks_and_single_lanes(target, count):
    """A masked store writes what its mask says, also after a conversion to a narrower type."""

    def body(b: Builder) -> None:
        x, y = b.pointer("x", I64), b.pointer("y", U8)
        mask = b.first_lanes(count, 4)
        y.store(x.load(4).to("u8"), mask)
        (y + 8).store(x.load(4).to("u8"), b.first_lanes(b.args["n"], 4))

    y = np.full(24, 255, np.uint8)
    function(body, target, "x", "y")(np.arange(4), y, count)
    want = np.full(24, 255)
    want[:count] = want[8 : 8 + count] = np.arange(count)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("target", levels())
def test_saturating_conversions(target):
    x = np.array([1e30, -1e30, np.nan, 300.7, -5.5, np.inf, 2.5, 0], np.float32)
    for dtype, kind in (("int32", "i32"), ("uint8", "u8"), ("int64", "i64"), ("int16", "i16")):
        got = compiled(lambda v, kind=kind: v.to(kind), ["float32"], dtype, target)(x)
        info = np.iinfo(dtype)
        want = [
            0 if np.isnan(v) else int(np.clip(np.trunc(np.float64(v)), info.min, info.max))
            if abs(v) < 2**62 else (info.max if v > 0 else info.min)
            for v in x
        ]  # fmt: skip
        np.testing.assert_array_equal(got, np.array(want, dtype))


def test_indices_fold():
    """Arithmetic on known indices emits nothing."""
    b = Module(level("sse2")).function("f", [("x", PTR), ("n", I64)])
    n, x = b.args["n"], b.pointer("x", F32)
    assert n + 0 is n
    assert n * 1 is n
    assert n * 0 == 0
    assert n // 1 is n
    assert n % 1 == 0
    assert ((x + 3) + 4).offset == 7
    assert b.minimum(3, 4) == 3
    assert b._lines == []


@pytest.mark.parametrize(
    "value, ty, text",
    [
        (1.0, F32, "0x3FF0000000000000"), (0.1, F32, "0x3FB99999A0000000"),
        (1e40, F32, "0x7FF0000000000000"), (-0.0, F64, "0x8000000000000000"),
        (float("nan"), F32, "0x7FF8000000000000"), (255, U8, "-1"), (-1, I32, "-1"),
        (2**31, I32, "-2147483648"),
    ],
)  # fmt: skip
def test_literals(value, ty, text):
    assert literal(value, ty) == text


def test_errors_name_the_types():
    b = Module(level("sse2")).function("f", [("x", PTR), ("n", I64)])
    x = b.pointer("x", F32)
    with pytest.raises(CodegenError, match="f32x4 and f32x8"):
        x.load(4) + x.load(8)
    with pytest.raises(CodegenError, match="i64 through a pointer to f32"):
        x.store(b.args["n"])
    with pytest.raises(CodegenError, match="never runs"), b.loop(3, 3):
        pass
    with pytest.raises(CodegenError, match="without next"), b.loop(0, 3, carry=[b.args["n"]]):
        pass
    with pytest.raises(CodegenError, match="declared as"):
        b.module.declare("g", "declare void @g()")
        b.module.declare("g", "declare i64 @g()")


def test_bad_text_is_refused():
    with pytest.raises(CodegenError, match="LLVM refused"):
        compile_object("define void @f() {\n ret i32 0\n}\n", level("sse2"))
