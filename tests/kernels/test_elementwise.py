"""Elementwise kernels: every shape of operand, every dtype, every instruction set."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, prepare
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import Layout, block_of, spec_of
from tinsmith.kernels.trace import make_site

RNG = np.random.default_rng(7)
FEW = [p for p in levels() if p.values[0] in ("avx512", "sse2")]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    small = RNG.integers(max(-9, info.min), 9, shape)
    return np.where(RNG.random(shape) < 0.2, info.max, small).astype(dtype)


SHAPES = [
    [(1,)],
    [(7,), (7,)],
    [(3, 1000), (1000,)],
    [(2, 3, 5, 7), (3, 1, 1)],
    [(2, 3, 5, 7), (2, 1, 5, 1)],
    [(2, 1, 5, 1), (1, 3, 1, 7)],
    [(1, 64, 14, 14), (1, 64, 14, 14)],
    [(4, 1), (4, 1)],
    [(2, 2, 2, 2, 2, 3), (2, 1, 2, 1, 2, 1)],
    [(70001,), (1,)],
]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes, target):
    arrays = [floats(*s) for s in shapes]
    check("Add" if len(shapes) == 2 else "Relu", arrays, kernel="elementwise", target=target)


UNARY = [
    "Neg", "Abs", "Sign", "Sqrt", "Rsqrt", "Reciprocal", "Exp",
    "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan",
    "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf",
    "Floor", "Ceil", "Round", "IsNaN", "IsInf", "Sigmoid", "Relu",
    "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "HardSwish",
    "Swish", "Gelu", "Mish", "Softplus", "Softsign", "Shrink",
]  # fmt: skip


@pytest.mark.parametrize("target", FEW)
@pytest.mark.parametrize("op", UNARY)
def test_unary(op, target):
    x = floats(203) * 2
    x[:6] = [0.0, np.nan, np.inf, -np.inf, 90.0, -90.0]
    check(op, [x], kernel="elementwise", target=target, rtol=3e-6)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Atan2"])
def test_binary(op, target):
    x, y = floats(301), floats(301)
    x[:4], y[2:6] = [np.nan, np.inf, np.nan, -np.inf], [1, np.nan, 0, -0.0]
    check(op, [x, y], kernel="elementwise", target=target, rtol=2e-6)


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("target", FEW)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype, target):
    x, y = ints(dtype, 77), ints(dtype, 77)
    y[:3] = 0
    for op in ("Add", "Mul", "Div", "Mod", "Max", "Min", "BitwiseAnd", "BitwiseXor", "Less"):
        check(op, [x, y], kernel="elementwise", target=target)
    check("Mod", [x, y], {"fmod": True}, kernel="elementwise", target=target)
    if dtype[0] == "u":
        y[3:6] = x.dtype.itemsize * 8
        for direction in ("LEFT", "RIGHT"):
            check("BitShift", [x, y], {"direction": direction}, kernel="elementwise", target=target)


def test_integer_division_never_traps():
    lowest = np.iinfo(np.int32).min
    x = np.array([lowest, lowest, 7, -7, 7, 0] * 5, np.int32)
    y = np.array([-1, 0, -1, 2, 0, 0] * 5, np.int32)
    for op in ("Div", "Mod"):
        check(op, [x, y], kernel="elementwise")


@pytest.mark.parametrize("target", FEW)
@pytest.mark.parametrize("to", ["float32", "float64", "bool", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("source", ["float32", "bool", "int8", "uint16", "int64"])
def test_casts(source, to, target):
    x = (RNG.random((5, 13)) * 100).astype(source)
    check("Cast", [x], {"to": to}, kernel="elementwise", target=target)


@pytest.mark.parametrize("target", levels())
def test_bools(target):
    a, b = RNG.random((2, 3, 50)) < 0.5
    x, y = floats(3, 50), floats(50)
    check("Where", [a, x, y], kernel="elementwise", target=target)
    check("Where", [a[:, :1], x, y], kernel="elementwise", target=target)
    for op in ("And", "Or", "Xor", "Equal"):
        check(op, [a, b], kernel="elementwise", target=target)
    check("Not", [a], kernel="elementwise", target=target)
    check("Where", [a, b, a], kernel="elementwise", target=target)


def test_nan_passes_through_relu_and_clip():
    x = np.float32([np.nan, -1, 1] * 11)
    check("Relu", [x], kernel="elementwise")
    check("Clip", [x], {"min": 0.0, "max": 6.0}, kernel="elementwise")


CHAIN = [
    ("Add", ("const", floats(37, 1, 1))),
    ("Mul", ("const", np.float32(2))),
    ("Add", floats(2, 37, 5, 6)),
    ("Sigmoid",),
]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 1])
def test_a_region_on_blocked_operands(target, halo):
    blocked = {"x0": Layout(block_of(level(target)))}
    x = floats(2, 37, 5, 6)
    check("Relu", [x], epilogue=CHAIN, kernel="elementwise", target=target)
    choice = check(
        "Relu", [x], epilogue=CHAIN, kernel="elementwise", target=target, pick=1, layouts=blocked,
        extra_halo=halo,
    )  # fmt: skip
    assert choice.writes[0].block


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "dims", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 32, 7, 7), (3, 5), (1, 19, 4, 3, 2)]
)
def test_blocked_operands(target, dims):
    width = block_of(level(target))
    ones = (1,) * (len(dims) - 2)
    others = [dims, (dims[1], *ones), (dims[0], 1, *dims[2:]), (1,)]
    for other in others:
        arrays = [floats(*dims), floats(*other)]
        check(
            "Mul", arrays, kernel="elementwise", target=target, pick=1,
            layouts={"x0": Layout(width)}, extra_halo=len(dims) > 2,
        )  # fmt: skip
    test = (floats(*dims) > 0, floats(*dims), floats(1))
    check("Where", test, kernel="elementwise", target=target, pick=1, layouts={"x0": Layout(width)})


def test_the_output_may_take_over_an_operand():
    node = one_node("Add", [floats(1003), floats(1003)])
    bench = prepare(node, {"x0": floats(1003), "x1": floats(1003)}, "elementwise")
    function, pointers, tiles = bench.functions[0]
    x, y, out = (np.ctypeslib.as_array(_floats(p), (1003,)) for p in pointers[:3])
    want = x + y
    function(*pointers, 0, tiles)
    np.testing.assert_array_equal(out, want)
    function(pointers[0], pointers[1], pointers[0], *pointers[3:], 0, tiles)
    np.testing.assert_array_equal(x, want)


def _floats(address: int):
    import ctypes

    return ctypes.cast(address, ctypes.POINTER(ctypes.c_float))


@pytest.mark.parametrize(
    "target, instruction", [("avx512", "vmaxps"), ("avx2", "vmaxps"), ("sse2", "maxps")]
)
def test_relu_is_one_instruction(target, instruction):
    site = make_site(one_node("Relu", [floats(4096)]), level(target))
    (choice,) = KERNELS["elementwise"].offer(site)
    spec = spec_of(np.float32, (4096,))
    text = assembly(build_phase(site, choice, 0, [spec], [spec], []).text, level(target))
    assert 4 < text.count(f"\t{instruction}\t") < 8  # the unrolled loop, a vector, the rest
    for extra in ("cmp", "blend", "unord", "andn"):
        assert f"{extra}ps" not in text


@pytest.mark.parametrize("op", ["Sigmoid", "Gelu", "Mish", "Softplus", "Tanh"])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_activations_do_not_spill(op, target):
    site = make_site(one_node(op, [floats(4096)]), level(target))
    (choice,) = KERNELS["elementwise"].offer(site)
    spec = spec_of(np.float32, (4096,))
    text = assembly(build_phase(site, choice, 0, [spec], [spec], []).text, level(target))
    loops = re.findall(r"(\.LBB\w+):\n((?:(?!\.LBB).*\n)*?)\tj\w+\t\1\n", text)
    assert loops
    for _, body in loops:
        spills = [s for s in body.splitlines() if s.endswith("(%rsp)") and "vmov" in s]
        assert len(spills) <= (target == "avx2"), spills


def test_what_has_no_native_code_is_skipped():
    with pytest.raises(Skip, match="float64"):
        make_site(one_node("Sin", [np.ones(3)]), level("host"))
    with pytest.raises(Skip, match="power of int32"):
        make_site(one_node("Pow", [np.ones(3, np.int32), np.ones(3, np.int32)]), level("host"))
