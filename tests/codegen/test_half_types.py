"""Conversions of float16 and bfloat16 in generated code against numpy, bit by bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.vectors import compiled, every
from tests.kernels.harness import levels
from tinsmith.codegen.builder import Module
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.target import level
from tinsmith.codegen.types import F32, I64, PTR, Ty
from tinsmith.errors import CodegenError

KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
NAMES = {"float16": "f16", "bfloat16": "bf16"}


def all_halves(kind: str) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(KINDS[kind])


def hard_singles() -> np.ndarray:
    """Each half, what lies midway between it and the next, and the neighbours of both; every
    4099th float32."""
    parts = [every(4099)]
    for kind in KINDS:
        halves = all_halves(kind).astype(np.float32)
        finite = np.sort(halves[np.isfinite(halves)])
        middle = (finite[1:].astype(np.float64) + finite[:-1]) / 2
        for x in (finite, middle.astype(np.float32)):
            parts += [x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))]
    top = [65504, 65519.996, 65520, 65536, 3.38953139e38, 3.3961775e38, 3.4028235e38]
    return np.concatenate([*parts, np.array(top, np.float32), -np.array(top, np.float32)])


@np.errstate(invalid="ignore")
def agree(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits; where a NaN is wanted, one of the same sign."""
    bits = np.dtype(f"u{want.itemsize}")
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan)
    np.testing.assert_array_equal(np.signbit(got[nan]), np.signbit(want[nan]))
    np.testing.assert_array_equal(got.view(bits)[~nan], want.view(bits)[~nan])


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_every_half_widens_exactly(kind, wide, target):
    x = all_halves(kind)
    f = compiled(lambda v: v.to(wide.replace("loat", "")), [KINDS[kind]], wide, target)
    with np.errstate(invalid="ignore"):
        agree(f(x), x.astype(wide))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", KINDS)
def test_singles_narrow_to_the_nearest(kind, target):
    x = hard_singles()
    f = compiled(lambda v: v.to(NAMES[kind]), ["float32"], KINDS[kind], target)
    with np.errstate(all="ignore"):
        agree(f(x), x.astype(KINDS[kind]))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", KINDS)
def test_doubles_are_rounded_as_numpy_does(kind, target):
    """float16 once; bfloat16 by way of float32."""
    with np.errstate(all="ignore"):
        singles = hard_singles()[::3].astype(np.float64)
        off = [singles * (1 + e) for e in (0, 2.0**-40, -(2.0**-40))]
        x = np.concatenate([*off, [1e300, -1e300, 1e-300, -1e-300, 5e-324, 2.0**-25]])
        f = compiled(lambda v: v.to(NAMES[kind]), ["float64"], KINDS[kind], target)
        agree(f(x), x.astype(KINDS[kind]))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_integers(kind, dtype, target):
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype if dtype != "bool" else "uint8")
    x = rng.integers(info.min, info.max, 3000, dtype=info.dtype, endpoint=True)
    x = np.concatenate([x, np.array([info.min, info.max, 0, 1, 2, 3, 63, 65], info.dtype)])
    x = (x % 2).astype(bool) if dtype == "bool" else x
    with np.errstate(all="ignore"):
        f = compiled(lambda v: v.to(NAMES[kind]), [dtype], KINDS[kind], target)
        agree(f(x), x.astype(KINDS[kind]))
        back = {"bool": "i1", "uint8": "u8", "uint64": "u64"}.get(dtype, dtype.replace("nt", ""))
        whole = np.array([0, 0.5, 1, 1.75, 2, 100, 127] + [-1.5, -100] * (info.min < 0), "f4")
        g = compiled(lambda v: v.to(back), [KINDS[kind]], dtype, target)
        np.testing.assert_array_equal(
            g(whole.astype(KINDS[kind])), whole.astype(KINDS[kind]).astype(dtype)
        )


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse2", "scalar"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("lanes", [1, 8])
def test_no_conversion_calls_a_library(isa, kind, lanes):
    target = level(isa)
    module = Module(target)
    b = module.function("f", [("x", PTR), ("y", PTR), ("n", I64)])
    x = (b.pointer("x", Ty(kind))).load(lanes)
    b.pointer("y", F32).store(x.to("f32"))
    (b.pointer("y", Ty(kind)) + 64).store((b.pointer("x", F32) + 64).load(lanes).to(kind))
    b.ret()
    from tinsmith.codegen.elf import link

    link([compile_object(module.text(), target)])  # refuses symbols that are not defined


def test_arithmetic_on_halves_is_refused():
    module = Module(level("sse2"))
    b = module.function("f", [("x", PTR), ("y", PTR), ("n", I64)])
    x = b.pointer("x", Ty("f16")).load(4)
    with pytest.raises(CodegenError, match="no arithmetic on f16"):
        _ = x + x
    with pytest.raises(CodegenError, match="no arithmetic on f16"):
        _ = x < x


def test_constants_of_halves():
    for kind, dtype in KINDS.items():
        for value in (0.0, -0.0, 1.5, -65504.0 if kind == "float16" else 2.0**100, np.inf):
            got = compiled(lambda v, n=NAMES[kind], w=value: v.b.const(w, Ty(n, v.ty.lanes)),
                           ["float32"], dtype, "sse2")(np.zeros(3))  # fmt: skip
            agree(got, np.full(3, value, dtype))
