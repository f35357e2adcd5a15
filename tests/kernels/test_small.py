"""Weights of 4, 8 and 16 bits: what kernels make of them is what numpy makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, level_param, one_node, site_of
from tests.kernels.window_cases import spills
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.graph import dtype_of
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.dot.codes import CODES
from tinsmith.kernels.layout import PLAIN, spec_of

SHAPES = (  # rows, k, n, block
    (1, 64, 16, 32),
    (1, 1, 2, 0),
    (1, 600, 25, 0),
    (1, 768, 31, 128),
    (2, 100, 33, 64),
    (3, 7, 5, 0),
    (4, 1030, 12, 1024),
    (5, 130, 40, 32),
    (9, 65, 101, 64),
)
ENDS = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16)}
BOUND = 2e-5
"""Relative to the greatest result: sums of numbers that zero points shift lose up to two digits."""


def operands(m, k, n, kind, block, zeros="none"):
    """Operands of a SmallMatMul with zero points of which there are none, one, or several."""
    rng = np.random.default_rng(m * k * n)
    x = rng.standard_normal((m, k)).astype(np.float32)
    if CODES[kind].is_float:
        return [x, rng.standard_normal((k, n)).astype(dtype_of(kind))], {}
    low, high = ENDS[kind]
    rows = -(-k // block) if block else 1
    w = rng.integers(low, high, (k, n)).astype(dtype_of(kind))
    found = [x, w, (rng.random((rows, n)) + 0.1).astype(np.float32)]
    if zeros == "several":
        found.append(rng.integers(low, high, (rows, n)).astype(dtype_of(kind)))
    if zeros == "one":
        found.append(np.full((rows, n), 3, np.int8).astype(dtype_of(kind)))
    return found, {"block_size": block}


MACHINES = ("avx512vnni", "avxvnni", "avx512", "avx2", "sse2", "scalar")


def kernel_of(m):
    return "gemv_small" if m <= 4 else "matmul_small"


def kernels_of(kind, m, k, block, target):
    """Every kernel that computes such a product."""
    found = [kernel_of(m)]
    if m <= 4 and kind in ENDS and level(target).byte_products in ("vpdpbusd", "usdot"):
        found += ["gemv_small_bytes"] * ((block or k) % 4 == 0 or (block or k) >= k)
    return found


@pytest.mark.parametrize("target", [level_param(name) for name in MACHINES])
@pytest.mark.parametrize("kind", CODES)
def test_products(kind, target):
    for m, k, n, block in SHAPES:
        for zeros in ("none", "one", "several") if kind in ENDS else ("none",):
            arrays, attrs = operands(m, k, n, kind, block, zeros)
            for kernel in kernels_of(kind, m, k, block, target):
                check("SmallMatMul", arrays, attrs, kernel=kernel, target=target,
                      consts=range(1, len(arrays)), rtol=BOUND)  # fmt: skip


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("m", [2, 7])
def test_epilogues_and_leading_axes(kind, m):
    arrays, attrs = operands(m, 96, 40, kind, 32)
    bias, more = np.linspace(-1, 1, 40, dtype=np.float32), np.ones((m, 40), np.float32)
    tail = [("Add", ("const", bias)), ("Add", more), ("Sigmoid",)]
    consts = range(1, len(arrays))
    check("SmallMatMul", arrays, attrs, kernel=kernel_of(m), consts=consts, epilogue=tail,
          rtol=BOUND)  # fmt: skip
    arrays[0] = arrays[0].reshape(1, m, 1, 96)
    check("SmallMatMul", arrays, attrs, kernel=kernel_of(m), consts=consts, rtol=BOUND)


BYTES_HERE = [None, level_param("avx512vnni"), level_param("avxvnni")]
"""Machines for `gemv_small_bytes`; None: for `gemv_small`, this one."""


def alone(arrays, attrs, machine, rtol=1e-5):
    kernel = "gemv_small_bytes" if machine else "gemv_small"
    check("SmallMatMul", arrays, attrs, kernel=kernel, target=machine or "host",
          consts=range(1, len(arrays)), rtol=rtol)  # fmt: skip


@pytest.mark.parametrize("machine", BYTES_HERE)
def test_every_number_is_decoded_exactly(machine):
    """A unit matrix gives the weights themselves."""
    for kind, (low, high) in ENDS.items():
        w = np.arange(low, high)[None].repeat(8, 0).astype(dtype_of(kind))
        scale = np.full((1, w.shape[1]), 0.5, np.float32)
        alone([np.eye(8, dtype=np.float32)[:4], w, scale], {}, machine, rtol=0)


def test_every_number_is_expanded_exactly():
    for kind, (low, high) in ENDS.items():
        w = np.arange(low, high)[None].repeat(8, 0).astype(dtype_of(kind))
        scale = np.full((1, w.shape[1]), 0.5, np.float32)
        check("SmallMatMul", [np.eye(8, dtype=np.float32), w, scale], {}, kernel="matmul_small",
              consts=(1, 2), rtol=0)  # fmt: skip


@pytest.mark.parametrize(
    "machine, kind",
    [
        (None, "float16"),
        (None, "int8"),
        *(level_param(name, kind) for name in ("avx512vnni", "avxvnni") for kind in ENDS),
    ],
)
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_infinities_stay(kind, odd, machine):
    arrays, attrs = operands(3, 100, 24, kind, 32)
    for row in (5, 98):
        arrays[1][row] = np.ones(24).astype(arrays[1].dtype)
        arrays[0][row % 2, row] = odd
    alone(arrays, attrs, machine)


@pytest.mark.parametrize("machine", BYTES_HERE[1:])
@pytest.mark.parametrize("size", [1e-44, 1e-36, 1e-20, 1e30, 1e37])
def test_numbers_of_any_size_keep_their_digits(size, machine):
    """Fixed-point numbers have an exponent for each block; tiny ones lose digits below 2^-105."""
    arrays, attrs = operands(2, 130, 20, "int8", 32)
    arrays[2][:] = min(1.0, 1e-2 / max(size, 1e-38)) if size < 1 else 1e-3
    arrays[0] = (arrays[0] * np.float32(size)).astype(np.float32)
    arrays[0][:, 32:64] = 0
    alone(arrays, attrs, machine, rtol=1e-5 if size > 1e-30 else 0.5)


@pytest.mark.parametrize(
    "target", ["avx2", "avx512", "neon", "neondot", "i8mm", "sse2", "avxvnni", "avx512vnni"]
)
@pytest.mark.parametrize("kind", CODES)
def test_code_is_generated_for_every_machine(kind, target):
    """And the words of a panel stay in registers while they are decoded."""
    for m in (1, 4):
        arrays, attrs = operands(m, 512, 192, kind, 128)
        for kernel in kernels_of(kind, m, 512, 128, target):
            generate(kernel, arrays, attrs, target, m)


def generate(kernel, arrays, attrs, target, m):
    site = site_of(one_node("SmallMatMul", arrays, attrs, range(1, len(arrays))), level(target))
    choice = KERNELS[kernel].offer(site)[0]
    reads = [spec_of(arrays[0].dtype, arrays[0].shape, PLAIN), *[None] * (len(arrays) - 1)]
    writes = [spec_of(site.out.dtype, site.out.dims, PLAIN)]
    packed = [p.make().dtype for p in choice.packed]
    text = build_phase(site, choice, len(choice.phases) - 1, reads, writes, packed).text
    code = assembly(text, site.target)
    if (target, m) == ("avx512", 1) or (kernel, target) == ("gemv_small_bytes", "avx512vnni"):
        assert spills(code) == []


def offer(kind, m, k, n, block, **more):
    arrays, attrs = operands(m, k, n, kind, block, **more)
    site = site_of(one_node("SmallMatMul", arrays, attrs, range(1, len(arrays))), level("avx2"))
    return KERNELS[kernel_of(m)].offer(site)[0]


def test_packed_bytes_are_those_of_the_weights():
    for kind, bits in (("int8", 8), ("int4", 4), ("float16", 16)):
        choice = offer(kind, 1, 1024, 240, 128 if bits < 16 else 0)
        made = choice.packed[0].make()
        assert made.nbytes == choice.packed[0].nbytes
        assert made.nbytes <= 1024 * 240 * (bits + 0.3) / 8
        assert kind in choice.detail


def test_what_declines_says_why():
    with pytest.raises(Skip, match="end within a word of 8"):
        offer("int4", 1, 64, 16, 4)
    arrays, attrs = operands(1, 64, 16, "int8", 32)
    arrays[1] = arrays[1].astype(dtype_of("float8_e4m3fn"))
    site = site_of(one_node("SmallMatMul", arrays, attrs, (1, 2)), level("avx2"))
    with pytest.raises(Skip, match="no kernel decodes weights of float8"):
        KERNELS["gemv_small"].offer(site)
    with pytest.raises(Skip, match="avx2 does not multiply unsigned by signed"):
        KERNELS["gemv_small_bytes"].offer(site)
    arrays, attrs = operands(1, 1022, 16, "int8", 511)
    site = site_of(one_node("SmallMatMul", arrays, attrs, (1, 2)), level("avx512vnni"))
    with pytest.raises(Skip, match="end within a word of 4"):
        KERNELS["gemv_small_bytes"].offer(site)
