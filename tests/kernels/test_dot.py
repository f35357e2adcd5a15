"""Matrix products against numpy: shapes, broadcasting, epilogues, instruction sets, spills."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.dot.matmul import pack_columns, spread_stride
from tinsmith.kernels.dot.tiles import accumulators, choose, split_columns, split_rows
from tinsmith.kernels.layout import spec_of

VECTORS = levels()[:3]
"""Without the scalar level, whose code is that of sse2; the broadest tests run it too."""

RNG = np.random.default_rng(7)
STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Whatever ran before: the sum of few products may be far smaller than they are."""
    RNG.bit_generator.state = STATE


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


PACKED = [  # m, k, n
    (5, 1, 2), (7, 3, 5), (12, 16, 16), (13, 17, 33), (49, 12, 96), (100, 7, 100), (14, 1024, 70),
]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(("m", "k", "n"), PACKED)
def test_matmul_packed(target: str, m: int, k: int, n: int) -> None:
    check("MatMul", [rand(m, k), rand(k, n)], kernel="matmul_packed", target=target, consts=(1,))


@pytest.fixture
def few_may_be_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "LEAST", 0)


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 1), (1, 2)), ((4, 3), (3, 5)), ((2, 64), (64, 100)), ((70,), (70, 40)),
     ((2, 1, 70), (70, 40)), ((1, 1030), (1030, 10))],
)  # fmt: skip
def test_gemv_packed(target: str, left: tuple, right: tuple) -> None:
    check("MatMul", [rand(*left), rand(*right)], kernel="gemv_packed", target=target, consts=(1,))


@pytest.mark.parametrize("target", VECTORS[:2])
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 4), (4, 2)), ((4, 8), (8, 5)), ((2, 64), (64, 100)), ((72,), (72, 40)),
     ((3, 1, 1028), (1028, 10)), ((1, 256), (256, 1000))],
)  # fmt: skip
def test_gemv_narrow(target: str, left: tuple, right: tuple, few_may_be_narrow: None) -> None:
    check("MatMul", [rand(*left), rand(*right)], kernel="gemv_narrow", target=target, consts=(1,))


BATCHED = [
    ((1, 1), (1, 2)), ((5, 7), (7, 3)), ((2, 3, 49, 32), (2, 3, 32, 49)),
    ((3, 1, 5, 4), (2, 4, 17)),
    ((2, 3, 9, 49), (2, 3, 49, 32)), ((5, 4), (3, 4, 20)), ((2, 100, 70), (70, 260)),
    ((50, 300), (300, 161)), ((7,), (7, 9)), ((7,), (3, 7, 9)), ((1, 60, 64), (3, 64, 300)),
]  # fmt: skip


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(("left", "right"), BATCHED)
def test_matmul_batched(target: str, left: tuple, right: tuple) -> None:
    check("MatMul", [rand(*left), rand(*right)], kernel="matmul_batched", target=target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 1), (1, 2)), ((5, 7), (7, 3)), ((13, 17), (17, 33)), ((2, 1, 9, 32), (3, 32, 25)),
     ((30, 64), (2, 64, 48)), ((2, 60, 90), (90, 101)), ((7,), (3, 7, 4)),
     ((2, 3, 4), (4, 5)), ((100, 70), (70, 100)), ((5, 7), (7, 1)),
     ((2, 3, 9, 32), (2, 3, 32, 1)), ((33,), (33,)), ((3, 4, 7), (7,))],
)  # fmt: skip
@pytest.mark.parametrize("consts", [(), (1,)])
def test_products_in_float64(target: str, left: tuple, right: tuple, consts: tuple) -> None:
    arrays = [rand(*left).astype("f8") / 3, rand(*right).astype("f8") / 3]
    name = "matvec" if len(right) == 1 or right[-1] == 1 else "matmul_typed"
    check("MatMul", arrays, kernel=name, target=target, consts=consts, rtol=1e-14)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_products_of_whole_numbers(target: str, dtype: str) -> None:
    rng, info = np.random.default_rng(5), np.iinfo(dtype)
    for left, right in (((13, 17), (17, 33)), ((2, 60, 90), (90, 101)), ((5, 7), (7, 1)),
                        ((7,), (3, 7, 4)), ((33,), (33,))):  # fmt: skip
        arrays = [rng.integers(info.min, info.max, s, dtype) for s in (left, right)]
        name = "matvec" if len(right) == 1 or right[-1] == 1 else "matmul_typed"
        check("MatMul", arrays, kernel=name, target=target, epilogue=[("Neg",)] if info.min else ())


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("shape", [(9, 37), (9, 1)])
def test_epilogues_in_float64(shape: tuple, threads: int) -> None:
    arrays = [rand(2, 3, 70, 9).astype("f8"), rand(*shape).astype("f8")]
    bias = ("Add", rand(shape[1]).astype("f8"))
    name = "matvec" if shape[1] == 1 else "matmul_typed"
    check("MatMul", arrays, kernel=name, epilogue=[bias, ("Relu",)], rtol=1e-14, threads=threads)


def test_constant_left_operand() -> None:
    check("MatMul", [rand(9, 5), rand(2, 5, 7)], kernel="matmul_batched", consts=(0,))


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 1), (1, 1)), ((5, 7), (7, 1)), ((2, 3, 9, 32), (2, 3, 32, 1)), ((3, 1, 5, 4), (2, 4, 1)),
     ((100, 300), (300,)), ((7,), (3, 7, 1)), ((3, 4, 7), (7,)), ((33,), (33,))],
)  # fmt: skip
def test_matvec(target: str, left: tuple, right: tuple) -> None:
    check("MatMul", [rand(*left), rand(*right)], kernel="matvec", target=target)


def epilogues(*out: int) -> dict[str, list[tuple]]:
    """Extras of every broadcast shape, light and heavy."""
    bias = ("const", rand(out[-1]))
    return {
        "bias": [("Add", bias)],
        "bias-gelu": [("Add", bias), ("Gelu",)],
        "residual-relu": [("Add", rand(*out)), ("Relu",)],
        "scalar-column": [("Mul", ("const", np.float32(0.3))), ("Add", rand(*out[:-1], 1))],
        "outer-sigmoid": [("Add", rand(out[0], *(1,) * (len(out) - 1))), ("Sigmoid",)],
        "scattered": [("Mul", rand(*(1 if i % 2 else d for i, d in enumerate(out))))],
    }


@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("name", list(epilogues(1)))
@pytest.mark.parametrize(
    ("kernel", "left", "right"),
    [
        ("matmul_packed", (2, 3, 7, 9), (9, 37)),
        ("gemv_packed", (3, 1, 20), (20, 19)),
        ("gemv_narrow", (3, 1, 20), (20, 19)),
        ("matmul_batched", (2, 1, 7, 9), (3, 9, 33)),
        ("matvec", (2, 3, 5, 9), (9, 1)),
    ],
)
def test_epilogues(
    target: str, name: str, kernel: str, left: tuple, right: tuple, few_may_be_narrow: None
) -> None:
    if kernel == "gemv_narrow" and target == "sse2":
        pytest.skip("it has no fused multiply-add")
    out = np.matmul(np.zeros(left, "f4"), np.zeros(right, "f4")).shape
    consts = (1,) if kernel.endswith(("packed", "narrow")) else ()
    check("MatMul", [rand(*left), rand(*right)], kernel=kernel, target=target, consts=consts,
          epilogue=epilogues(*out)[name])  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "left", "right", "why"),
    [
        ("matmul_packed", (3, 8), (8, 5), "gemv_packed"),
        ("gemv_packed", (30, 8), (8, 5), "matmul_packed"),
        ("gemv_narrow", (30, 8), (8, 5), "matmul_packed"),
        ("gemv_narrow", (3, 8), (8, 5), "160 bytes of weights stay in caches"),
        ("gemv_narrow", (3, 10), (10, 5), "10 rows are not a multiple of 4"),
        ("matmul_packed", (30, 8), (8, 1), "matvec"),
        ("matmul_packed", (30, 8), (2, 8, 5), "batch dimensions"),
        ("matmul_packed", (0, 8), (8, 5), "empty"),
        ("matmul_batched", (30, 0), (0, 5), "empty"),
        ("matvec", (3, 8), (8, 5), "5 columns"),
    ],
)
def test_declines(kernel: str, left: tuple, right: tuple, why: str) -> None:
    node = one_node("MatMul", [rand(*left), rand(*right)], consts=(1,))
    with pytest.raises(Skip, match=why):
        KERNELS[kernel].offer(site_of(node, level("avx2")))


@pytest.mark.parametrize("name", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(196, 768, 96), (64, 64, 64), (197, 64, 70), (4, 512, 512)]
)
def test_inner_loops_do_not_spill(name: str, m: int, k: int, n: int) -> None:
    target = level(name)
    site = site_of(one_node("MatMul", [rand(m, k), rand(k, n)], consts=(1,)), target)
    row = "gemv_packed" if m <= 4 else "matmul_packed"
    choice = KERNELS[row].offer(site)[0]
    spec = spec_of("float32", (m, k))
    code = build_phase(
        site, choice, len(choice.phases) - 1, [spec, None], [spec_of("float32", (m, n))],
        [np.dtype("f4")],
    )  # fmt: skip
    loops = [b for b in re.split(r"^\.LBB", assembly(code.text, target), flags=re.M) if _is_loop(b)]
    assert loops, "no inner loop with multiplications was found"
    for body in loops:
        spills = re.findall(r".*[xyz]mm.*\(%r[sb]p\).*", body)
        assert not spills, spills[:4]


def _is_loop(block: str) -> bool:
    label = block.split(":")[0]
    return block.count("vfmadd") >= 8 and re.search(rf"j\w+\s+\.LBB{label}\b", block) is not None


def test_tiles_cover_and_stay_in_registers() -> None:
    for name in ("avx512", "avx2", "sse2", "scalar", "neon"):
        target = level(name)
        for m in (1, 2, 5, 13, 27, 49, 197, 784):
            for n in (1, 3, 16, 17, 50, 96, 1000):
                for exact in (False, True):
                    tiling = choose(target, m, n, 64, exact)
                    rows, columns = tiling.rows, tiling.columns
                    assert rows.many * rows.size + rows.fewer * (rows.size - 1) == m
                    last = sum(columns.tail[:-1]) + columns.valid if columns.tail else 0
                    assert columns.full * columns.size + last == n
                    assert not exact or columns.padded == n
                    widest = len(columns.widths) if columns.full else len(columns.tail)
                    assert rows.size * widest <= accumulators(target)
                    assert 0 < tiling.efficiency <= 1


def test_rows_are_split_evenly() -> None:
    assert split_rows(25, 13).size == 13 and split_rows(25, 13).fewer == 1
    assert split_rows(49, 12).size == 10


def test_packed_columns_are_padded_with_zeros() -> None:
    w = rand(3, 37)
    packed = pack_columns(w, split_columns(37, 16, 2, False))
    np.testing.assert_array_equal(packed[: 3 * 32].reshape(3, 32), w[:, :32])
    tail = packed[3 * 32 :].reshape(3, 8)
    np.testing.assert_array_equal(tail[:, :5], w[:, 32:])
    assert not tail[:, 5:].any()


def test_rows_a_page_apart_are_spread() -> None:
    assert spread_stride(1024, 13) == 1040
    assert spread_stride(768, 13) == 768
    assert spread_stride(1023, 13) == 1023


@pytest.mark.parametrize("right", [(37, 1), (37,)])
def test_rows_by_a_column_may_end_as_bytes(right):
    epilogue = [("Abs",), ("Round",), ("Cast", None, {"to": "uint8"})]
    check("MatMul", [rand(9, 37), rand(*right)], kernel="matvec", epilogue=epilogue)
