"""Products and convolutions of bytes on matrix registers, which numpy emulates where there are
none: shapes, zero points, what follows, batches, threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.byte_cases import (
    BATCHES,
    CONSTANT,
    CONVS,
    RNG,
    SIGNS,
    ZEROS,
    ends,
    operands,
    zero,
)
from tests.kernels.harness import check, one_node, site_of
from tests.kernels.matrix_registers import can_run
from tests.kernels.window_cases import machine_code
from tests.machines import with_core
from tinsmith.codegen.products import PRODUCTS, spelled
from tinsmith.codegen.target import level, runnable
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.dot.matrices import tiling

needs = pytest.mark.skipif(not can_run(), reason="no vectors here")
needs_tables = pytest.mark.skipif(not runnable(level("avx512")), reason="no avx512 here")


@pytest.fixture(autouse=True)
def sums_of_bytes(monkeypatch):
    """Matrix registers come with instructions that add up bytes in vectors."""
    if not runnable(level("avx512vnni")):
        row = PRODUCTS["vpdpbusd"]
        made = replace(row, step=spelled(row.left, row.right))
        monkeypatch.setitem(PRODUCTS, row.name, made)


@needs
@pytest.mark.parametrize("m, k, n", [
    (1, 1, 1), (5, 7, 9), (16, 64, 16), (33, 40, 20), (2, 129, 70), (50, 200, 33), (31, 64, 96),
    (65, 65, 17),
])  # fmt: skip
def test_products(m, k, n):
    for at, (a, b) in enumerate(ZEROS * 2):
        left, right = SIGNS[at % 4]
        arrays = [ends(left, m, k), ends(right, k, n), zero(a, left, m), zero(b, right, n)]
        consts = [i for i in CONSTANT[at % 3] if arrays[i] is not None]
        check("MatMulInteger", arrays, kernel="matmul_integer_amx", target="amx", consts=consts)


@needs
@pytest.mark.parametrize("left, right", BATCHES)
def test_batches(left, right):
    for at, signs in enumerate(SIGNS):
        threads, consts = 1 + at % 2, [1] * (at // 2)
        arrays = [ends(signs[0], *left), ends(signs[1], *right), ends(signs[0]), ends(signs[1])]
        check("MatMulInteger", arrays, kernel="matmul_integer_amx", target="amx", threads=threads,
              consts=consts)  # fmt: skip


MORE = [
    ((1, 64, 9, 11), (40, 64, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((2, 130, 6, 7), (50, 130, 1, 1), {"stride": (2, 2)}),
    ((1, 70, 5, 40), (33, 70, 1, 3), {"pad": (0, 3, 0, 3), "dilation": (1, 3)}),
    ((1, 128, 5, 6), (64, 64, 3, 2), {"group": 2, "stride": (1, 3)}),
]


@needs
@pytest.mark.parametrize("x, w, attrs", CONVS + MORE)
def test_convolutions(x, w, attrs):
    for at in range(len(ZEROS)):
        arrays, consts = operands(at, x, w)
        check("ConvInteger", arrays, attrs, kernel="conv_integer_amx", target="amx",
              consts=consts, extra_halo=at % 2, threads=1 + at // 2 % 2)  # fmt: skip


@needs_tables
@pytest.mark.parametrize("op, shapes, kernel", [
    ("MatMulInteger", [(37, 150), (150, 40), (40,)], "matmul_integer_amx"),
    ("ConvInteger", [(1, 70, 6, 7), (40, 70, 3, 3), (40, 1, 1)], "conv_integer_amx"),
])  # fmt: skip
def test_what_follows_is_computed_with_the_sums(op, shapes, kernel):
    left, right, columns = shapes
    factor = RNG.uniform(1e-4, 1e-3, columns).astype(np.float32)
    epilogue = [("Cast", None, {"to": "float32"}), ("Mul", factor), ("Tanh",),
                ("Mul", np.full((), 100, np.float32)), ("Round",),
                ("Cast", None, {"to": "int8"})]  # fmt: skip
    check(op, [ends("uint8", *left), ends("int8", *right)], kernel=kernel, target="amx",
          epilogue=epilogue, consts=[1])  # fmt: skip


def test_tiles_cover_all_rows_and_columns():
    for m in (1, 16, 17, 31, 32, 33, 64, 65):
        for n in (1, 15, 16, 17, 31, 32, 33, 47, 48, 64, 70):
            found = tiling(m, n, 16)
            columns = found.columns
            assert found.rows.count * 32 >= m and columns.padded >= n
            assert columns.padded - n < 16
            tail = sum(columns.tail) or columns.size
            assert columns.full * columns.size + sum(columns.tail) - (16 - columns.valid) == n
            assert tail % 16 == 0


def test_matrix_registers_are_taken_for_many_products():
    """Where a machine has them, and the shape fills their rows."""
    wide = [ends("uint8", 256, 512), ends("int8", 512, 512)]
    few = [ends("uint8", 1, 512), ends("int8", 512, 512)]
    for arrays, best in ((wide, "matmul_integer_amx"), (few, "matmul_integer")):
        machine = with_core("amx")
        site = site_of(one_node("MatMulInteger", arrays, {}, [1]), machine)
        names = ("matmul_integer", "matmul_integer_amx")
        costs = {name: min(c.cost for c in KERNELS[name].offer(site)) for name in names}
        assert min(costs, key=costs.get) == best
    site = site_of(one_node("MatMulInteger", wide, {}, [1]), level("avx512vnni"))
    with pytest.raises(Skip):
        KERNELS["matmul_integer_amx"].offer(site)


@pytest.mark.parametrize("op, shapes", [
    ("MatMulInteger", [(40, 64), (64, 96)]), ("ConvInteger", [(1, 64, 14, 14), (64, 64, 3, 3)]),
])  # fmt: skip
def test_machines_have_the_instruction(op, shapes):
    kernel = "matmul_integer_amx" if op == "MatMulInteger" else "conv_integer_amx"
    arrays = [ends("uint8", *shapes[0]), ends("int8", *shapes[1])]
    text = machine_code(op, arrays, {}, kernel, level("amx"), phase=-1)
    assert text.count("\ttdpbusd\t") >= 2 and "ldtilecfg" in text and "call" not in text
