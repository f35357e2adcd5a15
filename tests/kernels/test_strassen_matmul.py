"""Products by Strassen's method, at one level and two: shapes, epilogues, infinities, errors."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, prepare, site_of
from tests.kernels.window_cases import normal, spills
from tests.machines import machine_with
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import block_of, spec_of
from tinsmith.kernels.strassen.choice import pack
from tinsmith.kernels.strassen.form import PRODUCTS, left_factors, right_factors
from tinsmith.kernels.strassen.shape import shape_of

SHAPES = {
    "even": (32, 64, 64),
    "a row more": (33, 64, 64),
    "two rows more": (50, 68, 128),
    "three rows more": (51, 76, 64),
    "a row less": (63, 96, 128),
    "narrow and deep": (30, 1024, 64),
    "one vector a unit": (27, 72, 64),
    "tail of columns": (41, 64, 448),
    "many rows": (229, 64, 64),
}


def pick(site_or_shape, target: str, wanted: int) -> int:
    """Which choice is of the wanted level, or skip the test where there is none."""
    _, k, n = site_or_shape
    lanes = block_of(level(target))
    found = [v for v in (1, 2) if k % 2**v == 0 and n % (2**v * lanes) == 0]
    if wanted not in found:
        pytest.skip(f"{k} x {n} has no level {wanted} here")
    return found.index(wanted)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, depth, target):
    m, k, n = SHAPES[name]
    arrays = [normal(m, k, seed=1), normal(k, n, seed=2)]
    choice = check(
        "MatMul", arrays, kernel="matmul_strassen", target=target, consts=(1,),
        pick=pick(SHAPES[name], target, depth),
    )  # fmt: skip
    assert choice.packed[0].nbytes == choice.packed[0].make().nbytes


@pytest.mark.parametrize("epilogue", [(), [("Gelu",)]], ids=["bare", "gelu"])
@pytest.mark.parametrize("shape", [(197, 192, 768), (196, 384, 1536), (197, 768, 192)])
def test_inner_loops_do_not_spill(shape, epilogue):
    """Also where panels share prefetches, which keep loads apart elsewhere."""
    m, k, n = shape
    machine = machine_with("avx512", l2=1 << 20)
    node = one_node("MatMul", [normal(m, k, seed=1), normal(k, n, seed=2)], None, (1,), epilogue)
    site = site_of(node, machine)
    for choice in KERNELS["matmul_strassen"].offer(site):
        packed = [p.make().dtype for p in choice.packed]
        x, y = spec_of(np.float32, (m, k)), spec_of(np.float32, (m, n))
        text = build_phase(site, choice, 0, [x, None], [y], packed).text
        assert spills(assembly(text, machine)) == [], choice.detail


EPILOGUES = {
    "residual": [("Add", normal(3, 17, 64, seed=5)), ("Relu",)],
    "columns": [("Add", ("const", normal(64, seed=6)))],
    "long": [("Add", ("const", normal(64, seed=7))), ("Gelu",), ("Mul", normal(3, 17, 64, seed=8))],
    "rows": [("Mul", normal(3, 17, 1, seed=9))],
    "batch": [("Add", normal(3, 1, 64, seed=9))],
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name, depth, target):
    check(
        "MatMul", [normal(3, 17, 64, seed=1), normal(64, 64, seed=2)], kernel="matmul_strassen",
        target=target, consts=(1,), epilogue=EPILOGUES[name],
        pick=pick((51, 64, 64), target, depth),
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e30])
def test_what_is_not_finite_stays_in_its_row(odd, depth, target):
    x, w = normal(61, 68, seed=1), normal(68, 128, seed=2)
    x[7, 3], x[60, 67] = odd, odd
    node = one_node("MatMul", [x, w], {}, (1,))
    bench = prepare(
        node, {"x0": x}, "matmul_strassen", target, pick=pick((61, 68, 128), target, depth)
    )
    bench.run()
    with np.errstate(invalid="ignore", over="ignore"):
        want = (x.astype(np.float64) @ w).astype(np.float32)
    for got, row in zip(bench.outputs[0][0].reshape(61, 128), want, strict=True):
        finite = row[np.isfinite(row)]
        atol = 1e-5 * np.abs(finite).max() if finite.size else 0.0
        np.testing.assert_allclose(got, row, rtol=0, atol=atol)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
def test_small_rows_keep_their_own_precision(depth, target):
    """A norm that follows would make rounding errors as large as results."""
    x, w = normal(61, 68, seed=1), normal(68, 128, seed=2)
    x[[0, 7, 30, 60]] = 0
    x[[5, 31]] *= 1e-12
    node = one_node("MatMul", [x, w], {}, (1,))
    bench = prepare(
        node, {"x0": x}, "matmul_strassen", target, pick=pick((61, 68, 128), target, depth)
    )
    bench.run()
    want = x.astype(np.float64) @ w
    for got, row in zip(bench.outputs[0][0].reshape(61, 128), want, strict=True):
        np.testing.assert_allclose(got, row, rtol=0, atol=1e-5 * np.abs(row).max())


@pytest.mark.parametrize("depth", [1, 2])
def test_results_may_lie_where_a_residual_lies(depth):
    """Every row is finished once, after its residual was read: those computed anew as well."""
    x, w, residual = normal(61, 68, seed=1), normal(68, 128, seed=2), normal(61, 128, seed=3)
    x[[0, 7]] = 0
    x[[5, 31]] *= 5e-5
    x[60, 3] = np.inf
    node = one_node("MatMul", [x, w], {}, (1,), [("Add", residual)])
    bench = prepare(node, {"x0": x, "e0": residual}, "matmul_strassen", "avx2", pick=depth - 1)
    function, pointers, tiles = bench.functions[0]
    inside = bench.outputs[0][0]
    inside[...] = residual.reshape(-1)
    function(pointers[0], pointers[2], *pointers[2:], 0, tiles)
    with np.errstate(invalid="ignore"):
        want = (x.astype(np.float64) @ w).astype(np.float32) + residual
    got = inside.reshape(61, 128)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-3)
    small = [0, 5, 7, 31]
    np.testing.assert_allclose(got[small], want[small], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("depth", "l2"), [(1, 16), (1, 64), (1, 256), (1, 512), (2, 64), (2, 1024)]
)
def test_small_caches(depth, l2):
    """Panels of rows in groups, left factors beyond the cache."""
    target = machine_with("avx2", l2=l2 << 10)
    x, w = normal(230, 512, seed=1), normal(512, 192, seed=2)
    x[[0, 229]] = 0
    x[100, 3] = np.nan
    cut = shape_of(target, depth, 230, 512, 192)
    assert cut.far(target) > 0.5 or 1 < cut.together < cut.tiling.rows.count
    check(
        "MatMul", [x, w], kernel="matmul_strassen", target=target, consts=(1,), pick=depth - 1,
        rtol=2e-5,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("shape", [(64, 256, 128), (49, 1024, 64), (200, 64, 512)])
def test_errors_are_bounded(shape, depth, target):
    m, k, n = shape
    x, w = normal(m, k, seed=1), normal(k, n, seed=2)
    bench = prepare(
        one_node("MatMul", [x, w], {}, (1,)), {"x0": x}, "matmul_strassen", target,
        pick=pick(shape, target, depth),
    )  # fmt: skip
    bench.run()
    want = x.astype(np.float64) @ w.astype(np.float64)
    got = bench.outputs[0][0].reshape(m, n)
    assert np.abs(got - want).max() <= (5e-6, 1e-5)[depth - 1] * np.abs(want).max()


def test_strict_precision_has_no_sums_of_operands():
    node = one_node("MatMul", [normal(64, 64), normal(64, 64)], {}, (1,))
    with pytest.raises(Skip, match="strict"):
        KERNELS["matmul_strassen"].offer(site_of(node, level("avx2"), "strict"))


def combined(products):
    """The product's blocks of seven products (numbers or blocks), in the order of `PRODUCTS`."""
    places, quarters = {}, {}
    for product, value in zip(PRODUCTS, products, strict=True):
        if product.on:
            value = value + places[1]
        if product.keep:
            places[product.keep] = value
        if product.quarter is not None:
            quarters[product.quarter] = value + places[2] if product.add else value
    return np.block([[quarters[0], quarters[1]], [quarters[2], quarters[3]]])


@pytest.mark.parametrize("side", [2, 4])
def test_the_form_is_the_product(side):
    rng = np.random.default_rng(side)
    a, b = rng.integers(-9, 10, (2, side, side))
    made = [x * y for x, y in zip(left_factors(a.tolist()), right_factors(b.tolist()), strict=True)]
    assert len(made) == 7 ** (side // 2)
    if side == 4:
        made = [combined(made[q : q + 7]) for q in range(0, 49, 7)]
    np.testing.assert_array_equal(combined(made), a @ b)


def test_right_factors_are_rounded_once():
    w = np.zeros((2, 32), np.float32)
    w[0, 0], w[0, 16], w[1, 16] = 1.0, 2**-25, 1.0  # B12 - B11, and B22, in the first column
    cut = shape_of(level("avx512"), 1, 64, 2, 32)
    packed = pack(w, cut).reshape(7, 1, 16)
    assert packed[3, 0, 0] == np.float32(2.0**-25 - 1.0)
    assert packed[2, 0, 0] == np.float32(2 - 2.0**-25)  # B22 - (B12 - B11)
    assert packed[6, 0, 0] == np.float32(2.0**-25 - 2)


def test_the_cost_counts_where_right_factors_come_from():
    """Two levels read 29 MB of them: a loss where memory is slow beside arithmetic, a gain where
    it is fast."""
    fast = machine_with(
        "avx512", l2=2 << 20, l3=300 << 20, peak=60e9, l3_bandwidth=90e9, dram_bandwidth=60e9
    )
    slow = replace(fast, peak=170e9, l3_bandwidth=25e9, dram_bandwidth=13e9)
    for m in (49, 196):
        k, n = 768, 3072
        direct = [2.0 * m * k * n / t.peak for t in (fast, slow)]
        two = [shape_of(t, 2, m, k, n).seconds(t) for t in (fast, slow)]
        assert two[0] < direct[0] and two[1] > direct[1]


def test_threads_share_rows_and_columns_only_where_rows_are_few():
    machine = machine_with("avx512", l2=1 << 20, peak=115e9, l3_bandwidth=60e9)
    shapes = ((197, 192, 576), (196, 512, 512), (784, 96, 384))
    for depth, shape in itertools.product((1, 2), shapes):
        cut = shape_of(machine, depth, *shape, threads=2)
        assert cut.groups == 1 and cut.cuts >= 4 and cut.uneven(2) < 1.05
    for threads in (2, 3, 4, 16, 64):
        cut = shape_of(machine, 1, 784, 384, 1536, threads=threads)
        assert cut.cuts > 1 and cut.groups * cut.cuts >= 2 * threads and cut.uneven(threads) < 1.2
        cut = shape_of(machine, 2, 24, 512, 512, threads=threads)
        assert cut.cuts == 1 and cut.groups > 1


def test_panels_of_rows_share_right_factors_that_come_from_afar():
    """Five short panels of AVX2 would each read 17 MB for little arithmetic."""
    short = machine_with("avx2", l2=1 << 20)
    cut = shape_of(short, 1, 49, 768, 3072)
    assert cut.together == cut.tiling.rows.count > 1
    assert shape_of(short, 1, 784, 64, 64).together == 1  # near enough for all


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_tiles_are_narrow_where_threads_share_them_evenly(target):
    machine = level(target)
    for shape in ((128, 1536, 384), (197, 768, 192), (784, 192, 768)):
        for depth in (1, 2):
            one = shape_of(machine, depth, *shape)
            assert len(one.tiling.columns.widths) <= 2 and one.uneven(1) == 1


def test_threads_take_wide_tiles_where_narrow_ones_leave_one_of_them_waiting():
    machine = level("avx512")
    one, two = (shape_of(machine, 2, 128, 1536, 384, threads=t) for t in (1, 2))
    assert one.uneven(2) > 1.1 and len(one.tiling.columns.widths) == 2
    assert two.uneven(2) == 1 and len(two.tiling.columns.widths) == 3


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
def test_small_columns_keep_their_precision(depth, target):
    """Columns are scaled to one size: the rounding errors of large ones do not reach small ones."""
    x, w = normal(41, 128, seed=1), normal(128, 192, seed=2)
    w *= np.exp2(np.arange(192) % 41 - 20).astype(np.float32)
    w[:, 7] = 0
    bench = prepare(
        one_node("MatMul", [x, w], {}, (1,)), {"x0": x}, "matmul_strassen", target,
        pick=pick((41, 128, 192), target, depth),
    )  # fmt: skip
    bench.run()
    got, want = bench.outputs[0][0].reshape(41, 192), x.astype(np.float64) @ w
    assert np.all(np.abs(got - want) <= 4e-6 * np.abs(want).max(0))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
def test_infinity_times_zero_is_nan(depth, target):
    """Also where the zero is added up again from factors."""
    x, w = np.zeros((24, 64), np.float32), normal(64, 1024, seed=2)
    x[0, 3] = np.inf
    w[3, ::2] = 0
    bench = prepare(
        one_node("MatMul", [x, w], {}, (1,)), {"x0": x}, "matmul_strassen", target,
        pick=pick((24, 64, 1024), target, depth),
    )  # fmt: skip
    bench.run()
    got = bench.outputs[0][0].reshape(24, 1024)
    assert np.all(np.isnan(got[0, ::2]))
    assert np.all(got[1:] == 0)
